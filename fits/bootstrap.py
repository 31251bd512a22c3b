"""The bootstrap: clusters of runs (a rung, a trunk) or signs of their residuals are drawn, and each draw is fitted again.

It measures how far the parameters depend on which rungs happened to be trained. It does not know that the form may
be wrong: nominal 95 % intervals of such curves covered 14-60 % of larger runs 43 to 430 times out (peers study,
2026-11-30). Backtest before trusting one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fits.law import AbstractLaw
from fits.newton import minimise
from fits.objective import AbstractObjective
from fits.solve import Solution, starts_of
from fits.spec import BootstrapKind
from ladder.errors import InputError

RESTARTS = 2  # starts from the law's table; warm starts alone would hide other optima (laws.md section 33)
CHECKED = 64  # resamples that are fitted from those as well; all are, where one of these has a better optimum there
BETTER = 1e-6  # relative decrease of the objective that counts as another optimum
MAX_LEVERAGE = 0.95  # a run that is met whatever its loss would get an infinite residual
MIN_CLUSTERS = 3  # fewer say nothing about the spread between clusters
BATCH = 1024  # resamples solved together; their factorisations share one pass, rows are evaluated in smaller chunks

type Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Draws:
    """Bootstrap draws of a law's parameters.

    Attributes:
        method: what was resampled.
        seed: of the resampling.
        requested: resamples; `failed` of them had too few distinct observations, found no optimum or one beyond a
            bound of the law, and are left out.
        names: parameters, the columns of `values`.
        values: one row a draw.
    """

    method: str
    seed: int
    requested: int
    failed: int
    names: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]

    def columns(self) -> dict[str, Float[np.ndarray, " draws"]]:
        """Return the draws of each parameter."""
        table = np.array(self.values).reshape(-1, len(self.names))
        return {name: table[:, index] for index, name in enumerate(self.names)}


def bootstrap(
    law: AbstractLaw,
    solution: Solution,
    clusters: tuple[str, ...],
    *,
    kind: BootstrapKind = BootstrapKind.CLUSTER,
    resamples: int,
    seed: int,
    what: str,
    progress: Progress | None = None,
) -> Draws:
    """Return the parameters fitted to resamples.

    Arguments:
        solution: the fit of `law` to all runs; its estimate is the start of every resample. The first
            `CHECKED` are fitted from `RESTARTS` starts of the law's table as well; where one of them has a better
            optimum there (a relative 1e-6), all resamples are.
        clusters: cluster of each run.
        kind: ``cluster`` draws clusters of runs with replacement; ``wild`` keeps all runs and turns the signs of
            their residuals, clusters together, after dividing each by one minus its leverage (HC3).
        what: names the clusters in `Draws.method`.
        progress: called with (done, total) after each batch of `BATCH`.

    Raises InputError with fewer than three clusters.
    """
    objective = solution.objective
    counts = cluster_counts(clusters, resamples, seed, what)
    wild = kind is BootstrapKind.WILD
    weights = np.ones_like(counts) if wild else counts
    noise = wild_noise(solution, clusters, resamples, seed) if wild else None
    chosen = starts_of(law, objective)
    chosen = chosen[:: max(1, len(chosen) // RESTARTS)][:RESTARTS]
    warm = solution.u[None, :]

    def optima(beginnings: Float[np.ndarray, "starts params"], first: int, last: int) -> ResampleOptima:
        part = None if noise is None else noise[first:last]
        return resample_optima(objective, beginnings, weights[first:last], part)

    checked = optima(np.vstack([warm, chosen]), 0, CHECKED)
    beginnings = np.vstack([warm, chosen]) if checked.warm_was_worse else warm
    kept = [checked.u]
    for first in range(CHECKED, resamples, BATCH):
        kept.append(optima(beginnings, first, first + BATCH).u)
        if progress is not None:
            progress(min(first + BATCH, resamples), resamples)
    u = np.concatenate(kept)
    columns = objective.to_theta(u)
    theta = np.column_stack(list(columns.values()))
    inside = [(p.bounds[0] <= columns[p.name]) & (columns[p.name] <= p.bounds[1]) for p in law.params]
    theta = theta[np.isfinite(theta).all(axis=1) & np.all(inside, axis=0)]
    values = tuple(map(tuple, theta.tolist()))
    method = f"{what}, residual signs" if wild else what
    return Draws(method, seed, resamples, resamples - len(values), objective.names, values)


def wild_noise(
    solution: Solution, clusters: tuple[str, ...], resamples: int, seed: int
) -> Float[np.ndarray, "draws runs"]:
    """Return what to add to ln L of each run: its fitted value plus or minus its residual over one minus leverage.

    Signs are drawn by cluster (Rademacher), so that runs of a trunk keep their common error.
    """
    line = solution.objective.linearise(solution.u)
    q, _ = np.linalg.qr(line.jacobian)
    leverage = np.minimum((q**2).sum(axis=1), MAX_LEVERAGE)
    labels, index = np.unique(np.array(clusters), return_inverse=True)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(resamples, len(labels)))[:, index]
    return np.asarray(line.residuals - signs * line.residuals / (1 - leverage))


def leave_one_out(solution: Solution, clusters: tuple[str, ...]) -> dict[str, Float[np.ndarray, " clusters"]]:
    """Return each parameter fitted with each cluster left out in turn, warm from the estimate; the BCa jackknife."""
    labels, index = np.unique(np.array(clusters), return_inverse=True)
    weights = (index[None, :] != np.arange(len(labels))[:, None]).astype(float)
    found = resample_optima(solution.objective, solution.u[None, :], weights)
    return solution.objective.to_theta(found.u)


def cluster_counts(clusters: tuple[str, ...], resamples: int, seed: int, what: str) -> Float[np.ndarray, "draws runs"]:
    """Return how often each run occurs in each resample of its clusters; raises InputError below three clusters."""
    labels, index = np.unique(np.array(clusters), return_inverse=True)
    if len(labels) < MIN_CLUSTERS:
        raise InputError(
            f"the bootstrap of {what} has {len(labels)} to draw from; it needs {MIN_CLUSTERS} or more. Name another "
            "cluster column, or fit without intervals (resamples 0)."
        )
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(labels), np.full(len(labels), 1 / len(labels)), size=resamples)
    return np.asarray(counts[:, index].astype(float))


@dataclass(frozen=True)
class ResampleOptima:
    """The best optimum of each resample that has one, its objective, and whether a later start ever beat the first."""

    u: Float[np.ndarray, "draws params"]
    value: Float[np.ndarray, " draws"]
    warm_was_worse: bool


def resample_optima(
    objective: AbstractObjective,
    beginnings: Float[np.ndarray, "starts params"],
    weights: Float[np.ndarray, "batch runs"],
    noise: Float[np.ndarray, "batch runs"] | None = None,
) -> ResampleOptima:
    """Return the best optimum over `beginnings` of each resample that determines the parameters and reached one."""
    params = beginnings.shape[1]
    enough = (weights > 0).sum(axis=1) >= params
    weights, noise = weights[enough], None if noise is None else noise[enough]
    count = len(beginnings)
    tiled = np.tile(beginnings, (len(weights), 1))
    minima = minimise(
        objective, tiled, np.repeat(weights, count, axis=0), None if noise is None else np.repeat(noise, count, axis=0)
    )
    value = np.where(minima.stationary, minima.value, np.inf).reshape(-1, count)
    best = value.argmin(axis=1)
    rows = np.arange(len(weights))
    u, lowest = minima.u.reshape(-1, count, params)[rows, best], value[rows, best]
    found = np.isfinite(lowest)
    worse = bool((value[found, 0] > lowest[found] * (1 + BETTER)).any())
    return ResampleOptima(u[found], lowest[found], worse)
