"""L(N, D) with priors on the floor and the exponents: what takes runs of any shape to the compute-optimal frontier.

The form is that of Hoffmann et al. (2022), ln L = ln(e^E + e^(a - alpha n) + e^(b - beta d)) with n and d centred
logarithms. It is not extrapolated itself: on Marin's ladders such surfaces were 3-11 % wrong far out (policy study).
It says by how much a run lies above the best of its compute, and the frontier is extrapolated by other laws.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

FLOOR_PRIOR = (0.63, 0.067)  # mean and sd of E over the lowest loss: the Beta of fits/floor_posterior.py
ALPHA_PRIOR = (math.log(0.35), 0.7)  # of ln alpha: published exponents lie in .2 .. .5 (laws.md sections 2-5)
TIE_PRIOR = (0.0, 0.15)  # of ln(beta / alpha); an exact tie helps Chinchilla-like sets and costs Marin's 1.5 points
DELTA = 1e-3  # of the Huber loss on ln L (Hoffmann et al. 2022)
MIN_SCALE = 5e-4  # of residuals in ln L
NEAR_BEST = 1.10  # runs further above the lowest loss of their compute are not near enough to be told of one surface
SAME_COMPUTE = 1.3  # runs up to this much more compute count for that lowest loss
STARTS = (0.2, 0.35, 0.55)  # of both exponents
SWEEPS, STEPS = 3, 60  # scale re-estimated in each sweep; damped Gauss-Newton steps in a sweep at most
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Surface:
    """The fitted surface: `theta` holds a, b, E (logarithms), ln alpha and ln(beta/alpha) at the centres of ln N, ln D.

    `factor` is the median of compute / (N D) over the runs, in place of 6.
    """

    theta: Float[np.ndarray, " five"]
    centre: tuple[float, float]
    factor: float

    def log_loss(self, size: Float[np.ndarray, "..."], tokens: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return ln L of the surface."""
        terms = _terms(self.theta, np.log(size) - self.centre[0], np.log(tokens) - self.centre[1])
        return np.asarray(np.logaddexp.reduce(terms))

    def offset(
        self,
        compute: Float[np.ndarray, "..."],
        size: Float[np.ndarray, "..."],
        tokens: Float[np.ndarray, "..."],
    ) -> Float[np.ndarray, "..."]:
        """Return how far ln L at (N, D) lies above the surface's minimum at this compute; zero at the optimum."""
        a, b, _, log_alpha, tie = self.theta
        alpha = math.exp(log_alpha)
        beta = alpha * math.exp(tie)
        product = np.log(compute / self.factor) - self.centre[0] - self.centre[1]  # n + d along the budget
        n = (math.log(alpha / beta) + a - b + beta * product) / (alpha + beta)
        best = np.logaddexp.reduce(_terms(self.theta, n, product - n))
        return np.asarray(self.log_loss(size, tokens) - best)


def _terms(
    theta: Float[np.ndarray, " five"], n: Float[np.ndarray, "..."], d: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "three ..."]:
    alpha = math.exp(theta[3])
    beta = alpha * math.exp(theta[4])
    return np.stack([theta[0] - alpha * n, theta[1] - beta * d, np.full(np.shape(n), theta[2])])


def near_best(compute: Float[np.ndarray, " runs"], loss: Float[np.ndarray, " runs"]) -> "np.ndarray":
    """Return which runs lie within `NEAR_BEST` of the lowest loss that their compute reached."""
    order = np.argsort(compute, kind="stable")
    lowest = np.minimum.accumulate(loss[order])
    count = np.searchsorted(compute[order], SAME_COMPUTE * compute, side="right")
    return np.asarray(loss <= NEAR_BEST * lowest[count - 1])


