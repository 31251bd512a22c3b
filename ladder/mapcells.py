"""Entries of a column map applied to a source table: cells become numbers and text, and bad ones are told apart."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from ladder.errors import InputError
from ladder.runmap import KINDS, SIX_ND_SIZE, UNITS, Constant, Entry, Factor
from ladder.runmap_read import nearest
from ladder.sources import Cell, Source
from ladder.units import parse_quantity

BLANK = {"", "na", "n/a", "null", "none", "-"}  # text that stands for an absent cell
FIELD = re.compile(r"\{([^{}]*)\}")  # of a template
HALF_95 = 1.959963984540054  # standard errors in half a 95 % interval of a normal

type Numbers = Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Column:
    """A column of numbers (absent and bad cells NaN) or of text (absent None), and what was wrong, by row from 0.

    `not_finite` holds rows whose cells read NaN or infinity: a loss that became such, not a mistake in the file.
    `spoilt` holds rows that read a bad cell of another column of the run table, which has said so already.
    """

    values: Numbers | list[str | None]
    wrong: Mapping[int, str] = field(default_factory=dict)
    not_finite: frozenset[int] = frozenset()
    spoilt: frozenset[int] = frozenset()

    @property
    def numbers(self) -> Numbers:
        """The values as numbers."""
        return np.asarray(self.values, dtype=float)


def is_blank(cell: Cell) -> bool:
    """Return whether a cell is absent, or holds text that says so."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in BLANK)


def numbers(cells: Iterable[Cell], read: Callable[[str], float] | None = None) -> Column:
    """Return cells as numbers; `read` is how text is read, Python's own way by default."""
    values, wrong, not_finite = [], {}, set()
    for row, cell in enumerate(cells):
        value = math.nan
        if cell is not None and not (isinstance(cell, str) and cell.strip().lower() in BLANK):
            try:
                if isinstance(cell, str) and "_" in cell:
                    raise ValueError(cell)  # Python reads 1_000 as a number, no table means it
                value = read(cell) if read is not None and isinstance(cell, str) else float(cell)
            except (ValueError, OverflowError, InputError):
                wrong[row] = f"{cell!r} is not a number"
            else:
                if not math.isfinite(value):
                    not_finite.add(row)
                    value = math.nan
        values.append(value)
    return Column(np.array(values, dtype=float), wrong, frozenset(not_finite))


def text(cells: Iterable[Cell]) -> Column:
    """Return cells as text without surrounding blanks; whole numbers without a decimal point."""
    return Column(_texts(cells))


def _texts(cells: Iterable[Cell]) -> list[str | None]:
    whole = (
        int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15 else cell for cell in cells
    )
    stripped = (None if cell is None else str(cell).strip() for cell in whole)
    return [None if cell is None or cell.lower() in BLANK else cell for cell in stripped]


