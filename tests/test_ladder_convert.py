"""Conversion of run tables between FLOP conventions: as exact as their columns, refused where they do not lead."""

import pandas as pd
import pytest

from ladder.convert import convert_compute, the_convention
from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.generate import plan_isoflop
from ladder.recipe import RECIPES
from ladder.runs import RunTable

V16 = RECIPES["marin-moe-v16"]
LADDER = plan_isoflop(V16, [3 * 10**18], sizes=3)
NO_HEAD, FULL, SIX_ND = FlopConvention.MATMUL_NO_HEAD, FlopConvention.MATMUL_FULL, FlopConvention.SIX_ND


def table(**changes: object) -> RunTable:
    rungs = LADDER.rungs
    columns = {
        "run_id": [rung.run_id(0) for rung in rungs],
        "rung_id": [rung.rung_id for rung in rungs],
        "status": "finished",
        "budget": [float(rung.budget) for rung in rungs],
        "compute": [float(rung.compute) for rung in rungs],
        "flop_convention": "MATMUL_NO_HEAD",
        "embedding_params": [float(rung.counts.embedding) for rung in rungs],
        "total_params": [float(rung.counts.total) for rung in rungs],
        "active_params": [float(rung.counts.active) for rung in rungs],
        "tokens": [float(rung.tokens) for rung in rungs],
        "metric": "test/loss",
        "loss_unit": "nats_per_token",
        "loss": 3.0,
    }
    return RunTable.of(pd.DataFrame({**columns, **changes}))


@pytest.mark.parametrize("to", [FULL, SIX_ND, FlopConvention.SIX_ND_ACTIVE, NO_HEAD])
@pytest.mark.parametrize("by", ["columns", "ladder"])
def test_conversion_equals_the_count_from_the_shape(to: FlopConvention, by: str) -> None:
    converted = convert_compute(table(), to, LADDER if by == "ladder" else None)
    expected = [float(rung.training_flops(to)) for rung in LADDER.rungs]
    assert list(converted.frame["compute"]) == pytest.approx(expected, rel=1e-14)
    assert the_convention(converted) is to
    ratio = converted.frame["budget"] / converted.frame["compute"]
    assert list(ratio) == pytest.approx([rung.budget / rung.compute for rung in LADDER.rungs], rel=1e-12)


def test_equal_budgets_are_no_longer_equal_under_another_convention() -> None:
    budgets = convert_compute(table(), FULL).frame["budget"]
    assert budgets.max() / budgets.min() > 1.2  # the head weighs more in the narrow shapes


def test_what_no_column_leads_to_is_refused() -> None:
    counted = table(flop_convention="SIX_ND")
    with pytest.raises(InputError, match="no column leads from SIX_ND to MATMUL_FULL"):
        convert_compute(counted, FULL)
    with pytest.raises(InputError, match="row 1, column embedding_params"):
        convert_compute(table(embedding_params=None), FULL)
    with pytest.raises(InputError, match="row 1, column tokens"):
        convert_compute(table(tokens=None), SIX_ND)
    expected = [float(rung.training_flops(FULL)) for rung in LADDER.rungs]
    assert list(convert_compute(counted, FULL, LADDER).frame["compute"]) == pytest.approx(expected)


def test_mixed_conventions_are_refused_until_converted() -> None:
    mixed = table(flop_convention=["MATMUL_NO_HEAD", "MATMUL_FULL", "MATMUL_FULL"])
    with pytest.raises(InputError, match="2 conventions"):
        the_convention(mixed)
    assert the_convention(convert_compute(mixed, FULL)) is FULL
