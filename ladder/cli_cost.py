"""`foretell ladder cost` and `export`: what a ladder needs of a machine; the ladder as a table."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder.errors import InputError

HEADS = {  # of columns whose names would not fit on a terminal
    "gib_per_device": "GiB",
    "accumulation": "accum",
    "expert_axis": "EP",
    "parameters": "params",
    "optimizer": "moments",
    "gradients": "grads",
    "activations": "acts",
}
SHOWN = ("rung", "slice", "gib_per_device", "step_s", "wall_hours", "chip_hours", "cost")


def cost(
    ladder: Annotated[Path, typer.Argument(help="A ladder.json.", metavar="LADDER")],
    chip: Annotated[str, typer.Option(help="v4, v5e, v5p, v6e or tpu7x; h100 and gb200 for memory alone.")] = "v5p",
    price: Annotated[float, typer.Option(min=0, help="Price of a chip-hour.")] = 0.0,
    mfu: Annotated[float, typer.Option(help="Share of peak FLOP/s assumed.")] = 0.2,
    days: Annotated[float, typer.Option(help="Longest run; larger slices are used until it ends in time.")] = 30.0,
    slice_: Annotated[
        str | None,
        typer.Option(
            "--slice", help="Every rung on this slice, instead of the smallest that holds it.", metavar="SLICE"
        ),
    ] = None,
    slices: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Estimate slice, memory, time and cost of every rung; for GPUs, devices and memory.

    Example: foretell ladder cost study/ladder.json --chip v5p --slice v5p:4x4x4 --price 4.2
    """
    from ladder.chips import chip_named
    from ladder.cost import cost_of, memory_of
    from ladder.rung import read_ladder

    value, kind = read_ladder(ladder), chip_named(chip)
    if not kind.slices:
        memory = memory_of(value, kind)
        if as_json:
            typer.echo(json.dumps({"chip": kind.name, "source": kind.source, "rungs": memory.rows()}))
        else:
            _print(memory.rows(), [name for name in memory.rows()[0] if name != "rung_id"])
            typer.echo(memory.statement())
        return
    found = cost_of(value, kind, mfu=mfu, price=price, days=days, topology=slice_)
    if as_json:
        totals = {
            "chip": found.chip.name,
            "source": found.chip.source,
            "mfu": mfu,
            "price": price,
            "chip_hours": round(found.chip_hours, 2),
            "cost": round(found.chip_hours * price, 2),
            "slices": slices,
            "wall_hours": round(found.wall_hours(slices), 2),
        }
        typer.echo(json.dumps({**totals, "rungs": found.rows()}))
        return
    rows = found.rows()
    _print(rows, [name for name in rows[0] if name in SHOWN and (price or name != "cost")])
    typer.echo(found.statement(slices))


def _print(rows: list[dict[str, str | int | float]], shown: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in shown:
        table.add_column(HEADS.get(name, name), justify="left" if name in {"rung", "slice"} else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{row[name]:,}" if isinstance(row[name], float) else str(row[name]) for name in shown))
    Console().print(table)


def export(
    ladder: Annotated[Path, typer.Argument(help="A ladder.json.", metavar="LADDER")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File to write: .csv, .parquet or .json.")] = None,
    levanter: Annotated[
        Path | None, typer.Option(help="Folder for Levanter training configs of dense rungs.", metavar="DIR")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a ladder as a table, or its dense rungs as Levanter configs.

    Example: foretell ladder export study/ladder.json -o ladder.csv
    """
    from ladder.export import save_levanter, save_table
    from ladder.rung import read_ladder

    if out is None and levanter is None:
        raise InputError("say what to write: --out FILE, --levanter DIR, or both.")
    value = read_ladder(ladder)
    if out is not None:
        save_table(value, out, force=force)
        typer.echo(f"Wrote {out}.")
    if levanter is not None:
        typer.echo(f"Wrote {len(save_levanter(value, levanter, force=force))} configs to {levanter}.")
