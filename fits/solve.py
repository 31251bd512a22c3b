"""Solving a fit: many starts together by a damped Newton method, and an honest account of how it went.

Success is judged by stationarity, by agreement of the starts, by bounds and by dead terms, never by an optimiser's
own flag: such flags passed bad optima in four of the five public tools that were measured (peers study, 2026-11-30).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Bool, Float, Int

from fits.law import AbstractTermLaw
from fits.objective import AbstractObjective, Evaluation, LossSpec, TermObjective

STARTS = 12  # with centred logarithms 12 of 12 reach the optimum of the Epoch data (peers study, 2026-11-30)
FLOOR_SHARES = (0.3, 0.55, 0.8)  # E over loss at the start; published floors are .34 to .76 of it (policy study)
MAX_STEPS = 200  # the Epoch fit needs about 45 at delta 1e-3; beyond, a start is creeping
STATIONARY = 1e-8  # gradient over flux (laws.md section 33: 1e-7 of scale)
ROUNDING = 1e-15  # an expected gain below this share of the objective cannot be seen in doubles
EXACT = 1e-22  # sum of squares per run at which the runs are met to rounding (residuals of 1e-11)
SAME = 1e-6  # relative difference of objectives at which two starts are the same optimum (laws.md section 33)
MIN_AGREEMENT = 0.5  # centred starts agree to 95 % and more; below one half the surface is multimodal or flat
DEAD = 1e-9  # largest share of the loss at which a term is dead (peers study, case 2)
MAX_CONDITION = 1e7  # of the column-scaled Jacobian: it loses half of the 16 digits of a double


class FitStatus(StrEnum):
    """How a fit ended. Only CONVERGED may be used as it stands."""

    CONVERGED = "converged"
    BOUND_HIT = "bound_hit"
    DEAD_TERM = "dead_term"
    ILL_CONDITIONED = "ill_conditioned"
    DISAGREEING_STARTS = "disagreeing_starts"
    MAX_STEPS = "max_steps"
    NON_FINITE = "non_finite"


@dataclass(frozen=True)
class Minima:
    """Where a batch of problems ended.

    Attributes:
        u: coordinates; `value`: objective; `stationary`: whether the gradient vanishes there or rounding hides it.
        steps: Newton steps that were tried.
    """

    u: Float[np.ndarray, "batch params"]
    value: Float[np.ndarray, " batch"]
    stationary: Bool[np.ndarray, " batch"]
    steps: Int[np.ndarray, " batch"]


@dataclass(frozen=True)
class Solution:
    """The best optimum of all starts.

    Attributes:
        u: coordinates of the best start.
        theta: parameters of the law.
        at_bound: parameters that lie on a bound.
        agreement: share of starts that ended within 1e-6 (relative) of the best objective.
        spread: smallest and largest value of each parameter over the starts that agree.
        condition: condition number of the column-scaled Jacobian.
        steps: Newton steps of the best start.
    """

    objective: TermObjective
    u: Float[np.ndarray, " params"]
    theta: dict[str, float]
    value: float
    status: FitStatus
    message: str
    at_bound: tuple[str, ...]
    agreement: float
    spread: dict[str, float]
    condition: float
    steps: int


def minimise(
    objective: AbstractObjective, starts: Float[np.ndarray, "batch params"], weights: Float[np.ndarray, "batch runs"]
) -> Minima:
    """Return a local minimum for each start; no problem ends above its start.

    Newton steps with the absolute eigenvalues of the Hessian (so that saddles are left, not approached), clipped to a
    trust radius that halves the coordinates' scale after a failure and doubles after a success. Problems that are
    done leave the batch.
    """
    u = starts.copy()
    count = len(u)
    value = np.full(count, math.inf)
    stationary = np.zeros(count, dtype=bool)
    steps = np.zeros(count, dtype=np.int64)
    active = np.arange(count)
    radius = np.ones(count)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        here = objective.evaluate(u, weights)
        value[:] = here.value
        finite = np.isfinite(here.value)
        active, here = active[finite], _rows(here, finite)
        for _ in range(MAX_STEPS):
            step, gain = _newton_step(here, radius[active])
            exact = 2 * here.value <= EXACT * weights[active].sum(axis=1)
            slope = (np.abs(here.gradient) / np.maximum(here.flux, np.finfo(float).tiny)).max(axis=1)
            done = exact | (slope <= STATIONARY) | (gain <= ROUNDING * here.value)
            stationary[active[done]] = True
            if done.all():
                break
            active, step, here = active[~done], step[~done], _rows(here, ~done)
            there = objective.evaluate(u[active] + step, weights[active])
            better = there.value < here.value
            length = np.abs(step).max(axis=1)
            radius[active] = np.where(better, np.maximum(radius[active], 2 * length), length / 4)
            u[active[better]] += step[better]
            here = _choose(better, there, here)
            value[active] = here.value
            steps[active] += 1
    return Minima(u, value, stationary, steps)


def _newton_step(
    here: Evaluation, radius: Float[np.ndarray, " batch"]
) -> tuple[Float[np.ndarray, "batch params"], Float[np.ndarray, " batch"]]:
    """Return the clipped step and the decrease that it promises."""
    eigenvalues, vectors = np.linalg.eigh(here.hessian)
    size = np.abs(eigenvalues)
    size = np.maximum(size, 1e-14 * size.max(axis=1, keepdims=True) + np.finfo(float).tiny)
    slope = (here.gradient[:, None, :] @ vectors)[:, 0]
    step = -(vectors @ (slope / size)[:, :, None])[:, :, 0]
    length = np.maximum(np.abs(step).max(axis=1), np.finfo(float).tiny)
    shrink = np.minimum(1.0, radius / length)
    return step * shrink[:, None], (slope**2 / size).sum(axis=1) * (shrink - shrink**2 / 2)


def _rows(evaluation: Evaluation, keep: Bool[np.ndarray, " batch"]) -> Evaluation:
    return Evaluation(
        evaluation.value[keep], evaluation.gradient[keep], evaluation.hessian[keep], evaluation.flux[keep]
    )


def _choose(better: Bool[np.ndarray, " batch"], new: Evaluation, old: Evaluation) -> Evaluation:
    return Evaluation(
        np.where(better, new.value, old.value),
        np.where(better[:, None], new.gradient, old.gradient),
        np.where(better[:, None, None], new.hessian, old.hessian),
        np.where(better[:, None], new.flux, old.flux),
    )


def starts_of(law: AbstractTermLaw, objective: TermObjective) -> Float[np.ndarray, "starts params"]:
    """Return at most `STARTS` starts: exponents from the law's table, terms as shares of the mean loss.

    The floor takes one of `FLOOR_SHARES` and the other terms the rest in equal parts, so no start has a dead term and
    none depends on units. The grid of all combinations is thinned by a constant stride.
    """
    exponents = [param for param in law.params if param.name not in law.linear]
    others = sum(1 for term in law.terms if term.exponents)
    shares = FLOOR_SHARES if others < len(law.terms) else (0.0,)
    grid = list(itertools.product(*(param.starts for param in exponents), shares))
    mean = float(objective.log_loss.mean())
    rows = []
    for index in range(min(STARTS, len(grid))):
        *values, floor = grid[index * len(grid) // min(STARTS, len(grid))]
        row = dict(zip((param.name for param in exponents), values, strict=True))
        for term in law.terms:
            row[term.coefficient] = mean + math.log((1 - floor) / others if term.exponents else floor)
        rows.append([row[name] for name in objective.names])
    return np.unique(np.array(rows)[:, np.array(objective.free)], axis=0)


def solve(
    law: AbstractTermLaw,
    x: Mapping[str, Float[np.ndarray, " runs"]],
    log_loss: Float[np.ndarray, " runs"],
    loss: LossSpec,
    pinned: Mapping[str, float],
) -> Solution:
    """Return the best optimum over the starts, with parameters in `pinned` held and bounds kept.

    Where the free optimum lies beyond the bound of an exponent, or its floor above the lowest loss, that parameter is
    put on the bound, the others are fitted again, and the status says so.
    """
    fixed = dict(pinned)
    while True:
        objective = TermObjective.of(law, x, log_loss, loss, fixed)
        starts = starts_of(law, objective)
        minima = minimise(objective, starts, np.ones((len(starts), len(log_loss))))
        best = int(np.argmin(np.where(np.isfinite(minima.value), minima.value, math.inf)))
        theta = {name: float(value[0]) for name, value in objective.to_theta(minima.u[best : best + 1]).items()}
        crossed = _crossed(law, theta, float(np.exp(log_loss.min())), fixed)
        if not crossed:
            return _judge(law, objective, minima, best, theta, tuple(name for name in fixed if name not in pinned))
        fixed |= crossed


def _crossed(
    law: AbstractTermLaw, theta: Mapping[str, float], lowest: float, fixed: Mapping[str, float]
) -> dict[str, float]:
    floors = {term.coefficient for term in law.terms if not term.exponents}
    crossed = {}
    for param in law.params:
        low, high = param.bounds
        high = min(high, lowest) if param.name in floors else high
        if param.name in fixed or (param.name in law.linear and param.name not in floors):
            continue
        if not low <= theta[param.name] <= high:
            crossed[param.name] = low if theta[param.name] < low else high
    return crossed


def _judge(
    law: AbstractTermLaw,
    objective: TermObjective,
    minima: Minima,
    best: int,
    theta: dict[str, float],
    at_bound: tuple[str, ...],
) -> Solution:
    value = float(minima.value[best])
    close = minima.value <= value * (1 + SAME) + EXACT * len(objective.log_loss)
    close[best] = True
    agreement = float(close.mean())
    agreeing = objective.to_theta(minima.u[close])
    spread = {name: float(np.ptp(values)) for name, values in agreeing.items()}
    line = objective.linearise(minima.u[best])
    lengths = np.linalg.norm(line.jacobian, axis=0)
    finite = bool(np.isfinite(line.jacobian).all() and np.isfinite(list(theta.values())).all() and math.isfinite(value))
    condition = math.inf
    if finite and line.jacobian.shape[1] and lengths.min() > 0:
        condition = float(np.linalg.cond(line.jacobian / lengths))
    dead = sorted(name for name, share in line.largest_share.items() if not share > DEAD)
    if not finite:
        status, message = FitStatus.NON_FINITE, "No start gave finite parameters; check the units of the inputs."
    elif dead:
        status = FitStatus.DEAD_TERM
        message = (
            f"The term of {', '.join(dead)} is below {DEAD:g} of the loss in every run: these runs do not show it. "
            "Use a law without it, or runs that vary it more."
        )
    elif at_bound:
        status = FitStatus.BOUND_HIT
        held = ", ".join(f"{name} = {theta[name]:.4g}" for name in at_bound)
        message = (
            f"On a bound: {held}. The runs ask for a value beyond what the law allows (exponents within their table's "
            "bounds, a floor below the lowest loss); fit a narrower set of runs or another law."
        )
    elif not minima.stationary[best]:
        status = FitStatus.MAX_STEPS
        message = f"The best start was still moving after {MAX_STEPS} steps; the runs hardly determine the law."
    elif agreement < MIN_AGREEMENT:
        status = FitStatus.DISAGREEING_STARTS
        message = f"Only {close.sum()} of {len(close)} starts ended at the best objective; there are several optima."
    elif condition > MAX_CONDITION:
        status = FitStatus.ILL_CONDITIONED
        message = (
            f"The parameters are not told apart by these runs (condition number {condition:.1e}); "
            "fit runs that vary the inputs independently, or a law with fewer parameters."
        )
    else:
        status = FitStatus.CONVERGED
        message = f"{close.sum()} of {len(close)} starts ended at the same optimum."
    return Solution(
        objective,
        minima.u[best],
        theta,
        value,
        status,
        message,
        at_bound,
        agreement,
        spread,
        condition,
        int(minima.steps[best]),
    )
