"""The parts of a report that follow from the forecast and its check: subject, verdict, rule, comparison, limits."""

import pandas as pd

from forecasts.record import Check, EvidenceLevel, Forecast, Outcome, SeenState
from ladder.units import format_count, format_duration, format_flops, format_loss, format_percent
from reports.context import Comparison, Rule, Subject, Verdict
from reports.tables import Field, table_of
from reports.wording import count_of, format_factor, format_level, format_time, parse_time, readable_unit, short_digest

OPEN = "open"
ONE_TARGET = (
    "One target is one draw: a single hit or miss cannot show whether intervals of this kind are calibrated. The "
    "study's index of forecasts counts them all."
)
SEEN = {
    SeenState.NOT_STARTED: "nothing, it had not started",
    SeenState.RUNNING: "it was running, so a part of its loss curve could be seen",
    SeenState.FINISHED_UNSEEN: "it had ended, but its loss had not been looked at",
}


def subject_of(forecast: Forecast) -> Subject:
    """Return the target and its metric."""
    target = forecast.target
    return Subject(
        rung_name=target.rung_name,
        recipe=target.recipe,
        metric=target.metric.name,
        unit=readable_unit(target.metric.unit),
        eval_set=short_digest(target.metric.eval_set),
        tokenizer=short_digest(target.metric.tokenizer),
        compute=format_flops(target.compute),
        convention=target.flop_convention,
        active_params=format_count(target.active_params),
        total_params=format_count(target.total_params),
        tokens=format_count(target.tokens),
        seeds=count_of(len(target.seeds), "run"),
        seed_list=f"{'seed' if len(target.seeds) == 1 else 'seeds'} {', '.join(map(str, target.seeds))}",
    )


def verdict_of(
    forecast: Forecast,
    check: Check | None,
    *,
    registered_at: str,
    started_at: str | None,
    evidence: str,
    remark: str,
) -> Verdict:
    """Return how the forecast ended, or that it is open."""
    low, high = forecast.main.predictive.interval(forecast.rule.level)
    factors = forecast.extrapolation_factor
    started, lead = "", ""
    if started_at:
        gap = (parse_time(started_at) - parse_time(registered_at)).total_seconds()
        started = format_time(started_at)
        lead = format_duration(gap) if gap >= 0 else f"minus {format_duration(-gap)}"
    shown = Verdict(
        state=OPEN,
        median=format_loss(forecast.main.median),
        low=format_loss(low),
        high=format_loss(high),
        level=format_level(forecast.rule.level),
        half_width=format_percent((high - low) / 2 / forecast.main.median, signed=False),
        factor=format_factor(factors["compute"]),
        factor_params=format_factor(factors["active_params"]) if "active_params" in factors else "",
        factor_tokens=format_factor(factors["tokens"]) if "tokens" in factors else "",
        registered_date=format_time(registered_at).partition(" ")[0],
        registered_clock=format_time(registered_at).partition(" ")[2],
        evidence=evidence,
        evidence_remark=remark,
        confirmatory=forecast.confirmatory,
        started=started,
        lead=lead,
    )
    if check is None:
        return shown
    outcome = {"state": str(check.outcome), "runs": count_of(len(check.run_ids), "run")}
    if check.observed is not None:
        outcome["observed"] = format_loss(check.observed)
    if check.observed_se is not None:
        outcome["observed_se"] = format_loss(check.observed_se)
    if check.main is not None and check.observed is not None:
        error = check.main.relative_error
        outcome |= {
            "error": format_percent(error),
            "error_size": format_percent(abs(error), signed=False),
            "direction": "high" if error >= 0 else "low",
        }
        if forecast.rule.claimed_error is not None and check.outcome is not Outcome.AMBIGUOUS:
            outcome["claim"] = "held" if abs(error) <= forecast.rule.claimed_error else "failed"
    return Verdict(**{**vars(shown), **outcome})


def rule_of(forecast: Forecast) -> Rule:
    """Return what was agreed beforehand."""
    rule, resolution = forecast.rule, forecast.resolution
    low, high = forecast.main.predictive.interval(rule.level)
    claimed = rule.claimed_error
    return Rule(
        level=format_level(rule.level),
        low=format_loss(low),
        high=format_loss(high),
        claimed_error="" if claimed is None else format_percent(claimed, signed=False),
        claimed_low="" if claimed is None else format_loss(forecast.main.median / (1 + claimed)),
        claimed_high="" if claimed is None else format_loss(forecast.main.median / (1 - claimed)),
        not_claimed=rule.not_claimed,
        resolver=resolution.resolver,
        source=resolution.source,
        latest=format_time(resolution.latest) if resolution.latest else "",
        annul_if=resolution.annul_if,
    )


