"""Run tables from one FLOP convention to another, where their columns allow; refusal to mix conventions."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

from ladder.errors import InputError
from ladder.flops import TRAINING_PASSES, FlopConvention
from ladder.rung import Ladder
from ladder.runs import RunTable

HEAD = {  # how the head enters 3 x forward terms: once more in MATMUL_FULL than in MATMUL_NO_HEAD
    (FlopConvention.MATMUL_NO_HEAD, FlopConvention.MATMUL_FULL): 1,
    (FlopConvention.MATMUL_FULL, FlopConvention.MATMUL_NO_HEAD): -1,
}
COUNTED = {FlopConvention.SIX_ND: "total_params", FlopConvention.SIX_ND_ACTIVE: "active_params"}


def the_convention(table: RunTable) -> FlopConvention:
    """Return the one FLOP convention of all rows; raises InputError, with the remedy, when there are several."""
    found = sorted(table.frame["flop_convention"].dropna().unique())
    if len(found) != 1:
        raise InputError(
            f"the run table counts FLOPs under {len(found)} conventions ({', '.join(found) or 'none'}), which bends a "
            "law; convert all rows to one (ladder.convert.convert_compute), or select those of one."
        )
    return FlopConvention(found[0])


def convert_compute(table: RunTable, to: FlopConvention, ladder: Ladder | None = None) -> RunTable:
    """Return `table` with `compute` and `budget` under the convention `to`.

    With `ladder`, a row whose rung it holds is counted anew from the shape. Otherwise the columns must do: tokens and
    parameters for 6ND; tokens and embedding parameters to add the (untied) head to 3 x forward terms or take it off.
    A budget is scaled as its row's compute is, so that budgets that were equal need not be any more.

    Raises InputError naming the first row and the column that is missing, or the pair of conventions between which
    no column helps.
    """
    frame = table.frame.copy()
    old = frame["compute"].to_numpy(np.float64)
    shapes = {rung.rung_id: rung.training_flops(to) / rung.tokens for rung in ladder.rungs} if ladder else {}
    new = np.array([_converted(row, index, to, shapes) for index, row in enumerate(frame.to_dict("records"), 1)])
    frame["compute"] = new
    frame["budget"] = frame["budget"] * (new / old)
    frame["flop_convention"] = pd.array([str(to)] * len(frame), dtype="string")
    return RunTable.of(frame)


def _converted(row: dict[Hashable, Any], index: int, to: FlopConvention, shapes: dict[str, float]) -> float:
    source = FlopConvention(str(row["flop_convention"]))
    if source is to:
        return _number(row, index, "compute", to)
    rung_id = row["rung_id"]
    if isinstance(rung_id, str) and rung_id in shapes:
        return shapes[rung_id] * _number(row, index, "tokens", to)
    if to in COUNTED:
        return 6 * _number(row, index, COUNTED[to], to) * _number(row, index, "tokens", to)
    if (source, to) in HEAD:
        head = 2 * TRAINING_PASSES * _number(row, index, "embedding_params", to) * _number(row, index, "tokens", to)
        return _number(row, index, "compute", to) + HEAD[source, to] * head
    raise InputError(
        f"row {index}: no column leads from {source} to {to}, which need the shape; give the ladder of the run."
    )


def _number(row: dict[Hashable, Any], index: int, column: str, to: FlopConvention) -> float:
    value = row[column]
    if not isinstance(value, float) or np.isnan(value):
        raise InputError(f"row {index}, column {column}: no value, but {to} needs one; add it or give the ladder.")
    return value
