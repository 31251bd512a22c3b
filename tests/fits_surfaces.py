"""Known surfaces of every law, and inputs on which their parameters are determined."""

from collections.abc import Mapping

import numpy as np

from fits.laws import LAWS

RUNS = 120
PUBLISHED = ("kaplan", "muennighoff", "gadre", "clark", "krajewski", "ludziejewski")
TRUTH: Mapping[str, Mapping[str, float]] = {
    "power-law": {"A": 40.0, "alpha": 0.06},
    "power-law-floor": LAWS["power-law-floor"].published["marin2026"],
    "chinchilla": LAWS["chinchilla"].published["besiroglu2024"],
    "m4": {"E": 1.7, "L0": 11.0, "B": 300.0, "alpha": 0.7, "c": 0.15},
    "bnsl": {"a": 1.7, "b": 400.0, "c0": 0.12, "c1": 0.1, "d": 1e20, "f": 0.5},
    "clark-floor": {"L_inf": 0.8, "a": -0.1, "b": -0.15, "c": 0.012, "d": 1.2, "E_start": 2.0, "E_max": 300.0},
    "effective-params": {
        "E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.33, "beta": 0.34, "rho0": 0.1, "rho1": -0.01, "sigma0": 0.03,
        "R_max": 20.0,
    },
    **{name: next(iter(LAWS[name].published.values())) for name in PUBLISHED},
}  # fmt: skip


def inputs_of(name: str) -> dict[str, np.ndarray]:
    """Return inputs of a law: scattered over the ranges of its literature, or fifteen to sixty budgets."""
    if LAWS[name].inputs == ("compute",):
        return {"compute": np.geomspace(1e15, 1e24, 60)}
    rng = np.random.default_rng(0)
    n, d = 10 ** rng.uniform(7.5, 10, RUNS), 10 ** rng.uniform(9, 11.5, RUNS)
    table = {
        "active_params": n,
        "tokens": d,
        "compute": 6 * n * d,
        "unique_tokens": d / np.where(rng.random(RUNS) < 0.5, 1, rng.uniform(2, 40, RUNS)),
        "experts": 2.0 ** rng.integers(0, 9, RUNS),
        "granularity": 2.0 ** rng.integers(0, 5, RUNS),
        "total_params": n * 2.0 ** rng.uniform(0, 5, RUNS),
    }
    return {key: table[key] for key in LAWS[name].inputs}
