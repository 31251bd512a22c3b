"""Drafting a forecast: from fits of a study to a complete, unregistered statement. Nothing is entered."""

from collections.abc import Sequence
from pathlib import Path

from fits.result import FitResult, Target, read_fit
from fits.rows import select_rows
from forecasts.record import (
    QUANTILE_LEVELS,
    DecisionRule,
    Forecast,
    ForecastModel,
    Resolution,
    SeenState,
)
from forecasts.starts import as_utc
from forecasts.statement import TOLERANCE, data_statement, extrapolation, refuse_leaks, target_of, target_values
from ladder.errors import InputError, UnusableError
from ladder.provenance import Resource, provenance
from ladder.records import sha256_file, write_atomic
from ladder.rung import Ladder, Rung
from ladder.runs import read_runs
from ladder.study import Study

NOT_CLAIMED = "Nothing is claimed of other metrics, other rungs, downstream tasks, or the loss along the way."


def draft(
    study: Study,
    ladder: Ladder,
    rung: Rung,
    metric: str,
    *,
    main: str | Path,
    comparators: Sequence[str | Path] = (),
    title: str,
    authors: Sequence[str],
    level: float = 0.9,
    claimed_error: float | None = None,
    not_claimed: str = NOT_CLAIMED,
    resolver: str = "foretell forecast check",
    latest: str | None = None,
    seen: SeenState = SeenState.NOT_STARTED,
    selection_freedom: str | None = None,
    declared_leaks: Sequence[str] = (),
    supersedes: str | None = None,
    rationale: str = "",
) -> Forecast:
    """Return a forecast of `metric` for `rung` from fits of the study, ready to be saved and registered.

    Arguments:
        main: the fit that is scored, by name or by its path in fits/; `comparators` are frozen beside it.
        level: of the central interval in which the outcome is a hit.
        claimed_error: bound on the absolute relative error claimed besides, such as 0.01.
        latest: ISO 8601 time until which the target must have ended, or None.
        seen: what of the target has been seen; all but NOT_STARTED makes the forecast exploratory.
        selection_freedom: what was tried before; by default the fits that lie in the study and the metrics there are.
        declared_leaks: ids of runs of the target's compute or more that a fit used knowingly.
        supersedes: id of the registered forecast that this one amends.

    Raises InputError for a missing fit, a fit of another metric or recipe, or fits that count FLOPs differently;
    UnusableError when the main fit did not converge; VerificationError when a fit saw the target.
    """
    ladder.rung(rung.rung_id)
    fits = {name: read_fit(study.fit(name)) for name in (_name(study, fit) for fit in (main, *comparators))}
    if len(fits) != 1 + len(comparators):
        raise InputError(f"a fit is named twice: {main}, {', '.join(map(str, comparators))}; name each once.")
    first, *others = fits
    fit = fits[first]
    if not fit.usable:
        raise UnusableError(f"the main fit {first} did not converge ({fit.status}): {fit.message} Choose another.")
    for name in others:
        if (fits[name].spec.metric, fits[name].flop_convention) != (metric, fit.flop_convention):
            raise InputError(
                f"fit {name} is of another metric or FLOP convention than {first}; they cannot be compared."
            )
    runs = read_runs(study.runs)
    rows = select_rows(runs, fit.spec)
    target = target_of(rung, metric, fit, rows)
    refuse_leaks(target, fits, runs, declared_leaks)
    values = target_values(rung, fit.flop_convention)
    models = [forecast_model(name, fits[name], values, sha256_file(study.fit(name))) for name in fits]
    inputs = tuple(Resource.of(path, study.root) for path in (study.runs, study.ladder, *map(study.fit, fits)))
    return Forecast(
        title=title,
        authors=tuple(authors),
        confirmatory=seen is SeenState.NOT_STARTED and not declared_leaks,
        supersedes=supersedes,
        target=target,
        main=models[0],
        comparators=tuple(models[1:]),
        extrapolation_factor=extrapolation(target, fit),
        rule=DecisionRule(level, claimed_error, not_claimed),
        resolution=Resolution(
            source=f"runs.parquet: {metric} at the last step of the runs of rung {rung.rung_id}, mean over seeds",
            resolver=resolver,
            latest=None if latest is None else as_utc(latest, "latest"),
            annul_if=(
                "a registered run diverges",
                f"realised compute or tokens differ from the target by more than {100 * TOLERANCE:g} %",
                "the evaluation set, the tokenizer or the unit of the loss is another",
            ),
            tolerance=TOLERANCE,
        ),
        data=data_statement(
            fit,
            rows,
            seen=seen,
            selection_freedom=selection_freedom
            or _freedom(study, fits, sorted(map(str, runs.frame["metric"].unique()))),
            declared_leaks=declared_leaks,
        ),
        inputs=inputs,
        provenance=provenance(seed=fit.spec.seed, inputs=inputs),
        rationale=rationale,
    )


def forecast_model(name: str, fit: FitResult, values: Target, sha256: str) -> ForecastModel:
    """Return the distribution of the next run at `values` under a fit, with its quantile table."""
    predictive = fit.predictive(values)
    return ForecastModel(name, sha256, predictive, tuple(predictive.quantile(level) for level in QUANTILE_LEVELS))


def save_draft(study: Study, forecast: Forecast, name: str) -> Path:
    """Write ``drafts/<name>.json`` atomically, over an earlier draft of that name, and return its path."""
    path = study.draft(name)
    write_atomic(path, forecast.to_json())
    return path


def _name(study: Study, fit: str | Path) -> str:
    """Return the name of a fit given by name or by path; raises InputError for a path outside the study's fits/."""
    if isinstance(fit, str) and not fit.endswith(".json"):
        return fit
    path = Path(fit)
    if path.resolve() != study.fit(path.stem).resolve():
        raise InputError(
            f"{path} does not lie in {study.fit(path.stem).parent}; copy it there, so it can be found again."
        )
    return path.stem


def _freedom(study: Study, fits: dict[str, FitResult], metrics: Sequence[str]) -> str:
    """Return what can be known of what was tried: fits in the study, metrics in the table, fits that failed."""
    there = sorted(path.stem for path in study.fit("x").parent.glob("*.json"))
    failed = [f"{name} did not converge ({fit.status})" for name, fit in fits.items() if not fit.usable]
    return f"Fits in the study: {', '.join(there)}. Metrics in the run table: {', '.join(metrics)}." + "".join(
        f" {item}." for item in failed
    )
