"""How often the default policy's observation intervals hold the next run on synthetic ladders.

    python -m benchmarks.simulate_policy [--ladders N]

Inside the model class: what the policy's numbers say of the world. A power law whose floor is spread as the shrunk
posterior allows, off at the target by the discrepancy, seeds of .1 %. Then: the law exact, with floors as wide as the
priors; floors as wide as the priors *and* the discrepancy; and on top of the model class a law that
breaks half way to the target, a recipe whose loss exceeds the law by .130 nats at the
smallest rung and .038 from the largest on (Delphi v1 over v2, delphi.md (e): a shrinking gap looks like a steeper law),
and seeds whose sd falls with compute. One JSON object on one line; it fails when
the first coverage of nominal .90 leaves [.86, .94].
"""

import argparse
import json
import math
import sys

import numpy as np
from jaxtyping import Float

from fits.floor_posterior import DISCREPANCY, R_PRIOR, RUNGS_EXPONENT, SHRINK
from fits.frontier import Observations
from fits.members import WIDE_PRIOR
from fits.policy import WIDTH, StackedPolicy

SEED_SD = 0.001
WORLDS = ("inside", "exact_law", "wide_floors", "broken_law", "drifting_gap", "heteroscedastic_seeds")
LEVELS = (50, 80, 90, 95)
FORM_DF = 8.0
GAP = (0.130, 0.038)  # nats, at the smallest and from the largest rung on (delphi.md (e))


def ladder(
    world: str, rng: np.random.Generator
) -> tuple[Float[np.ndarray, " rungs"], Float[np.ndarray, " rungs"], float, float]:
    """Return compute and loss of a ladder, and compute and loss of the run to predict."""
    rungs = int(rng.integers(4, 8))
    span, factor = 10 ** rng.uniform(1.0, 2.5), 10 ** rng.uniform(0.5, 2.5)
    compute = 3e20 * np.geomspace(1 / span, 1, rungs)
    target = 3e20 * factor
    share = rng.beta(*(R_PRIOR if rng.random() < 0.5 else WIDE_PRIOR))
    if world not in ("wide_floors", "exact_law"):
        mean = R_PRIOR[0] / sum(R_PRIOR)
        share = mean + SHRINK * WIDTH * (share - mean)
    gamma = math.exp(rng.normal(math.log(0.12), 0.4))
    every = np.append(compute, target) / 3e20

    def law(x: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
        return np.asarray(np.log(share + (1 - share) * x**-gamma))

    curve = law(every)
    kappa = DISCREPANCY * (5 / rungs) ** RUNGS_EXPONENT
    if world != "exact_law":
        curve[-1] += WIDTH * kappa * -float(curve[-1]) * rng.standard_t(FORM_DF)
    if world == "broken_law":
        middle = math.sqrt(factor)  # beyond it reducible loss falls with 0.7 of the exponent
        slow = share + (1 - share) * middle**-gamma * (factor / middle) ** (-0.7 * gamma)
        curve[-1] += math.log(slow) - float(law(np.array([factor]))[0])
    if world == "drifting_gap":
        gap = np.interp(np.log(every), np.log([every[0], every[-2]]), GAP)
        curve += np.log1p(gap / (2.7 * np.exp(curve)))
    sd = np.full(len(every), SEED_SD)
    if world == "heteroscedastic_seeds":
        sd = SEED_SD * every**-0.25
    loss = 2.7 * np.exp(curve + sd * rng.standard_normal(len(every)))
    return compute, loss[:-1], target, float(loss[-1])


def coverage(world: str, ladders: int, seed: int = 0) -> dict[str, float]:
    """Return the share of runs inside the intervals by level, and the mean width of the 90 % interval in per cent."""
    rng = np.random.default_rng(seed)
    inside = dict.fromkeys(LEVELS, 0)
    width = 0.0
    for _ in range(ladders):
        compute, loss, target, outcome = ladder(world, rng)
        unknown = np.full(len(compute), math.nan)
        policy = StackedPolicy.of(Observations(compute, unknown, unknown, unknown, loss), 0.0)
        predictive = policy.forecast(target).predictive()
        pit = predictive.cdf(outcome)
        for level in LEVELS:
            inside[level] += abs(pit - 0.5) <= level / 200
        low, high = predictive.interval(0.9)
        width += 100 * math.log(high / low)
    return {str(level): inside[level] / ladders for level in LEVELS} | {"width90": width / ladders}


def main() -> int:
    """Run all worlds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="../shared/data", help="not used: ladders are synthetic")
    parser.add_argument("--ladders", type=int, default=1000)
    arguments = parser.parse_args()
    worlds = {world: coverage(world, arguments.ladders) for world in WORLDS}
    good = 0.86 <= worlds["inside"]["90"] <= 0.94
    print(
        json.dumps({"benchmark": "simulate_policy", "ladders": arguments.ladders, "worlds": worlds, "must_hold": good})
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
