"""The result of a fit: frozen, complete, written to fit.json and read back without loss.

One type serves every law, with bootstrap draws, and the floor-integrated policy, whose posterior is recomputed from
the recorded optima when asked for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.bootstrap import Draws
from fits.estimate import FittedPoint, ObservedRun, ParamEstimate
from fits.floor_posterior import NOISE_DF, NOISE_SD, FloorPosterior, VarianceSplit, floor_posterior
from fits.isoflop import IsoflopResult
from fits.laws import law_named
from fits.noise import SeedNoise
from fits.points import law_inputs, reasons
from fits.policy import StackedForecast, StackedPolicy, stacked_policy
from fits.predictive import Predictive
from fits.solve import FitStatus
from fits.spec import FLOOR_INTEGRATED, POLICIES, STACKED, FitSpec
from fits.summary import Summary, parameter_rows
from ladder.errors import InputError, UnusableError
from ladder.provenance import Provenance
from ladder.records import canonical_json, from_plain, read_json, to_plain, write_atomic
from ladder.units import format_flops, format_percent

SCHEMA = "fit/1"
ONE_SIGMA = 0.15865525393145707  # lower tail of a normal beyond one standard deviation
PARTS = 20  # components that stand for all draws in a forecast: each the mean of a twentieth, its spread kept

type Target = Mapping[str, float]


class IntervalKind(StrEnum):
    """What an interval is for: where the curve is, or where the next run lands."""

    MEAN = "mean"
    OBSERVATION = "observation"


@dataclass(frozen=True)
class FitResult:
    """A fitted law.

    Attributes:
        spec: what was asked for; `refit` does it again.
        status, message: how it ended; only CONVERGED may be used as it stands.
        param_estimates: the parameters.
        draws: bootstrap draws, None for the policy or without resamples.
        points: observations, fitted values and residuals.
        isoflop: IsoFLOP profiles the optima come from, None for laws of runs.
        seed_noise: seed sd of ln L, None when no rung was repeated (noise is then inferred from residuals).
        fit_range: smallest and largest value by run-table column over the runs that entered; compute over the points.
        objective: minimum of the summed loss, None for the policy.
        condition: condition number of the column-scaled Jacobian, None for the policy or where infinite.
        agreement: share of starts at the best optimum, None for the policy.
        n_runs, n_rungs: runs that entered and distinct rungs among them.
        excluded: runs left out, by reason.
        metric_unit, recipe, flop_convention: of the runs, empty where the table does not say.
        inputs_sha256: digest of the numbers that entered, in table order.
        provenance: how the file came to be; not compared.
        observed: the runs, from which the stacked policy is made again; empty for others.
    """

    spec: FitSpec
    status: FitStatus
    message: str
    param_estimates: tuple[ParamEstimate, ...]
    draws: Draws | None
    points: tuple[FittedPoint, ...]
    isoflop: IsoflopResult | None
    seed_noise: SeedNoise | None
    fit_range: dict[str, tuple[float, float]]
    objective: float | None
    condition: float | None
    agreement: float | None
    n_runs: int
    n_rungs: int
    excluded: dict[str, int]
    metric_unit: str
    recipe: str
    flop_convention: str
    inputs_sha256: str
    provenance: Provenance = field(compare=False)
    observed: tuple[ObservedRun, ...] = ()

    @property
    def law(self) -> str:
        """Name of the law or policy."""
        return self.spec.law

    @property
    def usable(self) -> bool:
        """Whether the fit converged."""
        return self.status is FitStatus.CONVERGED

    @property
    def theta(self) -> dict[str, float]:
        """Estimates by name."""
        return {param.name: param.estimate for param in self.param_estimates}

    @property
    def params(self) -> pd.DataFrame:
        """One row a parameter, indexed by name: estimate, se, lo, hi, start_spread, at_bound, published values."""
        rows = [
            {key: value for key, value in vars(param).items() if key not in ("published", "symbol")} | param.published
            for param in self.param_estimates
        ]
        return pd.DataFrame(rows).set_index("name")

    @property
    def residuals(self) -> pd.DataFrame:
        """One row an observation: the fields of `FittedPoint` and tokens_per_param."""
        frame = pd.DataFrame([vars(point) for point in self.points])
        frame[["size", "tokens"]] = frame[["size", "tokens"]].astype(float)
        return frame.assign(tokens_per_param=frame["tokens"] / frame["size"])

    @property
    def posterior(self) -> FloorPosterior:
        """The floor's posterior of a policy (for ``stacked`` pooled over its two priors); InputError for laws."""
        if not self.spec.is_policy:
            raise InputError(f"a fit of {self.law} has no floor posterior; fit {' or '.join(POLICIES)}.")
        if self.law == STACKED:
            return self.policy.pooled
        compute = np.array([point.compute for point in self.points])
        loss = np.array([point.observed for point in self.points])
        return floor_posterior(compute, loss, self.seed_noise.sd if self.seed_noise else 0.0)

    @property
    def policy(self) -> StackedPolicy:
        """The stacked policy, made again from the recorded runs; raises InputError for others."""
        if self.law != STACKED:
            raise InputError(f"a fit of {self.law} stacks nothing; fit {STACKED}.")
        return stacked_policy(self.observed, self.seed_noise.sd if self.seed_noise else 0.0)

    def stacked_forecast(self, target: Target) -> StackedForecast:
        """Return what the stacked policy says of a run: compute-optimal, or of the size and tokens in `target`."""
        size, tokens = (None if key not in target else float(target[key]) for key in (self.spec.size_column, "tokens"))
        return self.policy.forecast(self._value(target, "compute"), size, tokens)

    def predictive(self, target: Target) -> Predictive:
        """Return the distribution of the observed loss of the next run at `target`.

        `target` holds ``compute`` and, for laws of runs, ``tokens`` and the size column of the fit (with which the
        stacked policy forecasts that run instead of the compute-optimal one); other keys are ignored. Laws: a mixture over bootstrap draws, each widened by the noise of a run (Student-t; the larger of
        residual scatter and seed noise). The fit's status is not looked at here.

        Raises InputError when a key is missing, UnusableError for a law that was fitted without resamples.
        """
        if self.law == FLOOR_INTEGRATED:
            return self.posterior.predictive(self._value(target, "compute"))
        if self.law == STACKED:
            return self.stacked_forecast(target).predictive()
        scale, df = self.noise_scale()
        groups = np.array_split(np.sort(self._draws_of(target)), min(PARTS, len(self._drawn().values)))
        weights = [len(group) for group in groups]
        return Predictive(
            weights=tuple(weight / sum(weights) for weight in weights),
            centres=tuple(float(group.mean()) for group in groups),
            scales=tuple(math.sqrt(scale**2 + float(group.var())) for group in groups),
            dfs=(df,) * len(groups),
        )

    def variance_split(self, target: Target) -> VarianceSplit:
        """Return the variance of the forecast of ln L by source; laws do not model that their form may be wrong."""
        if self.law == FLOOR_INTEGRATED:
            return self.posterior.split(self._value(target, "compute"))
        if self.law == STACKED:
            return self.stacked_forecast(target).split()
        return VarianceSplit(float(self._draws_of(target).var()), 0.0, self.noise_scale()[0] ** 2)

    def noise_scale(self) -> tuple[float, float]:
        """Return scale and degrees of freedom of the Student-t noise of a single run in ln L, for laws.

        Residual scatter with n - p degrees of freedom, under the weak prior of the policy's study (3 degrees of
        freedom at .0005, so that a law that meets its few points exactly is not taken for certain); or the seed sd,
        where that is larger.
        """
        squares = sum(point.residual**2 for point in self.points)
        df = NOISE_DF + max(len(self.points) - self._free, 0)
        scatter = math.sqrt((NOISE_DF * NOISE_SD**2 + squares) / df)
        if self.seed_noise is not None and self.seed_noise.sd > scatter:
            return self.seed_noise.sd, max(df, float(self.seed_noise.df))
        return scatter, df

    def predict(
        self,
        targets: pd.DataFrame | Sequence[Target] | Target,
        level: float = 0.9,
        kind: str = IntervalKind.OBSERVATION,
    ) -> pd.DataFrame:
        """Return one row a target: compute, median, mean, se, lo, hi, extrapolation_factor, in_range,
        outside (names of what lies beyond the fitted range: compute and, for laws of runs, the size and tokens).

        `kind` ``"observation"`` is for the next run, ``"mean"`` for the curve. `lo` and `hi` bound the central
        interval of `level`. `mean` is exp of the mean of ln L, because a Student-t in ln L has no arithmetic mean of L;
        `se` is half the central 68.3 % interval of ln L times the median, because few degrees of freedom leave no
        variance. `extrapolation_factor` is compute over the largest fitted one.

        >>> IntervalKind("mean")
        <IntervalKind.MEAN: 'mean'>
        """
        kind = IntervalKind(kind)
        records: Sequence[Target]
        if isinstance(targets, pd.DataFrame):
            records = [{str(key): value for key, value in row.items()} for row in targets.to_dict("records")]
        else:
            records = [targets] if isinstance(targets, Mapping) else targets
        low, high = self.fit_range["compute"]
        rows = []
        for target in records:
            compute = self._value(target, "compute")
            median, mean, scale, lo, hi = self._moments(target, level, kind)
            rows.append(
                {
                    "compute": compute,
                    "median": median,
                    "mean": mean,
                    "se": scale * median,
                    "lo": lo,
                    "hi": hi,
                    "extrapolation_factor": compute / high,
                    "in_range": low <= compute <= high,
                    "outside": ", ".join(self._outside(target)),
                }
            )
        return pd.DataFrame(rows)

    def _outside(self, target: Target) -> list[str]:
        inputs = ("compute",) if self.spec.on_optima else law_named(self.law).inputs
        columns = dict.fromkeys(self.spec.size_column if name == "active_params" else name for name in inputs)
        ranges = {name: self.fit_range[name] for name in ("compute", *columns) if name in self.fit_range}
        return [name for name, (low, high) in ranges.items() if not low <= float(target[name]) <= high]

    def _moments(self, target: Target, level: float, kind: IntervalKind) -> tuple[float, float, float, float, float]:
        """Return median, exp of the mean of ln L, scale of ln L, and the interval."""
        levels = (0.5, ONE_SIGMA, 1 - ONE_SIGMA, (1 - level) / 2, (1 + level) / 2)
        if kind is IntervalKind.MEAN and not self.spec.is_policy:
            logs = self._draws_of(target)
            mean = float(logs.mean())
            median, low, high, lo, hi = np.exp(np.quantile(logs, levels)).tolist()
        else:
            observation = kind is IntervalKind.OBSERVATION
            part = self.predictive(target) if observation else self._curve(target)
            mean = float(np.dot(part.weights, part.centres))
            median, low, high, lo, hi = (part.quantile(q) for q in levels)
        return median, math.exp(mean), math.log(high / low) / 2, lo, hi

    def _curve(self, target: Target) -> Predictive:
        if self.law == STACKED:
            return self.stacked_forecast(target).curve()
        return self.posterior.curve(self._value(target, "compute"))

    def _drawn(self) -> Draws:
        if self.draws is None or not self.draws.values:
            raise UnusableError(
                f"the fit of {self.law} has no bootstrap draws, so it knows no uncertainty; fit it with --resamples 500."
            )
        return self.draws

    def _draws_of(self, target: Target) -> Float[np.ndarray, " draws"]:
        """Return ln L at `target` for each draw."""
        law = law_named(self.law)
        size = self.spec.size_column if "active_params" in law.inputs else "compute"
        columns = {key: np.array(self._value(target, key)) for key in law.inputs if key != "active_params"}
        columns |= {"size": np.array(self._value(target, size))}
        return np.asarray(np.log(law.predict(self._drawn().columns(), law_inputs(law, columns))))

    def _value(self, target: Target, key: str) -> float:
        if key not in target or not float(target[key]) > 0:
            raise InputError(
                f"a prediction of {self.law} needs a positive {key} of the target, found {target.get(key)}."
            )
        return float(target[key])

    @property
    def _free(self) -> int:
        return len(self.param_estimates) - (self.spec.pinned_floor is not None)

    def summary(self) -> Summary:
        """Return the fit as a table that prints as text, HTML and Markdown."""
        rows, header = parameter_rows(self.param_estimates)
        low, high = self.fit_range["compute"]
        excluded = ", ".join(f"{reason} {count}" for reason, count in self.excluded.items()) or "none"
        facts = [
            ("status", f"{self.status}: {self.message}"),
            ("metric", f"{self.spec.metric} ({self.metric_unit})"),
            ("N is", self.spec.size_column),
            (
                "fitted to",
                f"{len(self.points)} points from {self.n_runs} runs of {self.n_rungs} rungs; excluded: {excluded}",
            ),
            ("compute", f"{format_flops(low)} to {format_flops(high)} FLOPs ({self.flop_convention})"),
        ]
        if not self.spec.is_policy:
            facts.append(("minimised", f"{self.spec.loss}, {self.objective:.6g}"))
        if self.draws is not None:
            facts.append(
                (
                    "intervals",
                    f"bootstrap of {self.draws.method}, {len(self.draws.values)} draws, {self.draws.failed} failed",
                )
            )
        noise = self.seed_noise
        facts.append(
            (
                "seed noise",
                f"{format_percent(noise.sd, signed=False)} of the loss, {noise.df} degrees of freedom"
                if noise
                else "inferred from residuals: no rung was repeated",
            )
        )
        facts += self._split_facts()
        unused = reasons(self.isoflop) if self.isoflop else ""
        return Summary(f"Fit of {self.law}", tuple(facts), header, rows, (f"Not used: {unused}.",) if unused else ())

    def _split_facts(self) -> list[tuple[str, str]]:
        """Return where the width of a forecast 10 and 100 times out comes from, for fits that know it."""
        if not (self.spec.on_optima and (self.spec.is_policy or (self.draws is not None and self.draws.values))):
            return []
        facts = []
        for factor in (10, 100):
            split = self.variance_split({"compute": factor * self.fit_range["compute"][1]})
            parts = ", ".join(f"{name} {100 * part / split.total:.0f} %" for name, part in vars(split).items())
            facts.append((f"{factor}x out", f"sd {format_percent(math.sqrt(split.total), signed=False)}: {parts}"))
        return facts

    def to_json(self) -> bytes:
        """Return the canonical bytes of fit.json."""
        plain = {"schema": SCHEMA, **to_plain(self)}
        if not self.observed:
            del plain["observed"]  # so that fits made before there was such a policy keep their digests
        return canonical_json(plain)

    @staticmethod
    def from_json(data: dict[str, object], where: str) -> "FitResult":
        """Return the fit in parsed JSON; raises InputError naming the field that is wrong."""
        return from_plain(FitResult, {key: value for key, value in data.items() if key != "schema"}, where)

    def save(self, path: Path) -> None:
        """Write fit.json atomically."""
        write_atomic(path, self.to_json())


def read_fit(path: Path | str) -> FitResult:
    """Return the fit in `path`; raises InputError when it is missing, damaged or of another version."""
    return FitResult.from_json(read_json(Path(path), SCHEMA), str(path))
