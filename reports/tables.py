"""Tables as frozen text, and the two ways to show them: HTML and GitHub Markdown.

A table is made from a frame with one `Field` a column; the formatter turns every value into text once, so that the
HTML page, the Markdown and the tests show the same characters.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

ABSENT = "–"
MANY = 7  # columns from which a table may be wider than the text


@dataclass(frozen=True)
class Field:
    """One column to be shown.

    Attributes:
        column: name in the frame.
        header: what stands above it, a noun.
        show: formatter of one value, such as `ladder.units.format_loss`.
        unit: unit of the values, shown below the header; empty for pure numbers and text.
        number: right-aligned with figures of equal width; text is left-aligned.
    """

    column: str
    header: str
    show: Callable[[Any], str] = str
    unit: str = ""
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table whose every cell is text.

    Attributes:
        headers, units, numeric: one entry a column; the head is left out where all headers are empty.
        rows: cells.
        marks: one CSS class a row (``"held-out"``, ``"group"``, ``"main"``) or an empty string.
        caption: what the table shows, one sentence.
        notes: remarks below it.
        wrap: whether long text in cells is broken into lines.
    """

    headers: tuple[str, ...]
    units: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...]
    caption: str
    notes: tuple[str, ...] = ()
    wrap: bool = False

    def to_html(self) -> str:
        """Return the table as an HTML figure that scrolls sideways within itself on a narrow screen."""
        head = "".join(
            f'<th scope="col"{_aligned(number)}>{html.escape(header)}'
            + (f'<span class="unit">{html.escape(unit)}</span>' if unit else "")
            + "</th>"
            for header, unit, number in zip(self.headers, self.units, self.numeric, strict=True)
        )
        body = "\n".join(
            f"<tr{f' class="{mark}"' if mark else ''}>"
            + "".join(
                f"<td{_aligned(number)}>{html.escape(cell)}</td>"
                for cell, number in zip(row, self.numeric, strict=True)
            )
            + "</tr>"
            for row, mark in zip(self.rows, self.marks, strict=True)
        )
        thead = f"<thead><tr>{head}</tr></thead>\n" if any(self.headers) else ""
        label = html.escape(self.caption, quote=True)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        kinds = " wide" if len(self.headers) > MANY else " wrap" if self.wrap else ""
        return (
            f'<figure class="table{kinds}"><div class="scroll" tabindex="0" role="region" aria-label="{label}">\n'
            f"<table>\n{thead}<tbody>\n{body}\n</tbody>\n</table></div>\n"
            f"<figcaption><p>{html.escape(self.caption)}</p>{notes}</figcaption></figure>"
        )

    def to_markdown(self) -> str:
        """Return the table as GitHub Markdown, caption and notes below it."""
        head = [f"{header} ({unit})" if unit else header for header, unit in zip(self.headers, self.units, strict=True)]
        rules = ["---:" if number else "---" for number in self.numeric]
        lines = [_line(head), "| " + " | ".join(rules) + " |", *(_line(row) for row in self.rows)]
        remarks = "".join(f"\n\n{escape_markdown(note)}" for note in (self.caption, *self.notes))
        return "\n".join(lines) + remarks


def table_of(
    frame: pd.DataFrame,
    fields: Sequence[Field],
    *,
    caption: str,
    notes: tuple[str, ...] = (),
    group: str = "",
    marks: Sequence[str] = (),
    wrap: bool = False,
) -> Table:
    """Return the table that shows `fields` of `frame`, one row each; missing values become a dash.

    `group` names a column at whose changes a new group of rows begins (a hairline in HTML); `marks` are further CSS
    classes, one a row.
    """
    given = list(marks) or [""] * len(frame)
    if group:
        starts = frame[group].ne(frame[group].shift()).to_numpy()
        given = [
            f"group {mark}".strip() if start and index else mark
            for index, (start, mark) in enumerate(zip(starts, given, strict=True))
        ]
    rows = tuple(
        tuple(ABSENT if _missing(record[field.column]) else field.show(record[field.column]) for field in fields)
        for record in frame.to_dict("records")
    )
    return Table(
        headers=tuple(field.header for field in fields),
        units=tuple(field.unit for field in fields),
        numeric=tuple(field.number for field in fields),
        rows=rows,
        marks=tuple(given),
        caption=caption,
        notes=notes,
        wrap=wrap,
    )


def escape_markdown(text: str) -> str:
    """Return `text` with the characters that Markdown would read as markup escaped."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


def _aligned(number: bool) -> str:
    return ' class="number"' if number else ""


def _missing(value: Any) -> bool:
    return value is None or bool(pd.isna(value))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |"
