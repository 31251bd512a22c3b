"""The default policy: several laws stacked on the frontier of a ladder, with intervals the ladder itself may widen.

What it does, in order: runs become rungs of the compute-optimal frontier (fits/frontier.py); members forecast them
(fits/members.py); hiding the top rungs in turn scores the members and says whether this ladder is worse than others;
the mixture at the target gets the offset of a run that is not compute-optimal. Reasons of all defaults are in LOG.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from jaxtyping import Float

from fits.estimate import ObservedRun
from fits.floor_posterior import MIN_RUNGS, PREDICTIVE_DF, FloorPosterior, VarianceSplit
from fits.frontier import Frontier, Observations, frontier_of
from fits.members import MemberForecast, member_forecasts, names_of, pooled_floor, prior_weights
from fits.predictive import Predictive
from fits.stacking import crps_weights
from ladder.errors import InputError

STRENGTH = 10.0  # of the prior weights, in outcomes: short backtests do not see the floor, which decides far out
MAX_OUTCOMES = 12.0  # hidden rungs of one ladder are not independent
WIDTH = 0.85  # of the members' scales: best CRPS over ten public sets is flat from .70 to .85, the wider end is taken
PRIOR_CUTS = 8.0  # cuts that the pooled scale of other ladders is worth against this ladder's own
Z_CAP = 3.0  # of a standardised backtest error, so that one rung does not decide
NEAR = 1.0  # sd in ln X of the importance of a backtest for a target
MAX_CUTS, MAX_TARGETS = 6, 12  # of the backtest of a dense curve
OFFSET_ERROR = 0.25  # sd of an offset as a share of it (policy study, section 1b)
T_VARIANCE = PREDICTIVE_DF / (PREDICTIVE_DF - 2)
SD_OF_T = math.sqrt(T_VARIANCE)


@dataclass(frozen=True)
class Rolled:
    """One cut: rungs kept, and what every member said of the rungs above (members x targets) in ln L."""

    kept: int
    factor: Float[np.ndarray, " targets"]
    outcome: Float[np.ndarray, " targets"]
    centre: Float[np.ndarray, "members targets"]
    scale: Float[np.ndarray, "members targets"]


@dataclass(frozen=True)
class StackedForecast:
    """The forecast of one run: members with weights, centres and variances of ln L by source.

    `inflation` (1 or more) is how much wider than other ladders this one's backtest asks the interval to be.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    centres: tuple[float, ...]
    parameter: tuple[float, ...]
    form: tuple[float, ...]
    seed: tuple[float, ...]
    offset: float
    inflation: float

    @property
    def centre(self) -> float:
        """Mean of ln L."""
        return float(np.dot(self.weights, self.centres))

    def alone(self) -> dict[str, Predictive]:
        """Return what each member alone would have forecast."""
        return {
            name: Predictive.student_t(centre, math.sqrt(parameter + form + seed), PREDICTIVE_DF)
            for name, centre, parameter, form, seed in zip(
                self.names, self.centres, self.parameter, self.form, self.seed, strict=True
            )
        }

    def _mixture(self, scales: Sequence[float]) -> Predictive:
        width = WIDTH * self.inflation
        plain = Predictive(self.weights, self.centres, tuple(scales), (PREDICTIVE_DF,) * len(self.weights))
        middle = math.log(plain.median)
        return Predictive(
            self.weights,
            tuple(middle + width * (centre - middle) for centre in self.centres),
            tuple(width * scale for scale in scales),
            (PREDICTIVE_DF,) * len(self.weights),
        )

    def predictive(self) -> Predictive:
        """Return the distribution of the loss of the next run."""
        return self._mixture([math.sqrt(sum(v)) for v in zip(self.parameter, self.form, self.seed, strict=True)])

    def curve(self) -> Predictive:
        """Return the distribution of the curve: without the part of a single run."""
        return self._mixture([math.sqrt(sum(v)) for v in zip(self.parameter, self.form, strict=True)])

    def split(self) -> VarianceSplit:
        """Return the squared scale by source; that the members differ counts as form."""
        weights, centres = np.array(self.weights), np.array(self.centres)
        between = float(weights @ (centres - weights @ centres) ** 2)
        width = (WIDTH * self.inflation) ** 2
        return VarianceSplit(
            parameter=width * float(weights @ self.parameter),
            form=width * (float(weights @ self.form) + between),
            seed=width * float(weights @ self.seed),
        )


