"""The run table: one row per run, metric and evaluated step; read, validated, never silently shortened.

A row that must not enter a fit is kept and says why in `excluded_reason`. Budget and realised compute are two
columns, and every row names the convention under which both count FLOPs.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.records import write_atomic

SCHEMA = "runs/1"


class RunStatus(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    DIVERGED = "diverged"  # the loss became non-finite; the row stays, without a loss
    UNFINISHED = "unfinished"


class ExcludedReason(StrEnum):
    """Why a row does not enter a fit."""

    DIVERGED = "diverged"
    UNFINISHED = "unfinished"
    OFF_TREND = "off_trend"
    UNDER_ANNEALED = "under_annealed"
    DUPLICATE = "duplicate"
    MANUAL = "manual"
    BAD_VALUE = "bad_value"  # a cell of the source that a fit would need cannot be used
    NO_LOSS = "no_loss"  # the source states no loss, or one that is no positive number
    NO_COMPUTE = "no_compute"  # the source states neither FLOPs nor what they could be counted from
    OTHER_RECIPE = "other_recipe"  # the table was imported for the fit of another recipe


@dataclass(frozen=True)
class Column:
    """One column of the run table. `required` columns have a value in every row, `needed` ones in every row that is
    not excluded."""

    name: str
    kind: Literal["text", "integer", "number"]
    meaning: str
    required: bool = False
    needed: bool = False
    positive: bool = False
    choices: tuple[str, ...] = ()


COLUMNS: tuple[Column, ...] = (
    Column("run_id", "text", "identity of the run", required=True),
    Column("rung_id", "text", "identity of its rung"),
    Column("role", "text", "fit or held_out", choices=("fit", "held_out")),
    Column("recipe", "text", "recipe of the rung; rows of different recipes do not belong in one fit"),
    Column("source", "text", "where the row comes from"),
    Column("trunk_id", "text", "runs that share a training trunk"),
    Column("status", "text", "how the run ended", required=True, choices=tuple(RunStatus)),
    Column("started_at", "text", "UTC, ISO 8601"),
    Column("finished_at", "text", "UTC, ISO 8601"),
    Column("budget", "number", "planned training FLOPs", positive=True),
    Column("compute", "number", "realised training FLOPs", needed=True, positive=True),
    Column("flop_convention", "text", "how both count FLOPs", needed=True, choices=tuple(FlopConvention)),
    Column("active_params", "number", "parameters used per token, embedding and head included", positive=True),
    Column("total_params", "number", "all parameters", positive=True),
    Column("nonembedding_active_params", "number", "active without embedding and head", positive=True),
    Column("embedding_params", "number", "input embedding", positive=True),
    Column("tokens", "number", "training tokens", positive=True),
    Column("unique_tokens", "number", "distinct training tokens", positive=True),
    Column("tokens_per_param", "number", "tokens over active_params", positive=True),
    Column("experts", "number", "routed experts per layer", positive=True),
    Column("top_k", "number", "routed experts per token", positive=True),
    Column("granularity", "number", "dense FFN width over expert width", positive=True),
    Column("shared_experts", "number", "always-on experts per layer"),
    Column("capacity_factor", "number", "slots per expert over mean load, in training", positive=True),
    Column("drop_mode", "text", "whether evaluation drops tokens", choices=("dropless", "drops")),
    Column("seq_len", "number", "tokens per sequence", positive=True),
    Column("batch_seqs", "number", "sequences per step", positive=True),
    Column("batch_tokens", "number", "tokens per step", positive=True),
    Column("steps", "number", "optimizer steps", positive=True),
    Column("optimizer", "text", "optimizer"),
    Column("lr_peak", "number", "peak rate of the matrix group", positive=True),
    Column("schedule", "text", "learning-rate schedule"),
    Column("seed", "number", "seed of initialisation and data order"),
    Column("data_mix", "text", "digest or name of the training data"),
    Column("tokenizer", "text", "digest or name of the tokenizer"),
    Column("eval_set", "text", "digest or name of the evaluation data"),
    Column("metric", "text", "what `loss` is, such as test/loss", required=True),
    Column("loss_unit", "text", "nats_per_token, bits_per_byte", required=True),
    Column("loss", "number", "the loss; empty for a diverged run"),
    Column("loss_se", "number", "standard error of the evaluation"),
    Column("eval_step", "number", "step at which it was evaluated"),
    Column("drop_fraction", "number", "dropped over routed tokens, tail window of training"),
    Column("loss_spikes", "number", "spikes of the training loss; such a run stays in the fit"),
    Column("tokens_per_second", "number", "training tokens per second of step time", positive=True),
    Column("device", "text", "device kind"),
    Column("mfu", "number", "achieved over peak FLOP/s, see `device`"),
    Column("excluded_reason", "text", "why the row enters no fit; empty when it does", choices=tuple(ExcludedReason)),
    Column("provenance", "text", "digest of the record the row was made from"),
)
COLUMN_NAMES = tuple(column.name for column in COLUMNS)
KEY = ["run_id", "metric", "eval_step"]
# Losses that differ in one of these are not comparable; mixing FLOP conventions bends the exponent.
SAME_COLUMNS = ("recipe", "flop_convention", "loss_unit", "tokenizer", "eval_set", "drop_mode")
# Runs that agree in all of these are one run written down twice.
REPEAT_COLUMNS = ("rung_id", "seed", "compute", "tokens", "active_params", "loss")


@dataclass(frozen=True)
class RunTable:
    """A validated run table. Treat `frame` as read-only; columns beyond `COLUMNS` are named ``extra_...``."""

    frame: pd.DataFrame

    @staticmethod
    def of(frame: pd.DataFrame, where: str = "run table") -> "RunTable":
        """Return the validated table of `frame`, absent optional columns added empty, others renamed ``extra_...``.

        Raises InputError naming `where`, the row (counted from 1, header excluded) and the column.
        """
        frame = with_extras(frame)
        excluded = _excluded(frame)
        columns = {column.name: _checked(frame, column, excluded, where) for column in COLUMNS}
        extra = [name for name in frame.columns if name.startswith("extra_")]
        checked = pd.concat([pd.DataFrame(columns), frame[extra]], axis=1)
        _check_rows(checked, where)
        return RunTable(checked)

    def select(self, metric: str) -> "RunTable":
        """Return the rows of one metric; raises InputError when there are none."""
        rows = self.frame[self.frame["metric"] == metric]
        if rows.empty:
            known = ", ".join(sorted(self.frame["metric"].unique())) or "none"
            raise InputError(f"the run table has no metric {metric!r}; it has {known}.")
        return RunTable(rows.reset_index(drop=True))

    def included(self) -> "RunTable":
        """Return the rows that may enter a fit: without a reason for exclusion and not held out."""
        keep = self.frame["excluded_reason"].isna() & (self.frame["role"] != "held_out")
        return RunTable(self.frame[keep].reset_index(drop=True))

    def to_csv_bytes(self) -> bytes:
        """Return the table as CSV, floats in the shortest form that reads back the same."""
        return self.frame.to_csv(index=False).encode()

    def save(self, path: Path) -> None:
        """Write the table atomically; the suffix of `path` decides: .parquet, .csv or .jsonl."""
        match path.suffix:
            case ".parquet":
                write_atomic(path, self.frame.to_parquet(index=False))
            case ".csv":
                write_atomic(path, self.to_csv_bytes())
            case ".jsonl":
                lines = self.frame.to_json(orient="records", lines=True, double_precision=15)
                write_atomic(path, lines.encode())
            case other:
                raise InputError(f"{path}: cannot write run tables as {other!r}; use .parquet, .csv or .jsonl.")


def with_extras(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with columns beyond `COLUMNS` named ``extra_...`` and rows numbered from 0."""
    foreign = {
        name: str(name) if str(name).startswith("extra_") else f"extra_{name}"
        for name in frame.columns
        if name not in COLUMN_NAMES
    }
    return frame.rename(columns=foreign).reset_index(drop=True)


