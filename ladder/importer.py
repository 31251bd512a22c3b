"""Foreign tables into run tables by a column map: every row arrives, and a row that cannot be used says why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ladder.errors import InputError
from ladder.mapcells import Maker, is_blank, numbers
from ladder.runmap import KINDS, Metric, Rule, RunMap, TableMap
from ladder.runs import COLUMN_NAMES, COLUMNS, KEY, REPEAT_COLUMNS, ExcludedReason, RunStatus, RunTable
from ladder.runs_check import complaints, mixtures
from ladder.source_levanter import read_levanter
from ladder.source_wandb import PREFIX, read_wandb
from ladder.sources import Source, read_source

# A bad cell in one of these keeps its row out of fits; in any other column the cell alone is left empty.
DECIDING = (
    *("run_id", "status", "metric", "loss_unit", "recipe", "loss", "compute", "flop_convention", "budget", "eval_step"),
    *("active_params", "total_params", "nonembedding_active_params", "tokens", "unique_tokens"),
    *("experts", "top_k", "granularity"),
)
UNSTATED = "unstated"  # for text that every row has and a source row lacks
NOTE, WHY, FILE, ROW = "extra_import_note", "extra_excluded_why", "extra_source_file", "extra_source_row"


@dataclass(frozen=True)
class Imported:
    """What came of an import.

    Attributes:
        table: the run table; beside its columns: where a row stands in its source (`FILE`, `ROW`), what was wrong with
            its cells (`NOTE`), why a rule excluded it (`WHY`), and all other columns of the source.
        notes: everything wrong with cells, one line each, naming file, row, column and what was done.
        remarks: what a fit of this table would refuse.
        source_rows: rows read, by file.
    """

    table: RunTable
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    source_rows: dict[str, int]


def import_runs(source: str, by: RunMap, recipe: str | None = None) -> Imported:
    """Return the run table of `source` under a map.

    `source` is a file, a folder with the map's files, or ``wandb:entity/project``. With `recipe`, rows of all other
    recipes are marked other_recipe. No row is dropped: one whose cells cannot be used has an `excluded_reason`.

    Raises InputError when a source is missing or damaged, when it is not what the map describes, or when no row has
    anything usable.
    """
    frames, notes, read = [], [], {}
    for table in _tables(source, by):
        found = _read(source, table)
        read[found.name] = len(found.frame)
        joined = _joined(found, table, Path(source))
        metrics = [metric for metric in table.metrics if _has_loss(joined, table, metric)]
        if not metrics:
            raise InputError(f"{found.name} has none of the losses of the map {by.name}; is the map for this file?")
        for metric in metrics:
            frame, bad = _rows(joined, table, metric, by)
            frames.append(frame)
            notes += bad
    frame = pd.concat(frames, ignore_index=True)
    if recipe is not None:
        known = sorted(frame["recipe"].dropna().unique())
        if recipe not in known:
            raise InputError(f"--recipe {recipe!r} is in no row; the recipes are {', '.join(known) or 'none'}.")
        _exclude(frame, frame["recipe"].ne(recipe).fillna(True), ExcludedReason.OTHER_RECIPE, f"not {recipe}")
    _mark_duplicates(frame)
    made = RunTable.of(_typed(frame), source)
    return Imported(made, tuple(dict.fromkeys(notes)), tuple(mixtures(made.frame)), read)


def _tables(source: str, by: RunMap) -> tuple[TableMap, ...]:
    """Return the tables of the map that `source` is for."""
    api = source.startswith(PREFIX)
    if not api and not Path(source).exists():
        raise InputError(f"{source} does not exist; check the path.")
    if api or not Path(source).is_dir():
        wanted = [t for t in by.tables if (t.format == "wandb") == api]
        named = [t for t in wanted if Path(source).match(t.file)]
        chosen = named or (wanted if len(wanted) == 1 else [])
        if not chosen:
            files = ", ".join(t.file for t in by.tables)
            raise InputError(f"{source}: the map {by.name} has no table for it; its tables are {files}.")
        return tuple(chosen[:1])
    tables = tuple(t for t in by.tables if t.format != "wandb")
    if not tables:
        raise InputError(f"{source} is a folder, but the map {by.name} reads wandb:entity/project.")
    return tables


def _read(source: str, table: TableMap) -> Source:
    if table.format == "wandb":
        return read_wandb(source)
    path = Path(source)
    if table.format == "levanter":
        return read_levanter(path, table.file)
    return read_source(path / table.file if path.is_dir() else path, table.format)


def _joined(source: Source, table: TableMap, place: Path) -> Source:
    """Return the source with the columns of the joined files; what has no counterpart is left empty."""
    folder = place if place.is_dir() else place.parent
    frame = source.frame
    for join in table.joins:
        other = read_source(folder / join.file, join.file.rpartition(".")[2])
        for name, columns in ((source.name, frame.columns), (other.name, other.frame.columns)):
            for key in join.on:
                if key not in columns:
                    raise InputError(f"{name}: column {key!r}, by which {join.file} is joined, is missing.")
        keys = list(map(tuple, _key(other.frame, join.on)))
        if len(set(keys)) != len(keys):
            raise InputError(
                f"{other.name}: a value of {', '.join(join.on)} stands in two rows; nothing can be joined."
            )
        at = {key: row for row, key in enumerate(keys)}
        rows = [at.get(key, -1) for key in _key(frame, join.on)]
        added = {}
        for column in other.frame.columns.difference(frame.columns, sort=False):
            cells = [*other.frame[column], None]  # the last for rows without a counterpart
            added[column] = pd.Series([cells[row] for row in rows], dtype=object)
        frame = pd.concat([frame, pd.DataFrame(added, index=frame.index)], axis=1)
    return replace(source, frame=frame)


def _key(frame: pd.DataFrame, on: Sequence[str]) -> list[tuple[object, ...]]:
    """Return keys that are equal where numbers are, however they are written."""
    columns = []
    for name in on:
        as_number = numbers(frame[name])
        cells = frame[name].tolist()
        values = as_number.numbers
        columns.append([cell if np.isnan(value) else float(value) for cell, value in zip(cells, values, strict=True)])
    return list(zip(*columns, strict=True))


def _has_loss(source: Source, table: TableMap, metric: Metric) -> bool:
    entry = {**table.columns, **metric.columns}.get("loss")
    return entry is None or not entry.optional or entry.column in source.frame.columns


def _rows(source: Source, table: TableMap, metric: Metric, by: RunMap) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of one loss of a source table, in the types of the run table, and what was wrong."""
    entries = {**table.columns, **metric.columns}
    constants = {**table.constants, **metric.constants}
    maker = Maker(source, entries, constants)
    count = len(source.frame)
    frame = pd.DataFrame(index=range(count))
    bad: dict[int, list[str]] = {}
    deciding: set[int] = set()

    def note(row: int, column: str, problem: str) -> None:
        read = entries[column].column if column in entries else ""
        place = f"{read} (for {column})" if read and read != column else column
        bad.setdefault(row, []).append(f"row {row + 1}, column {place}: {problem}; left empty")
        if column in DECIDING:
            deciding.add(row)

    derived = {"tokens_per_param"} | {name for name, entry in entries.items() if entry.operands or entry.six_nd}
    lost = np.zeros(count, dtype=bool)
    for column in COLUMNS:
        name, is_text = column.name, column.kind == "text"
        if name not in entries and name not in constants:
            frame[name] = pd.Series([pd.NA if is_text else np.nan] * count, dtype="string" if is_text else "float64")
            continue
        made = maker.column(name)
        for row, problem in made.wrong.items():
            note(row, name, problem)
        if name in DECIDING:
            deciding |= made.spoilt
        if name == "loss":
            lost[list(made.not_finite)] = True
        else:
            for row in made.not_finite:
                note(row, name, "is not finite")
        frame[name] = pd.Series(made.values, dtype="string" if is_text else "float64")
    six = entries["compute"].six_nd if "compute" in entries else None
    if six is not None:
        frame["flop_convention"] = pd.array([str(six)] * count, dtype="string")
    _complete(frame, source, by)
    _apply(frame, table.rules, source)
    ruled = set(np.flatnonzero(frame["excluded_reason"].notna()))
    _judge(frame, table, lost)
    order = {name: place for place, name in enumerate(maker.made)}  # what a column is made from stands before it
    for complaint in sorted(complaints(frame, source.name), key=lambda each: order.get(each.column, len(order))):
        if complaint.kind in ("positive", "choices", "finite"):
            row = complaint.row - 1
            frame.loc[row, complaint.column] = np.nan if _is_number(complaint.column) else pd.NA
            if row not in bad or complaint.column not in derived:
                note(row, complaint.column, complaint.problem)
        elif complaint.kind == "missing" and KINDS[complaint.column].required:
            note(complaint.row - 1, complaint.column, complaint.problem)
    _fill_needed(frame)
    rows = pd.Series(frame.index.isin(sorted(deciding)), index=frame.index)
    _exclude(frame, rows, ExcludedReason.BAD_VALUE, "a cell of it cannot be used")
    if "loss" not in entries or frame["loss"].isna().any():
        _exclude(frame, frame["loss"].isna(), ExcludedReason.NO_LOSS, table.no_loss or "the source states no loss")
    without = frame["compute"].isna() | frame["flop_convention"].isna()
    _exclude(frame, without, ExcludedReason.NO_COMPUTE, table.no_compute or "the source states no FLOPs")
    frame[NOTE] = pd.array(["; ".join(bad.get(row, [])) or pd.NA for row in range(count)], dtype="string")
    used = {entry.column for entry in entries.values() if entry.column and not entry.values}
    extra = {f"extra_{c}": source.frame[c] for c in source.frame.columns if c not in used}
    notes = [f"{source.name}: {problem}." for row in sorted(bad.keys() - ruled) for problem in bad[row]]
    return pd.concat([frame, pd.DataFrame(extra)], axis=1), notes