@dataclass(frozen=True)
class StackedPolicy:
    """The policy fitted to a ladder; `seed_sd` is of ln L over seeds, 0 where it was not measured."""

    frontier: Frontier
    seed_sd: float

    @staticmethod
    def of(runs: Observations, seed_sd: float) -> "StackedPolicy":
        """Return the policy for `runs`; raises InputError with fewer than three rungs."""
        frontier = frontier_of(runs)
        if len(frontier.compute) < MIN_RUNGS:
            raise InputError(
                f"the stacked policy needs rungs at {MIN_RUNGS} budgets or more, found {len(frontier.compute)}; add "
                "budgets to the ladder."
            )
        return StackedPolicy(frontier, seed_sd)

    @property
    def names(self) -> tuple[str, ...]:
        """The members."""
        return names_of(len(self.frontier.compute))

    @property
    def run_sd(self) -> float:
        """Scatter of a run about the frontier: that of seeds, or of runs off the optimum where it is larger."""
        return max(self.seed_sd, self.frontier.scatter if self.frontier.kind == "collapse" else 0.0)

    @cached_property
    def pooled(self) -> FloorPosterior:
        """The posterior of floor and exponent, pooled over the two priors."""
        return pooled_floor(self.frontier.compute, self.frontier.loss, self.run_sd)

    @cached_property
    def rolled(self) -> tuple[Rolled, ...]:
        """The backtest of the members on the rungs."""
        compute, loss = self.frontier.compute, self.frontier.loss
        found = []
        for kept in cuts_of(len(compute), len(self.names) > 2):
            above = np.arange(kept, len(compute))
            if len(above) > MAX_TARGETS:
                above = np.unique(np.linspace(kept, len(compute) - 1, MAX_TARGETS).round().astype(int))
            said = member_forecasts(compute[:kept], loss[:kept], compute[above], self.run_sd, self.names)
            found.append(
                Rolled(
                    kept,
                    compute[above] / compute[kept - 1],
                    np.log(loss[above]),
                    np.stack([member.centre for member in said.values()]),
                    np.stack([member.scale for member in said.values()]),
                )
            )
        return tuple(found)

    def weights(self, factor: float) -> tuple[Float[np.ndarray, " members"], float]:
        """Return the members' weights at an extrapolation factor, and the inflation of their scales."""
        prior = prior_weights(self.names, factor)
        if not self.rolled:
            return prior, 1.0
        factors = np.concatenate([cut.factor for cut in self.rolled])
        importance = np.exp(-(((np.log(factors) - math.log(max(factor, 1.0))) / NEAR) ** 2) / 2) + 1e-12
        centres = np.concatenate([cut.centre for cut in self.rolled], axis=1)
        scales = np.concatenate([cut.scale for cut in self.rolled], axis=1)
        outcomes = np.concatenate([cut.outcome for cut in self.rolled])
        worth = min(MAX_OUTCOMES, float(len(np.unique(outcomes))))
        weights = crps_weights(centres, SD_OF_T * scales, outcomes, importance, prior, STRENGTH, worth)
        centre = weights @ centres
        variance = weights @ (scales**2 + (centres - centre) ** 2)
        squares = np.minimum((outcomes - centre) ** 2 / variance, Z_CAP**2)
        cuts = np.repeat(np.arange(len(self.rolled)), [len(cut.outcome) for cut in self.rolled])
        means = [
            float(np.average(squares[cuts == cut], weights=importance[cuts == cut])) for cut in range(len(self.rolled))
        ]
        # A short backtest can show that a ladder is worse than others; that it is better it cannot (LOG.md).
        ratio = (PRIOR_CUTS + sum(means) / T_VARIANCE) / (PRIOR_CUTS + len(means))
        return weights, math.sqrt(max(1.0, ratio))

    def forecast(self, compute: float, size: float | None = None, tokens: float | None = None) -> StackedForecast:
        """Return the forecast of a run: compute-optimal, or of this size and tokens where both are given."""
        return self.forecasts(*(np.array([math.nan if v is None else v]) for v in (compute, size, tokens)))[0]

    def forecasts(
        self,
        compute: Float[np.ndarray, " targets"],
        size: Float[np.ndarray, " targets"],
        tokens: Float[np.ndarray, " targets"],
    ) -> list[StackedForecast]:
        """Return the forecast of several runs; NaN size or tokens stand for the compute-optimal ones."""
        rungs = self.frontier
        said = member_forecasts(rungs.compute, rungs.loss, compute, self.run_sd, self.names)
        known = np.isfinite(size) & np.isfinite(tokens)
        offset = np.zeros(len(compute))
        if rungs.surface is not None and known.any():
            offset[known] = rungs.offset(compute[known], size[known], tokens[known])
        scatter = np.where(known, max(0.0, rungs.scatter**2 - self.run_sd**2), 0.0)
        stacks: dict[int, tuple[Float[np.ndarray, " members"], float]] = {}
        found = []
        for index, factor in enumerate(compute / rungs.compute.max()):
            near = round(4 * math.log(max(factor, 1.0)))  # weights change slowly with ln X
            if near not in stacks:
                stacks[near] = self.weights(math.exp(near / 4))
            found.append(_stack(self.names, said, index, float(offset[index]), float(scatter[index]), stacks[near]))
        return found


def _stack(
    names: tuple[str, ...],
    said: dict[str, MemberForecast],
    index: int,
    offset: float,
    scatter: float,
    stack: tuple[Float[np.ndarray, " members"], float],
) -> StackedForecast:
    weights, inflation = stack
    members = [said[name] for name in names]
    return StackedForecast(
        names,
        tuple(weights.tolist()),
        tuple(float(m.centre[index]) + offset for m in members),
        tuple(float(m.parameter[index]) for m in members),
        tuple(float(m.form[index]) + (OFFSET_ERROR * offset) ** 2 for m in members),
        tuple(float(m.seed[index]) + scatter for m in members),
        offset,
        inflation,
    )


def cuts_of(rungs: int, dense: bool) -> list[int]:
    """Return how many rungs the cuts of a backtest keep: every cut of a ladder, some of a dense curve."""
    lowest = 8 if dense else MIN_RUNGS
    if not dense:
        return list(range(lowest, rungs))
    every = list(range(max(lowest, rungs // 3), rungs - 1)) or ([rungs - 1] if rungs > lowest else [])
    if not every:
        return []
    chosen = np.unique(np.linspace(0, len(every) - 1, min(MAX_CUTS, len(every))).round().astype(int))
    return [every[index] for index in chosen]


@lru_cache(maxsize=16)
def stacked_policy(runs: tuple[ObservedRun, ...], seed_sd: float) -> StackedPolicy:
    """Return the policy for recorded runs; made once for a set of runs, as the surface takes a tenth of a second."""
    columns = {
        name: np.array([math.nan if getattr(run, name) is None else getattr(run, name) for run in runs], dtype=float)
        for name in ("compute", "size", "tokens", "budget", "loss")
    }
    return StackedPolicy.of(Observations(**columns), seed_sd)
