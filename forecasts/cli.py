"""Commands `foretell forecast ...`: draft, register, verify, check, list."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.units import format_loss, format_percent

app = typer.Typer(no_args_is_help=True, help="Register forecasts, verify the registry, check outcomes.")

StudyOption = Annotated[Path, typer.Option("--study", help="Study folder.", metavar="DIR")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
ForecastArgument = Annotated[str, typer.Argument(help="Id of a registered forecast, or its beginning.", metavar="ID")]


def _interval(forecast: Any) -> str:
    low, high = forecast.main.predictive.interval(forecast.rule.level)
    level = format_percent(forecast.rule.level, signed=False)
    return f"{format_loss(forecast.main.median)}, {level} interval {format_loss(low)} to {format_loss(high)}"


def _show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # As wide as it needs: ids are copied from here, and must be neither cut nor folded in a narrow terminal.
    options = Console().options.update(max_width=1000)
    Console(width=Console().measure(table, options=options).maximum, soft_wrap=True).print(table)


@app.command()
def draft(
    rung: Annotated[str, typer.Option(help="Rung id (see foretell ladder show).")],
    main: Annotated[str, typer.Option("--fit", help="Name of the fit that is scored.")],
    title: Annotated[str, typer.Option(help="One line that names the forecast.")],
    author: Annotated[list[str], typer.Option(help="Author; repeat for several.")],
    comparator: Annotated[list[str] | None, typer.Option(help="Fit frozen beside it; repeat.")] = None,
    metric: Annotated[str, typer.Option(help="Metric of the run table.")] = "test/loss",
    level: Annotated[float, typer.Option(help="Level of the interval that decides.")] = 0.9,
    claimed_error: Annotated[float | None, typer.Option(help="Claimed bound on the relative error.")] = None,
    seen: Annotated[str, typer.Option(help="not_started, running or finished_unseen.")] = "not_started",
    supersedes: Annotated[str | None, typer.Option(help="Id of the forecast this one amends.")] = None,
    latest: Annotated[str | None, typer.Option(help="Latest end of the target, ISO 8601.")] = None,
    declared_leak: Annotated[list[str] | None, typer.Option(help="Run at or above the target used knowingly.")] = None,
    rationale: Annotated[str, typer.Option(help="Free text.")] = "",
    name: Annotated[str, typer.Option(help="Name of the draft.")] = "forecast",
    study: StudyOption = Path("study"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing draft.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draft a forecast from fits; nothing is entered yet.

    Example: foretell forecast draft --rung 1cabff2c --fit floor-integrated --comparator power-law --title "The
    largest rung" --author me
    """
    from forecasts.draft import draft as make
    from forecasts.draft import save_draft
    from forecasts.record import SeenState
    from ladder.errors import InputError
    from ladder.rung import read_ladder
    from ladder.study import Study

    if seen not in set(SeenState):
        raise InputError(f"--seen {seen!r} is none of {', '.join(SeenState)}.")
    where = Study(study)
    if where.draft(name).exists() and not force:
        raise InputError(f"{where.draft(name)} exists; choose another --name, or replace it with --force.")
    ladder = read_ladder(where.ladder)
    forecast = make(
        where,
        ladder,
        ladder.rung(rung),
        metric,
        main=main,
        comparators=comparator or [],
        title=title,
        authors=author,
        level=level,
        claimed_error=claimed_error,
        latest=latest,
        seen=SeenState(seen),
        declared_leaks=declared_leak or [],
        supersedes=supersedes,
        rationale=rationale,
    )
    path = save_draft(where, forecast, name)
    if as_json:
        typer.echo(json.dumps({"draft": str(path), "median": forecast.main.median, "sha256": forecast.sha256}))
    else:
        typer.echo(f"{path}: {_interval(forecast)}.\nRegister it with: foretell forecast register {path}")