def _is_number(column: str) -> bool:
    return KINDS[column].kind != "text"


def _complete(frame: pd.DataFrame, source: Source, by: RunMap) -> None:
    """Fill what follows from the rest: source, provenance, tokens per parameter, where a row stands, its role."""
    frame["source"] = frame["source"].fillna(by.source)
    frame["provenance"] = frame["provenance"].fillna(source.sha256)
    frame["role"] = frame["role"].fillna("fit")
    ratio = frame["tokens"].where(frame["tokens"] > 0) / frame["active_params"].where(frame["active_params"] > 0)
    frame["tokens_per_param"] = frame["tokens_per_param"].fillna(ratio)
    frame[FILE] = pd.array([Path(source.name).name] * len(frame), dtype="string")
    frame[ROW] = np.arange(1, len(frame) + 1, dtype=float)
    frame[WHY] = pd.array([pd.NA] * len(frame), dtype="string")


def _apply(frame: pd.DataFrame, rules: Sequence[Rule], source: Source) -> None:
    for rule in rules:
        if rule.column not in source.frame.columns:
            raise InputError(f"{source.name}: column {rule.column!r}, which a rule of the map reads, is missing.")
        rows = pd.Series(_matches(source.frame[rule.column], rule), index=frame.index)
        if rule.excluded_reason is not None:
            _exclude(frame, rows, rule.excluded_reason, rule.why)
        else:
            frame.loc[rows, "role"] = "held_out"


