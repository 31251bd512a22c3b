"""Fits of run tables: what enters, what is refused, predictions, the file, and the same numbers again."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fits import LAWS, FitResult, FitSpec, FitStatus, fit, read_fit, refit
from fits.compare import comparison, optimal_target
from fits.objective import LossSpec
from fits.spec import FLOOR_INTEGRATED
from ladder.errors import InputError, UnusableError
from ladder.provenance import Provenance
from ladder.runs import RunTable
from tests.fits_tables import SURFACES, isoflop_rows, ladder_rows, noisy_isoflop, optimum, surface_loss, table

GOLDEN = Path(__file__).parent / "golden" / "fit.json"
NAMES = ("power-law", "power-law-floor", "chinchilla", "gadre", "kaplan", FLOOR_INTEGRATED)
TARGET = {"compute": 1e21, "nonembedding_active_params": 2.8e9, "active_params": 3e9, "tokens": 6e10}
MADE = Provenance("2026-01-01T00:00:00.000000Z", None, None, "3.12", "Linux x86_64", {}, "tests", 0)


@pytest.fixture(scope="module")
def runs() -> RunTable:
    """Return five budgets of seven sizes with noise and replicates."""
    return table(noisy_isoflop())


@pytest.fixture(scope="module")
def results(runs: RunTable) -> dict[str, FitResult]:
    """Return a fit of every law and of the policy."""
    return {name: fit(dataclasses.replace(FitSpec.of(name, "loss"), resamples=60), runs) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_file_holds_everything(name: str, results: dict[str, FitResult], tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    results[name].save(path)
    back = read_fit(path)
    assert back == results[name]
    assert back.to_json() == path.read_bytes()
    for kind in ("mean", "observation"):
        pd.testing.assert_frame_equal(back.predict(TARGET, kind=kind), results[name].predict(TARGET, kind=kind))


@pytest.mark.parametrize("name", NAMES)
def test_refit_gives_the_same_numbers(name: str, results: dict[str, FitResult], runs: RunTable) -> None:
    again = refit(results[name], runs)
    assert again == results[name]
    other = runs.frame.assign(loss=runs.frame["loss"] * 1.001)
    assert refit(results[name], RunTable.of(other)).inputs_sha256 != results[name].inputs_sha256


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_ordered_and_observation_is_wider(name: str, results: dict[str, FitResult]) -> None:
    targets = pd.DataFrame([TARGET, {**TARGET, "compute": 1e19, "nonembedding_active_params": 3e8, "tokens": 5e9}])
    result = results[name]
    mean, observation = (result.predict(targets, level=0.9, kind=kind) for kind in ("mean", "observation"))
    for frame in (mean, observation):
        assert (frame["lo"] < frame["median"]).all()
        assert (frame["median"] < frame["hi"]).all()
        assert frame["in_range"].tolist() == [False, True]
        assert frame["extrapolation_factor"].tolist() == pytest.approx([10, 0.1])
        assert frame["outside"][0].startswith("compute")
        assert frame["outside"][1] == ""
    assert (observation["hi"] - observation["lo"] > mean["hi"] - mean["lo"]).all()
    narrow = result.predict(targets, level=0.5)
    assert (narrow["lo"] > observation["lo"]).all()
    assert result.predictive(TARGET).median == pytest.approx(observation["median"][0])


def test_forecasts_of_the_true_law_are_near_the_truth(results: dict[str, FitResult]) -> None:
    n, d, loss = optimum(SURFACES["besiroglu"], 1e21)
    target = {"compute": 1e21, "nonembedding_active_params": n, "tokens": d}
    for name, tolerance in (("chinchilla", 0.01), ("power-law-floor", 0.02), (FLOOR_INTEGRATED, 0.02)):
        part = results[name].predictive(target)
        assert part.median == pytest.approx(loss, rel=tolerance)
        assert part.interval(0.95)[0] < loss < part.interval(0.95)[1]


def test_noise_free_runs_give_the_parameters_back() -> None:
    theta = SURFACES["besiroglu"]
    rows = isoflop_rows(
        lambda n, d: surface_loss(theta, n, d), [1e18, 1e19, 1e20], lambda c: optimum(theta, c)[0], 4.0, 5
    )
    result = fit("chinchilla", table(rows))
    for key, value in theta.items():
        assert result.theta[key] == pytest.approx(value, rel=1e-6)
    assert result.status is FitStatus.CONVERGED
    assert result.draws is not None
    assert result.draws.requested == 500
    assert result.draws.failed < 50
    assert result.params.loc["alpha", "se"] < 1e-6
    assert set(result.params.columns) >= {"estimate", "se", "lo", "hi", "start_spread", "at_bound", "besiroglu2024"}


def test_draws_are_a_cluster_bootstrap() -> None:
    """All seeds of a rung together: duplicating every run as a second seed changes no interval."""
    once = noisy_isoflop()
    once = once[once["seed"] == 0].assign(rung_id=lambda frame: frame["run_id"])
    twice = pd.concat([once, once.assign(run_id=once["run_id"] + "-again", seed=1.0)], ignore_index=True)
    spec = dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=60, loss=LossSpec.mse())
    one, two = (fit(spec, table(rows)) for rows in (once, twice))
    assert one.draws is not None
    assert two.draws is not None
    np.testing.assert_allclose(one.draws.values, two.draws.values, rtol=1e-5)
    assert one.draws.method == "rungs"


def test_trunks_are_drawn_together_when_asked(runs: RunTable) -> None:
    frame = runs.frame.assign(trunk_id=runs.frame["budget"].map("{:g}".format))
    spec = dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=60, cluster_column="trunk_id")
    draws = fit(spec, RunTable.of(frame)).draws
    assert draws is not None
    assert draws.method == "trunks"
    with pytest.raises(InputError, match="needs 3 or more"):
        fit(spec, RunTable.of(frame.assign(trunk_id="one")))


def test_bootstrap_spread_is_that_of_repeated_experiments() -> None:
    """The sd of the forecast over 25 new noisy tables, against the bootstrap's own (50 % either way)."""
    spec = dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=0, loss=LossSpec.mse())
    logs = []
    for seed in range(25):
        result = fit(spec, table(noisy_isoflop(seed)))
        x = {"active_params": 2.8e9, "tokens": 6e10}
        logs.append(float(np.log(LAWS["chinchilla"].predict(result.theta, x))))
    own = fit(dataclasses.replace(spec, resamples=200), table(noisy_isoflop(0))).variance_split(TARGET).parameter ** 0.5
    assert 0.5 < own / np.std(logs) < 1.5


