"""Intervals and covariances against closed forms, repeated experiments and nominal coverage."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage_fits import coverage
from fits.bootstrap import bootstrap, cluster_counts, leave_one_out, wild_noise
from fits.covariance import identifiability, sandwich
from fits.intervals import bca_interval, percentile_interval
from fits.laws import LAWS, Chinchilla, PowerLaw
from fits.loss import LossSpec
from fits.profile import profile, profile_loss
from fits.solve import Solution, solve
from fits.spec import BootstrapKind
from ladder.errors import InputError, UnusableError
from tests.fits_tables import SURFACES, surface_loss

RUNS = 60
OWN = tuple(map(str, range(RUNS)))


def line(seed: int = 0, sd: float = 0.01) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a power law, which is a straight line in logarithms, with noise."""
    rng = np.random.default_rng(seed)
    x = {"compute": np.geomspace(1e18, 1e21, RUNS)}
    return x, np.log(40.0 * x["compute"] ** -0.06) + rng.normal(0, sd, RUNS)


def chinchilla(
    seed: int = 0, sd: float = 0.003, loss: LossSpec | None = None
) -> tuple[Solution, dict[str, np.ndarray]]:
    """Return a fit to a noisy surface, and its inputs."""
    rng = np.random.default_rng(seed)
    x = {"active_params": 10 ** rng.uniform(7.5, 9.5, RUNS), "tokens": 10 ** rng.uniform(9, 11, RUNS)}
    y = np.log(surface_loss(SURFACES["besiroglu"], x["active_params"], x["tokens"])) + rng.normal(0, sd, RUNS)
    return solve(Chinchilla(), x, y, loss or LossSpec.mse(), {}), x


def test_profile_of_a_linear_model_is_the_t_interval() -> None:
    x, y = line()
    solution = solve(PowerLaw(), x, y, LossSpec.mse(), {})
    (interval,) = profile(PowerLaw(), solution, ("alpha",), level=0.9)
    regression = stats.linregress(np.log(x["compute"]), y)
    half = stats.t.ppf(0.95, RUNS - 2) * regression.stderr
    assert solution.theta["alpha"] == pytest.approx(-regression.slope, rel=1e-9)
    assert interval.lo == pytest.approx(-regression.slope - half, rel=1e-5)
    assert interval.hi == pytest.approx(-regression.slope + half, rel=1e-5)


def test_profile_of_a_prediction_is_the_t_interval_of_the_line() -> None:
    x, y = line()
    solution = solve(PowerLaw(), x, y, LossSpec.mse(), {})
    interval = profile_loss(PowerLaw(), solution, x, {"compute": 1e23}, 0.9)
    design = np.column_stack([np.ones(RUNS), np.log(x["compute"])])
    beta, squares, *_ = np.linalg.lstsq(design, y)
    at = np.array([1.0, np.log(1e23)])
    sd = np.sqrt(squares[0] / (RUNS - 2) * at @ np.linalg.inv(design.T @ design) @ at)
    half = stats.t.ppf(0.95, RUNS - 2) * sd
    assert np.log(interval.lo) == pytest.approx(at @ beta - half, abs=1e-5)
    assert np.log(interval.hi) == pytest.approx(at @ beta + half, abs=1e-5)


