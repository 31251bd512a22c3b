"""The published ladders, figure by figure, and what is known to disagree."""

from pathlib import Path

import pytest

from benchmarks.published import hero, marin_moe
from benchmarks.published.comparison import Comparison, Known, half_unit, judge, known_disagreements
from benchmarks.repro_ladders import comparisons, summary

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="module")
def verdict():
    if not (DATA / "marin_moe").is_dir() or not (DATA / "delphi").is_dir():
        pytest.skip(f"the public data are not at {DATA}")
    return judge(comparisons(DATA), known_disagreements())


def test_every_published_figure_agrees_or_is_known_to_disagree(verdict) -> None:
    assert not [item.shown for item in verdict.new]
    assert not verdict.stale, "no longer disagreements: strike them"


def test_the_sweeps_are_reproduced_to_every_digit(verdict) -> None:
    report = summary(verdict)
    assert report["runs"] == {
        "v16": {"compared": 49, "every_figure_agrees": 49},
        "delphi_family": {"compared": 339, "every_figure_agrees": 339},
    }
    worst = report["worst_relative_error"]
    assert worst["isoflop_v16_runs.csv budget_flops_nonlmhead"] < 1e-3
    assert worst["isoflop_v16_runs.csv total_train_flops_incl_lmhead"] < 1e-9
    assert worst["isoflop_runs.csv total_flops"] < 1e-12


def test_single_figures_of_the_hero_and_the_1e23_run() -> None:
    wrong = judge([*hero.single_figures(), *marin_moe.published_1e23()], known_disagreements())
    assert not wrong.new


def test_the_1e23_run_shows_the_rule_beside_what_was_set_by_hand() -> None:
    rung = marin_moe.run_1e23()
    assert {item.field: (item.value, item.rule) for item in rung.overrides} == {
        "layers": (48, 49),
        "batch_seqs": (2048, 16384),
        "tokens": (1_009_417_977_856, 988_849_111_040),
    }
    assert rung.to_plain()["overrides"]["layers"] == {"value": 48, "rule": 49}
    assert rung.steps == 120_332
    assert rung.optimizer.adam_lr == pytest.approx(0.001339, abs=5e-7)  # issue #4697
    assert rung.optimizer.matrix_lr == pytest.approx(0.005803, abs=5e-7)
    assert rung.optimizer.epsilon == pytest.approx(3.356e-15, abs=5e-19)


def test_a_new_disagreement_and_a_stale_entry_are_told_apart() -> None:
    wrong, right = Comparison("t", "r", "f", 1.0, 2.0), Comparison("t", "r", "g", 1.0, 1.0)
    assert judge([wrong, right], []).new == [wrong]
    entry = Known("t", "*", "f", "because")
    assert judge([wrong, right], [entry]).known == [wrong]
    assert judge([right], [entry]).stale == [entry]


@pytest.mark.parametrize(
    ("text", "half"), [("2.7e24", 5e22), ("48000000000.0", 5e8), ("0.005803", 5e-7), ("595722240", 5), ("7", 0.5)]
)
def test_printed_figures_hold_to_half_their_last_digit(text: str, half: float) -> None:
    assert half_unit(text) == pytest.approx(half)
