"""Commands `foretell ladder ...` and `foretell runs ...`: plan a ladder, look at it, check it; check run tables."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder.cli_cost import cost, export
from ladder.cli_diff import diff
from ladder.cli_next import next_rungs
from ladder.cli_plan import plan
from ladder.cli_table import print_ladder
from ladder.errors import InputError
from ladder.units import format_percent

app = typer.Typer(no_args_is_help=True, help="Plan ladders of compute-matched configurations; nothing is spent.")
runs_app = typer.Typer(no_args_is_help=True, help="Run tables: check them, convert them.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
LadderArgument = Annotated[Path, typer.Argument(help="A ladder.json.", metavar="LADDER")]
RunsArgument = Annotated[Path, typer.Argument(help="A run table.", metavar="RUNS")]


app.command()(plan)


@app.command()
def show(ladder: LadderArgument, as_json: JsonOption = False) -> None:
    """Show a ladder as a table.

    Example: foretell ladder show study/ladder.json
    """
    from ladder.rung import read_ladder

    value = read_ladder(ladder)
    if as_json:
        typer.echo(value.to_json().decode())
    else:
        print_ladder(value)


@app.command()
def check(
    ladder: LadderArgument,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe it was planned under, where that is path/to/file.py:NAME.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that every number in a ladder follows from its shapes, and every rung from its recipe.

    Example: foretell ladder check study/ladder.json
    """
    from ladder.pin import check_derivation
    from ladder.recipe import RECIPES, recipe_named
    from ladder.rung import read_ladder

    value = read_ladder(ladder)
    recipes = [recipe_named(recipe)] if recipe else [r for name, r in RECIPES.items() if name in value.recipe_names]
    derived = sum(check_derivation(value, known, str(ladder)) for known in recipes)
    worst = max(abs(rung.compute_error) for rung in value.rungs)
    if as_json:
        typer.echo(json.dumps({"rungs": len(value.rungs), "derived_again": derived, "max_compute_error": worst}))
    else:
        typer.echo(
            f"{ladder}: {len(value.rungs)} rungs, compute within {format_percent(worst, signed=False)} of budget; "
            f"{derived} of them derived again from their recipe, alike."
        )


app.command()(diff)
app.command("next")(next_rungs)
app.command()(cost)
app.command()(export)


@runs_app.command("check")
def runs_check(runs: RunsArgument, as_json: JsonOption = False) -> None:
    """Check a run table and say what it holds.

    Example: foretell runs check study/runs.parquet
    """
    from ladder.runs import read_runs

    frame = read_runs(runs).frame
    excluded = frame["excluded_reason"].value_counts().to_dict()
    rows, runs_count, metrics = len(frame), int(frame["run_id"].nunique()), sorted(frame["metric"].unique())
    if as_json:
        typer.echo(json.dumps({"rows": rows, "runs": runs_count, "metrics": metrics, "excluded": excluded}))
    else:
        held = ", ".join(f"{count} {reason}" for reason, count in excluded.items()) or "none"
        typer.echo(f"{runs}: {rows} rows of {runs_count} runs, {', '.join(metrics)}; excluded: {held}.")


@runs_app.command("export")
def runs_export(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .csv, .parquet or .jsonl.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a run table in another format.

    Example: foretell runs export study/runs.parquet -o runs.csv
    """
    from ladder.runs import read_runs

    if out.exists() and not force:
        raise InputError(f"{out} exists; name another file with --out, or replace it with --force.")
    read_runs(runs).save(out)
    typer.echo(f"Wrote {out}.")