def _complain(where: str, wrong: pd.Series, column: str, problem: str, values: pd.Series) -> None:
    """Raise InputError for the first row where `wrong` is true; `problem` may show the value as ``{}``."""
    wrong = wrong.fillna(False).astype(bool)
    if not wrong.any():
        return
    index = int(np.flatnonzero(wrong.to_numpy())[0])
    value = values.iloc[index]
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    more = f" ({int(wrong.sum()) - 1} more rows)" if wrong.sum() > 1 else ""
    raise InputError(f"{where}: row {index + 1}, column {column}: {problem.format(shown)}{more}.")


def _excluded(frame: pd.DataFrame) -> pd.Series:
    """Return whether each row says that it is excluded."""
    if "excluded_reason" not in frame.columns:
        return pd.Series(False, index=frame.index)
    return frame["excluded_reason"].astype("string").str.strip().fillna("") != ""


def _checked(frame: pd.DataFrame, column: Column, excluded: pd.Series, where: str) -> pd.Series:
    text = column.kind == "text"
    if column.name not in frame.columns:
        if column.required or (column.needed and not excluded.all()):
            raise InputError(f"{where}: column {column.name} ({column.meaning}) is missing; add it or map it.")
        return pd.Series([pd.NA if text else np.nan] * len(frame), dtype="string" if text else "float64")
    raw = frame[column.name]
    as_text = raw.astype("string")
    blank = as_text.isna() | (as_text.str.strip() == "")
    values: pd.Series
    if text:
        values = as_text.mask(blank)
    else:
        values = pd.to_numeric(raw, errors="coerce").astype("float64")
        _complain(where, values.isna() & ~blank, column.name, "{} is not a number", raw)
        _complain(where, values.abs() == np.inf, column.name, "{} is infinite", raw)
    if column.required or column.needed:
        missing = values.isna() if column.required else values.isna() & ~excluded
        _complain(where, missing, column.name, f"no value ({column.meaning})", raw)
    if column.positive:
        _complain(where, values.astype("float64") <= 0, column.name, "{} must be positive", raw)
    if column.choices:
        wrong = values.notna() & ~values.isin(list(column.choices))
        _complain(where, wrong, column.name, "{} is none of " + ", ".join(column.choices), raw)
    return values


