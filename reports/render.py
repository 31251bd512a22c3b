"""From a context to bytes: the single-file page and the Markdown, by Jinja2 from the templates beside this file."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from reports.context import ReportContext
from reports.formula import formula_html
from reports.outcome import OPEN
from reports.references import bibliography
from reports.tables import escape_markdown

TEMPLATES = Path(__file__).parent / "templates"
WORDS = {"hit": "Hit", "miss": "Miss", "annulled": "Annulled", "ambiguous": "Ambiguous", OPEN: "Open"}


def render_html(report: ReportContext) -> bytes:
    """Return the report as one HTML file that loads nothing."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    template = _environment(escape=True).get_template("forecast.html.j2")
    page = template.render(report=report, word=WORDS[report.verdict.state], facts=facts(report), style=style)
    return _unbroken(page).encode()


def render_markdown(report: ReportContext) -> bytes:
    """Return the report as GitHub Markdown, figures by relative path."""
    template = _environment(escape=False).get_template("forecast.md.j2")
    text = template.render(report=report, word=WORDS[report.verdict.state], facts=facts(report))
    return (re.sub(r"\n{3,}", "\n\n", text).strip() + "\n").encode()


def render_index(entries: Sequence[object], calibration: object) -> bytes:
    """Return the index of a study's forecasts as one HTML file; see `reports.site` for what it shows."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    template = _environment(escape=True).get_template("site.html.j2")
    return _unbroken(template.render(entries=entries, calibration=calibration, style=style)).encode()


def render_sweep(report: object) -> tuple[bytes, bytes]:
    """Return the page of a sweep as one HTML file and as Markdown; see `reports.sweep_page` for what it shows."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    page = _environment(escape=True).get_template("sweep.html.j2").render(report=report, style=style)
    text = _environment(escape=False).get_template("sweep.md.j2").render(report=report)
    return _unbroken(page).encode(), (re.sub(r"\n{3,}", "\n\n", text).strip() + "\n").encode()


def _unbroken(page: str) -> str:
    """Return a page in which no line ends between a number and its sign."""
    return re.sub(r"(?<=\d) (?=[%×])", "\u00a0", page)


def facts(report: ReportContext) -> list[tuple[str, str, str]]:
    """Return the entries of the verdict box: label, value, remark."""
    verdict, unit = report.verdict, report.subject.unit
    entries = [
        ("Forecast", verdict.median, unit),
        (f"{verdict.level} interval", f"{verdict.low} – {verdict.high}", f"± {verdict.half_width}"),
    ]
    if verdict.observed:
        spread = f"± {verdict.observed_se} (standard error), " if verdict.observed_se else ""
        entries.append(("Observed", verdict.observed, f"{spread}{verdict.runs}"))
    if verdict.error:
        entries.append(("Error", verdict.error, "forecast over observed, minus one"))
    lead = f", {verdict.lead} before the run started" if verdict.lead else ""
    entries += [
        ("Extrapolation", f"{verdict.factor} ×", "compute of the largest fitted run"),
        ("Registered", verdict.registered_date, f"{verdict.registered_clock}{lead}"),
        ("Evidence level", verdict.evidence, verdict.evidence_remark),
    ]
    return entries


def inline_markdown(text: str) -> Markup:
    """Return Markdown as HTML; raw HTML in it is escaped, so the result is safe to insert."""
    return Markup(_markdown().render(text))


@functools.cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False})


def plain_text(text: str) -> str:
    """Return inline Markdown without its marks."""
    tokens = _markdown().parseInline(text)[0].children or []
    return "".join(token.content for token in tokens)


def code_span(text: str) -> str:
    """Return `text` as a Markdown code span."""
    return f"`{text.replace('`', chr(39))}`"


def formula(latex: str) -> Markup:
    """Return a law's formula as HTML."""
    return Markup(formula_html(latex))


def cite(key: str) -> str:
    """Return a reference as it stands in running text, after a comma: ``, Hoffmann et al. 2022``."""
    return f", {bibliography()[key].label}"


@functools.cache
def _environment(*, escape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: escape and bool(name) and str(name).endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        markdown=inline_markdown, plain=plain_text, code=code_span, md=escape_markdown, formula=formula
    )
    environment.globals.update(cite=cite)
    return environment
