"""Weights by CRPS, the surface, vertices, frontier and members of the stacked policy, against references."""

import math

import numpy as np
import pytest
from scipy import stats

from fits.broken import fit_broken
from fits.floor_posterior import floor_posterior
from fits.frontier import Observations, frontier_of
from fits.members import BROKEN, names_of, of_floor, prior_weights
from fits.policy import StackedPolicy, cuts_of
from fits.stacking import absolute_mean, crps_weights
from fits.surface import fit_surface
from fits.vertices import vertices_of
from ladder.errors import InputError
from tests.fits_tables import SURFACES, surface_loss

NAN = math.nan


def ladder(compute: np.ndarray, loss: np.ndarray) -> Observations:
    unknown = np.full(len(compute), NAN)
    return Observations(compute, unknown, unknown, unknown, loss)


def isoflop(budgets: np.ndarray, sizes: int = 9) -> Observations:
    theta = SURFACES["besiroglu"]
    budget = np.repeat(budgets, sizes)
    best = 0.12 * (budget / 6) ** 0.513
    size = best * np.tile(np.geomspace(1 / 3, 3, sizes), len(budgets))
    tokens = budget / (6 * size)
    return Observations(budget, size, tokens, budget, surface_loss(theta, size, tokens))


def test_absolute_mean_is_that_of_samples() -> None:
    draws = stats.norm(0.3, 0.7).rvs(400_000, random_state=0)
    assert float(absolute_mean(np.array(0.3), np.array(0.7))) == pytest.approx(np.abs(draws).mean(), abs=3e-3)


def test_weights_minimise_the_crps_of_the_mixture() -> None:
    rng = np.random.default_rng(0)
    outcomes = rng.standard_normal(40)
    centres = np.stack([outcomes + 0.3, outcomes - 0.5, outcomes + 2])
    sds = np.full((3, 40), 0.5)
    found = crps_weights(centres, sds, outcomes, np.ones(40), np.full(3, 1 / 3), 1e-6, 1.0)

    def crps(w: np.ndarray) -> float:
        first = w @ absolute_mean(centres - outcomes, sds).mean(axis=1)
        pairs = absolute_mean(centres[:, None] - centres[None], np.full((3, 3, 40), 0.5 * math.sqrt(2))).mean(axis=2)
        return float(first - w @ pairs @ w / 2)

    grid = [np.array([a, b, 1 - a - b]) for a in np.linspace(0, 1, 41) for b in np.linspace(0, 1 - a, 41)]
    assert crps(found) <= min(map(crps, grid)) + 1e-5
    strong = crps_weights(centres, sds, outcomes, np.ones(40), np.full(3, 1 / 3), 1e6, 1.0)
    assert strong == pytest.approx(np.full(3, 1 / 3), abs=1e-4)
    none = crps_weights(centres, sds, outcomes, np.ones(40), np.array([0.5, 0.5, 0.0]), 1.0, 1.0)
    assert none[2] == 0
    assert none.sum() == pytest.approx(1)


def test_surface_recovers_offsets_of_a_known_surface() -> None:
    runs = isoflop(np.geomspace(1e19, 1e21, 6))
    surface = fit_surface(runs.compute, runs.size, runs.tokens, runs.loss)
    truth = np.log(runs.loss) - np.log(np.array([runs.loss[runs.budget == b].min() for b in runs.budget]))
    assert surface.offset(runs.compute, runs.size, runs.tokens) == pytest.approx(truth, abs=2e-3)


def test_vertices_meet_the_optimum_of_a_known_surface() -> None:
    runs = isoflop(np.geomspace(1e19, 1e21, 6))
    found = vertices_of(runs.compute, runs.size, runs.budget, runs.loss)
    assert found is not None
    theta = SURFACES["besiroglu"]
    grid = np.geomspace(1e7, 1e11, 20_001)
    best = [surface_loss(theta, grid, c / (6 * grid)).min() for c in found.compute]
    assert found.loss == pytest.approx(best, rel=3e-4)
    assert frontier_of(runs).kind == "vertices"


def test_designs_are_told_apart_by_the_table() -> None:
    compute = np.geomspace(1e18, 1e20, 5)
    assert frontier_of(ladder(compute, 3 * (compute / 1e18) ** -0.05)).kind == "runs"
    runs = isoflop(np.geomspace(1e19, 1e21, 6))
    scattered = Observations(runs.compute, runs.size, runs.tokens, np.full(len(runs.loss), NAN), runs.loss)
    found = frontier_of(scattered)
    assert found.kind == "collapse"
    theta = SURFACES["besiroglu"]
    grid = np.geomspace(1e7, 1e11, 20_001)
    best = [surface_loss(theta, grid, c / (6 * grid)).min() for c in found.compute]
    assert found.loss == pytest.approx(best, rel=3e-3)


