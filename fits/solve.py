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
from jaxtyping import Float

from fits.autodiff import AutodiffObjective
from fits.law import AbstractLaw, AbstractTermLaw
from fits.newton import EXACT, MAX_STEPS, Minima, minimise
from fits.objective import AbstractObjective, LossSpec, TermObjective

STARTS = 12  # with centred logarithms 12 of 12 reach the optimum of the Epoch data (peers study, 2026-11-30)
FLOOR_SHARES = (0.3, 0.55, 0.8)  # E over loss at the start; published floors are .34 to .76 of it (policy study)
SAMPLES = 50  # tries at a balanced sample without repeated starts
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
    UNSUPPORTED = "unsupported"  # a policy's: these runs do not support a forecast


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

    objective: AbstractObjective
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


def objective_of(
    law: AbstractLaw,
    x: Mapping[str, Float[np.ndarray, " runs"]],
    log_loss: Float[np.ndarray, " runs"],
    loss: LossSpec,
    fixed: Mapping[str, float],
) -> AbstractObjective:
    """Return the objective of a law: in closed form for sums of terms, by automatic differentiation for others."""
    if isinstance(law, AbstractTermLaw):
        return TermObjective.of(law, x, log_loss, loss, fixed)
    return AutodiffObjective.of(law, x, log_loss, loss, fixed)


def starts_of(law: AbstractLaw, objective: AbstractObjective) -> Float[np.ndarray, "starts params"]:
    """Return at most `STARTS` starts from the law's table; none depends on units.

    The floor of a sum of terms takes one of `FLOOR_SHARES` of the mean loss and the other terms the rest in equal
    parts, so that no start has a dead term. Of all combinations a balanced sample is taken: each value of each
    parameter occurs equally often.
    """
    terms = law.terms if isinstance(law, AbstractTermLaw) else ()
    others = sum(1 for term in terms if term.exponents)
    varied = {param.name: param.starts for param in law.params if param.starts}
    shares = FLOOR_SHARES if others < len(terms) else (0.0,)
    lists = [*varied.values(), shares]
    if math.prod(map(len, lists)) <= STARTS:
        grid = list(itertools.product(*lists))
    else:
        grid = []
        rng = np.random.default_rng(0)
        for _ in range(SAMPLES):
            grid = list(zip(*(rng.permutation(np.resize(values, STARTS)).tolist() for values in lists), strict=True))
            if len(set(grid)) == STARTS:
                break
    mean = float(objective.log_loss.mean())
    logarithmic = dict(zip(objective.names, objective.logarithmic, strict=True))
    rows = []
    for *values, floor in grid:
        row = {
            name: math.log(value) if logarithmic[name] else value for name, value in zip(varied, values, strict=True)
        }
        for term in terms:
            row[term.coefficient] = mean + math.log((1 - floor) / others if term.exponents else floor)
        rows.append([row[name] for name in objective.names])
    return np.unique(np.array(rows)[:, np.array(objective.free)], axis=0)


def solve(
    law: AbstractLaw,
    x: Mapping[str, Float[np.ndarray, " runs"]],
    log_loss: Float[np.ndarray, " runs"],
    loss: LossSpec,
    pinned: Mapping[str, float],
) -> Solution:
    """Return the best optimum over the starts, with parameters in `pinned` held and bounds kept.

    Where the free optimum lies beyond the bound of a parameter, or a floor above the lowest loss, that parameter is
    put on the bound, the others are fitted again, and the status says so.
    """
    fixed = dict(pinned)
    while True:
        objective = objective_of(law, x, log_loss, loss, fixed)
        starts = starts_of(law, objective)
        minima = minimise(objective, starts, np.ones((len(starts), len(log_loss))))
        best = int(np.argmin(np.where(np.isfinite(minima.value), minima.value, math.inf)))
        theta = {name: float(value[0]) for name, value in objective.to_theta(minima.u[best : best + 1]).items()}
        crossed = _crossed(law, theta, float(np.exp(log_loss.min())), fixed)
        if not crossed:
            return _judge(law, objective, minima, best, theta, tuple(name for name in fixed if name not in pinned))
        fixed |= crossed


def floors_of(law: AbstractLaw) -> tuple[str, ...]:
    """Return the parameters that are irreducible losses, which no observed loss can be below."""
    if isinstance(law, AbstractTermLaw):
        return tuple(term.coefficient for term in law.terms if not term.exponents)
    return (law.floor,) if law.floor else ()


def _crossed(
    law: AbstractLaw, theta: Mapping[str, float], lowest: float, fixed: Mapping[str, float]
) -> dict[str, float]:
    floors = floors_of(law)
    crossed = {}
    for param in law.params:
        low, high = param.bounds
        high = min(high, lowest) if param.name in floors else high
        value = theta[param.name]
        if param.name in fixed or not math.isfinite(value) or low <= value <= high:
            continue
        crossed[param.name] = low if value < low else high
    return crossed


def _judge(
    law: AbstractLaw,
    objective: AbstractObjective,
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
