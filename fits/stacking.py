"""Weights of several predictive distributions by their CRPS on outcomes that were hidden from them, with a prior.

The mixture is scored, not its parts: CRPS = sum_i w_i E|X_i - y| - 1/2 sum_ij w_i w_j E|X_i - X_j|, a convex quadratic
in the weights. For weights alone each part is taken as a normal of its own sd, for which both terms are closed.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy import special

STEPS = 400  # of the multiplicative update; a step of one is stable, as scores are divided by the prior's
LEAST = 1e-12
DONE = 1e-10  # change of any weight


def absolute_mean(mean: Float[np.ndarray, "..."], sd: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return E|X| of normals.

    >>> round(float(absolute_mean(np.array(0.0), np.array(1.0))), 12)
    0.797884560803
    """
    z = mean / sd
    return np.asarray(sd * (z * (2 * special.ndtr(z) - 1) + 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)))


def crps_weights(
    centres: Float[np.ndarray, "parts pairs"],
    sds: Float[np.ndarray, "parts pairs"],
    outcomes: Float[np.ndarray, " pairs"],
    importance: Float[np.ndarray, " pairs"],
    prior: Float[np.ndarray, " parts"],
    strength: float,
    outcomes_worth: float,
) -> Float[np.ndarray, " parts"]:
    """Return the weights that minimise mean CRPS / CRPS of the prior + strength / outcomes_worth x KL(weights, prior).

    `importance` weighs the pairs; `outcomes_worth` is how many independent outcomes they stand for. Parts without
    prior weight get none.
    """
    used = prior > LEAST
    start = prior[used] / prior[used].sum()
    share = importance / importance.sum()
    m, s = centres[used], sds[used]
    linear = absolute_mean(m - outcomes, s) @ share
    spread = np.sqrt(s[:, None] ** 2 + s[None, :] ** 2)
    quadratic = absolute_mean(m[:, None] - m[None, :], spread) @ share
    scale = float(start @ linear - start @ quadratic @ start / 2)
    weights = start
    pull = strength / outcomes_worth
    for _ in range(STEPS):
        gradient = (linear - quadratic @ weights) / scale + pull * np.log(weights / start)
        before = weights
        weights = np.maximum(weights * np.exp(-(gradient - gradient @ weights) / (1 + pull)), LEAST)
        weights /= weights.sum()
        if np.abs(weights - before).max() < DONE:
            break
    found = np.zeros(len(prior))
    found[used] = weights
    return found
