"""Scores against closed forms, quadrature and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fits.predictive import Predictive
from forecasts.record import QUANTILE_LEVELS, ForecastModel
from forecasts.scores import (
    crps,
    crps_by_quadrature,
    interval_score,
    log_density,
    pinball,
    score,
    weighted_interval_score,
)
from ladder.errors import InputError

NORMAL = Predictive.student_t(0.0, 1.0, 1e6)
T8 = Predictive.student_t(math.log(2.25), 0.02, 8)
MIXTURE = Predictive((0.3, 0.7), (0.7, 0.8), (0.02, 0.05), (5.0, 8.0))


def model(predictive: Predictive) -> ForecastModel:
    return ForecastModel("m", "0" * 64, predictive, tuple(predictive.quantile(level) for level in QUANTILE_LEVELS))


def test_crps_of_a_normal_is_the_closed_form() -> None:
    assert crps(NORMAL, 1.0) == pytest.approx(0.2336950, abs=1e-6)  # z = 0, s = 1


@pytest.mark.parametrize("predictive", [T8, MIXTURE], ids=["t8", "mixture"])
@pytest.mark.parametrize("outcome", [2.0, 2.2, 2.26, 2.5])
def test_crps_equals_quadrature(predictive: Predictive, outcome: float) -> None:
    y = math.log(outcome)

    def integrand(x: float) -> float:
        return (predictive.cdf(math.exp(x)) - (x >= y)) ** 2

    expected = sum(integrate.quad(integrand, a, b, limit=200)[0] for a, b in ((y - 2, y), (y, y + 2)))
    assert crps(predictive, outcome) == pytest.approx(expected, rel=1e-4)


def test_winkler_score_of_a_miss() -> None:
    assert interval_score(0.0, 1.0, 1.2, 0.1) == pytest.approx(5.0)
    assert interval_score(0.0, 1.0, 0.5, 0.1) == 1.0


def test_weighted_interval_score_is_twice_the_mean_pinball() -> None:
    quantiles = model(MIXTURE).quantiles
    for outcome in (2.0, 2.2, 2.3):
        mean = np.mean([pinball(q, x, outcome) for q, x in zip(QUANTILE_LEVELS, quantiles, strict=True)])
        assert weighted_interval_score(quantiles, outcome) == pytest.approx(2 * mean)


def test_log_density_integrates_to_one_and_equals_student_t() -> None:
    total, _ = integrate.quad(lambda x: math.exp(log_density(MIXTURE, x)), 0, 1.6, limit=200)
    assert total == pytest.approx(1.0, abs=1e-3)
    assert log_density(T8, 0.8) == pytest.approx(stats.t.logpdf((0.8 - math.log(2.25)) / 0.02, 8) - math.log(0.02))


def test_score_states_error_pit_z_and_hit() -> None:
    found = score(model(T8), 2.25, 0.9)
    assert found.relative_error == pytest.approx(0, abs=1e-12)
    assert found.pit == pytest.approx(0.5)
    assert found.z == pytest.approx(0, abs=1e-9)
    assert found.inside
    low, high = T8.interval(0.9)
    assert score(model(T8), low * 0.9999, 0.9).inside is False
    assert score(model(T8), high * 0.9999, 0.9).inside is True
    assert score(model(T8), 2.0, 0.9).relative_error == pytest.approx(0.125)


@settings(max_examples=25)
@given(shift=st.floats(-0.05, 0.05), stretch=st.floats(0.4, 2.5))
def test_the_truth_has_the_best_expected_score(shift: float, stretch: float) -> None:
    outcomes = T8.sample(3000, seed=1)[::10]
    other = Predictive.student_t(math.log(2.25) + shift, 0.02 * stretch, 8)
    truth = np.mean([crps(T8, y) for y in outcomes])
    assert np.mean([crps(other, y) for y in outcomes]) > truth - 2e-4


def test_quadrature_of_one_part_is_the_closed_form_of_scoringrules_at_any_distance() -> None:
    for df in (1.5, 3.0, 8.0, 1e6):
        one = Predictive.student_t(0.8, 0.02, df)
        for y in (0.8, 0.81, 0.5, 3.0):
            assert crps_by_quadrature(one, y) == pytest.approx(crps(one, math.exp(y)), rel=1e-6)


def test_crps_of_a_normal_mixture_is_the_closed_form_of_scoringrules() -> None:
    import scoringrules

    mixed = Predictive((0.2, 0.5, 0.3), (0.7, 0.72, 1.1), (0.002, 0.05, 0.3), (1e6,) * 3)
    for y in (0.3, 0.705, 0.9, 2.0):
        expected = scoringrules.crps_mixnorm(
            y, np.array(mixed.centres), np.array(mixed.scales), np.array(mixed.weights), backend="numpy"
        )
        assert crps_by_quadrature(mixed, y) == pytest.approx(float(expected), rel=1e-5)


def test_crps_needs_a_mean() -> None:
    with pytest.raises(InputError, match="infinite"):
        crps(Predictive.student_t(0.8, 0.02, 1.0), 2.2)


def test_interval_score_equals_that_of_scoringrules() -> None:
    # Its weighted_interval_score is no reference: without numba, 0.11.0 adds the median where |y - median| belongs.
    import scoringrules

    low, high = T8.interval(0.8)
    for y in (1.5, 2.25, 2.9):
        expected = scoringrules.interval_score(y, low, high, 0.2, backend="numpy")
        assert interval_score(low, high, y, 0.2) == pytest.approx(float(expected), rel=1e-12)


def test_log_score_is_floored_far_out() -> None:
    normal = Predictive.student_t(math.log(2.25), 0.001, 1e6)
    assert score(model(normal), 4.0, 0.9).log_score == pytest.approx(-math.log(1e-6))
