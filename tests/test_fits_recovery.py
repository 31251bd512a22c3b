"""Noise-free surfaces of every law are given back, and autodiff derivatives are those of finite differences."""

import numpy as np
import pytest

from fits.autodiff import AutodiffObjective
from fits.laws import LAWS
from fits.loss import LossSpec
from fits.solve import FitStatus, solve
from tests.fits_surfaces import TRUTH, inputs_of

SLOW = {"m4", "bnsl", "clark-floor", "effective-params", "muennighoff"}  # compiled by JAX, 4 to 8 s each


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LAWS]
)
def test_noise_free_surface_gives_the_parameters_back(name: str) -> None:
    law, x = LAWS[name], inputs_of(name)
    y = np.log(np.asarray(law.predict(TRUTH[name], x)))
    solution = solve(law, x, y, LossSpec.mse(), {})
    assert solution.status is FitStatus.CONVERGED, solution.message
    assert solution.agreement >= 0.8
    for key, value in TRUTH[name].items():
        assert solution.theta[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", ["chinchilla", "gadre", "krajewski", "ludziejewski"])
def test_sums_of_terms_are_given_back_under_huber_as_well(name: str) -> None:
    law, x = LAWS[name], inputs_of(name)
    y = np.log(np.asarray(law.predict(TRUTH[name], x)))
    solution = solve(law, x, y, LossSpec.huber(), {})
    assert solution.status is FitStatus.CONVERGED, solution.message
    for key, value in TRUTH[name].items():
        assert solution.theta[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    "name", ["kaplan", *(pytest.param(name, marks=pytest.mark.slow) for name in ("clark", "muennighoff"))]
)
def test_units_change_no_fit_of_laws_that_are_no_sums(name: str) -> None:
    """Tokens and parameters in other units give the same residuals, as starts and coordinates carry no units."""
    law, x = LAWS[name], inputs_of(name)
    y = np.log(np.asarray(law.predict(TRUTH[name], x))) + np.random.default_rng(1).normal(0, 0.005, 120)
    pure = {"experts", "granularity"}
    scaled = {key: value if key in pure else value / 1e9 for key, value in x.items()}
    one, other = (solve(law, inputs, y, LossSpec.mse(), {}) for inputs in (x, scaled))
    assert one.value == pytest.approx(other.value, rel=1e-8)


@pytest.mark.parametrize("loss", [LossSpec.huber(0.01), LossSpec.student_t(0.01)], ids=str)
def test_autodiff_objective_has_the_derivatives_of_finite_differences(loss: LossSpec) -> None:
    law, x = LAWS["kaplan"], inputs_of("kaplan")
    rng = np.random.default_rng(0)
    y = np.log(np.asarray(law.predict(TRUTH["kaplan"], x))) + rng.normal(0, 0.02, 120)
    objective = AutodiffObjective.of(law, x, y, loss, {})
    u = objective.from_theta(TRUTH["kaplan"]) + 0.003
    weights = rng.integers(0, 3, (1, 120)).astype(float)
    found = objective.evaluate(u[None], weights)
    step = 1e-6
    sides = np.concatenate([u + step * np.eye(4), u - step * np.eye(4)])
    around = objective.evaluate(sides, np.repeat(weights, 8, axis=0))
    np.testing.assert_allclose(found.gradient[0], (around.value[:4] - around.value[4:]) / (2 * step), rtol=1e-5)
    slopes = (around.gradient[:4] - around.gradient[4:]) / (2 * step)
    np.testing.assert_allclose(found.hessian[0], slopes, rtol=1e-3, atol=1e-3 * np.abs(slopes).max())
    back = {
        key: float(value[0]) for key, value in objective.to_theta(objective.from_theta(TRUTH["kaplan"])[None]).items()
    }
    assert back == pytest.approx(dict(TRUTH["kaplan"]), rel=1e-9)


def test_linearisation_of_a_general_law_is_its_objective() -> None:
    law, x = LAWS["clark"], inputs_of("clark")
    y = np.log(np.asarray(law.predict(TRUTH["clark"], x))) + np.random.default_rng(0).normal(0, 0.01, 120)
    solution = solve(law, x, y, LossSpec.mse(), {})
    line = solution.objective.linearise(solution.u)
    assert solution.value == pytest.approx(float((line.residuals**2).sum() / 2), rel=1e-9)
    np.testing.assert_allclose(line.jacobian.T @ line.residuals, 0, atol=1e-7)
