"""Resolving a forecast: the outcome of its target's runs, whether it held, and what it scored."""

from dataclasses import replace

import pandas as pd

from forecasts.ledger import LineKind, enter
from forecasts.record import Check, Forecast, ModelScore, Outcome
from forecasts.registry import RegisteredForecast, check_name, find, registry
from forecasts.scores import scores
from forecasts.starts import as_utc
from forecasts.statement import text_of
from forecasts.verify import verify
from ladder.errors import InputError
from ladder.provenance import Provenance, Resource, provenance
from ladder.records import sha256_bytes
from ladder.runs import ExcludedReason, RunStatus, RunTable, read_runs
from ladder.study import Study

# Columns that decide a resolution; others, such as speed, may be filled in later without making it another one.
DECISIVE = (
    *("run_id", "rung_id", "seed", "status", "compute", "flop_convention", "tokens", "eval_set", "tokenizer"),
    *("metric", "loss_unit", "loss", "eval_step", "excluded_reason", "started_at", "finished_at"),
)


def check(study: Study, forecast_id: str, resolver: str | None = None) -> Check:
    """Resolve a registered forecast from the study's run table, enter the check in the ledger and return it.

    The outcome is the mean over the target's registered seeds. It is a hit when that lies in the interval of the
    decision rule; annulled when a run diverged, or was not the run that was registered (compute or tokens beyond the
    tolerance, another evaluation set, tokenizer or unit); ambiguous while registered seeds are missing, with
    provisional scores of those there are. A run that was marked as excluded counts all the same, for what is left out
    after the fact is chosen. The interval is of one run: a mean over seeds scatters less. Checking again what gives
    the same numbers returns the check that stands; other numbers are entered as a further check, which then stands,
    beside the first.

    Raises InputError for an unknown forecast, when no run of the target has ended, when two runs have one seed, or
    when compute is counted under another convention; VerificationError when the registry does not verify.
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
    """Return the last evaluated row of every run of the target's rung on its metric, duplicates left out, by seed."""
    frame = table.frame
    target = forecast.target
    mine = ((frame["rung_id"] == target.rung_id) & (frame["metric"] == target.metric.name)).fillna(False).astype(bool)
    rows = (
        frame[mine].sort_values("eval_step", kind="stable", na_position="first").drop_duplicates("run_id", keep="last")
    )
    rows = rows[rows["excluded_reason"].fillna("") != ExcludedReason.DUPLICATE].sort_values(["seed", "run_id"])
    registered = rows[rows["seed"].isin(target.seeds)]
    if not (registered["status"] != RunStatus.UNFINISHED).any():
        raise InputError(
            f"{where} has no run of rung {target.rung_name} ({target.rung_id}) with {target.metric.name} that has ended; "
            "train it first: foretell train run --role held_out."
        )
    twice = registered[registered.duplicated("seed")]
    if len(twice):
        raise InputError(
            f"{where}: run {twice['run_id'].iloc[0]} has the seed of another run of rung {target.rung_name}; mark the one "
            "that is not to count as excluded (duplicate), which the check then says."
        )
    conventions = set(registered["flop_convention"]) - {target.flop_convention}
    if conventions:
        raise InputError(
            f"{where} counts the target's compute under {', '.join(sorted(conventions))}, the forecast under "
            f"{target.flop_convention}; convert the table (ladder.convert.convert_compute)."
        )
    return rows.reset_index(drop=True)


def _resolve(entry: RegisteredForecast, rows: pd.DataFrame, evidence: str, resolver: str) -> Check:
    forecast = entry.forecast
    registered = rows["seed"].isin(forecast.target.seeds)
    ended = rows[registered & (rows["status"] != RunStatus.UNFINISHED)]
    counted = ended[ended["loss"].notna()]
    losses = counted["loss"].astype(float)
    missing = set(forecast.target.seeds) - {int(seed) for seed in counted["seed"]}
    deviations, annulled = _deviations(forecast, ended)
    deviations += [
        f"run {row['run_id']} of seed {row['seed']:g} is not among the registered ones and does not count"
        for _, row in rows[~registered].iterrows()
    ]
    absent = sorted(set(forecast.target.seeds) - {int(seed) for seed in ended["seed"]})
    deviations += [f"no run of seed {seed} has ended" for seed in absent]
    observed = float(losses.mean()) if len(losses) else None
    main: ModelScore | None = None
    comparators: tuple[ModelScore, ...] = ()
    skill: dict[str, float] = {}
    if annulled:
        outcome = Outcome.ANNULLED
    elif observed is None:
        outcome = Outcome.AMBIGUOUS
    else:
        main, comparators, skill = scores(forecast, observed)
        outcome = Outcome.AMBIGUOUS if missing else Outcome.HIT if main.inside else Outcome.MISS
    return Check(
        forecast_id=entry.forecast_id,
        forecast_sha256=forecast.sha256,
        observed=observed,
        observed_se=float(losses.std(ddof=1) / len(losses) ** 0.5) if len(losses) > 1 else None,
        run_ids=tuple(ended["run_id"].astype(str)),
        runs_sha256=sha256_bytes(ended[list(DECISIVE)].to_csv(index=False, lineterminator="\n").encode()),
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
    target, resolution = forecast.target, forecast.resolution
    found: list[str] = []
    annulled = False
    for _, row in rows.iterrows():
        run = f"run {row['run_id']}"
        if row["status"] == RunStatus.DIVERGED:
            found.append(f"{run} ended as {row['status']}")
            annulled = True
        elif pd.isna(row["loss"]):
            found.append(f"{run} has no loss ({row['excluded_reason']})")
        elif pd.notna(row["excluded_reason"]):
            found.append(f"{run} is marked as excluded ({row['excluded_reason']}) and counts all the same")
        for name, planned in (("compute", target.compute), ("tokens", target.tokens)):
            if pd.isna(row[name]):
                found.append(f"{run} states no {name}")
                continue
            error = float(row[name]) / planned - 1
            if abs(error) > 1e-9:
                found.append(f"{run}: {name} differs by {100 * error:+.3f} %")
            annulled |= abs(error) > resolution.tolerance
        if resolution.latest and pd.notna(row["finished_at"]):
            finished = as_utc(str(row["finished_at"]), f"{run}, finished_at")
            if finished > resolution.latest:
                found.append(f"{run} ended at {finished}, after the latest time {resolution.latest}")
    for column, registered in (
        ("eval_set", target.metric.eval_set),
        ("tokenizer", target.metric.tokenizer),
        ("loss_unit", target.metric.unit),
    ):
        for value in sorted({text_of(rows.iloc[[index]], column) for index in range(len(rows))} - {registered}):
            found.append(f"{column} is {value!r}, registered was {registered!r}")
            annulled = True
    return found, annulled
