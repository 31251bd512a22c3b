"""The forecasting policy: the floor is integrated over instead of pinned or fitted, and the form may be wrong.

A few optima do not determine the irreducible loss (the six of Marin's MoE ladder gave 2.19 to 2.29 at 1e23 by the
choice of floor alone). So the share r = E / L(C_max) gets a prior that was learned on public ladders, the exponent is
nearly free, and the interval adds a discrepancy in proportion to the predicted improvement.

Constants are those of a study of 50 public ladders (298 forecasts, 11 clusters of data sets), 2026-11-30. The range
behind each is what came out with one cluster left out. Expected error with all numbers nested by team: mean 1.26 %,
median 0.83 % (free floor: 2.38 and 1.03); its 90 % interval covered 90 % of targets, 81 % with clusters weighted
equally. It runs high on Marin's ladders (+0.5 to +0.9 %) and far out (+1.4 % beyond 30x).
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.predictive import Predictive
from ladder.errors import InputError

R_PRIOR = (31.5, 18.5)  # Beta of mean .63 (set by hand; left out .625-.675) and n 50 (flat 35-75; left out 20-75)
GAMMA_PRIOR = (math.log(0.12), 2.0)  # mean and sd of ln gamma: flat in practice; a tight prior on gamma was worse
ROW_CORRELATION = 4.0  # lambda: Brownian model error anchored at C_max; flat 1-10, left out 6
NOISE_DF, NOISE_SD = 3.0, 0.0005  # a0, s0 of the scaled inverse chi2 of row noise; left out a0 1-6, s0 .0003
DISCREPANCY = 0.075  # kappa, sd as a share of the predicted improvement at five rungs; left out .063-.080
RUNGS_EXPONENT = 0.4  # kappa falls as (5/k)^.4; left out .32-.58
SHRINK = 0.62  # of the posterior sd, which is too wide beside the discrepancy; left out .39-.87
PREDICTIVE_DF = 8.0  # Student-t; with the four above fitted to the pooled likelihood
SEED_SD = 0.001  # of ln L, replaced by the measured seed sd where that is larger
MIN_RUNGS = 3  # the study has ladders of three rungs and more; four are advised

GAMMAS = np.geomspace(0.012, 1.0, 56)
SHARES = np.concatenate([np.linspace(0.0, 0.9, 37), np.linspace(0.915, 0.985, 6)])


@dataclass(frozen=True)
class VarianceSplit:
    """Variance of the forecast of ln L by source.

    `parameter`: of the fitted curve; `form`: that the law itself is wrong (0 where it is not modelled); `seed`: of a
    single run about the curve.
    """

    parameter: float
    form: float
    seed: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.parameter + self.form + self.seed


@dataclass(frozen=True)
class FloorPosterior:
    """Posterior of ln L(C) = m + ln(r + (1 - r) (C/C_max)^-gamma), so E = r e^m, on a grid of gamma and r.

    Attributes:
        compute_max: largest fitted compute, FLOPs.
        rungs: k, fitted optima.
        weights: posterior probability of each cell, gamma x r.
        level: posterior mean of m in each cell.
        noise: mean of the variance of ln L of one rung, and `q` the information about m (1'R^-1 1).
        seed_sd: sd of ln L over seeds.
        gammas: exponents of the grid.
    """

    compute_max: float
    rungs: int
    weights: Float[np.ndarray, "gammas shares"]
    level: Float[np.ndarray, "gammas shares"]
    noise: float
    q: float
    seed_sd: float
    gammas: Float[np.ndarray, " gammas"]

    def log_loss(self, compute: float) -> Float[np.ndarray, "gammas shares"]:
        """Return ln L at `compute` in each cell."""
        reducible = (compute / self.compute_max) ** -self.gammas[:, None]
        return np.asarray(self.level + np.log(SHARES + (1 - SHARES) * reducible))

    def centre(self, compute: float) -> float:
        """Return the forecast of ln L; its exponential is the median."""
        return float((self.weights * self.log_loss(compute)).sum())

    def split(self, compute: float) -> VarianceSplit:
        """Return the squared scale of the forecast at `compute` by source."""
        logs = self.log_loss(compute)
        centre = float((self.weights * logs).sum())
        spread = float((self.weights * (logs - centre) ** 2).sum())
        # Within the fit range the optima themselves bound the error; the study measured it beyond only.
        improvement = max(0.0, float((self.weights * self.level).sum()) - centre)
        kappa = DISCREPANCY * (5 / self.rungs) ** RUNGS_EXPONENT
        return VarianceSplit(
            parameter=SHRINK**2 * (spread + self.noise / self.q),
            form=(kappa * improvement) ** 2,
            seed=SHRINK**2 * self.noise + max(SEED_SD, self.seed_sd) ** 2,
        )

    def predictive(self, compute: float) -> Predictive:
        """Return the distribution of the loss of the next run at `compute`."""
        return Predictive.student_t(self.centre(compute), math.sqrt(self.split(compute).total), PREDICTIVE_DF)

    def curve(self, compute: float) -> Predictive:
        """Return the distribution of the curve itself at `compute`: without the part of a single run."""
        split = self.split(compute)
        return Predictive.student_t(self.centre(compute), math.sqrt(split.parameter + split.form), PREDICTIVE_DF)

    def marginals(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return posterior and prior densities of r (columns r, posterior, prior) and of ln gamma (column gamma)."""
        prior = _log_prior(R_PRIOR, self.gammas)
        prior = np.exp(prior - prior.max())
        prior /= prior.sum()
        widths, step = np.gradient(SHARES), math.log(self.gammas[1] / self.gammas[0])
        shares = {"posterior": self.weights.sum(axis=0) / widths, "prior": prior.sum(axis=0) / widths}
        gammas = {"posterior": self.weights.sum(axis=1) / step, "prior": prior.sum(axis=1) / step}
        return pd.DataFrame({"r": SHARES, **shares}), pd.DataFrame({"gamma": self.gammas, **gammas})


def _log_prior(
    share_prior: tuple[float, float], gammas: Float[np.ndarray, " gammas"]
) -> Float[np.ndarray, "gammas shares"]:
    """Return the log prior mass of each cell up to a constant; ln gamma is evenly spaced, r is not."""
    mean, sd = GAMMA_PRIOR
    a, b = share_prior
    r = np.clip(SHARES, 0.01, 0.99)
    share = (a - 1) * np.log(r) + (b - 1) * np.log1p(-r) + np.log(np.gradient(SHARES))
    gamma = -(((np.log(gammas) - mean) / sd) ** 2) / 2
    return np.asarray(gamma[:, None] + share[None, :])


def floor_posterior(
    compute: Float[np.ndarray, " rungs"],
    loss: Float[np.ndarray, " rungs"],
    seed_sd: float,
    share_prior: tuple[float, float] = R_PRIOR,
    gammas: Float[np.ndarray, " gammas"] = GAMMAS,
) -> FloorPosterior:
    """Return the posterior given optima: compute in FLOPs and loss on a ratio scale (nats or bits, no error rate).

    `share_prior` are the parameters of the Beta prior of r, `gammas` the grid of exponents, evenly spaced in the
    logarithm: the study's by default, on which clean ladders see single points.

    Raises InputError with fewer than three rungs, or rungs at one compute.
    """
    k = len(loss)
    if k < MIN_RUNGS or len(np.unique(compute)) < MIN_RUNGS:
        raise InputError(
            f"the floor-integrated policy needs optima at {MIN_RUNGS} budgets or more, found {k}; add budgets to the ladder."
        )
    largest = float(compute.max())
    a = np.log(largest / compute)
    y = np.log(loss)
    precision = np.linalg.inv(np.eye(k) + ROW_CORRELATION * np.minimum(a[:, None], a[None, :]))
    q = float(precision.sum())
    growth = np.exp(gammas[:, None] * a)  # gammas x rungs
    z = y - np.log(SHARES[None, :, None] + (1 - SHARES[None, :, None]) * growth[:, None, :])
    level = (z @ precision).sum(axis=-1) / q
    rest = z - level[..., None]
    squares = ((rest @ precision) * rest).sum(axis=-1)
    scaled = NOISE_DF * NOISE_SD**2 + squares
    nu = NOISE_DF + k - 1
    log_weights = _log_prior(share_prior, gammas) - nu / 2 * np.log(scaled)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    noise = float((weights * scaled).sum()) / (nu - 2)
    return FloorPosterior(largest, k, weights, level, noise, q, seed_sd, gammas)
