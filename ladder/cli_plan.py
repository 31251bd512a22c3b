"""`foretell ladder plan`: an IsoFLOP sweep, optima of a law, a fixed token ratio, or a sweep around one rung."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.errors import InputError
from ladder.units import parse_quantity

Budgets = list[str] | None


def _quantities(texts: Budgets, what: str) -> list[int]:
    return [parse_quantity(part, what, "FLOPs") for text in texts or [] for part in text.split(",") if part.strip()]


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


def _axes(texts: list[str]) -> dict[str, list[float | str]]:
    found: dict[str, list[float | str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise InputError(f"--vary {text!r} must be AXIS=VALUE,VALUE, such as lr=0.5,1,2.")
        found.setdefault(name.strip(), []).extend(_value(value.strip()) for value in values.split(","))
    return found


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _only(kind: str, given: Mapping[str, Any], allowed: set[str]) -> None:
    if unfit := [name for name, value in given.items() if value not in (None, [], 1) and name not in allowed]:
        raise InputError(f"{', '.join(unfit)} says nothing to a plan {kind}; leave it out.")


def plan(
    budgets: Annotated[
        Budgets, typer.Option("--budget", help="Fit budget; repeat or separate by commas.", metavar="FLOPS")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Recipe: a name, or path/to/file.py:NAME.")] = "marin-moe-v16",
    sizes: Annotated[
        int | None, typer.Option(min=1, help="Sizes per budget; default: all within 4x of the expected optimum.")
    ] = None,
    held_out: Annotated[Budgets, typer.Option("--held-out", help="Held-out budget.", metavar="FLOPS")] = None,
    at_optima: Annotated[
        str | None,
        typer.Option(
            help="One rung a budget, at the optimum of a fit.json, of ludziejewski2025, besiroglu2024 or hoffmann2022, "
            "of recipe (its own rule), or of a published N*(C) such as '0.0109*C^0.535'.",
            metavar="LAW",
        ),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Of --at-optima: share of the loss within which sizes are near-optimal.")
    ] = None,
    serving_tokens: Annotated[
        str | None,
        typer.Option(
            help="Of --at-optima: tokens to be served; the size that trains to the budget's loss and serves them in "
            "the fewest FLOPs.",
            metavar="TOKENS",
        ),
    ] = None,
    tokens_per_param: Annotated[
        float | None, typer.Option(help="One rung a budget, at this many tokens per active parameter.")
    ] = None,
    around: Annotated[
        str | None, typer.Option(help="Sweep around one rung of a ladder, at its compute.", metavar="LADDER:RUNG")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Of --around: seeds=3, lr=0.5,2, batch=0.5,2, experts=32,128, top_k=2,8, granularity=0.5,2, "
            "shared_share=0,0.4, balancing=auxiliary,bias,none, optimizer=adamw.",
            metavar="AXIS=VALUES",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per fit rung.")] = 1,
    held_out_seeds: Annotated[int, typer.Option(min=1, help="Runs per held-out rung.")] = 1,
    replicate: Annotated[Budgets, typer.Option(help="Budget whose central rung gets two further seeds.")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(help="Set by hand on a held-out rung: 1e23:hidden=5120,layers=48.", metavar="BUDGET:FIELD=VALUE"),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Distinct tokens there are.", metavar="TOKENS")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to write the ladder.")] = Path("study/ladder.json"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing ladder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Plan a ladder and write ladder.json: an IsoFLOP sweep, or what --at-optima, --tokens-per-param, --around say.

    Without budgets, those of the recipe. Example: foretell ladder plan --recipe tiny-cpu --budget 3e10,1e11,3e11
    """
    from ladder.generate import plan_isoflop
    from ladder.recipe import recipe_named

    started = time.perf_counter()
    if out.exists() and not force:
        raise InputError(f"{out} exists; name another file with --out, or replace it with --force.")
    given = {
        "--budget": budgets,
        "--held-out": held_out,
        "--sizes": None if sizes is None else [sizes],
        "--at-optima": at_optima,
        "--tolerance": tolerance,
        "--serving-tokens": serving_tokens,
        "--tokens-per-param": tokens_per_param,
        "--around": around,
        "--vary": vary,
        "--seeds": seeds,
        "--held-out-seeds": held_out_seeds,
        "--replicate": replicate,
        "--override": override,
        "--corpus": corpus,
    }
    chosen = recipe_named(recipe)
    fit_budgets = _quantities(budgets, "--budget") or ([] if held_out and at_optima else list(chosen.fit_budgets))
    held = _quantities(held_out, "--held-out") if budgets or held_out else list(chosen.held_out_budgets)
    tokens = parse_quantity(corpus, "--corpus", "tokens") if corpus else 0
    repeated = {"--budget", "--held-out", "--seeds", "--held-out-seeds", "--corpus", "--at-optima"}
    if around is not None:
        from ladder.diff import read_side
        from ladder.sweep import plan_around

        _only("around a rung", given, {"--around", "--vary", "--seeds"})
        source, rung = read_side(around)
        if rung is None:
            raise InputError(f"--around {around!r} must name a rung: LADDER:RUNG, one of {_names(source)}.")
        if ".py:" not in recipe:
            chosen = recipe_named(rung.recipe)
        ladder = plan_around(chosen, rung, _axes(vary or []), seeds if seeds > 1 else None)
    elif tokens_per_param is not None:
        from ladder.optima import optima_named
        from ladder.plan_optima import plan_at_ratio

        _only("at a fixed token ratio", given, {"--tokens-per-param", *repeated})
        ladder = plan_at_ratio(
            chosen,
            fit_budgets,
            tokens_per_param,
            held_out=held,
            law=optima_named(at_optima, chosen) if at_optima else None,
            seeds=seeds,
            held_out_seeds=held_out_seeds,
            corpus_tokens=tokens,
        )
    elif at_optima is not None:
        from ladder.optima import optima_named
        from ladder.plan_optima import TOLERANCE, plan_at_optima

        _only("at optima", given, {"--tolerance", "--serving-tokens", "--sizes", *repeated})
        ladder = plan_at_optima(
            chosen,
            fit_budgets,
            optima_named(at_optima, chosen),
            held_out=held,
            sizes=sizes or 1,
            tolerance=TOLERANCE if tolerance is None else tolerance,
            serving_tokens=parse_quantity(serving_tokens, "--serving-tokens", "tokens") if serving_tokens else 0,
            seeds=seeds,
            held_out_seeds=held_out_seeds,
            corpus_tokens=tokens,
        )
    else:
        _only("of an IsoFLOP sweep", given, {"--sizes", "--replicate", "--override", *repeated})
        ladder = plan_isoflop(
            chosen,
            fit_budgets,
            sizes=sizes,
            held_out=held,
            seeds=seeds,
            held_out_seeds=held_out_seeds,
            replicates=dict.fromkeys(_quantities(replicate, "--replicate"), 2),
            corpus_tokens=tokens,
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
            "remarks": list(ladder.remarks),
        }
        typer.echo(json.dumps(summary))
    else:
        from ladder.cli_table import print_ladder

        print_ladder(ladder, {})
        typer.echo(f"Wrote {out}.")


def _names(ladder: Any) -> str:
    return ", ".join(rung.name for rung in ladder.rungs)
