"""What a report is made of: the records of one forecast, read from a study whose registry verifies."""

from dataclasses import dataclass
from pathlib import Path

from fits.result import FitResult, read_fit
from forecasts.record import Check, Forecast, ForecastModel
from forecasts.registry import find, registry
from forecasts.verify import verify
from ladder.errors import InputError
from ladder.provenance import Resource
from ladder.records import sha256_file
from ladder.rung import Ladder, read_ladder
from ladder.runs import RunTable, read_runs
from ladder.study import Study


@dataclass(frozen=True)
class Sources:
    """The records of one forecast.

    Attributes:
        check: the check that stands, None while the forecast is open; `earlier_checks` were replaced by it.
        fit: what the main forecast was made from; `comparator_fits` by name, those whose file is unchanged.
        registered_at: time of the ledger's line; `started_at` the first recorded start of a run of the target or None.
        superseded_by: id of a later forecast that amends this one, or an empty string.
        evidence, evidence_remark: what shows that the forecast preceded the outcome, and in words.
        files: everything that was read, by digest.
    """

    study: Study
    forecast_id: str
    forecast: Forecast
    check: Check | None
    earlier_checks: int
    ladder: Ladder
    runs: RunTable
    fit: FitResult
    comparator_fits: dict[str, FitResult]
    registered_at: str
    started_at: str | None
    superseded_by: str
    evidence: str
    evidence_remark: str
    files: tuple[Resource, ...]


def read_sources(study: Study, forecast_id: str) -> Sources:
    """Return the records of a registered forecast, named by its id or the start of it.

    Raises InputError when it is not registered or a file is missing or damaged, VerificationError when the registry
    does not verify.
    """
    verified = {found.forecast_id: found for found in verify(study).forecasts}
    entries = registry(study)
    entry = find(entries, forecast_id)
    forecast, order = entry.forecast, verified[entry.forecast_id]
    fits = {model.name: _fit_path(study, model) for model in forecast.models}
    main = fits[forecast.main.name]
    if main is None:
        raise InputError(
            f"{study.fit(forecast.main.name)} is missing or is not the file that forecast {entry.forecast_id} was made "
            f"from (SHA-256 {forecast.main.fit_sha256}); restore it to build the report."
        )
    found = {name: path for name, path in fits.items() if path is not None}
    checks = [check.path for check in entry.checks]
    used = (study.ladder, study.runs, *found.values(), entry.path, *checks, study.ledger)
    later = [other.forecast_id for other in entries if other.forecast.supersedes == entry.forecast_id]
    return Sources(
        study=study,
        forecast_id=entry.forecast_id,
        forecast=forecast,
        check=entry.check,
        earlier_checks=max(0, len(checks) - 1),
        ladder=read_ladder(study.ladder),
        runs=read_runs(study.runs),
        fit=read_fit(main),
        comparator_fits={name: read_fit(path) for name, path in found.items() if name != forecast.main.name},
        registered_at=entry.line.time,
        started_at=order.first_start,
        superseded_by=later[-1] if later else "",
        evidence=entry.check.evidence_level if entry.check else str(order.evidence_level),
        evidence_remark=order.remark,
        files=tuple(Resource.of(path, study.root) for path in used),
    )


def _fit_path(study: Study, model: ForecastModel) -> Path | None:
    path = study.fit(model.name)
    return path if path.is_file() and sha256_file(path) == model.fit_sha256 else None
