"""Predictive distributions against SciPy's Student-t and against samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fits.predictive import Predictive
from ladder.errors import InputError

MIXTURE = Predictive((0.2, 0.5, 0.3), (0.8, 0.85, 1.0), (0.01, 0.05, 0.02), (3.0, 8.0, 30.0))


@pytest.mark.parametrize("level", [0.025, 0.05, 0.25, 0.5, 0.9, 0.975])
def test_single_part_is_a_student_t_in_the_logarithm(level: float) -> None:
    part = Predictive.student_t(0.9, 0.02, 8.0)
    assert part.quantile(level) == pytest.approx(math.exp(stats.t(8, 0.9, 0.02).ppf(level)), rel=1e-12)
    assert part.cdf(2.5) == pytest.approx(stats.t(8, 0.9, 0.02).cdf(math.log(2.5)), rel=1e-12)


@given(st.floats(0.001, 0.999))
def test_quantile_inverts_cdf(level: float) -> None:
    assert MIXTURE.cdf(MIXTURE.quantile(level)) == pytest.approx(level, abs=1e-10)


def test_sample_follows_the_quantiles() -> None:
    sample = MIXTURE.sample(200_000, seed=1)
    for level in (0.05, 0.5, 0.95):
        assert np.mean(sample <= MIXTURE.quantile(level)) == pytest.approx(level, abs=0.003)
    np.testing.assert_array_equal(sample, MIXTURE.sample(200_000, seed=1))


@pytest.mark.parametrize(
    "fields",
    [
        ((0.5,), (0.0,), (1.0,), (3.0,)),
        ((1.0,), (0.0,), (0.0,), (3.0,)),
        ((1.0,), (math.nan,), (1.0,), (3.0,)),
        ((1.0,), (0.0, 1.0), (1.0,), (3.0,)),
    ],
)
def test_impossible_mixtures_are_refused(fields: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(InputError):
        Predictive(*fields)


def test_levels_outside_zero_and_one_are_refused() -> None:
    with pytest.raises(InputError, match="strictly"):
        MIXTURE.quantile(1.0)
