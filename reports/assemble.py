"""From the records of a forecast to the context of its report."""

from ladder.rung import Ladder
from ladder.study import Study
from reports.context import ReportContext
from reports.figures import Figure, card_figure, curves_figure, health_figure
from reports.fit_figures import isoflop_figure, loss_figure, residual_figure
from reports.lawpage import law_keys, law_section
from reports.material import data_of, held_out
from reports.outcome import comparison_of, limits_of, rule_of, subject_of, verdict_of
from reports.references import Reference, cited
from reports.reproduction import reproduction_of
from reports.sources import Sources, read_sources
from reports.wording import count_of, readable_unit

SCORE_KEYS = {"gneiting2007", "bracher2021"}
ISOFLOP_KEYS = {"hoffmann2022"}  # approach 2, wherever optima are shown


def build_context(study: Study, forecast_id: str) -> ReportContext:
    """Return everything the report of a registered forecast may show, checked or still open.

    Raises InputError when the forecast is unknown or a file is missing or damaged, VerificationError when the registry
    does not verify.
    """
    return context_of(read_sources(study, forecast_id))


def context_of(sources: Sources) -> ReportContext:
    """Return the context of the report on `sources`."""
    forecast, check = sources.forecast, sources.check
    outside = _outside_recipe(sources.ladder, forecast.target.rung_id)
    return ReportContext(
        forecast_id=sources.forecast_id,
        sha256=forecast.sha256,
        title=forecast.title,
        authors=", ".join(forecast.authors),
        rationale=forecast.rationale,
        supersedes=forecast.supersedes or "",
        superseded_by=sources.superseded_by,
        subject=subject_of(forecast),
        verdict=verdict_of(
            forecast,
            check,
            registered_at=sources.registered_at,
            started_at=sources.started_at,
            evidence=sources.evidence,
            remark=sources.evidence_remark,
        ),
        rule=rule_of(forecast),
        data=data_of(forecast, sources.runs.frame, sources.ladder, sources.fit.seed_noise),
        law=law_section(sources.fit, forecast.main.name),
        comparison=comparison_of(forecast, check, _unconverged(sources)),
        deviations=_deviations(sources),
        limits=limits_of(forecast, check, evidence=sources.evidence, outside_recipe=outside),
        reproduction=reproduction_of(sources),
        references=_references(sources),
        figures={figure.key: figure for figure in _figures(sources)},
    )


def _unconverged(sources: Sources) -> dict[str, str]:
    fits = {sources.forecast.main.name: sources.fit, **sources.comparator_fits}
    return {name: str(fit.status).replace("_", " ") for name, fit in fits.items() if not fit.usable}


def _outside_recipe(ladder: Ladder, rung_id: str) -> str:
    return next((rung.extrapolated_recipe for rung in ladder.rungs if rung.rung_id == rung_id), "")


def _deviations(sources: Sources) -> tuple[str, ...]:
    known = list(sources.check.deviations) if sources.check else []
    if sources.earlier_checks:
        known.append(f"{count_of(sources.earlier_checks, 'earlier check')} in the ledger gave way to this one.")
    return tuple(known)


def _references(sources: Sources) -> tuple[Reference, ...]:
    keys = law_keys(sources.fit)
    if sources.fit.isoflop is not None:
        keys |= ISOFLOP_KEYS
    if sources.check is not None and sources.check.main is not None:
        keys |= SCORE_KEYS
    return cited(keys)


def _figures(sources: Sources) -> list[Figure]:
    forecast, check, fit = sources.forecast, sources.check, sources.fit
    metric = forecast.target.metric
    frame = sources.runs.frame
    rows = frame[frame["metric"] == metric.name].assign(held_out=held_out)
    fitted = rows.loc[~rows["held_out"], "budget"].fillna(rows["compute"])
    colours = (float(fitted.min()), float(fitted.max()))
    folders = {str(run_id): sources.study.run(str(run_id)) for run_id in rows["run_id"].unique()}
    drawn = [
        card_figure(forecast, check, _unconverged(sources)),
        loss_figure(forecast, check, fit, sources.comparator_fits, colours),
        isoflop_figure(fit, frame, metric.name, colours),
        residual_figure(forecast.main.name, fit, sources.comparator_fits, colours),
        curves_figure(folders, rows, readable_unit(metric.unit), colours),
        health_figure(folders, rows, colours),
    ]
    return [figure for figure in drawn if figure is not None]