def _matches(cells: pd.Series, rule: Rule) -> list[bool]:
    values = numbers(cells).numbers

    def same(cell: object, value: float, wanted: object) -> bool:
        if isinstance(wanted, str):
            return cell is not None and str(cell).strip() == wanted
        return bool(value == wanted)

    match rule.condition:
        case "above":
            return [bool(value > rule.value) for value in values]
        case "below":
            return [bool(value < rule.value) for value in values]
        case "empty":
            return [is_blank(cell) == rule.value for cell in cells]
    wanted = rule.value if isinstance(rule.value, list) else [rule.value]
    hit = [any(same(cell, value, one) for one in wanted) for cell, value in zip(cells, values, strict=True)]
    return [not one for one in hit] if rule.condition in ("not_equals", "none_of") else hit


def _judge(frame: pd.DataFrame, table: TableMap, lost: np.ndarray) -> None:
    """Exclude runs that did not end, that diverged, or whose table says that it has no loss or compute."""
    _exclude(frame, frame["status"].eq(RunStatus.UNFINISHED).fillna(False), ExcludedReason.UNFINISHED, "it did not end")
    frame.loc[lost & frame["status"].eq(RunStatus.FINISHED).fillna(False).to_numpy(), "status"] = RunStatus.DIVERGED
    diverged = frame["status"].eq(RunStatus.DIVERGED).fillna(False)
    _exclude(frame, diverged | lost, ExcludedReason.DIVERGED, "its loss became non-finite")
    everywhere = pd.Series(True, index=frame.index)
    if table.no_loss:
        _exclude(frame, everywhere, ExcludedReason.NO_LOSS, table.no_loss)
    if table.no_compute:
        _exclude(frame, everywhere, ExcludedReason.NO_COMPUTE, table.no_compute)


