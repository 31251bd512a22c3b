"""The forecast and its check: frozen values, and the files that hold them.

A forecast states beforehand, in typed fields, what is predicted of which run on which metric, with which
distribution, what would count as a hit, who or what resolves it, and what of the outcome had been seen. It is one
canonical JSON file that is never edited; its digest is over those bytes. A check is a second file.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fits.predictive import Predictive
from ladder.errors import InputError
from ladder.provenance import Provenance, Resource
from ladder.records import canonical_json, from_plain, read_json, sha256_bytes, to_plain

FORECAST_SCHEMA = "forecast/1"
CHECK_SCHEMA = "check/1"
QUANTILE_LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)


class SeenState(StrEnum):
    """What of the target run had been seen when the forecast was made."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    FINISHED_UNSEEN = "finished_unseen"


class Outcome(StrEnum):
    """How a forecast ended."""

    HIT = "hit"
    MISS = "miss"
    ANNULLED = "annulled"  # the registered run did not take place as described
    AMBIGUOUS = "ambiguous"  # some of the registered runs are missing


class EvidenceLevel(StrEnum):
    """What shows that a forecast came before its outcome, weakest first."""

    NONE = "none"
    LOCAL_CHAIN = "local chain"
    PUBLIC_COMMIT = "public commit"
    TIME_STAMP = "independent time stamp"


@dataclass(frozen=True)
class Metric:
    """What number is forecast: its name in the run table, unit, and the data and tokenizer it is measured with.

    `evaluated_at` says which weights are evaluated; the last evaluated step of the run is the only one known.
    """

    name: str
    unit: str
    eval_set: str
    tokenizer: str
    evaluated_at: str = "final step"


@dataclass(frozen=True)
class Target:
    """The run that is forecast: a rung of the ladder, by id and by the counts that laws use.

    `compute` is an exact integer under `flop_convention`; `seeds` are the runs that will be averaged.
    """

    rung_id: str
    rung_name: str
    recipe: str
    compute: int
    flop_convention: str
    active_params: int
    total_params: int
    tokens: int
    seeds: tuple[int, ...]
    metric: Metric

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"seeds={self.seeds} of target {self.rung_name} must be distinct and at least one.")


@dataclass(frozen=True)
class ForecastModel:
    """One predictive distribution under a name, with its quantile table.

    Attributes:
        name: name of the fit, as in fits/<name>.json; unique within a forecast.
        fit_sha256: digest of that file.
        predictive: distribution of the target's observed loss.
        quantiles: losses at `QUANTILE_LEVELS`. There is no mean: the mean of a loss whose logarithm is Student-t
            is infinite.
        interval_kind: observation (where the next run lands), as against mean (where the curve is).
    """

    name: str
    fit_sha256: str
    predictive: Predictive
    quantiles: tuple[float, ...]
    interval_kind: str = "observation"

    def __post_init__(self) -> None:
        if len(self.quantiles) != len(QUANTILE_LEVELS) or list(self.quantiles) != sorted(self.quantiles):
            raise InputError(f"forecast {self.name}: {len(QUANTILE_LEVELS)} ascending quantiles are needed.")

    @property
    def median(self) -> float:
        """The point forecast."""
        return self.quantiles[QUANTILE_LEVELS.index(0.5)]


@dataclass(frozen=True)
class DecisionRule:
    """What counts as a hit: the outcome lies in the central interval of `level`.

    `claimed_error` is a bound on the absolute relative error that is claimed besides, or None.
    """

    level: float
    claimed_error: float | None
    not_claimed: str

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise InputError(f"level={self.level} must lie strictly between 0 and 1, such as 0.9.")
        if self.claimed_error is not None and not 0 < self.claimed_error < 1:
            raise InputError(f"claimed_error={self.claimed_error} is a fraction of the loss, such as 0.01 for 1 %.")


@dataclass(frozen=True)
class Resolution:
    """How the forecast is resolved: from which run table rows, by whom, until when, and what annuls it.

    `tolerance` is the relative deviation of realised compute or tokens beyond which the target counts as another run.
    """

    source: str
    resolver: str
    latest: str | None
    annul_if: tuple[str, ...]
    tolerance: float = 0.02


