"""Resolving: what a table may say of the target's runs, and that nothing said afterwards makes a miss go away."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from forecasts.check import check
from forecasts.ledger import read_ledger
from forecasts.record import Check, Outcome, SeenState
from forecasts.register import register, reproduce
from forecasts.registry import registry
from forecasts.verify import verify
from ladder.errors import InputError, VerificationError
from ladder.provenance import utc_now
from ladder.records import canonical_json
from ladder.runs import RunTable, read_runs
from ladder.study import Study
from tests.reports_study import FITS, TEST, draft, open_study, plan, write_held_out_runs


def resolved_with(tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> tuple[Study, str]:
    """Return an open study whose held-out rows (both metrics) are what `change` makes of them, and the forecast's id."""
    study, forecast_id = open_study(tmp_path / "study")
    frame = write_held_out_runs(study, plan(), utc_now(), utc_now(), shift=0.2).frame
    held = frame["role"] == "held_out"
    rows = frame[held].copy()
    changed = change(rows)
    RunTable.of(pd.concat([frame[~held], rows if changed is None else changed], ignore_index=True)).save(study.runs)
    return study, forecast_id


def resolve(tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> Check:
    return check(*resolved_with(tmp_path, change))


def says(found: Check, words: str) -> bool:
    return any(words in deviation for deviation in found.deviations)


def test_the_outcome_is_the_mean_over_seeds_and_scores_follow_from_it(tmp_path: Path) -> None:
    study, forecast_id = resolved_with(tmp_path, lambda rows: None)
    found = check(study, forecast_id)
    (entry,) = registry(study)
    frame = read_runs(study.runs).frame
    losses = frame.loc[(frame["role"] == "held_out") & (frame["metric"] == TEST), "loss"]
    assert found.observed == pytest.approx(losses.mean(), rel=1e-15)
    assert found.observed_se == pytest.approx(losses.std(ddof=1) / math.sqrt(2), rel=1e-12)
    assert found.outcome is Outcome.MISS
    main = found.main
    assert main is not None
    predictive = entry.forecast.main.predictive
    z = (math.log(found.observed) - predictive.centres[0]) / predictive.scales[0]
    assert main.pit == pytest.approx(stats.t.cdf(z, predictive.dfs[0]), rel=1e-9)
    assert main.relative_error == pytest.approx(entry.forecast.main.median / found.observed - 1, rel=1e-12)
    assert set(found.skill) == set(FITS[1:])
    for other in found.comparators:
        assert found.skill[other.name] == pytest.approx(1 - main.crps / other.crps, rel=1e-12)


def test_the_registered_forecast_is_reproduced_from_the_grown_table(tmp_path: Path) -> None:
    study, _ = resolved_with(tmp_path, lambda rows: None)
    reproduce(study, registry(study)[0].forecast)


def test_the_last_step_of_a_run_counts(tmp_path: Path) -> None:
    def change(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([rows, rows.assign(eval_step=rows["eval_step"] - 10, loss=rows["loss"] * 1.3)])

    final = check(*resolved_with(tmp_path / "plain", lambda rows: None))
    assert check(*resolved_with(tmp_path / "checkpoints", change)).observed == final.observed


def test_excluding_the_target_afterwards_does_not_undo_a_miss(tmp_path: Path) -> None:
    found = resolve(tmp_path, lambda rows: rows.assign(excluded_reason="off_trend"))
    assert found.outcome is Outcome.MISS
    assert says(found, "is marked as excluded (off_trend) and counts all the same")


def test_taking_the_loss_away_does_not_annul(tmp_path: Path) -> None:
    found = resolve(tmp_path, lambda rows: rows.assign(excluded_reason="manual", loss=math.nan))
    assert found.outcome is Outcome.AMBIGUOUS
    assert found.main is None
    assert says(found, "has no loss (manual)")


def test_a_run_that_has_not_ended_is_waited_for(tmp_path: Path) -> None:
    unfinished = {"status": "unfinished", "excluded_reason": "unfinished"}
    with pytest.raises(InputError, match="has ended"):
        resolve(tmp_path / "both", lambda rows: rows.assign(**unfinished))

    def one(rows: pd.DataFrame) -> None:
        rows.loc[rows["seed"] == 1, list(unfinished)] = list(unfinished.values())

    found = resolve(tmp_path / "one", one)
    assert found.outcome is Outcome.AMBIGUOUS
    assert len(found.run_ids) == 1
    assert says(found, "no run of seed 1 has ended")


def test_a_second_run_of_a_seed_is_not_picked_silently(tmp_path: Path) -> None:
    def again(rows: pd.DataFrame, reason: object = None) -> pd.DataFrame:
        better = rows.assign(run_id=rows["run_id"] + "-again", loss=rows["loss"] / 1.2)
        return pd.concat([rows.assign(excluded_reason=reason), better], ignore_index=True)

    with pytest.raises(InputError, match="has the seed of another run"):
        resolve(tmp_path / "two", again)


def test_runs_of_other_seeds_do_not_count_and_are_named(tmp_path: Path) -> None:
    def change(rows: pd.DataFrame) -> pd.DataFrame:
        other = rows[rows["seed"] == 1].assign(run_id="other", seed=7.0, loss=1.0)
        return pd.concat([rows, other], ignore_index=True)

    plain = resolve(tmp_path / "plain", lambda rows: None)
    found = resolve(tmp_path / "more", change)
    assert found.observed == plain.observed
    assert says(found, "run other of seed 7 is not among the registered ones")


def test_one_diverged_seed_annuls(tmp_path: Path) -> None:
    def change(rows: pd.DataFrame) -> None:
        rows.loc[rows["seed"] == 1, ["status", "excluded_reason", "loss"]] = ["diverged", "diverged", math.nan]

    study, forecast_id = resolved_with(tmp_path, change)
    found = check(study, forecast_id)
    assert found.outcome is Outcome.ANNULLED
    assert found.main is None
    assert str(read_ledger(study)[-1].kind) == "annul"


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.019, Outcome.MISS), (1.021, Outcome.ANNULLED), (0.97, Outcome.ANNULLED)]
)
def test_compute_off_target_annuls_beyond_the_tolerance(tmp_path: Path, factor: float, outcome: Outcome) -> None:
    found = resolve(tmp_path, lambda rows: rows.assign(compute=rows["compute"] * factor))
    assert found.outcome is outcome
    assert says(found, "compute differs by")


