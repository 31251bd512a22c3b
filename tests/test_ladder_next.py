"""What `foretell ladder next` proposes, on run tables made from a ladder and a known loss."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from ladder.advise import REPLICATE_SHARE, REPLICATES, propose
from ladder.cli import app
from ladder.errors import InputError
from ladder.generate import plan_isoflop
from ladder.recipe import recipe_named
from ladder.rung import Ladder, Rung, read_ladder
from ladder.runs import RunTable

TINY = recipe_named("tiny-cpu")
BUDGETS = [2 * 10**10, 43 * 10**9, 93 * 10**9]
LADDER = plan_isoflop(TINY, BUDGETS, sizes=5, held_out=[10**12])


def centred(rung: Rung) -> float:
    """Return a loss whose minimum lies at the recipe's expected optimum."""
    offset = math.log(rung.counts.nonembedding_active / TINY.expected_optimum(rung.budget))
    return 2 + 0.05 * offset**2


def falling(rung: Rung) -> float:
    """Return a loss that falls with size, so that no minimum is inside."""
    return 3 - 0.1 * math.log(rung.counts.nonembedding_active)


def table(
    ladder: Ladder,
    loss: Callable[[Rung], float],
    *,
    skip: set[str] | frozenset[str] = frozenset(),
    seeds: int = 1,
    **columns: object,
) -> RunTable:
    """Return the run table of the fit rungs, but for those in `skip`."""
    rows = [
        {
            "run_id": rung.run_id(seed),
            "rung_id": rung.rung_id,
            "role": "fit",
            "status": "finished",
            "seed": seed,
            "compute": float(rung.compute),
            "flop_convention": str(rung.flop_convention),
            "metric": "test/loss",
            "loss_unit": "nats_per_token",
            "eval_step": rung.steps,
            "loss": loss(rung),
            **columns,
        }
        for rung in ladder.fit_rungs
        if rung.rung_id not in skip
        for seed in range(seeds)
    ]
    return RunTable.of(pd.DataFrame(rows))


def test_gaps_come_first_and_name_what_is_missing() -> None:
    missing = LADDER.fit_rungs[7]
    first, *_ = propose(LADDER, table(LADDER, centred, skip={missing.rung_id}), "test/loss", TINY)
    assert (first.kind, first.rungs) == ("gap", (missing,))
    assert "1 of 5 planned sizes" in first.reason
    assert first.compute == missing.compute


def test_a_diverged_run_leaves_a_gap() -> None:
    runs = table(LADDER, centred)
    frame = runs.frame.copy()
    frame.loc[3, ["status", "excluded_reason"]] = "diverged"
    frame.loc[3, "loss"] = np.nan
    first, *_ = propose(LADDER, RunTable.of(frame), "test/loss", TINY)
    assert first.rungs == (LADDER.fit_rungs[3],)


def test_a_minimum_at_the_edge_asks_for_the_width_beyond() -> None:
    found = propose(LADDER, table(LADDER, falling), "test/loss", TINY)
    brackets = [item for item in found if item.kind == "bracket"]
    assert [item.rungs[0].budget for item in brackets] == BUDGETS
    for item in brackets:
        largest = max(rung.shape.hidden for rung in LADDER.fit_rungs if rung.budget == item.rungs[0].budget)
        assert item.rungs[0].shape.hidden == min(width for width in TINY.widths() if width > largest)
        assert "at the edge" in item.reason


def test_a_budget_no_width_can_bracket_is_said() -> None:
    # at 5e9 the smallest width the recipe has is the best: nothing below it can be planned
    ladder = plan_isoflop(TINY, [5 * 10**9], sizes=4)
    assert ladder.rungs[0].shape.hidden == min(TINY.widths())
    found = propose(ladder, table(ladder, lambda rung: 1 + 0.1 * math.log(rung.shape.hidden)), "test/loss", TINY)
    assert (found[0].kind, found[0].rungs, found[0].compute) == ("no width", (), 0)
    assert "offers no width below" in found[0].reason


def test_replicates_are_asked_for_once_and_are_cheap() -> None:
    found = propose(LADDER, table(LADDER, centred), "test/loss", TINY)
    (replicate,) = (item for item in found if item.kind == "replicate")
    (rung,) = replicate.rungs
    assert rung.seeds == tuple(range(1, 1 + REPLICATES))
    spent = sum(item.compute for item in LADDER.fit_rungs)
    cheapest = min(item.compute for item in LADDER.fit_rungs)
    assert replicate.compute <= max(REPLICATE_SHARE * spent, REPLICATES * cheapest * 1.01)
    again = propose(LADDER, table(LADDER, centred, seeds=2), "test/loss", TINY)
    assert not [item for item in again if item.kind == "replicate"]


def test_the_next_budget_continues_the_ladder_at_its_measured_sizes() -> None:
    found = propose(LADDER, table(LADDER, lambda rung: centred(rung), seeds=2), "test/loss", TINY)
    (budget,) = (item for item in found if item.kind == "budget")
    assert {rung.budget for rung in budget.rungs} == {2 * 10**11}  # 93e9 x 93/43, two digits
    assert len(budget.rungs) == 5
    near = plan_isoflop(TINY, BUDGETS, sizes=5, held_out=[15 * 10**10])
    assert not [x for x in propose(near, table(near, centred), "test/loss", TINY) if x.kind == "budget"]


def test_budgets_without_any_run_are_proposed_in_order() -> None:
    later = {rung.rung_id for rung in LADDER.fit_rungs if rung.budget > BUDGETS[0]}
    found = propose(LADDER, table(LADDER, centred, skip=later, seeds=2), "test/loss", TINY)
    assert [item.rungs[0].budget for item in found if item.kind == "planned"] == BUDGETS[1:]


def test_the_command_prints_and_writes_the_first_proposal(tmp_path: Path) -> None:
    LADDER.save(tmp_path / "L.json")
    table(LADDER, falling).save(tmp_path / "runs.parquet")
    arguments = ["next", str(tmp_path / "L.json"), str(tmp_path / "runs.parquet")]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "next.json"), "--json"])
    assert result.exception is None, result.exception
    proposals = json.loads(result.stdout)["proposals"]
    assert proposals[0]["kind"] == "bracket"
    written = read_ladder(tmp_path / "next.json")
    assert [rung.rung_id for rung in written.rungs] == [item["rung_id"] for item in proposals[0]["rungs"]]
    assert "1. bracket: 2e10-d" in CliRunner().invoke(app, arguments).stdout
    result = CliRunner().invoke(app, [*arguments, "--metric", "val/loss"])
    assert "no metric 'val/loss'" in str(result.exception)


def test_runs_of_another_ladder_are_refused() -> None:
    other = plan_isoflop(TINY, [10**10], sizes=3)
    with pytest.raises(InputError, match="belongs to a fit rung"):
        propose(other, table(LADDER, centred), "test/loss", TINY)
    with pytest.raises(InputError, match="follows tiny-cpu, not only marin-moe-v16"):
        propose(LADDER, table(LADDER, centred), "test/loss", recipe_named("marin-moe-v16"))
