"""Everything a report may show, frozen, with every number already formatted.

Templates only interpolate these texts, so no number is typed by hand and each looks the same wherever it appears.
"""

from dataclasses import dataclass

from reports.figures import Figure
from reports.references import Reference
from reports.tables import Table


@dataclass(frozen=True)
class Subject:
    """What is forecast: the target run and the metric it is judged by."""

    rung_name: str
    recipe: str
    metric: str
    unit: str
    eval_set: str
    tokenizer: str
    compute: str
    convention: str
    active_params: str
    total_params: str
    tokens: str
    seeds: str
    seed_list: str


@dataclass(frozen=True)
class Verdict:
    """How it ended. `state` is an `Outcome` or ``"open"``; fields about the outcome are empty while it is open.

    `error` is forecast over observed, minus one; `direction` is ``"high"`` or ``"low"``; `half_width` is half the
    interval over the median; `claim` is ``"held"``, ``"failed"`` or empty where nothing but the interval was claimed.
    """

    state: str
    median: str
    low: str
    high: str
    level: str
    half_width: str
    factor: str
    factor_params: str
    factor_tokens: str
    registered_date: str
    registered_clock: str
    evidence: str
    evidence_remark: str
    confirmatory: bool
    observed: str = ""
    observed_se: str = ""
    runs: str = ""
    error: str = ""
    error_size: str = ""
    direction: str = ""
    claim: str = ""
    started: str = ""
    lead: str = ""


@dataclass(frozen=True)
class Rule:
    """What was agreed beforehand: what counts as a hit and who says so."""

    level: str
    low: str
    high: str
    claimed_error: str
    claimed_low: str
    claimed_high: str
    not_claimed: str
    resolver: str
    source: str
    latest: str
    annul_if: tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """What the law was fitted to and what had been seen of the target."""

    used: str
    excluded: str
    excluded_reasons: str
    budgets: str
    lowest: str
    highest: str
    seen: str
    freedom: str
    rungs: Table
    excluded_runs: Table | None
    seed_noise: str
    replicated: str


@dataclass(frozen=True)
class LawSection:
    """The law behind the main forecast: one summary, its parameters and diagnostics."""

    name: str
    formula: str
    reference: str
    status: str
    usable: bool
    message: str
    facts: Table
    params: Table
    optima: Table | None


@dataclass(frozen=True)
class Comparison:
    """The main forecast beside the baselines frozen with it; `best` names the lowest CRPS once there is an outcome."""

    table: Table
    count: str
    best: str
    main_is_best: bool


@dataclass(frozen=True)
class Reproduction:
    """What another person needs to get the same numbers."""

    commands: tuple[str, ...]
    verify: str
    rebuild: str
    digests: Table
    environment: Table
    code_sha: str
    code_dirty: bool
    bibtex: str


@dataclass(frozen=True)
class ReportContext:
    """One report."""

    forecast_id: str
    sha256: str
    title: str
    authors: str
    rationale: str
    supersedes: str
    superseded_by: str
    subject: Subject
    verdict: Verdict
    rule: Rule
    data: Data
    law: LawSection
    comparison: Comparison
    deviations: tuple[str, ...]
    limits: tuple[str, ...]
    reproduction: Reproduction
    references: tuple[Reference, ...]
    figures: dict[str, Figure]
