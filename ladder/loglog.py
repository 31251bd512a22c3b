"""Interpolation of quantities that follow power laws between the sizes a recipe offers."""

import math
from bisect import bisect_left
from collections.abc import Sequence


def loglog(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return y at `x`, linear in log y over log x between the points, its end pieces continued beyond them.

    `xs` ascend strictly, at least two; everything is positive.

    >>> loglog(4.0, [1.0, 2.0], [1.0, 4.0])
    16.0
    """
    right = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    slope = math.log(ys[right] / ys[right - 1]) / math.log(xs[right] / xs[right - 1])
    return ys[right] * math.exp(slope * math.log(x / xs[right]))