def fit_surface(
    compute: Float[np.ndarray, " runs"],
    size: Float[np.ndarray, " runs"],
    tokens: Float[np.ndarray, " runs"],
    loss: Float[np.ndarray, " runs"],
) -> Surface:
    """Return the posterior mode of the surface: Huber losses over their scale, weights sqrt(C), and the priors."""
    keep = near_best(compute, loss)
    c, y = compute[keep], np.log(loss[keep])
    centre = (float(np.log(size[keep]).mean()), float(np.log(tokens[keep]).mean()))
    n, d = np.log(size[keep]) - centre[0], np.log(tokens[keep]) - centre[1]
    weights = np.sqrt(c / c.max())
    weights /= weights.mean()
    lowest = float(y.min())
    best: tuple[float, Float[np.ndarray, " five"]] | None = None
    level = float(y.mean())
    for start in STARTS:
        floor = lowest + math.log(FLOOR_PRIOR[0])
        rest = math.log((math.exp(level) - math.exp(floor)) / 2) if level > floor else level - 2
        theta = np.array([rest, rest, floor, math.log(start), 0.0])
        value = math.inf
        scale = 0.01
        for _ in range(SWEEPS):
            theta, value = _minimise(theta, n, d, y, weights, scale, lowest)
            residuals = np.logaddexp.reduce(_terms(theta, n, d)) - y
            scale = max(MIN_SCALE, float((weights * np.abs(residuals)).mean()))
        theta, value = _minimise(theta, n, d, y, weights, scale, lowest)
        value += len(y) * math.log(scale)  # scales differ between starts
        if best is None or value < best[0]:
            best = (value, theta)
    assert best is not None
    return Surface(best[1], centre, float(np.median(compute / (size * tokens))))


def _minimise(
    theta: Float[np.ndarray, " five"],
    n: Float[np.ndarray, " runs"],
    d: Float[np.ndarray, " runs"],
    y: Float[np.ndarray, " runs"],
    weights: Float[np.ndarray, " runs"],
    scale: float,
    lowest: float,
) -> tuple[Float[np.ndarray, " five"], float]:
    """Return the minimum of sum w huber(r)/(delta scale) - log prior by damped Gauss-Newton with Huber's weights."""

    def evaluate(theta: Float[np.ndarray, " five"]) -> tuple[float, "np.ndarray", "np.ndarray"]:
        terms = _terms(theta, n, d)
        r = np.logaddexp.reduce(terms) - y
        size = np.abs(r)
        rho = np.where(size < DELTA, r * r / 2, DELTA * (size - DELTA / 2))
        share = math.exp(theta[2] - lowest)
        prior = np.array(
            [
                (share - FLOOR_PRIOR[0]) / FLOOR_PRIOR[1],
                (theta[3] - ALPHA_PRIOR[0]) / ALPHA_PRIOR[1],
                (theta[4] - TIE_PRIOR[0]) / TIE_PRIOR[1],
            ]
        )
        return float((weights * rho).sum() / (DELTA * scale) + (prior**2).sum() / 2), r, prior

    value, r, prior = evaluate(theta)
    damping = 1e-3
    for _ in range(STEPS):
        terms = _terms(theta, n, d)
        p = np.exp(terms - np.logaddexp.reduce(terms))
        alpha = math.exp(theta[3])
        beta = alpha * math.exp(theta[4])
        along_beta = -p[1] * d * beta
        jacobian = np.stack([p[0], p[1], p[2], -p[0] * n * alpha + along_beta, along_beta])
        w = weights * np.minimum(1, DELTA / np.maximum(np.abs(r), 1e-300)) / (DELTA * scale)
        share = math.exp(theta[2] - lowest)
        slopes = np.array([share / FLOOR_PRIOR[1], 1 / ALPHA_PRIOR[1], 1 / TIE_PRIOR[1]])
        gradient = jacobian @ (w * r)
        gradient[2:] += slopes * prior
        hessian = (jacobian * w) @ jacobian.T
        hessian[[2, 3, 4], [2, 3, 4]] += slopes**2
        diagonal = np.diag(hessian).copy() + 1e-12
        for _ in range(12):
            step = np.linalg.solve(hessian + damping * np.diag(diagonal), gradient)
            trial = theta - step
            new, new_r, new_prior = evaluate(trial)
            if new < value:
                break
            damping = min(damping * 8, 1e12)
        else:
            return theta, value
        damping = max(damping / 5, 1e-9)
        theta, gained, value, r, prior = trial, value - new, new, new_r, new_prior
        if gained < TOLERANCE * (1 + abs(value)):
            break
    return theta, value
