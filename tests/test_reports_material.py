"""Tables made from run tables: nothing is lost, whatever columns an imported table lacks."""

import math
from pathlib import Path

import pandas as pd
import pytest

from ladder.errors import InputError
from ladder.rung import Ladder
from ladder.runs import ExcludedReason, RunTable
from reports.charts import read_metrics
from reports.material import excluded_table, other_metric, rung_frame, rung_table
from tests.reports_study import TEST, VALIDATION, plan, run_rows

TIMES = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    return plan()


def test_a_rung_is_the_mean_of_its_counting_runs_at_their_last_step(ladder: Ladder) -> None:
    rung = next(rung for rung in ladder.fit_rungs if len(rung.seeds) > 1)
    rows = [row for seed in (0, 1, 2) for row in run_rows(rung, seed, *TIMES)]
    earlier = [{**row, "eval_step": 1.0, "loss": 9.0} for row in rows]
    rows[4].update(status="diverged", excluded_reason="diverged", loss=math.nan)
    frame = RunTable.of(pd.DataFrame(earlier + rows)).frame
    (found,) = rung_frame(frame, ladder, TEST).to_dict("records")
    losses = [rows[0]["loss"], rows[2]["loss"]]
    assert found["loss"] == pytest.approx(sum(losses) / 2)
    assert found["loss_sd"] == pytest.approx(abs(losses[0] - losses[1]) / math.sqrt(2))
    assert (found["runs"], found["excluded"], found["name"]) == (2, 1, rung.name)
    assert found["other"] == pytest.approx(0.996 * found["loss"])
    assert other_metric(frame, TEST) == VALIDATION
    excluded = excluded_table(frame, ladder, TEST)
    assert excluded is not None
    assert [row[1] for row in excluded.rows] == [rung.run_id(2)]


def test_the_loss_beside_that_of_a_domain_is_of_the_same_domain() -> None:
    names = [f"{split}{part}/loss" for split in ("test", "validation") for part in ("", "/code", "/docs")]
    frame = pd.DataFrame({"metric": names, "loss_unit": "nats_per_token"})
    beside = {name: other_metric(frame, name) for name in names[:3]}
    assert beside == {name: name.replace("test", "validation") for name in names[:3]}
    assert other_metric(frame[:3], names[0]) == ""


def test_imported_rows_without_rung_role_or_budget_are_shown(ladder: Ladder) -> None:
    rows = pd.DataFrame(run_rows(ladder.rungs[0], 0, *TIMES)).drop(columns=["rung_id", "role", "budget"])
    frame = rung_frame(RunTable.of(rows).frame, ladder, TEST)
    table = rung_table(frame, TEST, "", "nats per token")
    assert table.rows[0][0] == ladder.rungs[0].run_id(0)
    assert not any("held-out" in mark for mark in table.marks)
    assert excluded_table(RunTable.of(rows).frame, ladder, TEST) is None


def test_held_out_rungs_come_last_and_are_marked(ladder: Ladder) -> None:
    rows = [row for rung in (*ladder.held_out_rungs, *ladder.fit_rungs) for row in run_rows(rung, 0, *TIMES)]
    frame = rung_frame(RunTable.of(pd.DataFrame(rows)).frame, ladder, TEST)
    table = rung_table(frame, TEST, VALIDATION, "nats per token")
    assert ["held-out" in mark for mark in table.marks] == [False] * (len(ladder.rungs) - 1) + [True]
    assert frame["budget"].is_monotonic_increasing
    assert len(table.headers) == len(table.rows[0])


def test_damaged_metrics_name_the_line(tmp_path: Path) -> None:

    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"loss":2.0}\n{"step":2,"lo')
    with pytest.raises(InputError, match=r"metrics\.jsonl: line 2"):
        read_metrics(path)


@pytest.mark.parametrize("reason", ExcludedReason)
def test_every_reason_has_words_and_needs_no_compute(ladder: Ladder, reason: ExcludedReason) -> None:
    """Imported rows that are excluded may lack what foretell's own runs always have."""
    rung = ladder.fit_rungs[0]
    rows = run_rows(rung, 0, *TIMES)
    rows[0].update(excluded_reason=str(reason), loss=None, compute=None, flop_convention=None, seed=None, rung_id=None)
    frame = RunTable.of(pd.DataFrame(rows)).frame
    found = excluded_table(frame, ladder, str(rows[0]["metric"]))
    assert found is not None
    assert str(rows[0]["run_id"]) in str(found)