def _fill_needed(frame: pd.DataFrame) -> None:
    for name, value in (("status", RunStatus.UNFINISHED.value), ("metric", UNSTATED), ("loss_unit", UNSTATED)):
        frame[name] = frame[name].fillna(value)
    names = pd.Series([f"{file}#{row:.0f}" for file, row in zip(frame[FILE], frame[ROW], strict=True)], dtype="string")
    frame["run_id"] = frame["run_id"].fillna(names)


def _exclude(frame: pd.DataFrame, rows: pd.Series, reason: ExcludedReason, why: str) -> None:
    """Give the rows a reason, where they have none yet."""
    rows = rows & frame["excluded_reason"].isna()
    frame.loc[rows, "excluded_reason"] = reason.value
    frame.loc[rows, WHY] = why


def _mark_duplicates(frame: pd.DataFrame) -> None:
    """Mark the later of rows with one key, and of runs that repeat another in every number."""
    usable = frame[frame["excluded_reason"].isna()]
    twice = pd.Series(frame.index.isin(usable.index[usable.duplicated(KEY)]), index=frame.index)
    _exclude(frame, twice, ExcludedReason.DUPLICATE, "the same run, metric and step stand in an earlier row")
    usable = frame[frame["excluded_reason"].isna() & frame["loss"].notna() & frame["compute"].notna()]
    repeats = usable.index[usable.duplicated(["metric", "recipe", "eval_step", *REPEAT_COLUMNS])]
    again = pd.Series(frame.index.isin(repeats), index=frame.index)
    _exclude(
        frame, again, ExcludedReason.DUPLICATE, "an earlier run has the same numbers in every column that fits read"
    )


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its other columns as numbers where all their cells are, else as text."""
    typed = {}
    for name in frame.columns:
        if name in COLUMN_NAMES or name in (NOTE, WHY, FILE, ROW):
            typed[name] = frame[name]
            continue
        cells = [None if cell is None or cell is pd.NA or cell != cell else cell for cell in frame[name]]
        made = numbers(cells)
        plain = not made.wrong and not made.not_finite
        typed[name] = (
            pd.Series(made.numbers, dtype="float64")
            if plain
            else pd.Series([None if cell is None else str(cell) for cell in cells], dtype="string")
        )
    return pd.DataFrame(typed, index=frame.index)
