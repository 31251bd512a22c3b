"""`foretell ladder next`: which rungs would help most next."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder.errors import InputError
from ladder.units import format_flops


def next_rungs(
    ladder: Annotated[Path, typer.Argument(help="A ladder.json.", metavar="LADDER")],
    runs: Annotated[Path, typer.Argument(help="The run table of its study.", metavar="RUNS")],
    metric: Annotated[str, typer.Option(help="Which losses of the run table.")] = "test/loss",
    recipe: Annotated[
        str | None, typer.Option(help="The recipe it was planned under, where that is path/to/file.py:NAME.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the rungs of the first proposal that has any as a ladder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing ladder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Say which rungs would help a law most next: a gap, a missing bracket, a replicate, the next budget.

    Example: foretell ladder next study/ladder.json study/runs.parquet
    """
    from ladder.advise import propose
    from ladder.pin import pin_recipe
    from ladder.provenance import Resource, provenance
    from ladder.recipe import recipe_named
    from ladder.rung import Ladder, read_ladder
    from ladder.runs import read_runs

    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists; name another file with --out, or replace it with --force.")
    value = read_ladder(ladder)
    chosen = recipe_named(recipe or value.recipe_names[0])
    found = propose(value, read_runs(runs), metric, chosen)
    first = next((item for item in found if item.rungs), None)
    if out is not None and first is not None:
        inputs = (Resource.of(ladder), Resource.of(runs))
        pins = (pin_recipe(chosen),)
        Ladder("next", first.rungs, provenance(inputs=inputs), pins, (first.reason,)).save(out)
    if as_json:
        document = [
            {
                "kind": item.kind,
                "reason": item.reason,
                "compute": float(item.compute),
                "rungs": [
                    {"name": rung.name, "rung_id": rung.rung_id, "seeds": list(rung.seeds)} for rung in item.rungs
                ],
            }
            for item in found
        ]
        typer.echo(json.dumps({"proposals": document, "out": str(out) if out and first else None}))
        return
    for number, item in enumerate(found, 1):
        runs_of = ", ".join(
            f"{rung.name}" + (f" seeds {', '.join(map(str, rung.seeds))}" if rung.seeds != (0,) else "")
            for rung in item.rungs
        )
        typer.echo(
            f"{number}. {item.kind}" + (f": {runs_of}; {format_flops(item.compute)} FLOPs" if item.rungs else "")
        )
        typer.echo(f"   {item.reason}.")
    if not found:
        typer.echo(
            "Nothing to propose: the fit rungs have run, are bracketed and replicated up to the held-out budget."
        )
    elif out is not None:
        typer.echo(f"Wrote {out}, the rungs of proposal 1.")
