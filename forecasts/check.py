"""Resolving a forecast: the outcome of its target's runs, whether it held, and what it scored."""

from dataclasses import replace

import pandas as pd

from forecasts.ledger import LineKind, enter
from forecasts.record import Check, Forecast, ModelScore, Outcome
from forecasts.registry import RegisteredForecast, check_name, find, registry
from forecasts.scores import scores
from forecasts.statement import text_of
from forecasts.verify import verify
from ladder.errors import InputError
from ladder.provenance import Provenance, Resource, provenance
from ladder.records import sha256_bytes
from ladder.runs import RunStatus, RunTable, read_runs
from ladder.study import Study


def check(study: Study, forecast_id: str, resolver: str | None = None) -> Check:
    """Resolve a registered forecast from the study's run table, enter the check in the ledger and return it.

    The outcome is the mean over the target's registered seeds. It is a hit when that lies in the interval of the
    decision rule; annulled when a run diverged, or was not the run that was registered (compute or tokens beyond the
    tolerance, another evaluation set, tokenizer or unit); ambiguous while registered seeds are missing, with
    provisional scores of those there are. Checking again what gives the same numbers returns the check that stands;
    other numbers are entered as a further check, which then stands, beside the first.

    Raises InputError for an unknown forecast or when no run of the target has ended; VerificationError when the
    registry does not verify.
    """
    verified = {entry.forecast_id: entry for entry in verify(study).forecasts}
    entry = find(registry(study), forecast_id)
    forecast = entry.forecast
    table = read_runs(study.runs)
    rows = _target_rows(table, forecast, str(study.runs))
    resolved = _resolve(
        entry, rows, str(verified[entry.forecast_id].evidence_level), resolver or forecast.resolution.resolver
    )
    standing = entry.check
    if standing is not None and replace(standing, provenance=resolved.provenance) == resolved:
        return standing
    resolved = replace(resolved, provenance=provenance(inputs=(Resource.of(study.runs, study.root),)))
    kind = LineKind.ANNUL if resolved.outcome is Outcome.ANNULLED else LineKind.CHECK
    enter(study, kind, check_name(entry.forecast_id, len(entry.checks) + 1), resolved.to_json())
    return resolved


def _target_rows(table: RunTable, forecast: Forecast, where: str) -> pd.DataFrame:
    """Return the rows of the target's registered runs, the last evaluated step of each, by seed."""
    frame = table.frame
    target = forecast.target
    mine = (frame["rung_id"] == target.rung_id) & (frame["metric"] == target.metric.name)
    rows = frame[mine.fillna(False) & frame["seed"].isin(target.seeds)]
    if rows.empty:
        raise InputError(
            f"{where} has no run of rung {target.rung_name} ({target.rung_id}) with {target.metric.name}; train it "
            "first: foretell train run --role held_out."
        )
    return rows.sort_values(["seed", "eval_step"]).groupby("seed", as_index=False).tail(1).reset_index(drop=True)


def _resolve(entry: RegisteredForecast, rows: pd.DataFrame, evidence: str, resolver: str) -> Check:
    forecast = entry.forecast
    deviations, annulled = _deviations(forecast, rows)
    losses = rows["loss"].dropna().astype(float)
    missing = sorted(set(forecast.target.seeds) - {int(seed) for seed in rows["seed"]})
    deviations += [f"no run of seed {seed} has ended" for seed in missing]
    observed = float(losses.mean()) if len(losses) else None
    main: ModelScore | None = None
    comparators: tuple[ModelScore, ...] = ()
    skill: dict[str, float] = {}
    if annulled or observed is None:
        outcome = Outcome.ANNULLED
    else:
        main, comparators, skill = scores(forecast, observed)
        outcome = Outcome.AMBIGUOUS if missing else Outcome.HIT if main.inside else Outcome.MISS
    return Check(
        forecast_id=entry.forecast_id,
        forecast_sha256=forecast.sha256,
        observed=observed,
        observed_se=float(losses.std(ddof=1) / len(losses) ** 0.5) if len(losses) > 1 else None,
        run_ids=tuple(rows["run_id"].astype(str)),
        runs_sha256=sha256_bytes(rows.to_csv(index=False).encode()),
        outcome=outcome,
        main=main,
        comparators=comparators,
        skill=skill,
        deviations=tuple(deviations),
        evidence_level=evidence,
        resolver=resolver,
        provenance=_UNDATED,
    )


# Stands for the provenance of a check that is not entered yet, so that two checks can be compared.
_UNDATED = Provenance("", None, None, "", "", {}, "")


def _deviations(forecast: Forecast, rows: pd.DataFrame) -> tuple[list[str], bool]:
    """Return what differs from the registered target, in words, and whether any of it annuls."""
    target, tolerance = forecast.target, forecast.resolution.tolerance
    found: list[str] = []
    annulled = False
    for _, row in rows.iterrows():
        run = f"run {row['run_id']}"
        if row["status"] != RunStatus.FINISHED:
            found.append(f"{run} ended as {row['status']}")
            annulled = True
        for name, planned in (("compute", target.compute), ("tokens", target.tokens)):
            if pd.isna(row[name]):
                found.append(f"{run} states no {name}")
                continue
            error = float(row[name]) / planned - 1
            if abs(error) > 1e-9:
                found.append(f"{run}: {name} differs by {100 * error:+.3f} %")
            annulled |= abs(error) > tolerance
    for column, registered in (
        ("flop_convention", target.flop_convention),
        ("eval_set", target.metric.eval_set),
        ("tokenizer", target.metric.tokenizer),
        ("loss_unit", target.metric.unit),
    ):
        for value in sorted({text_of(rows.iloc[[index]], column) for index in range(len(rows))} - {registered}):
            found.append(f"{column} is {value!r}, registered was {registered!r}")
            annulled = True
    return found, annulled