@dataclass(frozen=True)
class DataStatement:
    """What was used and what had been seen: the freedom there was.

    Attributes:
        runs_sha256: digest of the run table the fits were made from.
        runs_used: rows that entered the main fit.
        runs_excluded: rows of the metric that did not, by reason.
        budgets: budgets of the rows used, ascending.
        seen: what of the target had been seen.
        selection_freedom: laws and metrics that were tried before these were chosen.
        declared_leaks: ids of runs of the target's rung, or of its compute or more, that were used knowingly.
    """

    runs_sha256: str
    runs_used: int
    runs_excluded: dict[str, int]
    budgets: tuple[int, ...]
    seen: SeenState
    selection_freedom: str
    declared_leaks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """A forecast of one metric of one run; `main` is scored, `comparators` are baselines frozen beside it.

    Attributes:
        confirmatory: made before anything of the target could be seen; exploratory otherwise.
        supersedes: id of an earlier registered forecast that this one amends; both are scored.
        extrapolation_factor: target over largest fitted value by column: compute, active_params, tokens.
        inputs: run table, ladder and fits by digest.
    """

    title: str
    authors: tuple[str, ...]
    confirmatory: bool
    supersedes: str | None
    target: Target
    main: ForecastModel
    comparators: tuple[ForecastModel, ...]
    extrapolation_factor: dict[str, float]
    rule: DecisionRule
    resolution: Resolution
    data: DataStatement
    inputs: tuple[Resource, ...]
    provenance: Provenance
    rationale: str = ""

    def __post_init__(self) -> None:
        if not self.title.strip() or not self.authors:
            raise InputError("a forecast needs a title and at least one author.")
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise InputError(f"forecast {self.title!r} names a model twice ({', '.join(names)}); names are unique.")
        if self.confirmatory and (self.data.seen is not SeenState.NOT_STARTED or self.data.declared_leaks):
            raise InputError(
                f"forecast {self.title!r} cannot be confirmatory: the target had started or leaks are declared. "
                "Mark it exploratory."
            )

    @property
    def models(self) -> tuple[ForecastModel, ...]:
        """The main model, then the comparators."""
        return (self.main, *self.comparators)

    def to_json(self) -> bytes:
        """Return the canonical bytes, over which the digest is taken."""
        return canonical_json({"schema": FORECAST_SCHEMA, **to_plain(self)})

    @cached_property
    def sha256(self) -> str:
        """Digest of the canonical bytes; identity of the forecast."""
        return sha256_bytes(self.to_json())

    @property
    def forecast_id(self) -> str:
        """Name of the registered file without suffix: date of drafting, slug of the title, start of the digest."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")[:48].strip("-") or "forecast"
        return f"{self.provenance.created_at[:10]}--{slug}--{self.sha256[:8]}"


def read_forecast(path: Path) -> Forecast:
    """Return the forecast in `path`; raises InputError naming the field when it is damaged."""
    data = read_json(path, FORECAST_SCHEMA)
    return from_plain(Forecast, {key: value for key, value in data.items() if key != "schema"}, str(path))


@dataclass(frozen=True)
class ModelScore:
    """Scores of one predictive distribution against the outcome; forecasts.scores states each formula.

    Attributes:
        name: the model's name in the forecast.
        relative_error: forecast median over outcome, minus one (positive: forecast too high).
        pit: probability the forecast gave to a loss at or below the outcome.
        z: ln outcome minus ln median, in units of half the central 68.27 % interval of ln L.
        crps: continuous ranked probability score of ln L: 0.01 is about one percent of the loss.
        interval_score: Winkler score of the rule's interval, in the loss's unit.
        wis: weighted interval score over the quantile table, in the loss's unit.
        log_score: minus log density of ln L at the outcome, density floored at 1e-6.
        inside: whether the outcome lies in the rule's interval.
        pinball: pinball loss at each of `QUANTILE_LEVELS`, in the loss's unit.
    """

    name: str
    relative_error: float
    pit: float
    z: float
    crps: float
    interval_score: float
    wis: float
    log_score: float
    inside: bool
    pinball: tuple[float, ...] = ()


@dataclass(frozen=True)
class Check:
    """The resolution of a forecast.

    Attributes:
        forecast_id, forecast_sha256: which forecast, by file stem and digest.
        observed: mean loss of the target's runs, None where none has a loss.
        observed_se: its standard error over seeds, None for one run.
        run_ids: the runs that resolved it; `runs_sha256` is the digest of their table.
        outcome: hit, miss, annulled, ambiguous.
        main, comparators: scores; None and empty where annulled, provisional where ambiguous.
        skill: 1 - CRPS of main over CRPS of the comparator, by name; positive where main was better.
        deviations: what differed from the registered target, within the tolerance or beyond.
        evidence_level: strongest evidence that the forecast preceded the outcome.
        resolver: who or what resolved it.
    """

    forecast_id: str
    forecast_sha256: str
    observed: float | None
    observed_se: float | None
    run_ids: tuple[str, ...]
    runs_sha256: str
    outcome: Outcome
    main: ModelScore | None
    comparators: tuple[ModelScore, ...]
    skill: dict[str, float]
    deviations: tuple[str, ...]
    evidence_level: str
    resolver: str
    provenance: Provenance

    def to_json(self) -> bytes:
        """Return the canonical bytes."""
        return canonical_json({"schema": CHECK_SCHEMA, **to_plain(self)})


def read_check(path: Path) -> Check:
    """Return the check in `path`; raises InputError naming the field when it is damaged."""
    data = read_json(path, CHECK_SCHEMA)
    return from_plain(Check, {key: value for key, value in data.items() if key != "schema"}, str(path))
