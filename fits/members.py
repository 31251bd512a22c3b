"""The members of the stacked policy: what each predicts at many computes at once, with its variance by source."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fits.broken import fit_broken
from fits.floor_posterior import (
    DISCREPANCY,
    RUNGS_EXPONENT,
    SEED_SD,
    SHARES,
    SHRINK,
    FloorPosterior,
    floor_posterior,
)

FLOOR, WIDE, BROKEN = "floor-integrated", "floor-wide", "bnsl"
WIDE_PRIOR = (6.3, 3.7)  # Beta of the same mean .63, n 10: lets clean ladders overrule it (Marin's ask for less)
GRID = np.geomspace(0.012, 1.0, 200)  # exponents; on the study's 56 the posterior of a clean ladder is a few spikes
NEGLIGIBLE = 1e-8  # of the largest weight of a cell: cells below change no forecast by 1e-6
MAX_RUNGS = 12  # from which more rungs narrow the discrepancy no further (policy study, section 1b)
BROKEN_DISCREPANCY = 0.3  # sd of a broken curve as a share of its predicted improvement (92 curves: median .23)
BROKEN_RUNGS = 8  # six parameters of which the priors hold two or more; fewer points are left to the floor's members
PRIOR_WEIGHTS: Mapping[str, float] = {FLOOR: 0.5, WIDE: 0.5}  # equal: neither beat the other on public ladders
BROKEN_PRIOR = 0.8  # near the end of the curve; it holds the power law with a floor as a case
BROKEN_REACH, BROKEN_FALL = 3.0, 4.0  # its prior weight falls as 1/(1 + (X/3)^4): better near, worse far (section 7)


@dataclass(frozen=True)
class MemberForecast:
    """Forecasts of ln L at several computes: centre and variance by source."""

    centre: Float[np.ndarray, " targets"]
    parameter: Float[np.ndarray, " targets"]
    form: Float[np.ndarray, " targets"]
    seed: Float[np.ndarray, " targets"]

    @property
    def scale(self) -> Float[np.ndarray, " targets"]:
        """Scale of the next run."""
        return np.asarray(np.sqrt(self.parameter + self.form + self.seed))


def names_of(rungs: int) -> tuple[str, ...]:
    """Return the members that this many rungs can support."""
    return (FLOOR, WIDE, BROKEN) if rungs >= BROKEN_RUNGS else (FLOOR, WIDE)


def prior_weights(names: tuple[str, ...], factor: float) -> Float[np.ndarray, " members"]:
    """Return the prior weights at an extrapolation factor; they sum to 1."""
    broken = BROKEN_PRIOR / (1 + (max(factor, 1.0) / BROKEN_REACH) ** BROKEN_FALL) if BROKEN in names else 0.0
    floors = 1 - BROKEN_PRIOR if BROKEN in names else 1.0
    found = np.array([broken if name == BROKEN else floors * PRIOR_WEIGHTS[name] for name in names])
    return np.asarray(found / found.sum())


def member_forecasts(
    compute: Float[np.ndarray, " rungs"],
    loss: Float[np.ndarray, " rungs"],
    at: Float[np.ndarray, " targets"],
    seed_sd: float,
    names: tuple[str, ...],
) -> dict[str, MemberForecast]:
    """Return the forecast of each member fitted to the rungs; `seed_sd` is of a run about them, in ln L."""
    narrow, wide = _floors(compute, loss, seed_sd)
    found = {FLOOR: of_floor(narrow, at), WIDE: of_floor(wide, at)}
    if BROKEN in names:
        curve = fit_broken(compute, loss)
        centre, last = curve.log_loss(at), float(curve.log_loss(compute.max()))
        improvement = np.maximum(0.0, last - centre)
        found[BROKEN] = MemberForecast(
            centre,
            np.full(len(at), SHRINK**2 * wide.noise / wide.q),
            (BROKEN_DISCREPANCY * improvement) ** 2,
            found[WIDE].seed,
        )
    return {name: found[name] for name in names}


def _floors(
    compute: Float[np.ndarray, " rungs"], loss: Float[np.ndarray, " rungs"], seed_sd: float
) -> tuple[FloorPosterior, FloorPosterior]:
    narrow = floor_posterior(compute, loss, seed_sd, gammas=GRID)
    return narrow, floor_posterior(compute, loss, seed_sd, WIDE_PRIOR, GRID)


def of_floor(posterior: FloorPosterior, at: Float[np.ndarray, " targets"]) -> MemberForecast:
    """Return what `FloorPosterior.split` and `centre` give, at many computes and with the rungs capped."""
    kept = posterior.weights > NEGLIGIBLE * posterior.weights.max()
    weights = posterior.weights[kept] / posterior.weights[kept].sum()
    gammas, shares = (np.broadcast_to(g, kept.shape)[kept][:, None] for g in (posterior.gammas[:, None], SHARES))
    logs = posterior.level[kept][:, None] + np.log(shares + (1 - shares) * (at / posterior.compute_max) ** -gammas)
    centre = weights @ logs
    spread = weights @ (logs - centre) ** 2
    improvement = np.maximum(0.0, float((posterior.weights * posterior.level).sum()) - centre)
    kappa = DISCREPANCY * (5 / min(MAX_RUNGS, posterior.rungs)) ** RUNGS_EXPONENT
    seed = SHRINK**2 * posterior.noise + max(SEED_SD, posterior.seed_sd) ** 2
    return MemberForecast(
        centre,
        SHRINK**2 * (spread + posterior.noise / posterior.q),
        (kappa * improvement) ** 2,
        np.full(len(at), seed),
    )


def pooled_floor(
    compute: Float[np.ndarray, " rungs"], loss: Float[np.ndarray, " rungs"], seed_sd: float
) -> FloorPosterior:
    """Return the equal mixture of the two floor posteriors, which differ in the weights of the same cells only."""
    narrow, wide = _floors(compute, loss, seed_sd)
    weights = PRIOR_WEIGHTS[FLOOR] * narrow.weights + PRIOR_WEIGHTS[WIDE] * wide.weights
    noise = PRIOR_WEIGHTS[FLOOR] * narrow.noise + PRIOR_WEIGHTS[WIDE] * wide.noise
    return FloorPosterior(
        narrow.compute_max, narrow.rungs, weights, narrow.level, noise, narrow.q, seed_sd, narrow.gammas
    )