def test_another_flop_convention_is_asked_to_be_converted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="convert the table"):
        resolve(tmp_path, lambda rows: rows.assign(flop_convention="SIX_ND"))


def test_other_numbers_are_a_further_check_and_the_first_stays(tmp_path: Path) -> None:
    study, forecast_id = resolved_with(tmp_path, lambda rows: None)
    first = check(study, forecast_id)
    assert check(study, forecast_id) == first
    frame = read_runs(study.runs).frame.copy()
    frame["mfu"] = 0.5  # decides nothing
    RunTable.of(frame).save(study.runs)
    assert check(study, forecast_id) == first
    frame.loc[(frame["role"] == "held_out"), "loss"] *= 1.001
    RunTable.of(frame).save(study.runs)
    second = check(study, forecast_id)
    (entry,) = registry(study)
    assert [stored.check for stored in entry.checks] == [first, second]
    assert entry.checks[1].path.name == f"{forecast_id}--check2.json"
    assert verify(study).checks == 2


def remade(study: Study, **options: object):
    ladder = plan()
    (rung,) = ladder.held_out_rungs
    asked = {"main": FITS[0], "comparators": FITS[1:2], "title": "again", "authors": ["a"], **options}
    return draft(study, ladder, rung, TEST, **asked)


def test_an_amendment_names_what_it_supersedes(tmp_path: Path) -> None:
    study, forecast_id = open_study(tmp_path / "study")
    with pytest.raises(InputError, match="not registered"):
        register(study, remade(study, supersedes="2026-01-01--other--00000000"))
    register(study, remade(study, supersedes=forecast_id))
    assert [str(line.kind) for line in read_ledger(study)] == ["register", "amend"]
    assert verify(study).lines == 2


def test_a_run_folder_alone_shows_that_the_target_started(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    (rung,) = plan().held_out_rungs
    spec = {"schema": "run-spec/1", "rung": {"rung_id": rung.rung_id}, "seed": 0, "started_at": "2026-01-01T00:00:00Z"}
    folder = study.run(rung.run_id(0))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_bytes(canonical_json(spec))
    with pytest.raises(VerificationError, match=r"started at 2026-01-01T00:00:00.000000Z .*spec\.json"):
        verify(study)
    with pytest.raises(VerificationError, match="its target had not started"):
        register(study, remade(study))
    declared = remade(study, seen=SeenState.RUNNING, title="declared")
    assert not declared.confirmatory
    register(study, declared)
    (folder / "spec.json").unlink()
    assert str(verify(study).forecasts[1].evidence_level) == "local chain"


def test_a_start_that_is_not_recorded_is_no_evidence(tmp_path: Path) -> None:
    study, forecast_id = resolved_with(tmp_path, lambda rows: rows.assign(started_at=None))
    (found,) = verify(study).forecasts
    assert str(found.evidence_level) == "none"
    assert "no recorded start" in found.remark
    assert check(study, forecast_id).evidence_level == "none"
    with pytest.raises(VerificationError, match="its target had not started"):  # there, though undated
        register(study, remade(study))
