"""Time the fit of Chinchilla's law and its bootstrap against a plain SciPy yardstick, in one process on one core.

    python benchmarks/bench_fits.py --data ../shared/data

The yardstick is what a careful person writes: twelve starts of BFGS with an analytic gradient on centred logarithms;
for a resample one BFGS from the full optimum. Its tolerance is the loosest power of ten that still meets our objective
to a relative 1e-6 in 95 of 100 resamples, so that it is not made slow by precision nobody asked for. Prints one line of JSON: ``epoch_objective``,
``fit_ratio`` (ours over yardstick, warm), ``bootstrap_ratio`` (yardstick over ours, per resample), the times behind
them, the largest relative excess of our objectives over the yardstick's, and where our time goes.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import minimize

from fits.bootstrap import cluster_counts, resample_optima
from fits.laws import Chinchilla
from fits.newton import minimise, newton_step
from fits.objective import LossSpec
from fits.solve import Solution, solve, starts_of

DELTA = 1e-3
RESAMPLES = 4000
SAMPLE = 100  # resamples that the yardstick is timed on
REPEATS = 5


def yardstick(
    log_n: Float[np.ndarray, " runs"], log_d: Float[np.ndarray, " runs"], y: Float[np.ndarray, " runs"]
) -> Callable[..., tuple[float, Float[np.ndarray, " params"]]]:
    """Return value and gradient of sum w Huber(LSE(e, a - alpha ln N, b - beta ln D) - ln L), logarithms centred."""
    log_n, log_d = log_n - log_n.mean(), log_d - log_d.mean()

    def function(u: Float[np.ndarray, " params"], w: Float[np.ndarray, " runs"]) -> tuple[float, Any]:
        e = np.exp(u[0])
        p = np.exp(u[1] - u[3] * log_n)
        q = np.exp(u[2] - u[4] * log_d)
        total = e + p + q
        r = np.log(total) - y
        psi = np.minimum(np.maximum(r, -DELTA), DELTA)
        pull = w * psi
        value = pull @ (r - psi / 2)
        pull = pull / total
        p *= pull
        q *= pull
        return value, np.array([e * pull.sum(), p.sum(), q.sum(), -(p @ log_n), -(q @ log_d)])

    return function


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least CPU time of `REPEATS` calls, and the last result."""
    best, result = np.inf, None
    for _ in range(REPEATS):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return float(best), result


def measure(data: Path) -> dict[str, Any]:
    """Return the figures of the comparison on the 240 digitised Chinchilla runs."""
    frame = pd.read_csv(data / "chinchilla_epoch" / "runs.csv")
    frame = frame[frame["besiroglu_outlier"] == 0]
    n = frame["params"].to_numpy()
    d, y = frame["flops"].to_numpy() / (6 * n), np.log(frame["loss"].to_numpy())
    law, x = Chinchilla(), {"active_params": n, "tokens": d}
    own_fit, solution = timed(lambda: solve(law, x, y, LossSpec.huber(DELTA), {}))
    assert isinstance(solution, Solution)
    starts = starts_of(law, solution.objective)
    function = yardstick(np.log(n), np.log(d), y)
    ones = np.ones(len(y))

    def bfgs(u: Float[np.ndarray, " params"], w: Float[np.ndarray, " runs"], gtol: float) -> Any:
        return minimize(function, u, args=(w,), jac=True, method="BFGS", options={"gtol": gtol, "maxiter": 5000})

    def resampled(gtol: float) -> list[float]:
        return [bfgs(solution.u, w, gtol).fun for w in weights[:SAMPLE]]

    weights = cluster_counts(tuple(map(str, range(len(y)))), RESAMPLES, 0, "runs")
    own_boot, optima = timed(lambda: resample_optima(solution.objective, solution.u[None], weights))
    lowest = optima.value[:SAMPLE]
    for gtol in (1e-5, 1e-6, 1e-7, 1e-8):
        plain_boot, found = timed(partial(resampled, gtol))
        excess = np.array(found) / lowest - 1
        if (excess <= 1e-6).mean() >= 0.95:
            break
    plain_fit, fits = timed(lambda: [bfgs(u, ones, gtol).fun for u in starts])
    full = np.tile(solution.u, (RESAMPLES, 1))
    evaluating, there = timed(lambda: solution.objective.evaluate(full, weights))
    stepping, _ = timed(lambda: newton_step(there))
    steps = float(minimise(solution.objective, full, weights).steps.mean())
    per = 1e6 / RESAMPLES
    return {
        "epoch_objective": solution.value,
        "fit_ratio": own_fit / plain_fit,
        "bootstrap_ratio": (plain_boot / SAMPLE) / (own_boot / RESAMPLES),
        "fit_ms": 1e3 * own_fit,
        "yardstick_fit_ms": 1e3 * plain_fit,
        "yardstick_starts": len(fits),
        "bootstrap_us": per * own_boot,
        "yardstick_bootstrap_us": 1e6 * plain_boot / SAMPLE,
        "yardstick_gtol": gtol,
        "largest_relative_excess": float((lowest / np.array(found) - 1).max()),
        "resamples_without_optimum": RESAMPLES - len(optima.u),
        "limits": (
            f"{steps:.1f} Newton steps a resample, each {per * evaluating:.1f} us of evaluation (exponentials, shares and "
            f"15 products over {len(y)} rows, memory-bound in L2) and {per * stepping:.1f} us of factorisation"
        ),
    }


if __name__ == "__main__":
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":  # NumPy reads it when it is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    parser = argparse.ArgumentParser(description="Time fits against a plain SciPy yardstick.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the public data tables")
    print(json.dumps(measure(parser.parse_args().data)))
