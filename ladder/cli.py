"""Commands `foretell ladder ...`: plan a ladder, look at it, check it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder.cli_cost import cost, export
from ladder.cli_diff import diff
from ladder.cli_next import next_rungs
from ladder.cli_plan import plan
from ladder.cli_table import print_ladder
from ladder.units import format_percent

app = typer.Typer(no_args_is_help=True, help="Plan ladders of compute-matched configurations; nothing is spent.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
LadderArgument = Annotated[Path, typer.Argument(help="A ladder.json.", metavar="LADDER")]


app.command()(plan)


@app.command()
def show(ladder: LadderArgument, as_json: JsonOption = False) -> None:
    """Show a ladder as a table.

    Example: foretell ladder show study/ladder.json
    """
    from ladder.compiled import compiled_path, read_compiled
    from ladder.rung import read_ladder

    value = read_ladder(ladder)
    if as_json:
        typer.echo(value.to_json().decode())
    else:
        print_ladder(value, read_compiled(compiled_path(ladder)))


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
