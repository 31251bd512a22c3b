"""A fit as a table for people: text, HTML for notebooks, Markdown."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from fits.estimate import ParamEstimate

HEADER = ("parameter", "estimate", "se", "90 % interval", "meaning")


@dataclass(frozen=True)
class Summary:
    """A title, facts as pairs of name and text, a table and notes; all texts already formatted."""

    title: str
    facts: tuple[tuple[str, str], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        wide = max(len(name) for name, _ in self.facts)
        lines = [self.title, *(f"  {name:<{wide}}  {text}" for name, text in self.facts), ""]
        table = [self.header, *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.header))]
        lines += [
            "  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        return "\n".join([*lines, *(["", *(f"  {note}" for note in self.notes)] if self.notes else [])])

    def to_markdown(self) -> str:
        """Return the summary as Markdown with a pipe table."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        facts = [f"- {name}: {text}" for name, text in self.facts]
        table = [line(self.header), line(["---"] * len(self.header)), *map(line, self.rows)]
        return "\n".join([f"**{self.title}**", "", *facts, "", *table, *(f"\n{note}" for note in self.notes)]) + "\n"

    def page(self) -> str:
        """Return the summary as a whole HTML page."""
        style = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:60rem}td,th{padding:.2em .9em .2em 0;"
        style += "text-align:left}thead th{border-block:1px solid #444}dt{color:#555}"
        head = f"<meta charset=utf-8><title>{html.escape(self.title)}</title><style>{style}</style>"
        return f"<!doctype html><html lang=en><head>{head}</head><body>{self._repr_html_()}</body></html>\n"

    def _repr_html_(self) -> str:
        def cells(row: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

        facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in self.facts)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        rows = "".join(cells(row, "td") for row in self.rows)
        return (
            f"<p><b>{html.escape(self.title)}</b></p><dl>{facts}</dl>"
            f"<table><thead>{cells(self.header, 'th')}</thead><tbody>{rows}</tbody></table>{notes}"
        )


def parameter_rows(params: Sequence[ParamEstimate]) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the rows of the parameter table and its header, with one column for each published source."""
    sources = sorted({source for param in params for source in param.published})
    rows = []
    for param in params:
        interval = "" if param.lo is None or param.hi is None else f"{param.lo:.4g} to {param.hi:.4g}"
        published = [f"{param.published[source]:.4g}" if source in param.published else "" for source in sources]
        mark = " (on a bound)" if param.at_bound else ""
        se = "" if param.se is None else f"{param.se:.2g}"
        rows.append((param.name, f"{param.estimate:.5g}{mark}", se, interval, param.meaning, *published))
    return tuple(rows), (*HEADER, *sources)
