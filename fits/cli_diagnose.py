"""Command `foretell fit diagnose`: what is wrong with a fit, or with the runs it hangs on."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder.errors import InputError

SHOWN = 12  # findings of one check and verdict that are printed; --json has all


def diagnose(
    fitted: Annotated[Path, typer.Argument(help="Fit, by file.", metavar="FIT")],
    runs: Annotated[
        Path | None, typer.Argument(help="Its run table; by default that of the study.", metavar="[RUNS]")
    ] = None,
    ahead: Annotated[
        float, typer.Option(min=1.0, help="Forecasts are made at this many times the largest compute.")
    ] = 10.0,
    figure: Annotated[Path | None, typer.Option(help="Write the panels as PNG.", metavar="FILE")] = None,
    study: Annotated[Path, typer.Option("--study", help="Study folder.", metavar="DIR")] = Path("study"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing figure.")] = False,
) -> None:
    """Diagnose a fit: trends in residuals, runs off trend, influence, mixed recipes, cut-short runs, missing cells.

    Five families of tests at 1 % each; metrics.jsonl and ladder.json of the study are read where they are.

    Example: foretell fit diagnose study/fits/chinchilla.json --figure diagnostics.png
    """
    from fits.diagnostics import diagnose as look
    from fits.result import read_fit
    from ladder.runs import read_runs
    from ladder.study import Study

    if figure is not None and figure.exists() and not force:
        raise InputError(f"{figure} exists; name another file with --figure, or replace it with --force.")
    place = Study(study)
    result = read_fit(fitted)
    found = look(result, read_runs(runs or place.runs), place, ahead)
    if figure is not None:
        from fits.diagnostic_plots import save_diagnosis

        save_diagnosis(result, found, figure)
    if as_json:
        typer.echo(json.dumps(found.plain()))
        return
    from fits.findings import Finding, Verdict

    for verdict in Verdict:
        chosen = [finding for finding in found.findings if finding.verdict is verdict]
        by_check: dict[str, list[Finding]] = {}
        for finding in chosen:
            by_check.setdefault(finding.check, []).append(finding)
        for check, findings in by_check.items():
            for finding in findings[:SHOWN]:
                typer.echo(f"{verdict:<9} {check:<16} {finding.message}")
            if len(findings) > SHOWN:
                typer.echo(f"{verdict:<9} {check:<16} and {len(findings) - SHOWN} more (--json shows all)")
    typer.echo(
        f"{len(found.flagged)} flagged. Each of the five families of tests errs on a clean ladder 1 time in 100."
    )
    if figure is not None:
        typer.echo(f"wrote {figure}")