def test_broken_curve_recovers_a_break() -> None:
    x = np.geomspace(1, 1e4, 60)
    truth = 0.2 + x**-0.1 * (1 + (x / 100) ** 2) ** (-0.1)
    curve = fit_broken(x[:45], truth[:45])
    assert curve.log_loss(x[45:]) == pytest.approx(np.log(truth[45:]), abs=0.02)


def test_members_of_the_floor_are_the_floor_posterior() -> None:
    compute, loss = np.geomspace(1e18, 3e20, 6), np.array([3.52, 3.34, 3.15, 3.0, 2.85, 2.725])
    posterior = floor_posterior(compute, loss, 0.002)
    found = of_floor(posterior, np.array([1e21, 1e23]))
    for index, target in enumerate((1e21, 1e23)):
        split = posterior.split(target)
        assert found.centre[index] == pytest.approx(posterior.centre(target), rel=1e-6)
        assert (found.parameter[index], found.form[index], found.seed[index]) == pytest.approx(
            (split.parameter, split.form, split.seed), rel=1e-4
        )


def test_prior_weight_of_the_broken_curve_falls_with_distance() -> None:
    names = names_of(20)
    near, far = prior_weights(names, 1.5), prior_weights(names, 100)
    assert near.sum() == pytest.approx(1)
    assert far.sum() == pytest.approx(1)
    assert near[names.index(BROKEN)] > 0.7
    assert far[names.index(BROKEN)] < 1e-3
    assert names_of(5) == names[:2]


def test_cuts_keep_what_members_need() -> None:
    assert cuts_of(3, dense=False) == []
    assert cuts_of(6, dense=False) == [3, 4, 5]
    assert min(cuts_of(40, dense=True)) >= 8
    assert len(cuts_of(40, dense=True)) <= 6


def test_forecast_of_one_is_that_of_many_and_parts_add_up() -> None:
    runs = isoflop(np.geomspace(1e19, 1e21, 6))
    policy = StackedPolicy.of(runs, 0.0)
    many = policy.forecasts(np.array([1e22, 1e22]), np.array([NAN, 5e9]), np.array([NAN, 1e22 / 6 / 5e9]))
    alone = policy.forecast(1e22)
    assert many[0].predictive().centres == pytest.approx(alone.predictive().centres, rel=1e-12)
    assert many[0].predictive().scales == pytest.approx(alone.predictive().scales, rel=1e-9)
    assert many[1].offset > 0
    assert many[1].predictive().median > alone.predictive().median
    predictive = alone.predictive()
    centres, scales = np.array(predictive.centres), np.array(predictive.scales)
    between = np.dot(predictive.weights, (centres - np.dot(predictive.weights, centres)) ** 2)
    assert alone.split().total == pytest.approx(float(np.dot(predictive.weights, scales**2) + between), rel=1e-9)
    low, high = predictive.interval(0.9)
    curve = alone.curve().interval(0.9)
    assert low < curve[0] < curve[1] < high


def test_units_do_not_matter() -> None:
    compute, loss = np.geomspace(1e18, 3e20, 6), np.array([3.52, 3.34, 3.15, 3.0, 2.85, 2.725])
    one = StackedPolicy.of(ladder(compute, loss), 0.0).forecast(1e22).predictive()
    other = StackedPolicy.of(ladder(compute / 1e18, loss / math.log(2)), 0.0).forecast(1e4).predictive()
    assert other.median * math.log(2) == pytest.approx(one.median, rel=1e-10)
    assert other.scales == pytest.approx(one.scales, rel=1e-6)


def test_a_worse_ladder_gets_wider_intervals_and_a_better_one_not_narrower() -> None:
    compute = np.geomspace(1e18, 1e21, 7)
    smooth = 1.7 + 1.3 * (compute / 1e18) ** -0.12
    rough = smooth * np.exp(np.array([0, 0, 0, 0.01, -0.012, 0.011, -0.01]))
    assert StackedPolicy.of(ladder(compute, smooth), 0.0).weights(10)[1] == 1
    assert StackedPolicy.of(ladder(compute, rough), 0.0).weights(10)[1] > 1


def test_two_rungs_are_refused() -> None:
    with pytest.raises(InputError, match="3 budgets"):
        StackedPolicy.of(ladder(np.array([1e18, 1e19]), np.array([3.0, 2.8])), 0.0)
