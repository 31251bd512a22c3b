"""Tables, formulas, references and SVGs by themselves."""

import math
import xml.etree.ElementTree as ET

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fits.laws import LAWS
from ladder.errors import InputError
from ladder.units import format_loss
from reports.formula import formula_html, formula_text
from reports.lawpage import POLICY_FORMULA
from reports.references import bibliography, cited
from reports.svg import canvas, to_svg
from reports.tables import ABSENT, Field, escape_markdown, table_of

FIELDS = [Field("name", "name", number=False), Field("loss", "loss", format_loss, "nats")]


def markdown_cells(text: str) -> list[list[str]]:
    """Return the cells of the first table in Markdown, parsed by an independent parser."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level == 4 and rows:
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def test_table_shows_the_same_cells_in_html_and_markdown() -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "loss": [1.23456, math.nan]})
    table = table_of(frame, FIELDS, caption="Losses.")
    root = ET.fromstring(table.to_html())
    html_rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert html_rows == [["name", "lossnats"], ["a", "1.2346"], ["b", ABSENT]]
    assert markdown_cells(table.to_markdown()) == [["name", "loss (nats)"], ["a", "1.2346"], ["b", ABSENT]]
    assert [cell.get("class") for cell in list(root.iter("tr"))[1]] == [None, "number"]


def test_table_groups_begin_where_the_column_changes() -> None:
    frame = pd.DataFrame({"name": ["a", "b", "c"], "loss": [1.0, 2.0, 3.0], "budget": [1, 1, 2]})
    table = table_of(frame, FIELDS, caption="x", group="budget", marks=["", "main", "held-out"])
    assert table.marks == ("", "main", "group held-out")


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20))
def test_any_text_survives_markdown_and_html(text: str) -> None:
    table = table_of(pd.DataFrame({"name": [text], "loss": [1.0]}), FIELDS, caption="x")
    if "&" not in text:  # entities are Markdown's, and no formatter of ours writes one
        assert markdown_cells(table.to_markdown())[1][0] == text
    cell = next(ET.fromstring(table.to_html()).iter("td"))
    assert cell.text == text


def test_escaped_text_holds_no_markup() -> None:
    rendered = MarkdownIt("commonmark").render(escape_markdown("*a* _b_ `c` [d](e) <f> | g"))
    assert rendered == "<p>*a* _b_ `c` [d](e) &lt;f&gt; | g</p>\n"


@pytest.mark.parametrize("latex", [*(law.formula for law in LAWS.values()), POLICY_FORMULA])
def test_every_formula_and_symbol_can_be_set(latex: str) -> None:
    ET.fromstring(f"<p>{formula_html(latex)}</p>")
    assert "\\" not in formula_text(latex)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_every_law_cites_known_references_and_settable_symbols(law: object) -> None:
    assert law.reference in bibliography()  # type: ignore[attr-defined]
    assert set(law.published) <= set(bibliography())  # type: ignore[attr-defined]
    for param in law.params:  # type: ignore[attr-defined]
        assert formula_text(param.symbol)


@pytest.mark.parametrize("latex", [r"\frac{a}{b}", "a & b"])
def test_a_formula_beyond_the_part_is_refused_by_name(latex: str) -> None:
    with pytest.raises(InputError, match=r"reports/formula\.py"):
        formula_html(latex)


def test_references_are_complete_and_only_the_cited_are_printed() -> None:
    known = bibliography()
    assert len(known) >= 10
    for reference in known.values():
        assert "{" not in reference.text
        assert "\\" not in reference.text
        assert reference.link == "" or reference.link.startswith("https://arxiv.org/abs/")
    assert [reference.key for reference in cited(["hoffmann2022", "besiroglu2024", "hoffmann2022"])] == [
        "besiroglu2024",
        "hoffmann2022",
    ]
    assert known["hoffmann2022"].label == "Hoffmann et al. 2022"
    with pytest.raises(InputError, match="nobody1900"):
        cited(["nobody1900"])


def draw(key: str) -> str:
    with canvas(3, 2) as figure:
        ax = figure.add_subplot()
        ax.plot([1, 2], [3, 4], "o-")
        ax.set_xlabel("x")
        return to_svg(figure, key, "A line & <two> points.")


def test_svg_is_deterministic_has_a_text_alternative_and_shares_no_id() -> None:
    first, again, other = draw("one"), draw("one"), draw("two")
    assert first == again
    root = ET.fromstring(first)
    assert root.get("role") == "img"
    title = next(element for element in root if element.tag.endswith("title"))
    assert title.text == "A line & <two> points."
    assert root.get("aria-labelledby") == title.get("id")
    ids = [{e.get("id") for e in ET.fromstring(svg).iter() if e.get("id")} for svg in (first, other)]
    assert not ids[0] & ids[1]
    used = {value[1:] for e in root.iter() for name, value in e.attrib.items() if name.endswith("href")}
    assert used <= ids[0]
    assert "viewBox" in root.attrib
    assert "width" not in root.attrib
