"""Profile likelihood: the interval of one quantity with all others fitted again, for every parameter or a forecast."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from fits.law import AbstractLaw, Scale
from fits.newton import minimise
from fits.objective import AbstractObjective, Evaluation, Linearisation
from fits.solve import Solution, objective_of
from ladder.errors import InputError, UnusableError

ROUNDS = 30  # of the secant iteration, which needs five to eight where the profile is near quadratic
CLOSE = 1e-5  # relative distance of the deviance from its threshold at which an end is found
WIDE = 25.0  # standard errors beyond which an end is called unreachable (laws.md section 34.5: 5 Wald spans)
PENALTY = 1e6  # weight of the pseudo-run that holds the curve at a target, in units of all runs


@dataclass(frozen=True)
class ProfileInterval:
    """The profile interval of a quantity; an end is None where the deviance never crosses the threshold.

    `identified` is false when an end is missing: the runs then give no interval of that side.
    """

    name: str
    estimate: float
    lo: float | None
    hi: float | None
    level: float

    @property
    def identified(self) -> bool:
        """Whether both ends exist."""
        return self.lo is not None and self.hi is not None


@dataclass(frozen=True)
class ProfileCurve:
    """The deviance of a parameter: `deviance` with all others fitted again, `wald` its parabola from the curvature."""

    name: str
    estimate: float
    values: Float[np.ndarray, " points"]
    deviance: Float[np.ndarray, " points"]
    wald: Float[np.ndarray, " points"]


@dataclass(frozen=True)
class _Slice(AbstractObjective):
    """An objective along the plane on which one linear form of u is held; its last coordinate is that form.

    u = basis v + direction t. The last component of the gradient is reported as zero, so that t stays where it is.
    """

    whole: AbstractObjective
    basis: Float[np.ndarray, "params rest"]
    direction: Float[np.ndarray, " params"]

    def evaluate(
        self,
        u: Float[np.ndarray, "batch params"],
        weights: Float[np.ndarray, "batch runs"],
        noise: Float[np.ndarray, "batch runs"] | None = None,
    ) -> Evaluation:
        """Return value, gradient and Hessian in the plane."""
        full = u[:, :-1] @ self.basis.T + u[:, -1:] * self.direction
        found = self.whole.evaluate(full, weights, noise)
        count, size = u.shape
        gradient, hessian = np.zeros((count, size)), np.zeros((count, size, size))
        gradient[:, :-1] = found.gradient @ self.basis
        hessian[:, :-1, :-1] = self.basis.T @ found.hessian @ self.basis
        hessian[:, -1, -1] = np.abs(hessian[:, :-1, :-1]).max(axis=(1, 2), initial=1e-300)
        return Evaluation(found.value, gradient, hessian)

    def linearise(self, u: Float[np.ndarray, " params"]) -> Linearisation:
        """Return residuals and Jacobian of the whole objective there."""
        return self.whole.linearise(self.basis @ u[:-1] + self.direction * u[-1])


def deviance_scale(solution: Solution) -> tuple[float, float]:
    """Return (scale, df): 2 (Q - Q_min) / scale is near an F with 1 and df degrees of freedom.

    For least squares the scale is the residual variance with n - p degrees of freedom, and the F is exact to the
    curvature of the law. For robust losses it is the mean of psi^2 over that of psi' with the same correction.
    """
    objective = solution.objective
    n, p = len(objective.log_loss), len(solution.u)
    if n <= p:
        raise UnusableError(f"{n} runs leave no degrees of freedom for {p} parameters; there is no profile interval.")
    _, psi, curvature = objective.loss.of_log(objective.linearise(solution.u).residuals, objective.log_loss)
    inside = float(curvature.mean())
    if inside <= 0:
        raise UnusableError("no residual lies inside the loss's delta, so its scale is unknown; use a larger delta.")
    return float((psi**2).sum() / (n - p) / inside), float(n - p)


def profile(
    law: AbstractLaw, solution: Solution, names: tuple[str, ...] = (), level: float = 0.95
) -> tuple[ProfileInterval, ...]:
    """Return the profile interval of each named free parameter (all by default).

    An interval ends where twice the rise of the objective, over its scale, meets the F quantile with 1 and n - p
    degrees of freedom. Raises InputError for a parameter that is held or unknown.
    """
    objective = solution.objective
    free = np.array(objective.free)
    freed = tuple(name for name, keep in zip(objective.names, objective.free, strict=True) if keep)
    wrong = [name for name in names if name not in freed]
    if wrong:
        raise InputError(f"{', '.join(wrong)} is no free parameter of {law.name}; those are {', '.join(freed)}.")
    lead = objective.shift[np.ix_(free, free)]
    bounds = {param.name: param for param in law.params}
    intervals = []
    for name in names or freed:
        row = lead[freed.index(name)]
        logarithmic = bounds[name].scale is Scale.LOG
        at = math.log(solution.theta[name]) if logarithmic else solution.theta[name]
        ends = _ends(solution, objective, solution.u, row, level)
        lo, hi = (None if end is None else at + end for end in ends)
        if logarithmic:
            lo, hi = (None if end is None else math.exp(end) for end in (lo, hi))
        low, high = bounds[name].bounds
        lo = None if lo is not None and lo <= low else lo
        hi = None if hi is not None and hi >= high else hi
        intervals.append(ProfileInterval(name, solution.theta[name], lo, hi, level))
    return tuple(intervals)


def profile_curve(solution: Solution, name: str, span: float = 3.0, points: int = 41) -> ProfileCurve:
    """Return the scaled deviance along one free parameter, `span` standard errors each side, all points solved at once."""
    objective = solution.objective
    free = np.array(objective.free)
    freed = [n for n, keep in zip(objective.names, objective.free, strict=True) if keep]
    index = freed.index(name)
    row = objective.shift[np.ix_(free, free)][index]
    scale, _ = deviance_scale(solution)
    ones = np.ones((points, len(objective.log_loss)))
    here = objective.evaluate(solution.u[None], ones[:1])
    sd = math.sqrt(scale * abs(float(row @ np.linalg.pinv(here.hessian[0]) @ row)))
    _, _, right = np.linalg.svd(row[None])
    basis = right[1:].T
    offsets = np.linspace(-span * sd, span * sd, points)
    begin = np.column_stack([np.tile(basis.T @ solution.u, (points, 1)), float(row @ solution.u) + offsets])
    minima = minimise(_Slice(objective, basis, row / (row @ row)), begin, ones)
    logarithmic = objective.logarithmic[objective.names.index(name)]
    estimate = solution.theta[name]
    values = estimate * np.exp(offsets) if logarithmic else estimate + offsets
    return ProfileCurve(name, estimate, values, 2 * (minima.value - here.value[0]) / scale, (offsets / sd) ** 2)


def _ends(
    solution: Solution,
    objective: AbstractObjective,
    u: Float[np.ndarray, " params"],
    row: Float[np.ndarray, " params"],
    level: float,
) -> tuple[float | None, float | None]:
    """Return the signed distances along row @ u at which the scaled deviance meets the threshold, both sides at once."""
    scale, df = deviance_scale(solution)
    threshold = float(special.stdtrit(df, (1 + level) / 2))  # the root of F(1, df) is |t(df)|
    n = len(objective.log_loss)
    ones = np.ones((2, n))
    here = objective.evaluate(u[None], ones[:1])
    direction = row / (row @ row)
    _, _, right = np.linalg.svd(row[None])
    basis = right[1:].T
    plane = _Slice(objective, basis, direction)
    curvature = 1 / float(row @ np.linalg.pinv(here.hessian[0]) @ row)
    sd = math.sqrt(scale / abs(curvature)) if curvature else math.inf
    if not math.isfinite(sd):
        return None, None
    v = np.tile(basis.T @ u, (2, 1))
    centre = float(row @ u)
    offsets = np.array([-threshold * sd, threshold * sd])
    found = np.array([False, False])
    for _ in range(ROUNDS):
        minima = minimise(plane, np.column_stack([v, centre + offsets]), ones)
        rise = np.sqrt(np.maximum(2 * (minima.value - here.value[0]) / scale, 1e-30))
        v = minima.u[:, :-1]
        found = np.abs(rise / threshold - 1) < CLOSE
        if found.all():
            break
        step = np.clip(threshold / rise, 0.5, 2.0)
        offsets = np.where(found, offsets, offsets * step)
        if (np.abs(offsets) > WIDE * threshold * sd).any():
            break
    lo, hi = (float(offset) if ok else None for offset, ok in zip(offsets, found, strict=True))
    return lo, hi


def profile_loss(
    law: AbstractLaw,
    solution: Solution,
    x: Mapping[str, Float[np.ndarray, " runs"]],
    target: Mapping[str, float],
    level: float = 0.95,
) -> ProfileInterval:
    """Return the profile interval of the law's loss at `target`, inputs of one point.

    The curve is held at a loss by a pseudo-run there whose weight dwarfs that of all runs; it is an exact penalty for
    robust losses and one to rounding for least squares. `x` are the inputs the law was fitted to.
    """
    objective = solution.objective
    n = len(objective.log_loss)
    scale, df = deviance_scale(solution)
    threshold = float(special.stdtrit(df, (1 + level) / 2))
    point = {name: np.asarray([float(target[name])]) for name in law.inputs}
    centre = float(np.log(np.asarray(law.predict(solution.theta, point)))[0])
    held = {name: solution.theta[name] for name, keep in zip(objective.names, objective.free, strict=True) if not keep}
    # The pseudo-run enters centring as any run does; coordinates are taken over through the parameters.
    joined = {name: np.append(np.asarray(x[name], dtype=float), point[name]) for name in law.inputs}
    wider = objective_of(law, joined, np.append(objective.log_loss, centre), objective.loss, held)
    u = wider.from_theta(solution.theta)
    weights = np.ones((2, n + 1))
    weights[:, -1] = PENALTY * n
    line = wider.linearise(u)
    hessian = wider.evaluate(u[None], np.append(np.ones(n), 0.0)[None]).hessian[0]
    gradient = line.jacobian[-1]
    sd = math.sqrt(scale * max(float(gradient @ np.linalg.pinv(hessian) @ gradient), 0.0))
    offsets, found, starts = threshold * sd * np.array([-1.0, 1.0]), np.array([False, False]), np.tile(u, (2, 1))
    for _ in range(ROUNDS):
        noise = np.zeros((2, n + 1))
        noise[:, -1] = offsets
        minima = minimise(wider, starts, weights, noise)
        starts = minima.u
        lines = [wider.linearise(row) for row in starts]
        value = np.array([objective.loss.of_log(line.residuals[:-1], objective.log_loss)[0].sum() for line in lines])
        reached = np.array([line.residuals[-1] for line in lines])
        rise = np.sqrt(np.maximum(2 * (value - solution.value) / scale, 1e-30))
        found = np.abs(rise / threshold - 1) < CLOSE
        if found.all():
            offsets = reached
            break
        offsets = np.where(found, offsets, offsets * np.clip(threshold / rise, 0.5, 2.0))
        if (np.abs(offsets) > WIDE * threshold * sd).any():
            break
    lo, hi = (math.exp(centre + o) if ok else None for o, ok in zip(offsets.tolist(), found, strict=True))
    return ProfileInterval("loss", math.exp(centre), lo, hi, level)
