"""Registering a forecast: reproduced from the recorded fits and the run table, then entered in the ledger for good."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fits.fit import refit
from fits.result import FitResult, read_fit
from fits.rows import select_rows
from forecasts.draft import forecast_model
from forecasts.ledger import LedgerLine, LineKind, enter, read_ledger
from forecasts.record import QUANTILE_LEVELS, Forecast, ForecastModel, SeenState, read_forecast
from forecasts.registry import registry
from forecasts.starts import runs_by_rung
from forecasts.statement import data_statement, extrapolation, refuse_leaks, target_of, target_values
from ladder.errors import InputError, VerificationError
from ladder.provenance import Resource, utc_now
from ladder.records import sha256_file
from ladder.rung import read_ladder
from ladder.runs import read_runs
from ladder.study import Study

REPRODUCED = 1e-9  # relative, of every quantile; what Marin's pre-registration asked of its frozen predictors


@dataclass(frozen=True)
class Registered:
    """A registered forecast: its file, its id (the file's name), digest, and index and time of its ledger line."""

    path: Path
    forecast_id: str
    sha256: str
    index: int
    time: str


def register(study: Study, forecast: Forecast | Path, *, progress: Callable[[str], None] | None = None) -> Registered:
    """Reproduce `forecast` (or the draft in a file), enter it, and return where; it can never be changed afterwards.

    A forecast that is entered already is returned as it was, so an interrupted caller may call again.

    Raises VerificationError when a refit from the recorded specification and the run table does not give the same
    quantiles (1e-9 relative), when target, data statement or the digests of run table, ladder and fits are not those
    of the study, when a fit saw the target, when a run of the target has started and the forecast does not say so, or when the ledger does not
    hold; InputError when it supersedes an unknown forecast.
    """
    if isinstance(forecast, Path):
        forecast = read_forecast(forecast)
    if (line := _entered(study, forecast)) is not None:
        return _registered(study, forecast, line)
    known = [entry.forecast_id for entry in registry(study)]
    if forecast.supersedes is not None and forecast.supersedes not in known:
        raise InputError(f"{forecast.supersedes} is to be superseded but not registered; there are: {known or 'none'}.")
    if forecast.provenance.created_at > utc_now():
        raise VerificationError(f"the draft says it was made at {forecast.provenance.created_at}, in the future.")
    _refuse_started(study, forecast)
    reproduce(study, forecast, progress=progress)
    _refuse_other_statement(study, forecast)
    _refuse_started(study, forecast)  # again, for fitting takes long enough for the target to start
    kind = LineKind.REGISTER if forecast.supersedes is None else LineKind.AMEND
    return _registered(study, forecast, enter(study, kind, forecast.forecast_id, forecast.to_json()))


def _refuse_started(study: Study, forecast: Forecast) -> None:
    """Raise VerificationError when any run of the target is there, dated or not, and the forecast denies it."""
    runs = runs_by_rung(study).get(forecast.target.rung_id, ())
    if forecast.data.seen is SeenState.NOT_STARTED and runs:
        run = runs[0]
        raise VerificationError(
            f"forecast {forecast.title!r} says that its target had not started, but run {run.run_id} of it "
            f"{f'started at {run.started_at}' if run.started_at else 'is there'} ({run.source}). Declare what has been "
            "seen (--seen running or finished_unseen), which makes the forecast exploratory."
        )


def reproduce(study: Study, forecast: Forecast, *, progress: Callable[[str], None] | None = None) -> None:
    """Refit every model of `forecast` and compare; returns nothing when all is as stated.

    Rows that enter no fit may be added to the run table at any time, such as the outcome.

    Raises VerificationError naming the model and what differs.
    """
    runs = read_runs(study.runs)
    rung = read_ladder(study.ladder).rung(forecast.target.rung_id)
    values = target_values(rung, forecast.target.flop_convention)
    for model in forecast.models:
        if progress:
            progress(f"fitting {model.name} again")
        recorded = _recorded_fit(study, model)
        again = refit(recorded, runs)
        if again.inputs_sha256 != recorded.inputs_sha256:
            raise VerificationError(
                f"the runs that enter fit {model.name} are not those it was made from ({study.runs}): rows were added, "
                "changed or excluded since. Fit and draft anew."
            )
        _compare(model, forecast_model(model.name, again, values, model.fit_sha256))


def _recorded_fit(study: Study, model: ForecastModel) -> FitResult:
    path = study.fit(model.name)
    if not path.exists() or sha256_file(path) != model.fit_sha256:
        raise VerificationError(f"{path} is missing or not the fit that the forecast was drafted from. Draft anew.")
    return read_fit(path)


def _compare(stated: ForecastModel, again: ForecastModel) -> None:
    for level, table, fresh in zip(QUANTILE_LEVELS, stated.quantiles, again.quantiles, strict=True):
        distribution = stated.predictive.quantile(level)
        if not max(abs(table / fresh - 1), abs(distribution / fresh - 1)) <= REPRODUCED:
            raise VerificationError(
                f"model {stated.name} is not reproduced: its {level:g} quantile is stated as {table:.12g} (its "
                f"distribution gives {distribution:.12g}), fitting again gives {fresh:.12g}. The draft was edited, or "
                "made by other code or in another environment. Draft anew."
            )


def _refuse_other_statement(study: Study, forecast: Forecast) -> None:
    """Raise VerificationError unless target, data and inputs are what the study gives, and no fit saw the target."""
    runs, rung = read_runs(study.runs), read_ladder(study.ladder).rung(forecast.target.rung_id)
    fits = {model.name: _recorded_fit(study, model) for model in forecast.models}
    fit, data = fits[forecast.main.name], forecast.data
    rows = select_rows(runs, fit.spec)
    refuse_leaks(forecast.target, fits, runs, data.declared_leaks)
    statement = data_statement(
        fit, rows, seen=data.seen, selection_freedom=data.selection_freedom, declared_leaks=data.declared_leaks
    )
    target = target_of(rung, forecast.target.metric.name, fit, rows)
    inputs = tuple(Resource.of(path, study.root) for path in (study.runs, study.ladder, *map(study.fit, fits)))
    for what, stated, found in (
        ("target", forecast.target, target),
        ("data statement", data, statement),
        ("list of inputs", forecast.inputs, inputs),
        ("extrapolation factor", forecast.extrapolation_factor, extrapolation(target, fit)),
    ):
        if stated != found:
            raise VerificationError(
                f"the {what} of {forecast.title!r} is not what the study gives. Stated: {stated}. Found: {found}. The "
                "draft was edited, or ladder or run table changed since. Draft anew."
            )


def _entered(study: Study, forecast: Forecast) -> LedgerLine | None:
    lines = (line for line in read_ledger(study) if line.sha256 == forecast.sha256)
    return next(lines, None)


def _registered(study: Study, forecast: Forecast, line: LedgerLine) -> Registered:
    path = study.ledger.parent / line.file
    return Registered(path, forecast.forecast_id, line.sha256, line.index, line.time)
