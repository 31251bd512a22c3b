"""Forecasters of the skill benchmark: the default policy and what people use instead, all given the same rows.

Every method returns mixtures of Student-t in ln L for the held-out rows. Baselines in compute alone see the same rungs
and the same offsets as the policy, so that what differs is the extrapolation; the Chinchilla form sees the runs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import optimize, special

from benchmarks.sets import Case
from fits.bootstrap import bootstrap
from fits.floor_posterior import PREDICTIVE_DF, floor_posterior
from fits.frontier import Observations
from fits.laws import law_named
from fits.members import of_floor
from fits.noise import seed_noise
from fits.objective import LossSpec
from fits.policy import OFFSET_ERROR, StackedPolicy
from fits.solve import solve

PIN = 0.6  # of the lowest loss: Marin pins 1.6 under optima of 2.72, policy study's best fixed share beyond 30x
NORMAL_DF = 1e6
MIN_SD = 5e-4  # of ln L: a curve through as many points as parameters is not certain
GAMMAS, SHARES = np.geomspace(0.005, 2.0, 80), np.concatenate([np.linspace(0.0, 0.95, 39), [0.97, 0.985]])


@dataclass(frozen=True)
class Mixture:
    """ln L of the held-out rows: parts x targets."""

    weights: Float[np.ndarray, "parts targets"]
    centres: Float[np.ndarray, "parts targets"]
    scales: Float[np.ndarray, "parts targets"]
    df: float

    def quantile(self, level: float) -> Float[np.ndarray, " targets"]:
        """Return the quantile of each target by bisection."""
        normal = self.df >= NORMAL_DF
        parts = self.centres + self.scales * (special.ndtri(level) if normal else special.stdtrit(self.df, level))
        low, high = parts.min(axis=0), parts.max(axis=0)
        for _ in range(30 if len(parts) > 1 else 0):
            middle = (low + high) / 2
            below = (self.weights * _cdf(self.df, (middle - self.centres) / self.scales)).sum(axis=0) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray((low + high) / 2)


def _cdf(df: float, z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.asarray(special.ndtr(z) if df >= NORMAL_DF else special.stdtr(df, z))


def single(centre: Float[np.ndarray, " targets"], scale: Float[np.ndarray, "..."] | float, df: float) -> Mixture:
    """Return one Student-t a target."""
    scales = np.broadcast_to(scale, centre.shape)
    return Mixture(np.ones((1, len(centre))), centre[None], scales[None].astype(float), df)


def of_draws(draws: Float[np.ndarray, "draws targets"], sd: float) -> Mixture:
    """Return draws with normal noise as ten parts a target: means of tenths, their spread kept."""
    groups = np.array_split(np.sort(draws, axis=0), min(10, len(draws)))
    weights = np.array([len(group) / len(draws) for group in groups])
    scales = np.array([np.sqrt(sd**2 + group.var(axis=0)) for group in groups])
    centres = np.array([group.mean(axis=0) for group in groups])
    return Mixture(np.broadcast_to(weights[:, None], centres.shape), centres, scales, NORMAL_DF)


@dataclass(frozen=True)
class Problem:
    """A case with its rungs, shared by all methods."""

    case: Case
    policy: StackedPolicy
    offset: Float[np.ndarray, " targets"]
    resamples: int

    @staticmethod
    def of(case: Case, resamples: int) -> "Problem":
        """Return the case with the policy fitted to it."""
        columns = {name: case.fit[name].to_numpy() for name in ("compute", "size", "tokens", "budget", "loss")}
        noise = seed_noise(pd.DataFrame({"rung_id": case.fit["rung"], "loss": case.fit["loss"]}))
        policy = StackedPolicy.of(Observations(**columns), noise.sd if noise else 0.0)
        held = case.held_out
        known = (held["size"].notna() & held["tokens"].notna()).to_numpy()
        offset = np.zeros(len(held))
        if known.any() and policy.frontier.surface is not None:
            rows = held[known]
            offset[known] = policy.frontier.offset(*(rows[n].to_numpy() for n in ("compute", "size", "tokens")))
        return Problem(case, policy, offset, resamples)

    @property
    def at(self) -> Float[np.ndarray, " targets"]:
        """Compute of the held-out rows."""
        return np.asarray(self.case.held_out["compute"].to_numpy())

    @property
    def rungs(self) -> tuple[Float[np.ndarray, " rungs"], Float[np.ndarray, " rungs"]]:
        """Compute and loss of the rungs."""
        return self.policy.frontier.compute, self.policy.frontier.loss


def stacked(problem: Problem) -> Mixture:
    """The default policy."""
    held = problem.case.held_out
    made = [
        f.predictive() for f in problem.policy.forecasts(*(held[n].to_numpy() for n in ("compute", "size", "tokens")))
    ]
    return Mixture(
        np.array([p.weights for p in made]).T,
        np.array([p.centres for p in made]).T,
        np.array([p.scales for p in made]).T,
        PREDICTIVE_DF,
    )


def floor_integrated(problem: Problem) -> Mixture:
    """One floor prior, no stacking, no calibration on the ladder; k capped at twelve rungs as for members."""
    said = of_floor(floor_posterior(*problem.rungs, problem.policy.run_sd), problem.at)
    scale = np.sqrt(said.scale**2 + (OFFSET_ERROR * problem.offset) ** 2)
    return single(said.centre + problem.offset, scale, PREDICTIVE_DF)


def _grid(
    problem: Problem, shares: Float[np.ndarray, " shares"], counts: Float[np.ndarray, "draws rungs"]
) -> tuple[Float[np.ndarray, "draws targets"], Float[np.ndarray, " draws"]]:
    """Return least squares of ln L = m + ln(r + (1-r) x^-gamma) for weighted rungs on a grid: forecasts, variances."""
    compute, loss = problem.rungs
    a = np.log(compute.max() / compute)
    gamma, share = (part.ravel() for part in np.meshgrid(GAMMAS, shares, indexing="ij"))
    z = np.log(loss) - np.log(share[:, None] + (1 - share[:, None]) * np.exp(gamma[:, None] * a))
    total = counts.sum(axis=1)
    level = z @ counts.T / total
    squares = (z**2) @ counts.T - level**2 * total
    best = squares.argmin(axis=0)
    level = level[best, np.arange(len(best))]
    x = (problem.at / compute.max())[None, :] ** -gamma[best][:, None]
    forecast = level[:, None] + np.log(share[best][:, None] + (1 - share[best][:, None]) * x) + problem.offset
    free = len(loss) - (2 if len(shares) == 1 else 3)
    variance = np.maximum(squares[best, np.arange(len(best))], 0) / max(free, 1)
    return forecast, variance


def _bootstrapped(problem: Problem, shares: Float[np.ndarray, " shares"]) -> Mixture:
    rungs = len(problem.rungs[1])
    point, variance = _grid(problem, shares, np.ones((1, rungs)))
    rng = np.random.default_rng(0)
    counts = rng.multinomial(rungs, np.full(rungs, 1 / rungs), size=problem.resamples).astype(float)
    enough = (counts > 0).sum(axis=1) >= min(3, rungs)
    draws = point if not enough.any() else _grid(problem, shares, counts[enough])[0]
    draws = draws - np.median(draws, axis=0) + point  # centred at the fit itself
    return of_draws(draws, math.sqrt(float(variance[0]) + MIN_SD**2))


def pinned_floor(problem: Problem) -> Mixture:
    """E pinned at a share of the lowest loss, power law by least squares, bootstrap of rungs."""
    compute, loss = problem.rungs
    return _bootstrapped(problem, np.array([PIN * loss.min() / loss[compute.argmax()]]))


def free_floor(problem: Problem) -> Mixture:
    """Power law with a free floor (M2), least squares on ln L, bootstrap of rungs and residual noise."""
    return _bootstrapped(problem, SHARES)


def power_law(problem: Problem) -> Mixture:
    """Power law without a floor (M1)."""
    return _bootstrapped(problem, np.array([0.0]))


def _least_squares(
    problem: Problem, law: Callable[..., Float[np.ndarray, "..."]], starts: list[list[float]]
) -> Mixture:
    compute, loss = problem.rungs
    x, y, at = np.log(compute / compute.max()), np.log(loss), np.log(problem.at / compute.max())
    fits = []

    def distance(p: Float[np.ndarray, " params"]) -> Float[np.ndarray, " rungs"]:
        return np.asarray(np.nan_to_num(law(p, x) - y, nan=10.0, posinf=10.0, neginf=-10.0))

    for start in starts:
        with np.errstate(all="ignore"):
            found = optimize.least_squares(distance, start, max_nfev=60)
        fits.append((float(found.cost), found.x))
    cost, best = min(fits, key=lambda fit: fit[0])
    sd = math.sqrt(2 * cost / max(len(y) - len(best), 1) + MIN_SD**2)
    with np.errstate(all="ignore"):
        forecast = np.nan_to_num(law(best, at), nan=float(y.min()), posinf=y.max(), neginf=y.min() - 3)
    return single(np.clip(forecast, y.min() - 3, y.max() + 1) + problem.offset, sd, NORMAL_DF)


def m3(problem: Problem) -> Mixture:
    """Shifted power law, L = E + B (x + d)^-c."""
    last = math.log(problem.rungs[1][-1])

    def law(p: Float[np.ndarray, " four"], x: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        return np.asarray(np.logaddexp(p[0], p[1] - np.exp(p[2]) * np.logaddexp(x, p[3])))

    starts = [[last - 0.7, last - 0.7, math.log(c), d] for c in (0.1, 0.4) for d in (-3.0,)]
    return _least_squares(problem, law, starts)


def m4(problem: Problem) -> Mixture:
    """(L - E)/(L0 - L)^alpha = B x^-c, of fits/laws_curve.py."""
    last, first = math.log(problem.rungs[1][-1]), math.log(problem.rungs[1][0])

    form = law_named("m4")

    def law(p: Float[np.ndarray, " five"], x: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        floor = np.exp(p[0])
        theta = {"E": floor, "L0": floor + np.exp(p[1]), "alpha": np.exp(p[2]), "c": np.exp(p[3]), "B": np.exp(p[4])}
        return np.asarray(np.log(form.predict(theta, {"compute": np.exp(x)})))

    starts = [[last - 0.6, first + 1.0, 0.0, math.log(c), last - 0.6] for c in (0.1, 0.4)]
    return _least_squares(problem, law, starts)


def bnsl(problem: Problem) -> Mixture:
    """One-break BNSL by plain least squares, without priors or row weights."""
    last = math.log(problem.rungs[1][-1])
    span = math.log(problem.rungs[0].max() / problem.rungs[0].min())

    def law(p: Float[np.ndarray, " six"], x: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        f = math.exp(np.clip(p[5], -4, 2))
        return np.asarray(np.logaddexp(p[0], p[1] - p[2] * x - p[3] * f * np.logaddexp(0, (x - p[4]) / f)))

    starts = [[last - 0.7, last - 0.7, c, e, -span / 2, 0.0] for c, e in ((0.1, 0.1), (0.3, -0.05))]
    return _least_squares(problem, law, starts)


def chinchilla(problem: Problem) -> Mixture | None:
    """L = E + A/N^alpha + B/D^beta on the runs, Huber 1e-3, pairs bootstrap and residual noise; None without N and D.

    A compute-optimal target takes the law's own optimum.
    """
    rows, held = problem.case.fit, problem.case.held_out
    if rows[["size", "tokens"]].isna().any(axis=None) or len(rows) < 8:
        return None
    law = law_named("chinchilla")
    x = {"active_params": rows["size"].to_numpy(), "tokens": rows["tokens"].to_numpy()}
    solution = solve(law, x, np.log(rows["loss"].to_numpy()), LossSpec.huber(), {})
    if not all(map(math.isfinite, solution.theta.values())):
        return None
    draws = bootstrap(
        law, solution, tuple(map(str, range(len(rows)))), resamples=max(problem.resamples, 20), seed=0, what="runs"
    ).columns()
    factor = float(np.median(rows["compute"] / (rows["size"] * rows["tokens"])))
    point = {name: np.array([value]) for name, value in solution.theta.items()}

    def at(theta: dict[str, Float[np.ndarray, " draws"]]) -> Float[np.ndarray, "draws targets"]:
        t = {name: value[:, None] for name, value in theta.items()}
        product = held["compute"].to_numpy()[None, :] / factor
        best = (t["alpha"] * t["A"] / (t["beta"] * t["B"])) ** (1 / (t["alpha"] + t["beta"])) * product ** (
            t["beta"] / (t["alpha"] + t["beta"])
        )
        known = held["size"].notna().to_numpy()
        size = np.where(known, np.nan_to_num(held["size"].to_numpy(), nan=1.0), best)
        tokens = np.where(known, np.nan_to_num(held["tokens"].to_numpy(), nan=1.0), product / best)
        return np.asarray(np.log(law.predict(t, {"active_params": size, "tokens": tokens})))

    with np.errstate(all="ignore"):
        centre, spread = at(point), at(draws)
    spread = spread[np.isfinite(spread).all(axis=1)]
    if not np.isfinite(centre).all() or not len(spread):
        return None
    residuals = np.log(law.predict(point, x) / rows["loss"].to_numpy())
    sd = math.sqrt(float((residuals**2).sum()) / (len(rows) - 5))
    spread = spread - np.median(spread, axis=0) + centre
    return of_draws(spread, sd)


METHODS: dict[str, Callable[[Problem], Mixture | None]] = {
    "stacked": stacked,
    "floor-integrated": floor_integrated,
    "pinned-floor": pinned_floor,
    "free-floor-m2": free_floor,
    "power-law-m1": power_law,
    "m3": m3,
    "m4": m4,
    "bnsl": bnsl,
    "chinchilla": chinchilla,
}
DEFAULT = "stacked"
