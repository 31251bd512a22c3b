"""The run table's schema in pandera, made from `COLUMNS`: every cell that cannot stand, with its row, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from ladder.errors import InputError
from ladder.runs import COLUMNS, KEY, SAME_COLUMNS, Column, with_extras

REMEDIES: Mapping[str, str] = {
    "finite": "leave the cell empty, and say in excluded_reason why the row enters no fit",
    "positive": "leave the cell empty, or mend it",
    "choices": "use one of these",
    "missing": "fill it in, or say in excluded_reason why the row enters no fit",
    "number": "write a plain number",
    "unique": "keep one of them, or mark the others duplicate in excluded_reason",
}
MIXTURE_REMEDIES: Mapping[str, str] = {
    "recipe": "import with --recipe NAME, or exclude all but one",
    "flop_convention": "convert the rows to one (ladder.convert), or exclude all but one",
}


@dataclass(frozen=True)
class Complaint:
    """One cell that cannot stand.

    Attributes:
        where: file.
        row: counted from 1, header excluded.
        column: of the run table.
        kind: key of `REMEDIES`.
        problem: what is wrong, with the value.
    """

    where: str
    row: int
    column: str
    kind: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: row {self.row}, column {self.column}: {self.problem}; {REMEDIES[self.kind]}."


@cache
def runs_schema() -> Any:
    """Return the pandera schema of a run table whose columns have their types (float64 and string)."""
    import pandera.pandas as pa  # a second to import, for commands that need it only

    def checks(column: Column) -> list[Any]:
        found = []
        if column.kind != "text":
            found.append(pa.Check(lambda values: np.isfinite(values), error="finite"))
        if column.positive or column.name == "loss":
            found.append(pa.Check(lambda values: values > 0, error="positive"))
        if column.choices:
            found.append(pa.Check(lambda values, known=column.choices: values.isin(known), error="choices"))
        return found

    def present(name: str) -> Any:
        return pa.Check(lambda frame: frame[name].notna() | frame["excluded_reason"].notna(), error=f"missing {name}")

    def unique(frame: pd.DataFrame) -> Any:
        return ~(frame.duplicated(KEY) & frame["excluded_reason"].isna())

    return pa.DataFrameSchema(
        {
            column.name: pa.Column(
                "string" if column.kind == "text" else "float64",
                checks=checks(column),
                nullable=not column.required,
                required=True,
            )
            for column in COLUMNS
        },
        checks=[
            *(present(column.name) for column in COLUMNS if column.needed or column.name == "loss"),
            pa.Check(unique, error="unique run_id"),
        ],
    )


def complaints(frame: pd.DataFrame, where: str) -> list[Complaint]:
    """Return all complaints about a table in the types of the schema, by row and column; `where` names the file."""
    import pandera.errors

    try:
        runs_schema().validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as errors:
        cases = errors.failure_cases
    else:
        return []
    meanings = {column.name: column for column in COLUMNS}
    found: dict[tuple[int, str, str], Complaint] = {}
    for check, column, value, index in zip(
        cases["check"], cases["column"], cases["failure_case"], cases["index"], strict=True
    ):
        kind = "missing" if check == "not_nullable" else str(check).partition(" ")[0]
        name = str(check).partition(" ")[2] or str(column)
        if kind not in REMEDIES or pd.isna(index):
            raise TypeError(f"the frame has not the types of the run table: {column}, {check}.")
        if kind != "missing" and kind != "unique" and pd.isna(value):
            continue
        row = int(index) + 1
        match kind:
            case "finite":
                problem = f"{value} is not finite"
            case "positive":
                problem = f"{value:g} must be positive"
            case "choices":
                problem = f"{value!r} is none of {', '.join(meanings[name].choices)}"
            case "unique":
                problem = f"{frame[name].iloc[int(index)]!r} stands twice for one metric and step"
            case _:
                problem = f"no value ({meanings[name].meaning})"
        found.setdefault((row, name, kind), Complaint(where, row, name, kind, problem))
    infinite = {(row, name) for row, name, kind in found if kind == "finite"}
    kept = [c for (row, name, kind), c in found.items() if kind == "finite" or (row, name) not in infinite]
    return sorted(kept, key=lambda complaint: (complaint.row, complaint.column))


def all_complaints(frame: pd.DataFrame, where: str) -> list[Complaint]:
    """Return all complaints about a table as it was read, `complaints` about cells that are no numbers among them.

    Raises InputError when a column that every row needs is missing.
    """
    frame = with_extras(frame)
    found: list[Complaint] = []
    typed: dict[str, pd.Series[Any]] = {}
    for column in COLUMNS:
        raw = frame[column.name] if column.name in frame.columns else pd.Series([None] * len(frame), dtype=object)
        if column.required and column.name not in frame.columns:
            raise InputError(f"{where}: column {column.name} ({column.meaning}) is missing; add it or map it.")
        as_text = raw.astype("string")
        blank = as_text.isna() | (as_text.str.strip() == "")
        if column.kind == "text":
            typed[column.name] = as_text.mask(blank)
            continue
        values = pd.to_numeric(raw, errors="coerce").astype("float64")
        for row in np.flatnonzero((values.isna() & ~blank).to_numpy()):
            problem = f"{raw.iloc[row]!r} is not a number"
            found.append(Complaint(where, int(row) + 1, column.name, "number", problem))
        typed[column.name] = values
    said = {(complaint.row, complaint.column) for complaint in found}
    more = [c for c in complaints(pd.DataFrame(typed), where) if (c.row, c.column) not in said]
    return sorted([*found, *more], key=lambda complaint: (complaint.row, complaint.column))


def mixtures(frame: pd.DataFrame) -> list[str]:
    """Return what a fit of one metric would refuse: rows that may enter it and differ in what makes losses comparable."""
    found = []
    usable = frame[frame["excluded_reason"].isna() & frame["role"].ne("held_out").fillna(True)]
    for metric, rows in usable.groupby("metric"):
        for column in SAME_COLUMNS:
            counts = rows[column].fillna("(empty)").value_counts()
            if len(counts) > 1:
                shown = ", ".join(f"{value} ({count} rows)" for value, count in list(counts.items())[:4])
                more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
                remedy = MIXTURE_REMEDIES.get(column, "exclude all but one")
                found.append(f"{metric} mixes {column}: {shown}{more}. A fit refuses that; {remedy}.")
    return found
