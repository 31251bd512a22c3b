"""A built report: complete, self-contained, true to the record, the same on every build."""

import dataclasses
import html.parser
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from forecasts.check import check
from forecasts.record import Outcome
from forecasts.registry import registry
from ladder.errors import InputError, VerificationError
from ladder.provenance import utc_now
from ladder.records import sha256_file
from ladder.runs import RunTable
from ladder.study import Study
from ladder.units import format_loss, format_percent
from reports import ReportContext, build_context, build_report
from reports.build import replace_folder, report_files
from reports.render import render_html, render_markdown
from tests.reports_study import checked_study, open_study, plan, resolve, write_held_out_runs

FIGURES = {"card", "loss_vs_compute", "isoflop", "residuals", "training_curves", "router_health"}
SECTIONS = (
    "What would have counted as a miss",
    "Data and exclusions",
    "Law, parameters and diagnostics",
    "Comparators",
    "Deviations since registration",
    "Limits",
    "Reproduce",
    "References",
)


class Page(html.parser.HTMLParser):
    """What a page loads, names and shows; CSS and text apart."""

    def __init__(self, text: str) -> None:
        html.parser.HTMLParser.__init__(self)
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.svgs: list[dict[str, str | None]] = []
        self.headings: list[str] = []
        self.css = self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "srcset", "data", "poster", "background", "action", "formaction"):
                self.loads.append(value or "")
            if name in ("href", "xlink:href"):
                (self.links if tag == "a" else self.loads).append(value or "")
            if name == "style":
                self.css += value or ""
        if tag == "svg":
            self.svgs.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.css += data
            return
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if "defs" not in self.open:
            self.text += data.replace("\u00a0", " ")


@pytest.fixture(scope="module")
def hit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, str]:
    """Return a study whose forecast held, its report built, and the forecast's id."""
    study, forecast_id = checked_study(tmp_path_factory.mktemp("hit") / "study")
    build_report(study, forecast_id)
    return study, forecast_id


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, str]:
    """Return a study whose forecast is open, and the forecast's id."""
    return open_study(tmp_path_factory.mktemp("open") / "study")


@pytest.fixture(scope="module")
def opened_context(opened: tuple[Study, str]) -> ReportContext:
    """Return the context of the open forecast's report."""
    return build_context(*opened)


def page_of(study: Study, forecast_id: str) -> Page:
    return Page((study.report(forecast_id) / "index.html").read_text())


def test_report_has_every_file_and_a_manifest_of_their_digests(hit: tuple[Study, str]) -> None:
    study, forecast_id = hit
    folder = study.report(forecast_id)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"index.html", "report.md", "manifest.json"} | {
        f"figures/{key}.{kind}" for key in FIGURES for kind in ("svg", "csv")
    }
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["schema"] == "report/1"
    outputs = {entry["name"]: entry["sha256"] for entry in manifest["outputs"]}
    assert outputs == {name: sha256_file(folder / name) for name in found - {"manifest.json"}}
    inputs = {entry["name"]: entry["sha256"] for entry in manifest["inputs"]}
    assert {"ladder.json", "runs.parquet", "forecasts/log.jsonl"} < set(inputs)
    assert f"forecasts/registered/{forecast_id}.json" in inputs
    assert inputs == {name: sha256_file(study.root / name) for name in inputs}


def test_page_loads_nothing(hit: tuple[Study, str]) -> None:
    page = page_of(*hit)
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in page.loads)
    assert not re.search(r"@import|url\((?!#)", page.css)
    assert not {"script", "link", "iframe", "object", "embed", "base", "img", "form"} & set(page.tags)
    assert all(link.startswith("https://arxiv.org/") for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert {target[1:] for target in page.loads if target.startswith("#")} <= set(page.ids)


def test_page_has_the_sections_in_order_and_the_verdict_first(hit: tuple[Study, str]) -> None:
    page = page_of(*hit)
    assert tuple(page.headings[1:]) == SECTIONS
    assert page.text.index("Hit") < page.text.index(SECTIONS[0])


def test_every_figure_has_a_text_alternative(hit: tuple[Study, str]) -> None:
    study, forecast_id = hit
    page = page_of(study, forecast_id)
    assert len(page.svgs) == len(FIGURES)
    for svg in page.svgs:
        assert svg["role"] == "img"
        assert svg["aria-labelledby"] in page.ids
    images = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (study.report(forecast_id) / "report.md").read_text())
    assert {target for _, target in images} == {f"figures/{key}.svg" for key in FIGURES}
    assert all(len(alt) > 30 for alt, _ in images)