def test_progress_reaches_the_end(runs: RunTable) -> None:
    seen: list[tuple[int, int]] = []
    spec = dataclasses.replace(FitSpec.of("power-law-floor", "loss"), resamples=200)
    fit(spec, runs, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(200, 200)]


def test_rows_that_must_stay_out_are_counted(runs: RunTable) -> None:
    frame = runs.frame.copy()
    frame.loc[0, ["excluded_reason", "status"]] = ["diverged", "diverged"]
    frame.loc[0, "loss"] = np.nan
    frame.loc[1, "role"] = "held_out"
    spec = dataclasses.replace(FitSpec.of(FLOOR_INTEGRATED, "loss"), max_compute=5e19)
    result = fit(spec, RunTable.of(frame))
    assert result.excluded == {"above_max_compute": 9, "diverged": 1, "held_out": 1}
    assert result.n_runs == len(frame) - 11
    assert result.fit_range["compute"][1] < 5e19


def test_only_the_last_checkpoint_of_a_run_enters(runs: RunTable) -> None:
    early = runs.frame.assign(eval_step=10.0, loss=runs.frame["loss"] + 1)
    late = runs.frame.assign(eval_step=20.0)
    both = RunTable.of(pd.concat([late, early], ignore_index=True))
    one, two = fit("power-law", RunTable.of(late)), fit("power-law", both)
    assert one.theta == two.theta
    assert two.n_runs == len(late)
    assert f"{len(late)} earlier checkpoints are not used" in two.message


def test_checkpoints_given_as_runs_and_branches_of_a_trunk_are_warned_of(runs: RunTable) -> None:
    frame = runs.frame.copy()
    one = frame[frame["seed"] == 0].iloc[[7]]
    copies = [
        one.assign(run_id=f"step{k}", tokens=one["tokens"] * k / 4, loss=one["loss"] * (1.2 - k / 20)) for k in (2, 3)
    ]
    spec = dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=0)
    result = fit(spec, RunTable.of(pd.concat([frame, *copies], ignore_index=True)))
    assert "3 runs share rung, size and seed at different tokens" in result.message
    trunks = RunTable.of(frame.assign(trunk_id=frame["budget"].map("{:g}".format)))
    assert "draw them together" in fit(spec, trunks).message
    assert "draw them together" not in fit(dataclasses.replace(spec, cluster_column="trunk_id"), trunks).message


def test_losses_that_are_not_finite_never_reach_a_fit(runs: RunTable) -> None:
    for value, words in ((np.nan, "no loss"), (np.inf, "infinite"), (-1.0, "positive")):
        frame = runs.frame.copy()
        frame.loc[4, "loss"] = value
        with pytest.raises(InputError, match=words):
            RunTable.of(frame)


