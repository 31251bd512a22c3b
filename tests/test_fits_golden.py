"""Golden fits of public data: Epoch's Chinchilla points, Clark's routed models, Delphi's parabolas, Marin's MoE law."""

import numpy as np
import pandas as pd
import pytest

from fits.isoflop import isoflop
from fits.laws import LAWS, Chinchilla, PowerLawFloor
from fits.laws_moe import Clark
from fits.loss import LossSpec
from fits.solve import FitStatus, solve
from tests.fits_tables import data_frame, table

EPOCH = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
EPOCH_ALL = {"E": 1.891338, "A": 495.726, "B": 12845.6, "alpha": 0.349313, "beta": 0.453049}


def epoch(outliers: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs and ln L of Epoch's digitised points."""
    frame = data_frame("chinchilla_epoch/runs.csv")
    frame = frame if outliers else frame[frame["besiroglu_outlier"] == 0]
    n = frame["params"].to_numpy()
    return {"active_params": n, "tokens": frame["flops"].to_numpy() / (6 * n)}, np.log(frame["loss"].to_numpy())


@pytest.mark.parametrize(
    ("outliers", "runs", "theta", "objective"),
    [(False, 240, EPOCH, 0.0010182740178), (True, 245, EPOCH_ALL, 0.001826011)],
)
def test_epoch(outliers: bool, runs: int, theta: dict[str, float], objective: float) -> None:
    x, y = epoch(outliers)
    assert len(y) == runs
    solution = solve(Chinchilla(), x, y, LossSpec.huber(), {})
    assert solution.status is FitStatus.CONVERGED
    assert solution.value == pytest.approx(objective, abs=1e-12 if not outliers else 6e-10)
    for key, value in theta.items():
        assert solution.theta[key] == pytest.approx(value, rel=5e-6)


CLARK = {  # laws.md section 6: refits on the released CSV, rmse of log10 L and Ncut
    "S-Base": ({"a": -0.08303, "b": -0.11804, "c": 0.00992, "d": 1.11358, "E_start": 2.0746, "E_max": 238.68}, 0.0032, 7.8e11),
    "RL-R": ({"a": -0.08273, "b": -0.12342, "c": 0.01123, "d": 1.10701, "E_start": 1.7219, "E_max": 470.05}, 0.0032, 9.7e10),
    "Hash": ({"a": -0.08736, "b": -0.13836, "c": 0.01264, "d": 1.15953, "E_start": 4.2688, "E_max": 427.32}, 0.0030, 8.9e10),
}  # fmt: skip


@pytest.mark.parametrize("router", CLARK)
def test_clark_refits(router: str) -> None:
    """k = 1, every other layer routed, seed 42, plain FLOPs, last step; a law of all experts with the dense models."""
    frame = data_frame("clark_routed_lm/final.csv")
    frame = frame[
        (frame["main_grid"] == 1) & (frame["flop_increase"] == 1) & frame["router_type"].isin([router, "Dense"])
    ]
    x = {"active_params": frame["params_active"].to_numpy(float), "experts": frame["experts"].to_numpy(float)}
    y = np.log(frame["loss"].to_numpy())
    theta, rmse, cutoff = CLARK[router]
    solution = solve(Clark(), x, y, LossSpec.mse(), {})
    assert solution.status is FitStatus.CONVERGED, solution.message
    residuals = solution.objective.linearise(solution.u).residuals / np.log(10)
    assert np.sqrt((residuals**2).mean()) == pytest.approx(rmse, abs=5e-5)
    for key, value in theta.items():
        digits = {"E_start": 5e-5, "E_max": 5e-3}.get(key, 5e-6)
        assert solution.theta[key] == pytest.approx(value, abs=1.2 * digits), key
    assert Clark().cutoff(solution.theta) == pytest.approx(cutoff, rel=0.02)


def test_delphi_parabolas_to_all_digits() -> None:
    """The published parabolas are of the loss in log10 of tokens, so tokens stand in the size column here."""
    runs = data_frame("delphi/isoflop_runs.csv")
    published = data_frame("delphi/isoflop_optima.csv")
    published = published[published["kind"] == "published"].sort_values("budget_flops").reset_index()
    runs = runs[runs["suite"] == published["suite"].iloc[0]]
    rows = pd.DataFrame(
        {
            "run_id": runs["run_name"],
            "budget": runs["budget_flops"],
            "compute": runs["total_flops"],
            "active_params": runs["tokens"],
            "tokens": runs["tokens"],
            "loss": runs["loss"],
        }
    )
    found = isoflop(table(rows).frame, "active_params").profiles
    assert len(found) == len(published)
    for profile, row in zip(found, published.to_dict("records"), strict=True):
        assert profile.parabola is not None
        assert profile.centre is not None
        assert profile.optimum is not None
        c, b, a = profile.parabola
        shift, ten = np.log(profile.centre), np.log(10)
        assert a * ten**2 == pytest.approx(row["quad_a"], rel=1e-8)
        assert (b - 2 * a * shift) * ten == pytest.approx(row["quad_b"], rel=1e-8)
        assert c - b * shift + a * shift**2 == pytest.approx(row["quad_c"], rel=1e-8)
        assert profile.optimum.size == pytest.approx(row["opt_tokens"], rel=1e-8)
        assert profile.optimum.loss == pytest.approx(row["opt_loss"], rel=1e-8)


V16 = ([1e18, 3e18, 1e19, 3e19, 1e20, 3e20], [3.522, 3.339, 3.154, 3.000, 2.848, 2.725])


def v16(count: int, floor: float | None) -> float:
    """Return the forecast at 1e23 of a fit to the first optima, with the floor pinned or free."""
    compute = np.array(V16[0][:count])
    loss = np.log(np.array(V16[1][:count]) - (floor or 0))
    if floor is not None:  # marin_moe.md: least squares on ln(L - floor)
        slope, level = np.polyfit(np.log(compute), loss, 1)
        return float(floor + np.exp(level + slope * np.log(1e23)))
    solution = solve(PowerLawFloor(), {"compute": compute}, loss, LossSpec.mse(), {})
    return float(PowerLawFloor().predict(solution.theta, {"compute": 1e23}))


def test_marin_moe_law_is_refitted() -> None:
    """1.6 + 95.25 C^-.0941: least squares on ln(L - 1.6), which is a power law of the reducible loss."""
    compute, loss = np.array(V16[0]), np.array(V16[1])
    solution = solve(LAWS["power-law"], {"compute": compute}, np.log(loss - 1.6), LossSpec.mse(), {})
    assert solution.theta["A"] == pytest.approx(95.25, abs=0.005)
    assert solution.theta["alpha"] == pytest.approx(0.0941, abs=5e-5)
    in_log = solve(PowerLawFloor(), {"compute": compute}, np.log(loss), LossSpec.mse(), {"E": 1.6})
    assert in_log.theta["alpha"] == pytest.approx(0.0941, abs=1e-4)


@pytest.mark.parametrize(("floor", "forecast"), [(1.5, 2.234), (1.6, 2.252), (1.8, 2.293)])
def test_floor_alone_moves_the_marin_forecast(floor: float, forecast: float) -> None:
    assert v16(6, floor) == pytest.approx(forecast, abs=6e-4)


def test_free_floor_of_the_marin_ladder() -> None:
    """Least squares on ln L; on ln(L - E), as in the record, they are 2.224 and 2.179."""
    assert v16(6, None) == pytest.approx(2.226, abs=1e-3)
    assert v16(4, None) == pytest.approx(2.179, abs=4e-3)