@app.command()
def register(
    path: Annotated[Path, typer.Argument(help="A draft.", metavar="DRAFT")],
    study: StudyOption = Path("study"),
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Reproduce a draft from its data and enter it in the ledger; it can never be changed afterwards.

    Example: foretell forecast register study/drafts/forecast.json --study study
    """
    from forecasts.register import register as enter
    from ladder.study import Study

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    entry = enter(Study(study), path, progress=say)
    if as_json:
        row = {"forecast_id": entry.forecast_id, "sha256": entry.sha256, "index": entry.index, "time": entry.time}
        typer.echo(json.dumps({**row, "path": str(entry.path)}))
    else:
        typer.echo(f"Registered {entry.path} at {entry.time}, line {entry.index + 1} of the ledger.")
        typer.echo(f"sha256 {entry.sha256}: publish it, for evidence beyond this folder's own clock.")


@app.command()
def verify(study: StudyOption = Path("study"), as_json: JsonOption = False) -> None:
    """Recompute every digest, the chain, and the order of forecasts and runs; exit code 3 when something does not hold.

    Example: foretell forecast verify --study study
    """
    from forecasts.verify import verify as recompute
    from ladder.study import Study

    report = recompute(Study(study))
    if as_json:
        forecasts = [
            {"forecast_id": f.forecast_id, "evidence_level": str(f.evidence_level), "remark": f.remark}
            for f in report.forecasts
        ]
        document = {"lines": report.lines, "head": report.head, "forecasts": forecasts, "checks": report.checks}
        typer.echo(json.dumps(document))
        return
    rows = [
        (
            f.forecast_id,
            f.registered_at[:19],
            (f.first_start or "not recorded")[:19],
            str(f.evidence_level),
            str(f.checks),
        )
        for f in report.forecasts
    ]
    if rows:
        _show(("forecast", "registered (UTC)", "target started", "evidence", "checks"), rows)
    for found in report.forecasts:
        typer.echo(f"{found.forecast_id}: {found.remark}.")
    typer.echo(f"{report.lines} lines verify. Head {report.head or 'none'}.")


@app.command()
def check(
    forecast_id: ForecastArgument,
    study: StudyOption = Path("study"),
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 unless the forecast held.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Resolve a forecast from the run table, score it, and enter the check; a miss is a result.

    Example: foretell forecast check 2026-12-01--largest --study study
    """
    from forecasts.check import check as resolve
    from forecasts.record import Outcome
    from ladder.errors import UnusableError
    from ladder.records import to_plain
    from ladder.study import Study

    found = resolve(Study(study), forecast_id)
    if as_json:
        typer.echo(json.dumps(to_plain(found)))
    elif found.main is None or found.observed is None:
        typer.echo(f"{found.forecast_id}: {found.outcome}; {'; '.join(found.deviations)}.")
    else:
        error = format_percent(found.main.relative_error)
        typer.echo(
            f"{found.forecast_id}: {found.outcome}. Observed {format_loss(found.observed)}, forecast {error} off."
        )
        typer.echo(f"CRPS {found.main.crps:.5f} in ln loss, PIT {found.main.pit:.3f}, z {found.main.z:+.2f}.")
        for name, value in found.skill.items():
            typer.echo(f"Skill against {name}: {value:+.3f}.")
    if strict and found.outcome is not Outcome.HIT:
        raise UnusableError(f"the forecast did not hold: {found.outcome}.")


@app.command("list")
def list_forecasts(study: StudyOption = Path("study"), as_json: JsonOption = False) -> None:
    """List the registered forecasts and how they were resolved.

    Example: foretell forecast list --study study
    """
    from forecasts.registry import registry
    from ladder.study import Study

    entries = registry(Study(study))
    if as_json:
        rows = [
            {
                "forecast_id": entry.forecast_id,
                "registered_at": entry.line.time,
                "median": entry.forecast.main.median,
                "outcome": str(entry.check.outcome) if entry.check else "open",
                "observed": entry.check.observed if entry.check else None,
            }
            for entry in entries
        ]
        typer.echo(json.dumps({"forecasts": rows}))
        return
    if not entries:
        typer.echo("Nothing is registered in this study.")
        return
    table = []
    for entry in entries:
        low, high = entry.forecast.main.predictive.interval(entry.forecast.rule.level)
        observed = entry.check.observed if entry.check else None
        table.append(
            (
                entry.forecast_id,
                format_loss(entry.forecast.main.median),
                f"{format_loss(low)} to {format_loss(high)}",
                "" if observed is None else format_loss(observed),
                str(entry.check.outcome) if entry.check else "open",
            )
        )
    _show(("forecast", "median", "interval", "observed", "outcome"), table)
