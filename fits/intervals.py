"""Intervals from bootstrap draws: percentile, and BCa, which corrects bias and skewness (Efron 1987)."""

import numpy as np
from jaxtyping import Float
from scipy import special


def percentile_interval(draws: Float[np.ndarray, " draws"], level: float) -> tuple[float, float]:
    """Return the central interval of the draws."""
    lo, hi = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return float(lo), float(hi)


def bca_interval(
    draws: Float[np.ndarray, " draws"], estimate: float, left_out: Float[np.ndarray, " clusters"], level: float
) -> tuple[float, float]:
    """Return the bias-corrected and accelerated interval of `estimate`.

    Arguments:
        draws: bootstrap draws of the estimate.
        left_out: the estimate with each cluster left out in turn, from which the acceleration follows.

    The levels of the percentile interval are moved by the bias z0 = Phi^-1(share of draws below the estimate) and the
    acceleration a = sum d^3 / (6 (sum d^2)^1.5), d the deviations of `left_out` from their mean, with its sign turned.
    Where all draws lie on one side of the estimate the percentile interval is returned, as z0 is infinite.
    """
    below = float(((draws < estimate).mean() + (draws <= estimate).mean()) / 2)
    deviations = left_out.mean() - left_out
    squares = float((deviations**2).sum())
    if not 0 < below < 1 or squares == 0:
        return percentile_interval(draws, level)
    bias = float(special.ndtri(below))
    acceleration = float((deviations**3).sum()) / (6 * squares**1.5)
    tails = special.ndtri(np.array([(1 - level) / 2, (1 + level) / 2])) + bias
    moved = special.ndtr(bias + tails / (1 - acceleration * tails))
    lo, hi = np.quantile(draws, moved).tolist()
    return float(lo), float(hi)