class Maker:
    """Makes run-table columns from one source table by the entries and constants of a map, each once.

    Raises InputError, naming file, column and remedy, when a source column is missing, a value has no counterpart in
    `values`, or columns of the run table are made from each other in a circle.
    """

    def __init__(self, source: Source, entries: Mapping[str, Entry], constants: Mapping[str, Constant]) -> None:
        self.source, self.entries, self.constants = source, entries, constants
        self.rows = len(source.frame)
        self.made: dict[str, Column] = {}
        self.being_made: list[str] = []

    def has(self, entry: Entry) -> bool:
        """Return whether the source has what an optional entry reads."""
        return not (entry.optional and entry.column not in self.source.frame.columns)

    def cells(self, column: str, into: str) -> pd.Series:
        """Return the cells of a source column, which `into` reads."""
        frame = self.source.frame
        if column not in frame.columns:
            raise InputError(
                f"{self.source.name}: column {column!r}, which {into} is made from, is missing; "
                f"{nearest(column, map(str, frame.columns))} Is the map for this file?"
            )
        return frame[column]

    def column(self, name: str) -> Column:
        """Return a column of the run table."""
        if name in self.made:
            return self.made[name]
        if name in self.being_made:
            raise InputError(
                f"{self.source.name}: {' from '.join([*self.being_made, name])}: the map makes these columns from each "
                "other; make one from the source."
            )
        self.being_made.append(name)
        if name in self.constants:
            constant = self.constants[name]
            made = Column([constant] * self.rows if isinstance(constant, str) else np.full(self.rows, float(constant)))
        else:
            made = self._entry(name, self.entries[name])
        self.being_made.pop()
        self.made[name] = made
        return made

    def _entry(self, name: str, entry: Entry) -> Column:
        numeric = KINDS[name].kind != "text"
        if not self.has(entry):
            return numbers([None] * self.rows) if numeric else text([None] * self.rows)
        if entry.template:
            return self._template(name, entry.template)
        if entry.values:
            return self._values(name, entry, numeric)
        if entry.column:
            cells = self.cells(entry.column, name)
            return self._whole(name, entry.column, _scaled(cells, entry)) if numeric else text(cells)
        if entry.interval95:
            minus, over = entry.interval95[:1], (2 * HALF_95,)
            return self._sum(name, Entry(product=(entry.interval95[1],), over=over, minus=(*minus, 1 / over[0])))
        if entry.six_nd:
            return self._sum(name, Entry(product=(6.0, f"runs.{SIX_ND_SIZE[entry.six_nd]}", "runs.tokens")))
        return self._sum(name, entry)

    def _whole(self, name: str, source: str, made: Column) -> Column:
        """Refuse a column none of whose cells is a number: the map is for another file."""
        if made.wrong and not np.isfinite(made.numbers).any() and not made.not_finite:
            row, problem = min(made.wrong.items())
            raise InputError(
                f"{self.source.name}: row {row + 1}, column {source} (for {name}): {problem}, nor is any other cell of "
                "the column; is the map for this file, and has the column a unit?"
            )
        return made

    def _template(self, name: str, template: str) -> Column:
        parts: dict[str, list[str | None]] = {"row": [str(row + 1) for row in range(self.rows)]}
        for column in FIELD.findall(template):
            if column not in parts:
                parts[column] = _texts(self.cells(column, name))
        pieces = FIELD.split(template)  # literal, field, literal, ...
        columns = [parts[piece] if index % 2 else [piece] * self.rows for index, piece in enumerate(pieces)]
        rows = zip(*columns, strict=True)
        written = [None if None in cells else "".join(map(str, cells)) for cells in rows]
        return Column(written)

    def _values(self, name: str, entry: Entry, numeric: bool) -> Column:
        cells = _texts(self.cells(entry.column, name))
        found: list[Constant | None] = []
        for row, cell in enumerate(cells):
            if cell is not None and cell not in entry.values:
                raise InputError(
                    f"{self.source.name}: row {row + 1}, column {entry.column}: {cell!r} has no counterpart in the map's "
                    f"columns.{name}.values ({', '.join(entry.values)}); add it there."
                )
            found.append(None if cell is None else entry.values[str(cell)])
        return numbers(found) if numeric else text(found)

    def _sum(self, name: str, entry: Entry) -> Column:
        """Return the product over the divisors, plus and minus a product."""
        wrong: dict[int, str] = {}
        spoilt: set[int] = set()

        def multiplied(factors: tuple[Factor, ...]) -> Numbers:
            parts = [self._factor(name, factor) for factor in factors]
            for factor, part in zip(factors, parts, strict=True):
                unread = {**dict.fromkeys(part.not_finite, "is not finite"), **part.wrong}
                if str(factor).startswith("runs."):
                    spoilt.update(unread, part.spoilt)
                else:
                    wrong.update({row: f"{factor}: {problem}" for row, problem in unread.items()})
            return np.prod([part.numbers for part in parts], axis=0) if parts else np.ones(self.rows)

        with np.errstate(all="ignore"):
            values = multiplied(entry.product) / multiplied(entry.over)
            values = values + (multiplied(entry.plus) if entry.plus else 0.0)
            values = values - (multiplied(entry.minus) if entry.minus else 0.0)
        return Column(np.where(np.isinf(values), np.nan, values), wrong, spoilt=frozenset(spoilt))

    def _factor(self, name: str, factor: Factor) -> Column:
        if not isinstance(factor, str):
            return Column(np.full(self.rows, factor))
        if factor.startswith("runs."):
            return self.column(factor.removeprefix("runs."))
        return self._whole(name, factor, numbers(self.cells(factor, name)))


def _scaled(cells: pd.Series, entry: Entry) -> Column:
    unit = UNITS.get(entry.unit, 1.0)
    made = numbers(cells, _quantity if unit == "quantity" else None)
    values = made.numbers
    with np.errstate(all="ignore"):
        match unit:
            case "log10":
                values = 10.0**values
            case "ln":
                values = np.exp(values)
            case "perplexity":
                values = np.log(values)
            case float():
                values = values * unit
        values = values * entry.scale
    lost = {int(row): "is beyond all numbers" for row in np.flatnonzero(np.isinf(values))}
    wrong = {**made.wrong, **{row: f"{cells.iloc[row]!r} in {entry.unit or 'this scale'} {lost[row]}" for row in lost}}
    return Column(np.where(np.isinf(values), np.nan, values), wrong, made.not_finite)


def _quantity(text: str) -> float:
    """Read 2.8B, and 125m as well: in tables of models m is a million."""
    return float(parse_quantity(text[:-1] + text[-1:].upper()))
