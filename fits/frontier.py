"""From runs of any design to the compute-optimal frontier: one rung a budget, and what a run off it costs.

Three designs are told apart by what the table holds, never by where it comes from. *Runs*: one run a budget, or no
sizes: the runs themselves. *Vertices*: several sizes at most budgets. *Collapse*: anything else; a surface says how
far each run lies above the best of its compute, and near-optimal ones are brought down by that.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fits.surface import Surface, fit_surface, near_best
from fits.vertices import Vertices, vertices_of

NEAR_FRONTIER = 0.03  # runs further above the frontier than this are not brought down to it
BIN = 0.35  # of ln C: collapsed runs closer than this are one rung
SCATTER = (0.001, 0.03)  # bounds of the sd of ln L of runs about the frontier
MIN_SURFACE = 5  # runs for a surface of five parameters, three of them with priors
MIN_SPREAD = 1.2  # largest over smallest tokens per parameter; below, N and D cannot be told apart


@dataclass(frozen=True)
class Observations:
    """Runs in arrays of one length; size, tokens and budget are NaN where they are not known."""

    compute: Float[np.ndarray, " runs"]
    size: Float[np.ndarray, " runs"]
    tokens: Float[np.ndarray, " runs"]
    budget: Float[np.ndarray, " runs"]
    loss: Float[np.ndarray, " runs"]

    def upto(self, compute: float) -> "Observations":
        """Return the runs of at most this compute."""
        keep = self.compute <= compute * (1 + 1e-9)
        return Observations(self.compute[keep], self.size[keep], self.tokens[keep], self.budget[keep], self.loss[keep])


@dataclass(frozen=True)
class Frontier:
    """Rungs of ascending compute.

    Attributes:
        compute, loss: of the rungs.
        kind: ``runs``, ``vertices`` or ``collapse``.
        surface: what tells a run off the frontier from one on it, None where the runs do not show it.
        vertices: the same from the profiles of an IsoFLOP design, None for another.
        scatter: sd of ln L of single runs about the frontier after both, 0 where it was not measured.
    """

    compute: Float[np.ndarray, " rungs"]
    loss: Float[np.ndarray, " rungs"]
    kind: str
    surface: Surface | None
    vertices: Vertices | None
    scatter: float

    def offset(
        self, compute: Float[np.ndarray, "..."], size: Float[np.ndarray, "..."], tokens: Float[np.ndarray, "..."]
    ) -> Float[np.ndarray, "..."]:
        """Return how far above the frontier runs are expected in ln L, at least 0.

        An IsoFLOP design has two accounts, surface and profile; each fails elsewhere, so the mean is taken.
        """
        if self.surface is None:
            return np.zeros(np.shape(compute))
        known = [self.surface.offset(compute, size, tokens)]
        if self.vertices is not None:
            known.append(self.vertices.offset(compute, size))
        return np.maximum(0.0, np.mean(known, axis=0))


def frontier_of(runs: Observations) -> Frontier:
    """Return the frontier of `runs`."""
    surface = _surface(runs)
    if surface is None:
        return _plain(runs)
    vertices = vertices_of(runs.compute, runs.size, runs.budget, runs.loss)
    if vertices is None:
        return _collapse(runs, surface)
    bare = Frontier(vertices.compute, vertices.loss, "vertices", surface, vertices, 0.0)
    near = near_best(runs.compute, runs.loss)
    offset = bare.offset(runs.compute, runs.size, runs.tokens)
    about = (np.log(runs.loss) - offset - np.interp(np.log(runs.compute), np.log(bare.compute), np.log(bare.loss)))[
        near
    ]
    scatter = 1.4826 * float(np.median(np.abs(about)))
    return Frontier(bare.compute, bare.loss, bare.kind, surface, vertices, float(np.clip(scatter, *SCATTER)))


def _surface(runs: Observations) -> Surface | None:
    known = np.isfinite(runs.size) & np.isfinite(runs.tokens)
    if not known.all() or len(runs.loss) < MIN_SURFACE:
        return None
    ratio = runs.tokens / runs.size
    if ratio.max() < MIN_SPREAD * ratio.min() or len(np.unique(runs.size)) < 2:
        return None
    return fit_surface(runs.compute, runs.size, runs.tokens, runs.loss)


def _plain(runs: Observations) -> Frontier:
    """Return the runs as rungs, those of one compute averaged."""
    compute, index = np.unique(runs.compute, return_inverse=True)
    loss = np.exp(np.bincount(index, np.log(runs.loss)) / np.bincount(index))
    return Frontier(compute, loss, "runs", None, None, 0.0)


def _collapse(runs: Observations, surface: Surface) -> Frontier:
    """Return near-optimal runs brought down to the frontier, medians in bins of ln C, and their scatter."""
    offset = surface.offset(runs.compute, runs.size, runs.tokens)
    near = offset <= max(NEAR_FRONTIER, float(np.sort(offset)[min(2, len(offset) - 1)]))
    x, y = np.log(runs.compute[near]), (np.log(runs.loss) - offset)[near]
    bins = np.floor((x.max() - x) / BIN).astype(int)  # counted from the top, so that the largest runs share one
    used = np.unique(bins)[::-1]
    centres = np.array([x[bins == b].mean() for b in used])
    levels = np.array([np.median(y[bins == b]) for b in used])
    about = y - np.interp(x, centres, levels)
    scatter = 1.4826 * float(np.median(np.abs(about))) if len(y) > len(used) else 0.0
    return Frontier(np.exp(centres), np.exp(levels), "collapse", surface, None, float(np.clip(scatter, *SCATTER)))
