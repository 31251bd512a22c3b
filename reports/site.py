"""The index of all forecasts of a study: how each ended, and how often the intervals held. Misses stand beside hits."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy import stats

from forecasts.record import Outcome
from forecasts.registry import RegisteredForecast, registry
from forecasts.verify import verify
from ladder.records import write_atomic
from ladder.study import Study
from ladder.units import format_loss, format_percent
from reports.build import build_report
from reports.outcome import OPEN
from reports.render import WORDS, render_index
from reports.tables import Field, Table, table_of
from reports.wording import count_of, format_factor, format_level

INTERVAL_LEVEL = 0.9  # of the interval of the coverage itself


@dataclass(frozen=True)
class Entry:
    """One forecast in the index, all texts formatted; `href` is relative to the index."""

    href: str
    title: str
    state: str
    word: str
    registered: str
    forecast: str
    observed: str
    error: str
    factor: str
    evidence: str


@dataclass(frozen=True)
class Calibration:
    """How often the registered intervals held, over independent targets.

    `targets` is their number in words: forecasts of one rung count once, by the earliest that was checked.
    """

    targets: str
    few: bool
    inside: str
    nominal: str
    coverage: str
    low: str
    high: str
    table: Table | None


def build_site(study: Study) -> Path:
    """Build the report of every registered forecast and the index of them all; return the path of the index.

    Raises what `build_report` raises; the index is written last, so it never names a report that is not there.
    """
    verify(study)
    entries = registry(study)
    for entry in entries:
        build_report(study, entry.forecast_id)
    path = study.report("index.html")
    write_atomic(path, render_index([_entry(entry) for entry in entries], calibration_of(entries)))
    return path


def _entry(entry: RegisteredForecast) -> Entry:
    forecast, check = entry.forecast, entry.check
    state = str(check.outcome) if check else OPEN
    low, high = forecast.main.predictive.interval(forecast.rule.level)
    scored = check.main if check else None
    return Entry(
        href=f"{entry.forecast_id}/index.html",
        title=forecast.title,
        state=state,
        word=WORDS[state],
        registered=entry.line.time[:10],
        forecast=f"{format_loss(forecast.main.median)} ({format_loss(low)} – {format_loss(high)})",
        observed=format_loss(check.observed) if check and check.observed is not None else "",
        error=format_percent(scored.relative_error) if scored else "",
        factor=f"{format_factor(forecast.extrapolation_factor['compute'])} ×",
        evidence=check.evidence_level if check else "",
    )


def calibration_of(entries: tuple[RegisteredForecast, ...]) -> Calibration:
    """Return coverage over the targets that were resolved as hit or miss.

    Forecasts of one rung and metric are no independent targets: the earliest counts (laws.md, 30.7). The interval of
    the coverage is Jeffreys', Beta(k + 1/2, n - k + 1/2).
    """
    first: dict[tuple[str, str], RegisteredForecast] = {}
    for entry in entries:
        if entry.check and entry.check.outcome in (Outcome.HIT, Outcome.MISS):
            first.setdefault((entry.forecast.target.rung_id, entry.forecast.target.metric.name), entry)
    scores = [score for entry in first.values() if entry.check and (score := entry.check.main)]
    levels = sorted({entry.forecast.rule.level for entry in first.values()})
    inside = sum(score.inside for score in scores)
    jeffreys = stats.beta(inside + 0.5, len(scores) - inside + 0.5)
    low, high = float(jeffreys.ppf((1 - INTERVAL_LEVEL) / 2)), float(jeffreys.ppf((1 + INTERVAL_LEVEL) / 2))
    frame = pd.DataFrame([{"pit": score.pit, "error": score.relative_error, "title": score.name} for score in scores])
    table = table_of(
        frame.assign(title=[entry.forecast.title for entry in first.values()]),
        [
            Field("title", "target", number=False),
            Field("pit", "PIT", lambda value: f"{value:.2f}"),
            Field("error", "error", format_percent),
        ],
        caption="The targets that count: where each outcome fell in its forecast's distribution, and its error.",
        wrap=True,
    ) if scores else None  # fmt: skip
    return Calibration(
        targets=count_of(len(scores), "independent target"),
        few=len(scores) < 2,
        inside=str(inside),
        nominal=" and ".join(format_level(level) for level in levels),
        coverage=format_percent(inside / len(scores), signed=False) if scores else "",
        low=format_percent(low, signed=False),
        high=format_percent(high, signed=False),
        table=table,
    )