def comparison_of(forecast: Forecast, check: Check | None, unconverged: dict[str, str]) -> Comparison:
    """Return the main forecast and its comparators in one table, with scores once there is an outcome.

    `unconverged` holds the status of every fit that may not be used as it stands, by name.
    """
    level, unit = forecast.rule.level, readable_unit(forecast.target.metric.unit)
    models = (forecast.main, *forecast.comparators)
    rows = []
    for model in models:
        low, high = model.predictive.interval(level)
        rows.append({"name": model.name, "median": model.median, "interval": f"{low:.4f} – {high:.4f}"})
    fields = [
        Field("name", "forecast", number=False),
        Field("median", "median", format_loss, unit),
        Field("interval", f"{format_level(level)} interval", unit=unit),
    ]
    best, main_is_best = "", False
    scored = {score.name: score for score in check.comparators} if check else {}
    if check and check.main is not None:
        scored[forecast.main.name] = check.main
        for row in rows:
            score = scored[str(row["name"])]
            row |= {
                "error": score.relative_error,
                "inside": "yes" if score.inside else "no",
                "pit": score.pit,
                "crps": score.crps,
                "wis": score.wis,
                "skill": check.skill.get(score.name),
            }
        fields += [
            Field("error", "error", format_percent),
            Field("inside", "inside", number=False),
            Field("pit", "PIT", lambda value: f"{value:.2f}"),
            Field("crps", "CRPS", lambda value: format_percent(value, signed=False)),
            Field("wis", "WIS", format_loss, unit),
            Field("skill", "skill", lambda value: f"{value:+.2f}"),
        ]
        best = min(scored.values(), key=lambda score: score.crps).name
        main_is_best = best == forecast.main.name
    number = len(forecast.comparators)
    return Comparison(
        table=table_of(
            pd.DataFrame(rows),
            fields,
            caption="The main forecast, in bold, and the comparators registered with it.",
            marks=["main"] + [""] * number,
            notes=tuple(
                f"The fit of {name} did not converge ({status}); its forecast may not be used as it stands."
                for name, status in unconverged.items()
            ),
        ),
        count=f"{count_of(number, 'comparator')} {'was' if number == 1 else 'were'}",
        best=best,
        main_is_best=main_is_best,
    )


def limits_of(forecast: Forecast, check: Check | None, *, evidence: str, outside_recipe: str) -> tuple[str, ...]:
    """Return what this report does not show, as sentences made from the record."""
    data, target = forecast.data, forecast.target
    factor = format_factor(forecast.extrapolation_factor["compute"])
    seeds = len(target.seeds)
    form = (
        f"With {count_of(len(data.budgets), 'budget')} the law's form matters as much as its fit: the irreducible loss "
        f"is weakly determined, and at {factor} times the largest fitted compute that uncertainty widens the interval."
    )
    noise = (
        "The outcome is a single run; its own seed noise is not measured."
        if seeds == 1
        else f"The outcome is the mean of {seeds} runs; the standard error of that mean is itself known from few seeds."
    )
    scope = (
        f"The result holds for recipe {target.recipe}, its training data and evaluation set {short_digest(target.metric.eval_set)}; "
        "losses under another tokenizer or on other text are not comparable."
    )
    limits = [ONE_TARGET, form, noise, scope]
    if outside_recipe:
        limits.append(f"The target lies outside the range its recipe was tuned in: {outside_recipe}.")
    if evidence in (EvidenceLevel.NONE, EvidenceLevel.LOCAL_CHAIN):
        limits.append(
            "That the forecast came first is attested by "
            + ("nothing" if evidence == EvidenceLevel.NONE else "the study's own ledger only")
            + "; who controls the study folder could have made both anew."
        )
    if forecast.provenance.code_dirty:
        limits.append("The forecast was made from code with uncommitted changes, which its revision does not pin down.")
    if check is not None and check.outcome is Outcome.HIT:
        low, high = forecast.main.predictive.interval(forecast.rule.level)
        width = format_percent((high - low) / forecast.main.median, signed=False)
        limits.append(f"The interval was {width} of the loss wide; a hit says no more than that.")
    return tuple(limits)
