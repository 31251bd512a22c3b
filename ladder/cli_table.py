"""A ladder as a table on the terminal."""

from collections.abc import Mapping

import typer

from ladder.compiled import CompiledRung
from ladder.rung import Ladder
from ladder.units import format_count, format_percent

SHOWN_REASONS = 6  # why rungs lie outside their recipe's range; ladder.json has all


def print_ladder(ladder: Ladder, compiled: Mapping[str, CompiledRung]) -> None:
    """Print one line a rung, then why rungs are extrapolated, what was set by hand, and what the plan says of itself.

    Where rungs were compiled, a column says for what slice and with how much memory.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    repeated = any(len(rung.seeds) > 1 for rung in ladder.rungs)
    stated = any(rung.corpus_tokens for rung in ladder.rungs)
    names = ("rung", "id", "role", "error", "N", "total", "tokens", "batch", "steps", "seeds", "epochs")
    marked = any(rung.rung_id in compiled for rung in ladder.rungs)
    for name in names[: 9 + repeated] + names[10 : 10 + stated] + ("compiled",) * marked:
        table.add_column(name, justify="left" if name in {"rung", "id", "role", "compiled"} else "right", no_wrap=True)
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
            *([compiled[rung.rung_id].described() if rung.rung_id in compiled else ""] if marked else []),
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
            typer.echo(
                f"{rung.name} ({rung.rung_id}): {item.field} is {item.value} by hand; the recipe's rule gives {item.rule}"
            )
    for remark in ladder.remarks:
        typer.echo(remark)