def test_law_of_more_inputs_names_the_missing_column(runs: RunTable) -> None:
    for name, column in (("krajewski", "granularity"), ("ludziejewski", "experts"), ("muennighoff", "unique_tokens")):
        with pytest.raises(InputError, match=column):
            fit(name, runs)


def test_moe_law_is_fitted_from_a_run_table_and_predicts(runs: RunTable) -> None:
    rng = np.random.default_rng(0)
    frame = runs.frame.assign(experts=2.0 ** rng.integers(0, 6, len(runs.frame)))
    law = LAWS["ludziejewski"]
    x = {"active_params": frame["active_params"], "tokens": frame["tokens"], "experts": frame["experts"]}
    exact = law.predict(law.published["ludziejewski2025"], {key: value.to_numpy() for key, value in x.items()})
    frame["loss"] = exact * np.exp(rng.normal(0, 1e-4, len(frame)))
    spec = dataclasses.replace(FitSpec.of("ludziejewski", "loss"), resamples=40, size_column="active_params")
    result = fit(spec, RunTable.of(frame))
    assert result.status in (FitStatus.CONVERGED, FitStatus.ILL_CONDITIONED), result.message
    target = {"compute": 6e19, "active_params": 1e9, "tokens": 1e10, "experts": 8.0}
    truth = float(law.predict(law.published["ludziejewski2025"], target))
    assert result.predictive(target).median == pytest.approx(truth, rel=2e-3)
    with pytest.raises(InputError, match="positive experts"):
        result.predictive({**target, "experts": 0.0})


def one_ratio() -> pd.DataFrame:
    """Return rows of one tokens-per-parameter ratio."""
    n = np.geomspace(1e7, 1e9, 8)
    loss = surface_loss(SURFACES["besiroglu"], n, 20 * n)
    return pd.DataFrame(
        {
            "run_id": [f"r{i}" for i in range(8)],
            "compute": 120 * n**2,
            "nonembedding_active_params": n,
            "tokens": 20 * n,
            "loss": loss,
        }
    )


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("chinchilla", one_ratio(), "one number of tokens per parameter"),
        (FLOOR_INTEGRATED, ladder_rows([1e18, 1e19], [3.0, 2.8]), "at least 3 budgets"),
        ("power-law-floor", ladder_rows([1e18, 1e19, 1e20], [3.0, 2.8, 2.7]), "at least 4 budgets"),
        ("power-law", ladder_rows([1e18, 1e19], [3.0, 2.8]), "at least 3 budgets"),
        ("chinchilla", ladder_rows([1e18, 1e19, 1e20], [3.0, 2.8, 2.7]), "has no nonembedding_active_params"),
        ("chinchilla", noisy_isoflop().iloc[:5], "at least 6 runs"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_fitted_are_refused(name: str, rows: pd.DataFrame, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit(name, table(rows))


@pytest.mark.parametrize("column", ["recipe", "flop_convention", "tokenizer", "eval_set", "loss_unit", "drop_mode"])
def test_mixed_rows_are_refused(column: str, runs: RunTable) -> None:
    values = {"flop_convention": "MATMUL_FULL", "drop_mode": "drops"}
    frame = runs.frame.copy()
    frame.loc[3, column] = values.get(column, "another")
    with pytest.raises(InputError, match=f"mix {column}"):
        fit(FLOOR_INTEGRATED, RunTable.of(frame))


def test_ambiguous_and_unknown_metrics_are_refused(runs: RunTable) -> None:
    both = RunTable.of(pd.concat([runs.frame, runs.frame.assign(metric="other")], ignore_index=True))
    with pytest.raises(InputError, match="say which one"):
        fit("power-law", both)
    with pytest.raises(InputError, match="no metric"):
        fit("power-law", both, metric="third")


def test_duplicates_are_refused(runs: RunTable) -> None:
    again = runs.frame.iloc[[0]].assign(run_id="again")
    with pytest.raises(InputError, match="repeats another run"):
        fit("power-law", RunTable.of(pd.concat([runs.frame, again], ignore_index=True)))


def test_pinned_floor(runs: RunTable) -> None:
    spec = dataclasses.replace(FitSpec.of("power-law-floor", "loss"), pinned_floor=1.7, resamples=60)
    result = fit(spec, runs)
    assert result.theta["E"] == pytest.approx(1.7)
    assert result.predictive(TARGET).median > 1.7
    with pytest.raises(InputError, match="cannot be above a loss"):
        fit(dataclasses.replace(spec, pinned_floor=9.0), runs)
    with pytest.raises(InputError, match="no floor"):
        fit(dataclasses.replace(spec, law="power-law"), runs)
    with pytest.raises(InputError, match="integrates"):
        fit(dataclasses.replace(spec, law=FLOOR_INTEGRATED), runs)


def test_unusable_budgets_are_left_out_and_named(runs: RunTable) -> None:
    frame = runs.frame.copy()
    smallest = frame["budget"].min()
    bend = frame["budget"] == smallest
    frame.loc[bend, "loss"] = 3.5 - 0.05 * np.log(frame.loc[bend, "nonembedding_active_params"] / 1e7)
    result = fit(FLOOR_INTEGRATED, RunTable.of(frame))
    assert len(result.points) == 4
    assert "Not used: the" in result.message
    asked = fit(dataclasses.replace(result.spec, use_minimum=True), RunTable.of(frame))
    assert [point.label.split()[0] for point in asked.points] == ["minimum", *["vertex"] * 4]


def test_intervals_need_draws(runs: RunTable) -> None:
    result = fit(dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=0), runs)
    assert np.isnan(result.params["se"].to_numpy(dtype=float)).all()
    with pytest.raises(UnusableError, match="no bootstrap draws"):
        result.predictive(TARGET)


def test_targets_must_say_what_the_law_reads(results: dict[str, FitResult]) -> None:
    with pytest.raises(InputError, match="positive tokens"):
        results["chinchilla"].predictive({"compute": 1e21, "nonembedding_active_params": 1e9})
    with pytest.raises(InputError, match="positive compute"):
        results[FLOOR_INTEGRATED].predictive({"compute": float("nan")})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("resamples", 5, "at least 20"), ("size_column", "tokens", "size column"), ("law", "no-such-law", "choose from"),
     ("cluster_column", "seed", "cluster column"), ("pinned_floor", -1.0, "positive"), ("max_compute", 0.0, "positive")],
)  # fmt: skip
def test_bad_specifications_are_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        dataclasses.replace(FitSpec.of("chinchilla", "loss"), **{field: value})