def test_sandwich_of_a_linear_model_is_the_robust_covariance_of_statsmodels() -> None:
    import statsmodels.api as sm

    x, y = line()
    clusters = tuple(str(i // 3) for i in range(RUNS))
    solution = solve(PowerLaw(), x, y, LossSpec.mse(), {})
    reference = sm.OLS(y, sm.add_constant(np.log(x["compute"]))).fit(
        cov_type="cluster", cov_kwds={"groups": np.array([int(c) for c in clusters])}
    )
    assert sandwich(solution, clusters).se["alpha"] == pytest.approx(reference.bse[1], rel=1e-8)
    with pytest.raises(UnusableError, match="sandwich"):
        sandwich(solution, ("one",) * RUNS)


def test_profile_and_sandwich_agree_on_a_well_determined_surface() -> None:
    solution, _ = chinchilla()
    se = sandwich(solution, OWN).se
    for interval in profile(Chinchilla(), solution):
        assert interval.identified
        half = (interval.hi - interval.lo) / 2
        assert half / (stats.t.ppf(0.975, RUNS - 5) * se[interval.name]) == pytest.approx(1, abs=0.45)


def test_robust_profile_is_near_that_of_least_squares() -> None:
    plain, _ = chinchilla()
    robust, _ = chinchilla(loss=LossSpec.huber(0.004))
    one, other = (profile(Chinchilla(), s, ("alpha",))[0] for s in (plain, robust))
    assert (other.hi - other.lo) / (one.hi - one.lo) == pytest.approx(1, abs=0.25)


def test_end_that_is_never_reached_is_said_so() -> None:
    rng = np.random.default_rng(0)
    compute = np.geomspace(1e18, 1e19, 8)  # one decade cannot show a floor
    y = np.log(1.6 + 95 * compute**-0.094) + rng.normal(0, 0.003, 8)
    law = LAWS["power-law-floor"]
    solution = solve(law, {"compute": compute}, y, LossSpec.mse(), {})
    floor = profile(law, solution, ("E",))[0] if "E" not in solution.at_bound else None
    assert floor is None or not floor.identified
    with pytest.raises(InputError, match="no free parameter"):
        profile(law, solution, ("beta",))


def test_bca_is_the_percentile_interval_without_bias_and_skewness() -> None:
    draws = np.linspace(-1, 1, 2001)
    left = np.array([-0.1, 0.0, 0.1])
    assert bca_interval(draws, 0.0, left, 0.9) == pytest.approx(percentile_interval(draws, 0.9), abs=1e-6)


def test_bca_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    data = rng.exponential(size=40)
    found = stats.bootstrap((data,), np.mean, confidence_level=0.9, n_resamples=4000, method="BCa", rng=1)
    left = np.array([np.delete(data, i).mean() for i in range(40)])
    own = bca_interval(found.bootstrap_distribution, float(data.mean()), left, 0.9)
    assert own == pytest.approx(tuple(found.confidence_interval), rel=1e-3)


def test_leaving_out_a_cluster_is_fitting_the_rest() -> None:
    solution, x = chinchilla()
    left = leave_one_out(solution, OWN)
    keep = np.arange(RUNS) != 1  # labels sort as text: the second is "1"
    again = solve(
        Chinchilla(), {k: v[keep] for k, v in x.items()}, solution.objective.log_loss[keep], LossSpec.mse(), {}
    )
    assert left["alpha"][1] == pytest.approx(again.theta["alpha"], rel=1e-7)


def test_resamples_are_counts_of_whole_clusters() -> None:
    clusters = tuple("aabbccdd")
    counts = cluster_counts(clusters, 500, 0, "runs")
    assert (counts[:, ::2] == counts[:, 1::2]).all()
    assert (counts.sum(axis=1) == 8).all()
    assert counts.mean() == pytest.approx(1, abs=0.01)
    with pytest.raises(InputError, match="needs 3"):
        cluster_counts(("a", "b"), 10, 0, "runs")


@pytest.mark.parametrize("kind", BootstrapKind)
def test_bootstraps_have_the_spread_of_least_squares(kind: BootstrapKind) -> None:
    x, y = line()
    solution = solve(PowerLaw(), x, y, LossSpec.mse(), {})
    draws = bootstrap(PowerLaw(), solution, OWN, kind=kind, resamples=800, seed=1, what="runs")
    assert draws.failed == 0
    assert draws.columns()["alpha"].std() == pytest.approx(stats.linregress(np.log(x["compute"]), y).stderr, rel=0.2)


def test_wild_bootstrap_keeps_common_errors_of_a_cluster() -> None:
    solution, _ = chinchilla()
    clusters = tuple(str(i // 6) for i in range(RUNS))
    noise = wild_noise(solution, clusters, 50, 0)
    residual = solution.objective.linearise(solution.u).residuals
    signs = np.sign((residual - noise) * residual).reshape(50, -1, 6)
    assert (signs == signs[:, :, :1]).all()


def test_wild_bootstrap_of_every_objective_is_the_fit_of_shifted_losses() -> None:
    """The noise of a resample is the same as losses changed by it, for sums of terms and for autodiff."""
    for name in ("chinchilla", "kaplan"):
        law = LAWS[name]
        _, x = chinchilla()
        y = np.log(np.asarray(law.predict(next(iter(law.published.values())), x)))
        shift = np.random.default_rng(2).normal(0, 0.01, RUNS)
        plain, moved = (solve(law, x, values, LossSpec.mse(), {}) for values in (y, y + shift))
        one = plain.objective.evaluate(plain.u[None], np.ones((1, RUNS)), shift[None])
        u = moved.objective.from_theta({k: float(v[0]) for k, v in plain.objective.to_theta(plain.u[None]).items()})
        other = moved.objective.evaluate(u[None], np.ones((1, RUNS)))
        assert one.value[0] == pytest.approx(other.value[0], rel=1e-9)


def test_identifiability_names_the_ridge_of_floor_and_exponent() -> None:
    compute = np.geomspace(1e18, 1e19, 12)
    law = LAWS["power-law-floor"]
    y = np.log(1.6 + 95 * compute**-0.094) + np.random.default_rng(0).normal(0, 1e-5, 12)
    report = identifiability(law, solve(law, {"compute": compute}, y, LossSpec.mse(), {}))
    assert report.floor_exponent is not None
    assert report.floor_exponent > 0.99
    assert "ridge" in str(report)
    assert report.raw_condition > report.condition
    assert sum(value**2 for value in report.weakest.values()) == pytest.approx(1)
    wide = identifiability(Chinchilla(), chinchilla()[0])
    assert wide.floor_exponent is not None
    assert wide.floor_exponent < report.floor_exponent
    assert np.allclose(np.diag(wide.correlation), 1)
    assert all(value >= 1 - 1e-9 for value in wide.inflation.values())


def test_profile_intervals_cover_as_they_say() -> None:
    """40 ladders; the benchmark counts 500. Binomial of .95: 32 or fewer of 40 has probability 2e-4."""
    shares = coverage(40, resamples=0)
    assert all(share >= 33 / 40 for share in shares.values()), shares
    assert np.mean(list(shares.values())) >= 0.88
