"""Run tables from known surfaces for the tests of fits; no ladder is planned, only the columns that fits read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fits.laws import Chinchilla
from ladder.runs import RunTable

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
SURFACES: Mapping[str, Mapping[str, float]] = {
    "symmetric": {"E": 1.69, "A": 400.0, "B": 400.0, "alpha": 0.31, "beta": 0.31},
    "chinchilla": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
    "besiroglu": {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658},
    "asymmetric": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.465, "beta": 0.155},
}


def data_frame(name: str) -> pd.DataFrame:
    """Return a public data table, or skip the test where the data are not beside the checkout."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"public data {name} are not beside this checkout")
    return pd.read_csv(path)


def surface_loss(theta: Mapping[str, float], n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return E + A/N^alpha + B/D^beta, written out independently of the laws."""
    return theta["E"] + theta["A"] / n ** theta["alpha"] + theta["B"] / d ** theta["beta"]


def table(rows: Sequence[Mapping[str, object]] | pd.DataFrame) -> RunTable:
    """Return a run table of `rows`, other columns filled with one recipe and metric."""
    frame = pd.DataFrame(rows)
    plain = {
        "rung_id": frame["run_id"],
        "role": "fit",
        "recipe": "synthetic",
        "status": "finished",
        "flop_convention": "SIX_ND_ACTIVE",
        "metric": "loss",
        "loss_unit": "nats_per_token",
        "eval_set": "synthetic",
    }
    for name, value in plain.items():
        if name not in frame.columns:
            frame[name] = value
    return RunTable.of(frame)


def isoflop_rows(
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray],
    budgets: Sequence[float],
    centre: Callable[[float], float],
    width: float,
    sizes: int,
) -> pd.DataFrame:
    """Return IsoFLOP rows with C = 6 N D: sizes log-spaced within `width` times each side of `centre(budget)`."""
    rows = []
    for budget in budgets:
        n = centre(budget) * np.geomspace(1 / width, width, sizes)
        d = budget / 6 / n
        for size, tokens, value in zip(n, d, loss(n, d), strict=True):
            rows.append(
                {
                    "run_id": f"{budget:g}-{size:.6g}",
                    "budget": budget,
                    "compute": budget,
                    "active_params": size,
                    "nonembedding_active_params": size,
                    "tokens": tokens,
                    "tokens_per_param": tokens / size,
                    "loss": value,
                }
            )
    return pd.DataFrame(rows)


def ladder_rows(budgets: Sequence[float], losses: Sequence[float]) -> pd.DataFrame:
    """Return a ladder of one optimum a budget without sizes."""
    return pd.DataFrame({"run_id": [f"{c:g}" for c in budgets], "budget": budgets, "compute": budgets, "loss": losses})


def optimum(theta: Mapping[str, float], budget: float) -> tuple[float, float, float]:
    """Return N*, D*, L* by the closed form (itself tested against a numeric minimum)."""
    return Chinchilla().optimum(theta, budget)


def noisy_isoflop(seed: int = 0, sd: float = 0.002) -> pd.DataFrame:
    """Return 5 budgets x 7 sizes of the Besiroglu surface with log-normal noise, a replicated rung at each budget."""
    theta = SURFACES["besiroglu"]
    budgets = np.geomspace(1e18, 1e20, 5).tolist()
    rows = isoflop_rows(lambda n, d: surface_loss(theta, n, d), budgets, lambda c: optimum(theta, c)[0], 4.0, 7)
    rows["rung_id"], rows["seed"] = rows["run_id"], 0.0
    central = rows.groupby("budget").nth(3)
    extra = [central.assign(run_id=central["run_id"] + f"-s{s}", seed=float(s)) for s in (1, 2)]
    rows = pd.concat([rows, *extra], ignore_index=True)
    rows["loss"] *= np.exp(np.random.default_rng(seed).normal(0, sd, len(rows)))
    return rows
