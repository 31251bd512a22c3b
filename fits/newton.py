"""Many small minimisations at once: Newton's method with a trust radius, problems that are done leaving the batch."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from fits.objective import AbstractObjective, Evaluation

MAX_STEPS = 200  # the Epoch fit needs 11 to 65 at delta 1e-3, by start; beyond, a start is creeping
DECREMENT = 1e-13  # expected decrease, as a share of the objective, at which a problem is done; rounding is 1e-15
STATIONARY = 1e-9  # the same, up to which a problem that rounding stopped still counts as stationary
EXACT = 1e-22  # sum of squares per run at which the runs are met to rounding (residuals of 1e-11)
LAST_STEP = 1e-4  # longest step that is taken unseen at the end: it squares the error, its gain is below rounding
SMALL_RADIUS = 1e-12  # of the trust region in logarithms: no step succeeds any more
SINGULAR = 1e-14  # smallest pivot or eigenvalue over the largest that doubles resolve
FEW = 48  # up to so many problems eigenvectors cost less than the loops of a batched factorisation


@dataclass(frozen=True)
class Minima:
    """Where a batch of problems ended.

    Attributes:
        u: coordinates; `value`: objective; `stationary`: whether no step promises more than rounding there.
        steps: Newton steps that were tried.
    """

    u: Float[np.ndarray, "batch params"]
    value: Float[np.ndarray, " batch"]
    stationary: Bool[np.ndarray, " batch"]
    steps: Int[np.ndarray, " batch"]


def minimise(
    objective: AbstractObjective,
    starts: Float[np.ndarray, "batch params"],
    weights: Float[np.ndarray, "batch runs"],
    noise: Float[np.ndarray, "batch runs"] | None = None,
) -> Minima:
    """Return a local minimum for each start; no problem ends above its start.

    `weights` and `noise` (added to ln L of the runs) are those of `AbstractObjective.evaluate`.

    Newton steps, with the absolute eigenvalues of the Hessian where it is not positive definite (so that saddles are
    left, not approached), clipped to a trust radius that falls to a quarter of the step after a failure and doubles
    after a success. A problem is done when the unclipped step promises less than `DECREMENT` of the objective.
    """
    u = starts.copy()
    count = len(u)
    value = np.full(count, math.inf)
    stationary = np.zeros(count, dtype=bool)
    steps = np.zeros(count, dtype=np.int64)
    active = np.arange(count)
    radius = np.ones(count)
    if not starts.shape[1]:
        here = objective.evaluate(u, weights, noise)
        return Minima(u, here.value, np.isfinite(here.value), steps)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        here = objective.evaluate(u, weights, noise)
        value[:] = np.where(np.isfinite(here.value), here.value, math.inf)
        finite = _finite(here)
        active, here = active[finite], _rows(here, finite)
        enough = EXACT / 2 * weights.sum(axis=1)
        for _ in range(MAX_STEPS):
            if not len(active):
                break
            step = newton_step(here)
            gain = -(step * here.gradient).sum(axis=1) / 2
            exact = here.value <= enough[active]
            stationary[active] = exact | (gain <= STATIONARY * here.value)
            done = exact | (gain <= DECREMENT * here.value) | (radius[active] < SMALL_RADIUS)
            if done.any():
                last = done & (np.abs(step).max(axis=1) < LAST_STEP)
                u[active[last]] += step[last]
                active, step, here = active[~done], step[~done], _rows(here, ~done)
                if not len(active):
                    break
            length = np.maximum(np.abs(step).max(axis=1), np.finfo(float).tiny)
            step *= np.minimum(1.0, radius[active] / length)[:, None]
            there = objective.evaluate(u[active] + step, weights[active], None if noise is None else noise[active])
            better = (there.value < here.value) & _finite(there)
            length = np.abs(step).max(axis=1)
            radius[active] = np.where(better, np.maximum(radius[active], 2 * length), length / 4)
            u[active[better]] += step[better]
            here = _choose(better, there, here)
            value[active] = here.value
            steps[active] += 1
    return Minima(u, value, stationary, steps)


def newton_step(here: Evaluation) -> Float[np.ndarray, "batch params"]:
    """Return the step to the minimum of the quadratic model, or of the model with absolute eigenvalues."""
    if len(here.value) <= FEW:
        return _absolute_step(here)
    step, definite = _factorised_step(here)
    if not definite.all():
        step[~definite] = _absolute_step(_rows(here, ~definite))
    return step


def _absolute_step(here: Evaluation) -> Float[np.ndarray, "batch params"]:
    eigenvalues, vectors = np.linalg.eigh(here.hessian)
    size = np.abs(eigenvalues)
    size = np.maximum(size, SINGULAR * size.max(axis=1, keepdims=True) + np.finfo(float).tiny)
    slope = (here.gradient[:, None, :] @ vectors)[:, 0]
    return np.asarray(-(vectors @ (slope / size)[:, :, None])[:, :, 0])


def _factorised_step(here: Evaluation) -> tuple[Float[np.ndarray, "batch params"], Bool[np.ndarray, " batch"]]:
    """Return steps by an LDL' factorisation over the whole batch, and where the Hessian is positive definite."""
    a = np.moveaxis(here.hessian, 0, -1).copy()
    b = -here.gradient.T.copy()
    size = len(b)
    largest = np.abs(a[np.arange(size), np.arange(size)]).max(axis=0)
    definite = np.ones(b.shape[1], dtype=bool)
    for k in range(size):
        definite &= a[k, k] > SINGULAR * largest
        for i in range(k + 1, size):
            factor = a[i, k] / a[k, k]
            for j in range(i, size):
                a[j, i] -= factor * a[j, k]
            b[i] -= factor * b[k]
    for k in reversed(range(size)):
        for i in range(k + 1, size):
            b[k] -= a[i, k] * b[i]
        b[k] /= a[k, k]
    return b.T.copy(), definite


def _finite(here: Evaluation) -> Bool[np.ndarray, " batch"]:
    return np.isfinite(here.value) & np.isfinite(here.gradient).all(axis=1) & np.isfinite(here.hessian).all(axis=(1, 2))


def _rows(evaluation: Evaluation, keep: Bool[np.ndarray, " batch"]) -> Evaluation:
    return Evaluation(evaluation.value[keep], evaluation.gradient[keep], evaluation.hessian[keep])


def _choose(better: Bool[np.ndarray, " batch"], new: Evaluation, old: Evaluation) -> Evaluation:
    return Evaluation(
        np.where(better, new.value, old.value),
        np.where(better[:, None], new.gradient, old.gradient),
        np.where(better[:, None, None], new.hessian, old.hessian),
    )
