"""Templates: no number is typed by hand, and what a record says is shown as text, never as markup."""

import re
from pathlib import Path

import pytest

from reports.render import TEMPLATES, inline_markdown, plain_text

ALLOWED = (r"</?h[1-6]\b", r"utf-8", r"initial-scale=1", r'tabindex="0"')
ALLOWED_NAMES = r'"(?:[a-z]+\d{4}|[a-z.]+\.j2)"'  # keys of references, files


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.j2")), ids=lambda path: path.name)
def test_templates_hold_no_bare_digits(path: Path) -> None:
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", "", path.read_text(), flags=re.DOTALL)
    for pattern in ALLOWED:
        text = re.sub(pattern, "", text)
    assert re.findall(r".{0,30}\d.{0,30}", text) == []


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.j2")), ids=lambda path: path.name)
def test_expressions_compute_nothing_from_typed_numbers(path: Path) -> None:
    expressions = re.findall(r"\{\{(.*?)\}\}|\{%(.*?)%\}", path.read_text(), flags=re.DOTALL)
    for expression in map("".join, expressions):
        assert not re.search(r"\b\d", re.sub(ALLOWED_NAMES, "", expression)), expression


def test_raw_html_in_a_record_is_escaped() -> None:
    assert "<script>" not in inline_markdown("a <script>alert()</script> b")
    assert plain_text("**a** `b` c") == "a b c"