@pytest.mark.parametrize("name", NAMES)
def test_summary_prints_three_ways(name: str, results: dict[str, FitResult]) -> None:
    summary = results[name].summary()
    for text in (str(summary), summary.to_markdown(), summary._repr_html_()):
        assert name in text
        assert "converged" in text
        assert all(param in text for param in results[name].theta)


def test_comparison_uses_the_compute_optimum_of_each_law(results: dict[str, FitResult]) -> None:
    frame = comparison(results, 1e21)
    n, d, _ = optimum(results["chinchilla"].theta, 1e21)
    assert optimal_target(results["chinchilla"], 1e21) == pytest.approx(
        {"compute": 1e21, "nonembedding_active_params": n, "tokens": d}, rel=1e-6
    )
    assert frame.index.tolist() == list(NAMES)
    assert frame.loc["power-law", "median"] == pytest.approx(results["power-law"].predictive(TARGET).median)


def test_damaged_files_name_the_field(results: dict[str, FitResult], tmp_path: Path) -> None:
    data = json.loads(results["power-law"].to_json())
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({**data, "status": "fine"}))
    with pytest.raises(InputError, match="status"):
        read_fit(path)
    path.write_text(json.dumps({**data, "schema": "fit/2"}))
    with pytest.raises(InputError, match="update foretell"):
        read_fit(path)


def golden_fit() -> FitResult:
    """Return the fit that tests/golden/fit.json holds."""
    spec = dataclasses.replace(FitSpec.of("chinchilla", "loss"), resamples=20)
    rows = noisy_isoflop()
    numbers = rows.select_dtypes("number").columns
    # Rounded, since powers and exponentials differ in their last bit between machines, and the digest sees it.
    rows[numbers] = rows[numbers].map(lambda value: float(f"{value:.8g}"))
    return dataclasses.replace(fit(spec, table(rows)), provenance=MADE)


def test_golden_file_is_read_and_made_again() -> None:
    stored = read_fit(GOLDEN)
    assert stored.to_json() == GOLDEN.read_bytes()
    made = golden_fit()
    assert (made.spec, made.status, made.inputs_sha256) == (stored.spec, stored.status, stored.inputs_sha256)
    for one, other in ((made.theta, stored.theta), (made.fit_range, stored.fit_range)):
        assert one.keys() == other.keys()
        np.testing.assert_allclose([one[key] for key in other], list(other.values()), rtol=1e-9)
    assert made.draws is not None
    assert stored.draws is not None
    np.testing.assert_allclose(made.draws.values, stored.draws.values, rtol=1e-6)
