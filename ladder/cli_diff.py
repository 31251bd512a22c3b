"""`foretell ladder diff`: a rung against the target it shall speak for, or a ladder against another."""

import json
from typing import Annotated, Any

import typer

from ladder.errors import UnusableError

MANY_DIGITS = 10**15  # from here on a table shows six digits; --json shows all
NAMED = 8  # differences named in the message; the table has them all
SideArgument = Annotated[str, typer.Argument(help="A ladder.json, or one rung of it: LADDER:RUNG (id or name).")]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_shown(item) for item in value) or "-"
    if value is None:
        return "-"
    if isinstance(value, float) or (type(value) is int and value >= MANY_DIGITS):
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int else str(value)


def diff(
    first: SideArgument,
    second: SideArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Compare two rungs or two ladders; exit code 4 where a law fitted on the one does not speak for the other.

    Example: foretell ladder diff study/ladder.json:3e20-d2048 target.json:1e23-d5120
    """
    from ladder.diff import diff_ladders, diff_rungs, read_side
    from ladder.records import to_plain
    from ladder.rung import Ladder

    (one, rung), (other, target) = read_side(first), read_side(second)
    if rung is not None and target is not None:
        differences = diff_rungs(rung, target)
        loud = tuple(item for item in differences if item.loud)
        document = {"differences": to_plain(differences), "loud": [item.field for item in loud]}
        lines = [(("!" if item.loud else ""), item.field, item.first, item.second) for item in differences]
        notes = [] if differences else ["The rungs are alike."]
    else:
        sides = [
            whole if chosen is None else Ladder(whole.name, (chosen,), whole.provenance, whole.recipes)
            for whole, chosen in ((one, rung), (other, target))
        ]
        found = diff_ladders(*sides)
        loud = found.families
        document = {**to_plain(found), "loud": [item.field for item in loud]}
        lines = [("!", item.field, item.first, item.second) for item in loud]
        lines += [("", f"{pair.name} {d.field}", d.first, d.second) for pair in found.matched for d in pair.differences]
        notes = [f"{found.alike} rungs alike, {len(found.matched)} changed."]
        notes += [f"Only in {first}: {', '.join(found.only_first)}."] if found.only_first else []
        notes += [f"Only in {second}: {', '.join(found.only_second)}."] if found.only_second else []
    if as_json:
        typer.echo(json.dumps(document))
    else:
        heads = (rung.name, target.name) if rung is not None and target is not None else (first, second)
        _print(lines, *heads)
        for note in notes:
            typer.echo(note)
    if loud:
        names = ", ".join(f"{item.field} ({_shown(item.first)} against {_shown(item.second)})" for item in loud[:NAMED])
        names += f" and {len(loud) - NAMED} more" if len(loud) > NAMED else ""
        raise UnusableError(
            f"{first} and {second} are not of one family: {names}. A law fitted on the one does not speak for the "
            "other; plan the ladder with the target's settings, or the target with the ladder's."
        )


def _print(lines: list[tuple[str, str, Any, Any]], first: str, second: str) -> None:
    from rich.console import Console
    from rich.table import Table

    if not lines:
        return
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("", "field", first, second):
        table.add_column(name, overflow="fold")
    for mark, field, a, b in lines:
        table.add_row(mark, field, _shown(a), _shown(b))
    Console().print(table)
