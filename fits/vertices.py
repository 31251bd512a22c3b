"""IsoFLOP runs as rungs: a vertex a budget, and one profile of all budgets around a drifting optimum.

No degree is right alone: a parabola is biased where the profile is not symmetric, a cubic where the sizes are wide and
to one side (peers study, case 17). So both are fitted, each over the rows it suits, and their minima averaged.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

WINDOWS = {2: 0.06, 3: 0.15}  # degree: rows up to this much above the budget's lowest loss enter
WIDEST = 0.15  # where that leaves too few sizes for a profile, the next lowest enter up to here
PROFILE_WINDOW = 0.10  # of the pooled profile
MIN_SIZES = 4  # distinct sizes for a profile that can show misfit
MIN_VERTICES, MIN_VERTEX_SHARE = 3, 0.6  # budgets, and their share, that must have a vertex to call a table IsoFLOP


@dataclass(frozen=True)
class Vertices:
    """Vertices of ascending compute, and how ln L rises away from them.

    Attributes:
        compute, loss: of the vertices; `log_size` is ln N there.
        path: slope and intercept of ln N* in ln C.
        rise: coefficients of the square and the cube of ln(N/N*) in ln L.
    """

    compute: Float[np.ndarray, " budgets"]
    loss: Float[np.ndarray, " budgets"]
    log_size: Float[np.ndarray, " budgets"]
    path: tuple[float, float]
    rise: tuple[float, float]

    def offset(self, compute: Float[np.ndarray, "..."], size: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return how far ln L at this size lies above the optimum of its compute by the pooled profile."""
        x = np.log(size) - self.path[0] * np.log(compute) - self.path[1]
        return np.asarray(self.rise[0] * x**2 + self.rise[1] * x**3)


def vertices_of(
    compute: Float[np.ndarray, " runs"],
    size: Float[np.ndarray, " runs"],
    budget: Float[np.ndarray, " runs"],
    loss: Float[np.ndarray, " runs"],
) -> Vertices | None:
    """Return the vertices, or None where too few budgets have one: then the table is no IsoFLOP design."""
    if not np.isfinite(budget).all():
        return None
    found = []
    budgets = np.unique(budget)
    for value in budgets:
        here = budget == value
        minima = [_minimum(np.log(size[here]), np.log(loss[here]), degree) for degree in WINDOWS]
        known = [minimum for minimum in minima if minimum is not None]
        if known:
            x, y = np.array(known).mean(axis=0)
            found.append((float(np.log(compute[here]).mean()), float(x), float(y), value))
    if len(found) < max(MIN_VERTICES, MIN_VERTEX_SHARE * len(budgets)):
        return None
    log_compute, log_size, log_loss, used = np.array(found).T
    slope, intercept = np.polyfit(log_compute, log_size, 1).tolist()
    x, y = [], []
    for value, centre, lowest in zip(used, log_size, log_loss, strict=True):
        here = budget == value
        rise = np.log(loss[here]) - lowest
        x.append((np.log(size[here]) - centre)[rise < PROFILE_WINDOW])
        y.append(rise[rise < PROFILE_WINDOW])
    steps = np.concatenate(x)
    rise, *_ = np.linalg.lstsq(np.stack([steps**2, steps**3], axis=1), np.concatenate(y))
    return Vertices(
        np.exp(log_compute), np.exp(log_loss), log_size, (slope, intercept), (float(rise[0]), float(rise[1]))
    )


def _needed(x: Float[np.ndarray, " runs"], y: Float[np.ndarray, " runs"]) -> float:
    """Return how far above the lowest loss the fewest sizes that make a profile reach, at most WIDEST; 0 beyond it."""
    lowest = sorted(float(y[x == size].min()) for size in np.unique(x))
    if len(lowest) < MIN_SIZES:
        return 0.0
    reach = math.expm1(lowest[MIN_SIZES - 1] - lowest[0]) * (1 + 1e-12)
    return reach if reach <= WIDEST else 0.0


def _minimum(x: Float[np.ndarray, " runs"], y: Float[np.ndarray, " runs"], degree: int) -> tuple[float, float] | None:
    """Return where a polynomial of this degree has a minimum inside the sampled sizes, and its value there."""
    near = y <= y.min() + math.log1p(max(WINDOWS[degree], _needed(x, y)))
    x, y = x[near], y[near]
    sizes = len(np.unique(x))
    if sizes < MIN_SIZES or sizes < degree + 2:
        return None
    centre = x.mean()
    polynomial = np.poly1d(np.polyfit(x - centre, y, degree))
    candidates = [
        float(root.real)
        for root in polynomial.deriv().roots
        if abs(root.imag) < 1e-12 and polynomial.deriv(2)(root.real) > 0 and x.min() < root.real + centre < x.max()
    ]
    if not candidates:
        return None
    at = min(candidates, key=polynomial)
    return at + float(centre), float(polynomial(at))
