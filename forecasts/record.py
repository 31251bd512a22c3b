"""The forecast and its check: frozen values, and the files that hold them.

A forecast states beforehand, in typed fields, what is predicted of which run on which metric, with which
distribution, what would count as a hit, who or what resolves it, and what of the outcome had been seen. It is one
canonical JSON file that is never edited; its digest is over those bytes. A check is a second file.
"""

from dataclasses import dataclass
from enum import StrEnum
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
    ANNULLED = "annulled"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Metric:
    """What number is forecast: its name in the run table, unit, and the data and tokenizer it is measured with."""

    name: str
    unit: str
    eval_set: str
    tokenizer: str


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


@dataclass(frozen=True)
class ForecastModel:
    """One predictive distribution under a name, with its quantile table.

    Attributes:
        name: name of the law or policy.
        fit: digest of the fit.json it came from.
        predictive: distribution of the observed loss of the target (`interval_kind` observation).
        quantiles: losses at `QUANTILE_LEVELS`.
    """

    name: str
    fit_sha256: str
    predictive: Predictive
    quantiles: tuple[float, ...]

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


@dataclass(frozen=True)
class Resolution:
    """How the forecast is resolved: from which run table rows, by whom, until when, and what annuls it."""

    source: str
    resolver: str
    latest: str | None
    annul_if: tuple[str, ...]


@dataclass(frozen=True)
class DataStatement:
    """What was used and what had been seen: the freedom there was."""

    runs_sha256: str
    runs_used: int
    runs_excluded: dict[str, int]
    budgets: tuple[int, ...]
    seen: SeenState
    selection_freedom: str


@dataclass(frozen=True)
class Forecast:
    """A forecast of one metric of one run; `main` is scored, `comparators` are baselines frozen beside it.

    `extrapolation_factor` holds target over largest fitted value by column: compute, active_params, tokens.
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

    def to_json(self) -> bytes:
        """Return the canonical bytes, over which the digest is taken."""
        return canonical_json({"schema": FORECAST_SCHEMA, **to_plain(self)})

    @property
    def sha256(self) -> str:
        """Digest of the canonical bytes; identity of the forecast."""
        return sha256_bytes(self.to_json())


def read_forecast(path: Path) -> Forecast:
    """Return the forecast in `path`; raises InputError naming the field when it is damaged."""
    data = read_json(path, FORECAST_SCHEMA)
    return from_plain(Forecast, {key: value for key, value in data.items() if key != "schema"}, str(path))


@dataclass(frozen=True)
class ModelScore:
    """Scores of one predictive distribution against the outcome; losses in the metric's unit.

    Attributes:
        relative_error: forecast median over outcome, minus one (positive: forecast too high).
        pit: probability the forecast gave to a loss at or below the outcome.
        crps: continuous ranked probability score, in the loss's unit.
        interval_score: Winkler score of the rule's interval, in the loss's unit.
        wis: weighted interval score over the quantile table, in the loss's unit.
        log_score: minus log density of ln L at the outcome.
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


@dataclass(frozen=True)
class Check:
    """The resolution of a forecast.

    Attributes:
        forecast_id, forecast_sha256: which forecast, by file stem and digest.
        observed: mean loss of the target's runs; `observed_se` its standard error over seeds, None for one run.
        runs: digest of the run table, and the run ids that resolved it.
        outcome: hit, miss, annulled, ambiguous.
        main, comparators: scores; None where annulled.
        skill: 1 - CRPS of main over CRPS of the comparator, by name.
        deviations: what differed from the registered target.
        evidence_level: strongest evidence that the forecast preceded the outcome.
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
