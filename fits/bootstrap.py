"""Cluster bootstrap of pairs: runs that share a rung (or a trunk) are drawn together, each draw is fitted from several starts.

It measures how far the parameters depend on which rungs happened to be trained. It does not know that the form may
be wrong: nominal 95 % intervals of such curves covered 14-60 % of larger runs 43 to 430 times out (peers study,
2026-11-30). Backtest before trusting one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fits.law import AbstractTermLaw
from fits.objective import TermObjective
from fits.solve import Solution, minimise, starts_of
from ladder.errors import InputError

RESTARTS = 3  # starts a resample besides the estimate itself; warm starts alone hide other optima (laws.md section 33)
MIN_CLUSTERS = 3  # fewer say nothing about the spread between clusters
BATCH = 128  # resamples solved together; bounds memory to tens of MB for hundreds of runs

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


def cluster_bootstrap(
    law: AbstractTermLaw,
    solution: Solution,
    clusters: tuple[str, ...],
    *,
    resamples: int,
    seed: int,
    what: str,
    progress: Progress | None = None,
) -> Draws:
    """Return the parameters fitted to resampled clusters.

    Arguments:
        solution: the fit of `law` to all runs; its estimate is one start, `RESTARTS` more come from the law's table.
        clusters: cluster of each run.
        what: names the clusters in `Draws.method`.
        progress: called with (done, total) after each batch.

    Raises InputError with fewer than three clusters.
    """
    objective = solution.objective
    labels, index = np.unique(np.array(clusters), return_inverse=True)
    if len(labels) < MIN_CLUSTERS:
        raise InputError(
            f"the bootstrap of {what} has {len(labels)} to draw from; it needs {MIN_CLUSTERS} or more. Name another "
            "cluster column, or fit without intervals (resamples 0)."
        )
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(labels), np.full(len(labels), 1 / len(labels)), size=resamples)
    weights = counts[:, index].astype(float)
    starts = starts_of(law, objective)
    chosen = starts[:: max(1, len(starts) // RESTARTS)][:RESTARTS]
    beginnings = np.vstack([solution.u[None, :], chosen])
    kept: list[Float[np.ndarray, "draws params"]] = []
    for first in range(0, resamples, BATCH):
        kept.append(_batch(objective, beginnings, weights[first : first + BATCH]))
        if progress is not None:
            progress(min(first + BATCH, resamples), resamples)
    u = np.concatenate(kept) if kept else np.zeros((0, beginnings.shape[1]))
    columns = objective.to_theta(u)
    theta = np.column_stack(list(columns.values()))
    inside = [(p.bounds[0] <= columns[p.name]) & (columns[p.name] <= p.bounds[1]) for p in law.params]
    theta = theta[np.isfinite(theta).all(axis=1) & np.all(inside, axis=0)]
    values = tuple(map(tuple, theta.tolist()))
    return Draws(what, seed, resamples, resamples - len(values), objective.names, values)


def _batch(
    objective: TermObjective,
    beginnings: Float[np.ndarray, "starts params"],
    weights: Float[np.ndarray, "batch runs"],
) -> Float[np.ndarray, "draws params"]:
    """Return the best optimum of each resample that determines the parameters and reached an optimum."""
    params = beginnings.shape[1]
    enough = (weights > 0).sum(axis=1) >= params
    weights = weights[enough]
    count = len(beginnings)
    minima = minimise(objective, np.tile(beginnings, (len(weights), 1)), np.repeat(weights, count, axis=0))
    value = np.where(minima.stationary, minima.value, np.inf).reshape(-1, count)
    best = value.argmin(axis=1)
    rows = np.arange(len(weights))
    u = minima.u.reshape(-1, count, params)[rows, best]
    return u[np.isfinite(value[rows, best])]
