"""A broken power law with priors: what the stacked policy says of dense curves, near their end.

BNSL with one break (Caballero et al. 2023), ln L = ln(a + exp(b - c0 x - c1 f ln(1 + exp((x - d)/f)))), x = ln C below
the largest compute. Weak priors hold what few points leave open, and the model error is a Brownian motion anchored at
the largest compute, as in fits/floor_posterior.py, so the last points say most. On the 92 public learning curves its
geometric mean RMSE was .0159 with these priors set beforehand (plain BNSL .0192, M4 .0200; LOG.md).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

ROW_CORRELATION = 10.0  # of the Brownian model error (policy study, section 1c)
PRIOR_FLOOR, PRIOR_REST = 0.4, 0.6  # shares of the last loss that floor and reducible part start from
PRIOR_SDS = (1.5, 3.0, 0.4, 0.4, 1.0)  # of ln a, b, c0, c1, ln f; the break's is half the range plus .5
PRIOR_SLOPES, PRIOR_WIDTH = (0.2, 0.1), 0.7  # means of c0 and c1, median of f
STARTS = ((0.3, 0.1), (0.6, 0.3), (0.05, 0.3))  # floor's share and c1
SWEEPS, STEPS, TRIES = 4, 40, 8  # noise re-estimated in each sweep; damped Gauss-Newton steps; halvings of a step
MIN_NOISE = 2e-4  # of ln L
FREE = 4  # parameters the points determine beside the priors, for the degrees of freedom of the noise


@dataclass(frozen=True)
class BrokenCurve:
    """The posterior mode: ln a, b, c0, c1, d, ln f with x counted from `compute_max`."""

    theta: Float[np.ndarray, " six"]
    compute_max: float

    def log_loss(self, compute: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return ln L."""
        return _predict(self.theta, np.log(np.asarray(compute) / self.compute_max))[0]


def _predict(
    theta: Float[np.ndarray, " six"], x: Float[np.ndarray, "..."]
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "... six"]]:
    """Return ln L and its derivatives."""
    log_a, b, c0, c1, d, log_f = theta
    f = math.exp(log_f)
    u = (x - d) / f
    bend = np.logaddexp(0.0, u)
    past = 1 / (1 + np.exp(-np.clip(u, -50.0, 50.0)))
    reducible = b - c0 * x - c1 * f * bend
    value = np.logaddexp(log_a, reducible)
    q = np.exp(reducible - value)
    columns = (1 - q, q, -q * x, -q * f * bend, q * c1 * past, -q * c1 * (bend - past * u) * f)
    return value, np.stack(columns, axis=-1)


def fit_broken(compute: Float[np.ndarray, " points"], loss: Float[np.ndarray, " points"]) -> BrokenCurve:
    """Return the posterior mode over three starts; compute in FLOPs, or whatever is scaled, loss on a ratio scale."""
    x, y = np.log(compute / compute.max()), np.log(loss)
    n, span, last = len(x), -float(x.min()), float(y[np.argmax(x)])
    covariance = np.eye(n) + ROW_CORRELATION * np.minimum(-x[:, None], -x[None, :])
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    middle = np.array(
        [last + math.log(PRIOR_FLOOR), last + math.log(PRIOR_REST), *PRIOR_SLOPES, -span / 2, math.log(PRIOR_WIDTH)]
    )
    sds = np.array([*PRIOR_SDS[:4], span / 2 + 0.5, PRIOR_SDS[4]])
    best: tuple[float, Float[np.ndarray, " six"]] | None = None
    for share, slope in STARTS:
        theta, noise = middle.copy(), 0.01
        theta[:2], theta[3] = (last + math.log(share), last + math.log1p(-share)), slope
        for _ in range(SWEEPS):
            theta = _minimise(theta, x, y, whiten, noise, middle, sds)
            residuals = whiten @ (_predict(theta, x)[0] - y)
            noise = max(MIN_NOISE, math.sqrt(float(residuals @ residuals) / max(n - FREE, 1)))
        value = n * math.log(noise) + float((((theta - middle) / sds) ** 2).sum()) / 2
        if best is None or value < best[0]:
            best = (value, theta)
    assert best is not None
    return BrokenCurve(best[1], float(compute.max()))


def _minimise(
    theta: Float[np.ndarray, " six"],
    x: Float[np.ndarray, " points"],
    y: Float[np.ndarray, " points"],
    whiten: Float[np.ndarray, "points points"],
    noise: float,
    middle: Float[np.ndarray, " six"],
    sds: Float[np.ndarray, " six"],
) -> Float[np.ndarray, " six"]:
    """Return the minimum of the whitened squares over the noise plus the priors, by damped Gauss-Newton."""

    def evaluate(
        theta: Float[np.ndarray, " six"],
    ) -> tuple[float, Float[np.ndarray, " points"], Float[np.ndarray, "points six"], Float[np.ndarray, " six"]]:
        value, jacobian = _predict(theta, x)
        residuals, prior = whiten @ (value - y) / noise, (theta - middle) / sds
        return float(residuals @ residuals + prior @ prior), residuals, jacobian, prior

    value, residuals, jacobian, prior = evaluate(theta)
    damping = 1e-2
    for _ in range(STEPS):
        slopes = whiten @ jacobian / noise
        hessian = slopes.T @ slopes + np.diag(1 / sds**2)
        gradient = slopes.T @ residuals + prior / sds
        for _ in range(TRIES):
            trial = theta - np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            found = evaluate(trial)
            if found[0] < value:
                break
            damping *= 6
        else:
            return theta
        gained = value - found[0]
        theta, (value, residuals, jacobian, prior) = trial, found
        damping = max(damping / 6, 1e-8)
        if gained < 1e-5 * value:
            return theta
    return theta
