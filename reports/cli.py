"""Commands `foretell report ...`: build reports, build the index of all, show them in a browser."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Publish: reports of forecasts, misses included.")

StudyOption = Annotated[Path, typer.Option("--study", help="Study folder.", metavar="DIR")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a path.")]


@app.command()
def build(
    forecast: Annotated[str, typer.Argument(help="Id of a registered forecast, or the start of it.", metavar="ID")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to write; by default reports/ID/ of the study.")
    ] = None,
    study: StudyOption = Path("study"),
    as_json: JsonOption = False,
) -> None:
    """Build the report of one forecast, checked or still open: a single-file page, Markdown, figures and their data.

    Example: foretell report build 2026-12-01--loss-at-3e12 --study study
    """
    from ladder.study import Study
    from reports.build import build_report

    _show(build_report(Study(study), forecast, out), as_json)


@app.command()
def site(study: StudyOption = Path("study"), as_json: JsonOption = False) -> None:
    """Build the reports of all registered forecasts and an index of them with the calibration record.

    Example: foretell report site --study study
    """
    from ladder.study import Study
    from reports.site import build_site

    _show(build_site(Study(study)), as_json)


@app.command()
def sweep(
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to write; by default reports/sweep/ of the study.")
    ] = None,
    study: StudyOption = Path("study"),
    as_json: JsonOption = False,
) -> None:
    """Build the page of a sweep: what differs at equal compute, what is told apart over seeds, how experts balance.

    Example: foretell report sweep --study study
    """
    from ladder.study import Study
    from reports.sweep_page import build_sweep

    _show(build_sweep(Study(study), out), as_json)


@app.command()
def serve(
    study: StudyOption = Path("study"),
    port: Annotated[int, typer.Option(help="Port on this machine; 0 for any that is free.", min=0, max=65535)] = 8000,
) -> None:
    """Show the reports folder in a browser of this machine, until stopped with Ctrl-C.

    Example: foretell report serve --study study --port 8000
    """
    from ladder.study import Study
    from reports.serve import serve_folder

    serve_folder(Study(study).report("."), port, lambda url: typer.echo(url))


def _show(page: Path, as_json: bool) -> None:
    typer.echo(json.dumps({"page": str(page)}) if as_json else str(page))