@pytest.mark.parametrize("name", ["index.html", "report.md"])
def test_numbers_shown_are_those_of_the_record(hit: tuple[Study, str], name: str) -> None:
    study, forecast_id = hit
    text = (study.report(forecast_id) / name).read_text()
    shown = Page(text).text if name.endswith("html") else text
    (entry,) = registry(study)
    check, main = entry.check, entry.forecast.main
    assert check is not None
    assert check.main is not None
    rows = pd.read_parquet(study.runs)
    target = rows[(rows["rung_id"] == entry.forecast.target.rung_id) & (rows["metric"] == "test/loss")]
    assert check.observed == pytest.approx(target["loss"].mean(), rel=1e-12)
    low, high = main.predictive.interval(0.9)
    for value in (main.median, low, high, target["loss"].mean(), check.observed_se):
        assert format_loss(value) in shown
    assert format_percent(check.main.relative_error) in shown
    assert format_percent(abs(main.median / target["loss"].mean() - 1), signed=False) in shown
    assert entry.line.time[:10] in shown
    assert entry.forecast.sha256 in shown
    assert check.outcome is Outcome.HIT
    for score in check.comparators:
        assert format_percent(score.relative_error) in shown.replace("\\", "")
        assert f"{check.skill[score.name]:+.2f}" in shown
    for row in rows[(rows["metric"] == "test/loss") & rows["excluded_reason"].notna()].to_dict("records"):
        assert row["run_id"] in shown


def test_csv_beside_each_figure_holds_what_is_drawn(hit: tuple[Study, str]) -> None:
    study, forecast_id = hit
    (entry,) = registry(study)
    folder = study.report(forecast_id) / "figures"
    card = pd.read_csv(folder / "card.csv")
    assert card["q0.5"].tolist() == [model.median for model in entry.forecast.models]
    loss = pd.read_csv(folder / "loss_vs_compute.csv")
    star = loss[loss["kind"] == "held_out"]
    assert star["loss"].tolist() == [entry.check.observed if entry.check else None]
    last = loss[loss["kind"] == "curve"].iloc[-1]
    assert last["loss"] == pytest.approx(entry.forecast.main.median, rel=1e-9)
    curves = pd.read_csv(folder / "training_curves.csv")
    assert curves["run_id"].nunique() == sum(len(rung.seeds) for rung in plan().rungs)
    assert np.isfinite(curves["loss"]).all()


def test_markdown_parses_with_every_table_and_figure_in_place(hit: tuple[Study, str]) -> None:
    study, forecast_id = hit
    text = (study.report(forecast_id) / "report.md").read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert tuple(headings[2:]) == SECTIONS
    assert sum(token.type == "table_open" for token in tokens) == 9
    paragraphs = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "paragraph_open"]
    images = [token for token in paragraphs if token.children and token.children[0].type == "image"]
    assert len(images) == len(FIGURES)
    assert all(len(token.children or []) == 1 for token in images)
    assert "\n\n\n" not in text


def test_rebuild_gives_the_same_bytes(hit: tuple[Study, str]) -> None:
    study, forecast_id = hit
    folder = study.report(forecast_id)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert build_report(study, forecast_id[:24]) == folder / "index.html"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == [forecast_id]


def test_open_forecast_has_a_report_without_outcome(opened_context: ReportContext) -> None:
    context = opened_context
    page = Page(report_files(context)["index.html"].decode())
    assert context.verdict.state == "open"
    assert context.verdict.observed == context.verdict.error == ""
    assert "The outcome is not known yet." in page.text
    assert tuple(page.headings[1:]) == SECTIONS
    assert "CRPS" not in page.text
    assert {reference.key for reference in context.references} == {"hoffmann2022"}


