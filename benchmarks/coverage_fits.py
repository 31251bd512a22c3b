"""How often intervals hold the truth, on synthetic ladders inside the model class.

    python benchmarks/coverage_fits.py --ladders 500

Each ladder has 40 runs of Chinchilla's law (Besiroglu et al. 2024) with N and D scattered over two decades each and
normal noise of .2 % in ln L, fitted by least squares. Counted: nominal 95 % profile intervals of every parameter and
of the loss far out (70e9 parameters, 1.4e12 tokens); percentile and BCa intervals of the pairs bootstrap; and, as
a warning, percentiles of fits to 80 % of the runs drawn without replacement, which theory puts at about .67. Prints
one line of JSON and exits with 1 where a profile interval's coverage lies outside .92 to .98.
"""

import argparse
import json
import math
import sys
import time
from typing import Any

import numpy as np
from jaxtyping import Float

from fits.bootstrap import cluster_counts, leave_one_out, resample_optima
from fits.intervals import bca_interval, percentile_interval
from fits.laws import Chinchilla
from fits.loss import LossSpec
from fits.profile import profile, profile_loss
from fits.solve import solve

RUNS, NOISE, LEVEL, RESAMPLES = 40, 0.002, 0.95, 400
TARGET = {"active_params": 70e9, "tokens": 1.4e12}


def ladder(seed: int) -> tuple[dict[str, Float[np.ndarray, " runs"]], Float[np.ndarray, " runs"]]:
    """Return inputs and ln L of one ladder."""
    rng = np.random.default_rng(seed)
    x = {"active_params": 10 ** rng.uniform(7.5, 9.5, RUNS), "tokens": 10 ** rng.uniform(9, 11, RUNS)}
    truth = np.asarray(Chinchilla().predict(Chinchilla.published["besiroglu2024"], x))
    return x, np.log(truth) + rng.normal(0, NOISE, RUNS)


def covered(seed: int, resamples: int) -> dict[str, bool]:
    """Return which interval holds the truth on one ladder; an interval that is not identified holds it by definition
    only on its open side.
    """
    law, truth = Chinchilla(), Chinchilla.published["besiroglu2024"]
    x, y = ladder(seed)
    solution = solve(law, x, y, LossSpec.mse(), {})
    far = float(law.predict(truth, TARGET))
    hits = {}
    for interval in profile(law, solution, level=LEVEL):
        lo, hi = interval.lo or -math.inf, interval.hi or math.inf
        hits[f"profile {interval.name}"] = lo <= truth[interval.name] <= hi
    end = profile_loss(law, solution, x, TARGET, LEVEL)
    hits["profile loss"] = (end.lo or -math.inf) <= far <= (end.hi or math.inf)
    if not resamples:
        return hits
    clusters = tuple(map(str, range(RUNS)))
    weights = cluster_counts(clusters, resamples, seed, "runs")
    rng = np.random.default_rng(seed)
    kept = np.zeros_like(weights)
    for row in kept:
        row[rng.permutation(RUNS)[: int(0.8 * RUNS)]] = 1
    left = leave_one_out(solution, clusters)
    pairs, subsets = (
        solution.objective.to_theta(resample_optima(solution.objective, solution.u[None], w).u) for w in (weights, kept)
    )
    for name, value in truth.items():
        for method, (lo, hi) in {
            "percentile": percentile_interval(pairs[name], LEVEL),
            "bca": bca_interval(pairs[name], solution.theta[name], left[name], LEVEL),
            "subsample": percentile_interval(subsets[name], LEVEL),
        }.items():
            hits[f"{method} {name}"] = lo <= value <= hi
    return hits


def coverage(ladders: int, resamples: int = RESAMPLES) -> dict[str, float]:
    """Return the share of ladders whose interval holds the truth, by method and quantity."""
    rows = [covered(seed, resamples) for seed in range(ladders)]
    return {key: sum(row[key] for row in rows) / ladders for key in rows[0]}


def main() -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Coverage of intervals on synthetic ladders.")
    parser.add_argument("--ladders", type=int, default=500)
    ladders = parser.parse_args().ladders
    started = time.perf_counter()
    shares = coverage(ladders)
    result: dict[str, Any] = {"ladders": ladders, "nominal": LEVEL, "seconds": time.perf_counter() - started, **shares}
    print(json.dumps(result))
    return int(any(not 0.92 <= share <= 0.98 for name, share in shares.items() if name.startswith("profile")))


if __name__ == "__main__":
    sys.exit(main())
