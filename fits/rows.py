"""Which rows of a run table enter a fit, and why some tables are refused."""

from dataclasses import dataclass

import pandas as pd

from fits.spec import FitSpec
from ladder.errors import InputError
from ladder.records import sha256_bytes
from ladder.runs import REPEAT_COLUMNS, SAME_COLUMNS, RunTable
from ladder.units import format_flops

DIGEST_COLUMNS = ("run_id", "rung_id", "trunk_id", "seed", "eval_step", "budget", "compute", "tokens", "loss")


@dataclass(frozen=True)
class Rows:
    """The rows of a fit, one a run, how many runs stayed out by reason, and what a reader must be warned of."""

    frame: pd.DataFrame
    excluded: dict[str, int]
    sha256: str
    remarks: tuple[str, ...] = ()


def select_rows(runs: RunTable, spec: FitSpec) -> Rows:
    """Return the last evaluated row of every run of the metric that may enter the fit.

    Held-out rows, rows with an `excluded_reason` and rows above `spec.max_compute` stay out and are counted. Earlier
    checkpoints of a run are not independent of its last one and are not counted. Raises InputError when rows mix
    recipes, FLOP conventions, units, tokenizers, evaluation sets or drop modes, when a run stands twice, or when no
    row is left.
    """
    table = runs.select(spec.metric).frame
    _refuse_duplicates(table)
    last = table.sort_values("eval_step", kind="stable", na_position="first").drop_duplicates("run_id", keep="last")
    last = last.sort_index()
    reason = last["excluded_reason"].astype("object").where(last["excluded_reason"].notna(), None)
    reason = reason.mask(last["role"].eq("held_out").fillna(False), "held_out")
    if spec.max_compute is not None:
        reason = reason.mask(reason.isna() & (last["compute"] > spec.max_compute), "above_max_compute")
    frame = last[reason.isna()].reset_index(drop=True)
    excluded = {str(key): int(count) for key, count in reason.dropna().value_counts().sort_index().items()}
    if frame.empty:
        raise InputError(f"no run of {spec.metric} may enter the fit; excluded are {excluded or 'none'}.")
    _refuse_mixtures(frame)
    columns = [*DIGEST_COLUMNS, spec.size_column]
    digest = sha256_bytes(frame[columns].to_csv(index=False, lineterminator="\n").encode())
    return Rows(frame, excluded, digest, _remarks(table, frame, spec))


def _remarks(table: pd.DataFrame, frame: pd.DataFrame, spec: FitSpec) -> tuple[str, ...]:
    """Return warnings of rows that are not independent: checkpoints, and branches of one trunk drawn apart."""
    found = []
    earlier = int(table["run_id"].isin(frame["run_id"]).sum()) - len(frame)
    if earlier:
        found.append(f"{earlier} earlier checkpoints are not used, as only the last of a run is independent.")
    same = ["recipe", "seed", spec.size_column]
    known = frame.dropna(subset=["seed", spec.size_column])
    alike = known.duplicated([*same, "rung_id"], keep=False) & known["rung_id"].notna()
    groups = known[alike].groupby([*same, "rung_id"], dropna=False)["tokens"].nunique()
    if len(groups) and groups.max() > 1:
        found.append(
            f"{int(groups[groups > 1].sum())} runs share rung, size and seed at different tokens: if they are checkpoints "
            "of one run they are not independent; keep one, or give them a trunk_id and draw by trunk."
        )
    schedules = sorted(map(str, frame["schedule"].dropna().unique()))
    if len(schedules) > 1:
        found.append(
            f"runs mix learning-rate schedules ({', '.join(schedules)}): a loss before annealing lies above the law; "
            "mark such rows as excluded (under_annealed)."
        )
    if spec.cluster_column != "trunk_id" and frame["trunk_id"].dropna().duplicated().any():
        found.append("runs share training trunks, so draw them together (cluster_column trunk_id).")
    return tuple(found)


def _refuse_duplicates(table: pd.DataFrame) -> None:
    usable = table[table["excluded_reason"].isna()]
    twice = usable[usable.duplicated(["run_id", "eval_step"])]
    if len(twice):
        raise InputError(
            f"run {twice['run_id'].iloc[0]} stands twice at one step; mark one row as excluded (duplicate)."
        )
    last = usable.drop_duplicates("run_id", keep="last")
    same = last[last.duplicated(list(REPEAT_COLUMNS))]
    if len(same):
        raise InputError(
            f"run {same['run_id'].iloc[0]} repeats another run in every number; mark one of them as excluded "
            "(duplicate), or the fit counts it twice."
        )


def _refuse_mixtures(frame: pd.DataFrame) -> None:
    for column in SAME_COLUMNS:
        values = frame[column].astype("object").where(frame[column].notna(), "(empty)").value_counts()
        if len(values) > 1:
            shown = ", ".join(f"{value} ({count} runs)" for value, count in values.items())
            raise InputError(
                f"the runs mix {column}: {shown}. Their losses do not belong in one fit; exclude all but one, "
                "or fill in the empty ones."
            )


def require_columns(frame: pd.DataFrame, columns: tuple[str, ...]) -> None:
    """Raise InputError naming the first run that lacks a value in one of `columns`."""
    for column in columns:
        missing = frame[frame[column].isna()]
        if len(missing):
            raise InputError(
                f"run {missing['run_id'].iloc[0]} has no {column} ({len(missing)} of {len(frame)} runs lack it); "
                "add it to the run table, or name another size column."
            )


def budget_name(budget: float) -> str:
    """Return how messages name a budget."""
    return f"budget {format_flops(budget)}"
