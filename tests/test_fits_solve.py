"""The solver: known surfaces recovered, the golden fit, units that do not matter, and statuses that do not flatter."""

import numpy as np
import pytest

from fits.laws import Chinchilla, PowerLaw, PowerLawFloor
from fits.newton import minimise
from fits.objective import LossSpec, TermObjective
from fits.solve import FitStatus, solve, starts_of
from tests.fits_tables import SURFACES, data_frame, surface_loss


def grid(points: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Return N and D scattered over three decades."""
    rng = np.random.default_rng(0)
    return 10 ** rng.uniform(7, 10, points), 10 ** rng.uniform(9, 11.5, points)


def epoch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return N, D and ln L of the 240 digitised Chinchilla runs."""
    frame = data_frame("chinchilla_epoch/runs.csv")
    frame = frame[frame["besiroglu_outlier"] == 0]
    n = frame["params"].to_numpy()
    return n, frame["flops"].to_numpy() / (6 * n), np.log(frame["loss"].to_numpy())


@pytest.mark.parametrize("loss", [LossSpec.huber(), LossSpec.mse()], ids=str)
@pytest.mark.parametrize("name", SURFACES)
def test_noise_free_surface_is_recovered(name: str, loss: LossSpec) -> None:
    n, d = grid()
    theta = SURFACES[name]
    solution = solve(Chinchilla(), {"active_params": n, "tokens": d}, np.log(surface_loss(theta, n, d)), loss, {})
    assert solution.status is FitStatus.CONVERGED, solution.message
    assert solution.agreement == 1
    for key, value in theta.items():
        assert solution.theta[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("law", [PowerLaw(), PowerLawFloor()], ids=lambda law: law.name)
def test_noise_free_curve_is_recovered(law: PowerLaw | PowerLawFloor) -> None:
    compute = np.geomspace(1e18, 1e21, 6)
    theta = {"E": 1.6, "A": 95.18, "alpha": 0.0941}
    theta = {key: value for key, value in theta.items() if key in {param.name for param in law.params}}
    loss = theta.get("E", 0.0) + theta["A"] * compute ** -theta["alpha"]
    solution = solve(law, {"compute": compute}, np.log(loss), LossSpec.mse(), {})
    assert solution.status is FitStatus.CONVERGED, solution.message
    for key, value in theta.items():
        assert solution.theta[key] == pytest.approx(value, rel=1e-6)


def test_epoch_fit_is_the_golden_optimum() -> None:
    n, d, log_loss = epoch()
    assert len(n) == 240
    solution = solve(Chinchilla(), {"active_params": n, "tokens": d}, log_loss, LossSpec.huber(), {})
    assert solution.status is FitStatus.CONVERGED
    assert solution.agreement >= 0.95
    assert solution.value == pytest.approx(0.0010182740178, abs=1e-12)  # laws.md section 3, peers.md section 2
    expected = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
    for key, value in expected.items():
        assert solution.theta[key] == pytest.approx(value, rel=2e-6)


def test_delphi_optima_give_the_published_least_squares_refit() -> None:
    frame = data_frame("delphi/isoflop_optima.csv")
    frame = frame[frame["kind"] == "published"]
    compute, loss = frame["budget_flops"].to_numpy(), np.log(frame["opt_loss"].to_numpy())
    solution = solve(PowerLawFloor(), {"compute": compute}, loss, LossSpec.mse(), {})
    assert solution.theta["E"] == pytest.approx(1.693, abs=5e-4)  # delphi.md (b): log-space refit
    assert solution.theta["A"] == pytest.approx(135.7, abs=0.05)
    assert solution.theta["alpha"] == pytest.approx(0.1004, abs=5e-5)
    assert PowerLawFloor().predict(solution.theta, {"compute": 1e23}) == pytest.approx(2.3576, abs=5e-5)


@pytest.mark.parametrize("unit", [1e6, 1e9])
def test_units_of_parameters_and_tokens_change_no_prediction(unit: float) -> None:
    n, d = grid(40)
    log_loss = np.log(surface_loss(SURFACES["besiroglu"], n, d)) + np.random.default_rng(1).normal(0, 0.01, 40)
    plain, scaled = (
        solve(Chinchilla(), {"active_params": n / s, "tokens": d / s}, log_loss, LossSpec.huber(), {})
        for s in (1, unit)
    )
    far = np.array([7e10]), np.array([1.4e12])
    one = Chinchilla().predict(plain.theta, {"active_params": far[0], "tokens": far[1]})
    other = Chinchilla().predict(scaled.theta, {"active_params": far[0] / unit, "tokens": far[1] / unit})
    assert one == pytest.approx(other, rel=1e-8)


def test_no_start_ends_above_where_it_began() -> None:
    n, d, log_loss = epoch()
    objective = TermObjective.of(Chinchilla(), {"active_params": n, "tokens": d}, log_loss, LossSpec.huber(), {})
    starts = np.random.default_rng(0).normal([0, 0, 0, 0.5, 0.5], 1.0, (40, 5))
    weights = np.ones((40, len(n)))
    before = objective.evaluate(starts, weights).value
    assert (minimise(objective, starts, weights).value <= before).all()


def test_start_in_the_corner_where_raw_solvers_stick_is_left() -> None:
    """Peers study, case 2: at this point the D term has vanished and the gradient with it."""
    n, d, log_loss = epoch()
    objective = TermObjective.of(Chinchilla(), {"active_params": n, "tokens": d}, log_loss, LossSpec.huber(), {})
    stuck = np.array([np.log(1.8973), np.log(153.2), np.log(384.5), 0.2633, 1.3292])
    start = np.linalg.solve(objective.shift, stuck)[None]
    minima = minimise(objective, start, np.ones((1, len(n))))
    solution = solve(Chinchilla(), {"active_params": n, "tokens": d}, log_loss, LossSpec.huber(), {})
    assert minima.value[0] < 0.0112984 / 5 or not minima.stationary[0]
    assert solution.value < 0.00102


def test_floor_that_the_runs_do_not_show_is_a_dead_term() -> None:
    compute = np.geomspace(1e18, 1e21, 8)
    curved = np.log(100.0) - 0.05 * np.log(compute) - 0.004 * (np.log(compute) - 44) ** 2  # steeper than any power law
    solution = solve(PowerLawFloor(), {"compute": compute}, curved, LossSpec.mse(), {})
    assert solution.status is FitStatus.DEAD_TERM
    assert "E" in solution.message


def test_exponent_beyond_its_bound_is_put_on_it_and_reported() -> None:
    x = np.geomspace(1.0, 1.9, 12)
    loss = 1.0 + 5.0 * x**-6.0
    solution = solve(PowerLawFloor(), {"compute": x}, np.log(loss), LossSpec.mse(), {})
    assert solution.status is FitStatus.BOUND_HIT
    assert solution.at_bound == ("alpha",)
    assert solution.theta["alpha"] == PowerLawFloor.params[2].bounds[1]
    assert "alpha" in solution.message


def test_floor_above_the_lowest_loss_is_a_bound() -> None:
    compute = np.geomspace(1e18, 1e21, 9)
    loss = 2.0 + 1e8 * compute**-0.45
    loss[-1] = 1.9
    solution = solve(PowerLawFloor(), {"compute": compute}, np.log(loss), LossSpec.huber(), {})
    assert solution.status is FitStatus.BOUND_HIT
    assert solution.theta["E"] == pytest.approx(1.9)


def test_pinned_floor_is_held() -> None:
    compute = np.geomspace(1e18, 1e21, 6)
    solution = solve(
        PowerLawFloor(), {"compute": compute}, np.log(1.5 + 80 * compute**-0.09), LossSpec.mse(), {"E": 1.6}
    )
    assert solution.theta["E"] == pytest.approx(1.6, rel=1e-12)
    assert solution.status is FitStatus.CONVERGED


def test_collinear_inputs_are_ill_conditioned() -> None:
    n = np.geomspace(1e7, 1e10, 30)
    d = 20 * n * np.exp(1e-9 * np.random.default_rng(0).normal(size=30))
    log_loss = np.log(surface_loss(SURFACES["chinchilla"], n, d)) + 1e-3 * np.random.default_rng(1).normal(size=30)
    solution = solve(Chinchilla(), {"active_params": n, "tokens": d}, log_loss, LossSpec.mse(), {})
    assert solution.status is not FitStatus.CONVERGED


def test_non_finite_losses_are_reported() -> None:
    compute = np.geomspace(1e18, 1e21, 6)
    solution = solve(PowerLaw(), {"compute": compute}, np.full(6, np.nan), LossSpec.mse(), {})
    assert solution.status is FitStatus.NON_FINITE


def test_starts_have_no_dead_term_and_are_about_twelve() -> None:
    n, d = grid()
    log_loss = np.log(surface_loss(SURFACES["chinchilla"], n, d))
    objective = TermObjective.of(Chinchilla(), {"active_params": n, "tokens": d}, log_loss, LossSpec.huber(), {})
    starts = starts_of(Chinchilla(), objective)
    assert 10 <= len(starts) <= 12
    assert np.exp(starts[:, :3] - log_loss.mean()).min() > 0.05
