"""Commands `foretell ladder ...` and `foretell runs ...`: plan a ladder, look at it, check it; check run tables."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.cli_cost import cost, export
from ladder.cli_diff import diff
from ladder.errors import InputError
from ladder.units import format_count, format_percent, parse_quantity

app = typer.Typer(no_args_is_help=True, help="Plan ladders of compute-matched configurations; nothing is spent.")
runs_app = typer.Typer(no_args_is_help=True, help="Run tables: check them, convert them.")

SHOWN_REASONS = 6  # why rungs lie outside their recipe's range; ladder.json has all
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
LadderArgument = Annotated[Path, typer.Argument(help="A ladder.json.", metavar="LADDER")]
RunsArgument = Annotated[Path, typer.Argument(help="A run table.", metavar="RUNS")]


def _quantities(texts: list[str], what: str) -> list[int]:
    return [parse_quantity(part, what, "FLOPs") for text in texts for part in text.split(",") if part.strip()]


def _print_ladder(ladder: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    repeated = any(len(rung.seeds) > 1 for rung in ladder.rungs)
    stated = any(rung.corpus_tokens for rung in ladder.rungs)
    names = ("rung", "id", "role", "error", "N", "total", "tokens", "batch", "steps", "seeds", "epochs")
    for name in names[: 9 + repeated] + names[10 : 10 + stated]:
        table.add_column(name, justify="left" if name in {"rung", "id", "role"} else "right", no_wrap=True)
    for rung in ladder.rungs:
        table.add_row(
            rung.name + ("*" if rung.extrapolated_recipe else ""),
            rung.rung_id,
            str(rung.role),
            format_percent(rung.compute_error),
            format_count(rung.counts.nonembedding_active),
            format_count(rung.counts.total),
            format_count(rung.tokens),
            str(rung.batch_seqs),
            str(rung.steps),
            *([str(len(rung.seeds))] if repeated else []),
            *([f"{rung.epochs:.3g}"] if stated else []),
        )
    Console().print(table)
    typer.echo(f"{len(ladder.rungs)} rungs; N is active parameters without embedding and head.")
    reasons = tuple(dict.fromkeys(rung.extrapolated_recipe for rung in ladder.rungs if rung.extrapolated_recipe))
    for reason in reasons[:SHOWN_REASONS]:
        typer.echo(f"* {reason}")
    if len(reasons) > SHOWN_REASONS:
        typer.echo(f"* and {len(reasons) - SHOWN_REASONS} more such reasons, in extrapolated_recipe of each rung")
    for rung in ladder.rungs:
        for item in rung.overrides:
            typer.echo(f"{rung.name}: {item.field} is {item.value} by hand; the recipe's rule gives {item.rule}")
    for remark in ladder.remarks:
        typer.echo(remark)


def _overrides(texts: list[str]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for text in texts:
        budget, colon, assignments = text.partition(":")
        if not colon:
            raise InputError(f"--override {text!r} must be BUDGET:FIELD=VALUE, such as 1e23:layers=48,batch_seqs=2048.")
        fields = found.setdefault(parse_quantity(budget, "--override", "FLOPs"), {})
        for assignment in assignments.split(","):
            name, _, value = assignment.partition("=")
            fields[name.strip()] = parse_quantity(value, f"--override {name.strip()}")
    return found


@app.command()
def plan(
    budgets: Annotated[
        list[str] | None,
        typer.Option("--budget", help="Fit budget; repeat or separate by commas.", metavar="FLOPS"),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Recipe: a name, or path/to/file.py:NAME.")] = "marin-moe-v16",
    sizes: Annotated[
        int | None, typer.Option(min=1, help="Sizes per budget; default: all within 4x of the expected optimum.")
    ] = None,
    held_out: Annotated[list[str] | None, typer.Option("--held-out", help="Held-out budget.", metavar="FLOPS")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per fit rung.")] = 1,
    held_out_seeds: Annotated[int, typer.Option(min=1, help="Runs per held-out rung.")] = 1,
    replicate: Annotated[
        list[str] | None, typer.Option(help="Budget whose central rung gets two further seeds.", metavar="FLOPS")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(help="Set by hand on a held-out rung: 1e23:hidden=5120,layers=48.", metavar="BUDGET:FIELD=VALUE"),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Distinct tokens there are.", metavar="TOKENS")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to write the ladder.")] = Path("study/ladder.json"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing ladder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Plan an IsoFLOP ladder and write ladder.json; without budgets, the recipe's default ladder.

    Example: foretell ladder plan --recipe tiny-cpu --budget 3e10,6.5e10,1.4e11,3e11 --held-out 3e12
    """
    from ladder.generate import plan_isoflop
    from ladder.recipe import recipe_named

    started = time.perf_counter()
    if out.exists() and not force:
        raise InputError(f"{out} exists; name another file with --out, or replace it with --force.")
    chosen = recipe_named(recipe)
    ladder = plan_isoflop(
        chosen,
        _quantities(budgets, "--budget") if budgets else chosen.fit_budgets,
        sizes=sizes,
        held_out=_quantities(held_out or [], "--held-out") if budgets or held_out else chosen.held_out_budgets,
        seeds=seeds,
        held_out_seeds=held_out_seeds,
        replicates=dict.fromkeys(_quantities(replicate or [], "--replicate"), 2),
        corpus_tokens=parse_quantity(corpus, "--corpus", "tokens") if corpus else 0,
        overrides=_overrides(override or []),
    )
    ladder.save(out)
    if as_json:
        summary = {
            "out": str(out),
            "rungs": len(ladder.rungs),
            "held_out": len(ladder.held_out_rungs),
            "max_compute_error": max(abs(rung.compute_error) for rung in ladder.rungs),
            "seconds": round(time.perf_counter() - started, 3),
        }
        typer.echo(json.dumps(summary))
    else:
        _print_ladder(ladder)
        typer.echo(f"Wrote {out}.")


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
        _print_ladder(value)


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