def _check_rows(frame: pd.DataFrame, where: str) -> None:
    included = frame["excluded_reason"].isna()
    loss = frame["loss"]
    _complain(where, loss.isna() & included, "loss", "no loss, and no excluded_reason that says why", loss)
    _complain(where, loss <= 0, "loss", "{} must be positive", loss)
    twice = frame.duplicated(KEY) & included
    _complain(where, twice, "run_id", "{} stands twice for one metric and step", frame["run_id"])


def read_runs(path: Path | str) -> RunTable:
    """Return the validated run table in a .parquet, .csv or .jsonl file.

    Raises InputError naming the file, row and column when it is missing, damaged or holds impossible values.
    """
    return RunTable.of(read_frame(Path(path)), str(path))


def read_frame(path: Path) -> pd.DataFrame:
    """Return the table in a file as it is, not validated; raises InputError when it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path, or train the ladder first.")
    try:
        match path.suffix:
            case ".parquet":
                return pd.read_parquet(path)
            case ".csv":
                return pd.read_csv(path)
            case ".jsonl":
                return pd.read_json(path, lines=True)
            case other:
                raise InputError(f"{path}: cannot read run tables from {other!r}; use .parquet, .csv or .jsonl.")
    except (ValueError, OSError) as error:  # pyarrow and the pandas parsers raise subclasses of these
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read as a run table: {reason}. It is damaged or was cut off.") from None