def test_miss_is_told_with_the_same_sections(opened: tuple[Study, str], tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    shutil.copytree(opened[0].root, study.root)
    resolve(study, plan(), shift=0.2)
    context = build_context(study, opened[1])
    page = Page(report_files(context)["index.html"].decode())
    assert context.verdict.state == "miss"
    assert context.verdict.direction == "low"
    assert context.verdict.claim == "failed"
    assert "Miss" in page.text
    assert "outside the 90 % interval" in page.text
    assert tuple(page.headings[1:]) == SECTIONS
    assert len(page.svgs) == len(FIGURES)


def test_ambiguous_outcome_is_shown_as_provisional(opened: tuple[Study, str], tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    shutil.copytree(opened[0].root, study.root)
    table = write_held_out_runs(study, plan(), utc_now(), utc_now())
    RunTable(table.frame[(table.frame["role"] == "fit") | (table.frame["seed"] == 0)]).save(study.runs)
    check(study, opened[1])
    context = build_context(study, opened[1])
    assert context.verdict.state == "ambiguous"
    assert context.verdict.claim == ""
    text = Page(report_files(context)["index.html"].decode()).text
    assert "Ambiguous" in text
    assert "provisional" in text
    assert context.verdict.observed in text
    assert "no run of seed 1 has ended" in text


def test_annulled_forecast_is_not_scored(opened: tuple[Study, str], tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    shutil.copytree(opened[0].root, study.root)
    frame = write_held_out_runs(study, plan(), utc_now(), utc_now()).frame.copy()
    frame.loc[(frame["role"] == "held_out") & (frame["seed"] == 1), ["status", "excluded_reason"]] = "diverged"
    frame.loc[frame["status"] == "diverged", "loss"] = np.nan
    RunTable.of(frame).save(study.runs)
    check(study, opened[1])
    context = build_context(study, opened[1])
    assert context.verdict.state == "annulled"
    assert context.verdict.error == ""
    text = Page(report_files(context)["index.html"].decode()).text
    assert "It is annulled" in text
    assert "ended as diverged" in text
    assert "CRPS" not in text


def test_context_holds_text_only_and_is_frozen(opened_context: ReportContext) -> None:
    context = opened_context
    for part in (context, context.verdict, context.rule, context.subject, context.data, context.reproduction):
        kinds = {name: type(value) for name, value in vars(part).items()}
        assert not [name for name, kind in kinds.items() if kind in (int, float)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.title = "x"  # type: ignore[misc]


def test_markup_in_a_record_is_shown_as_text(opened_context: ReportContext) -> None:
    nasty = dataclasses.replace(opened_context, title="<img src=x> *a* | b", authors="<b>")
    page = render_html(nasty).decode()
    assert "<img" not in page
    assert "&lt;img src=x&gt; *a* | b" in page
    assert "\\<img src=x\\> \\*a\\* \\| b" in render_markdown(nasty).decode()


def test_unknown_forecast_is_refused_with_the_known_ones(hit: tuple[Study, str]) -> None:
    with pytest.raises(InputError, match=hit[1]):
        build_report(hit[0], "2020-01-01--nothing")


def test_edited_forecast_is_refused_and_the_old_report_stays(opened: tuple[Study, str], tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    shutil.copytree(opened[0].root, study.root)
    page = study.report(opened[1]) / "index.html"
    page.parent.mkdir(parents=True)
    page.write_bytes(before := b"an older report")
    path = study.registered / f"{opened[1]}.json"
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data.replace(b"A. Author", b"C. Author"))
    with pytest.raises(VerificationError, match=opened[1]):
        build_report(study, opened[1])
    assert page.read_bytes() == before


def test_changed_fit_is_refused(opened: tuple[Study, str], tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    shutil.copytree(opened[0].root, study.root)
    path = study.fit("floor-integrated")
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(InputError, match="floor-integrated"):
        build_report(study, opened[1])
    assert not (study.root / "reports").exists()


def test_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(InputError, match="thesis"):
        replace_folder(tmp_path / "thesis", {"index.html": b"x"})
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_runs_without_metrics_leave_their_figures_out(opened: tuple[Study, str], tmp_path: Path) -> None:
    study = Study(tmp_path / "study")
    shutil.copytree(opened[0].root, study.root)
    shutil.rmtree(study.root / "runs")
    assert set(build_context(study, opened[1]).figures) == FIGURES - {"training_curves", "router_health"}
