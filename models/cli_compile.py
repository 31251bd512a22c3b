"""Command `foretell train compile`: the real step of a rung through the TPU's own compiler, without a TPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder.chips import GIB
from ladder.errors import InputError, UnusableError
from ladder.units import format_duration

if TYPE_CHECKING:
    from ladder.rung import Rung
    from models.pod_compile import Request
    from models.pod_report import Compiled

BACKENDS = {"fsdp": "scatter", "ring": "ring", "fixed": "fixed_all_to_all", "ragged": "ragged_all_to_all"}


def planned_request(rung: Rung, chip_name: str, topology: str | None, backend: str | None) -> Request:
    """Return how the ladder's hardware plan would run `rung`: on the slice given, or the smallest that holds it.

    `backend` is a name of BACKENDS; fsdp has no expert axis, the others one of at least 2. Raises InputError where
    the slice does not exist or cannot hold the rung.
    """
    from ladder.chips import chip_named
    from ladder.hardware import place_on, smallest_slice
    from models.pod_compile import Request

    chip = chip_named(topology.partition(":")[0] if topology else chip_name)
    placement = place_on(rung, chip, topology) if topology else smallest_slice(rung, chip)
    if placement is None:
        raise InputError(f"{rung.name} does not fit on {topology} by the plan; give a larger slice.")
    axis = placement.expert_axis
    if backend is None:
        backend = "fsdp" if axis == 1 else "ring"
    axis = 1 if backend == "fsdp" else max(2, axis)
    return Request(rung, placement.topology, axis, BACKENDS[backend], rung.capacity_factor, placement.accumulation)


def alternatives(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield what might fit where `request` does not, nearest first: smaller parts, then the next slices."""
    from ladder.chips import chip_named

    chip = chip_named(request.topology.partition(":")[0])
    devices = chip.chips_in(request.topology) * chip.devices
    parts = request.accumulation * 2
    while request.rung.batch_seqs % (parts * devices) == 0:
        yield f"{parts} parts a step", replace(request, accumulation=parts)
        parts *= 2
    larger = [name for name in chip.slices if chip.chips_in(f"{chip.name}:{name}") * chip.devices > devices]
    for name in larger:
        topology = f"{chip.name}:{name}"
        if request.rung.batch_seqs % (chip.chips_in(topology) * chip.devices * request.accumulation) == 0:
            yield f"the slice {topology}", replace(request, topology=topology)


def as_row(compiled: Compiled, remedy: str = "") -> dict[str, Any]:
    """Return one result as plain data, bytes and seconds per device, with what would fit where it does not."""
    from ladder.records import to_plain

    row: dict[str, Any] = to_plain(compiled)
    return {**row, "roofline_step_s": compiled.roofline_step_s, "would_fit": remedy}


def as_text(compiled: Compiled, remedy: str) -> str:
    """Return one result as a line or two."""
    memory = f"{compiled.hbm_used / GIB:.1f} of {compiled.hbm_limit / GIB:.1f} GiB"
    mesh = f"data={compiled.mesh['data']} expert={compiled.mesh['expert']} {compiled.backend}"
    head = f"{compiled.name:<12} {compiled.topology:<12} {mesh:<34} x{compiled.accumulation}"
    if not compiled.fits:
        return f"{head}  does not fit: needs {memory}" + (f"; {remedy} would do" if remedy else "; nothing tried fits")
    step = compiled.roofline_step_s
    ratio = "" if compiled.flops_ratio is None else f", FLOPs {compiled.flops_ratio:.2f} x analytic"
    time = "" if step is None else f", at least {format_duration(step)} a step"
    wire = sum(each.wire_bytes for each in compiled.collectives) / 1e9
    return f"{head}  fits: {memory}{ratio}, {wire:.0f} GB received{time}"


def compile_command(
    ladder: Annotated[Path, typer.Argument(help="ladder.json.", metavar="LADDER")],
    rung: Annotated[list[str] | None, typer.Option(help="Rung, by id or name; repeat for several.")] = None,
    all_rungs: Annotated[bool, typer.Option("--all", help="Every rung.")] = False,
    chip: Annotated[str, typer.Option(help="Chip for which the plan chooses a slice.")] = "v5p",
    topology: Annotated[str | None, typer.Option(help="Slice, such as v5p:4x4x4; by default the plan's.")] = None,
    compare: Annotated[
        str | None, typer.Option(help="Ways to run the experts: fsdp, ring, fixed, ragged; comma-separated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Compile the real training step of rungs with the TPU's compiler: does it fit, what does it compute and send.

    Needs `make setup-tpu` and no TPU. A compilation takes minutes; results are kept. Example:
    foretell train compile study/ladder.json --rung 1e21-d2560 --topology v5p:4x4x4
    """
    from ladder.rung import read_ladder
    from models.pod_compile import compile_rung, compiler_version
    from models.pod_report import report

    compiler_version()
    rungs = read_ladder(ladder).rungs
    asked = rung or []
    if bool(asked) == all_rungs:
        raise InputError("name rungs with --rung, or give --all.")
    for name in asked:
        if name not in {text for each in rungs for text in (each.rung_id, each.name)}:
            raise InputError(f"{ladder} has no rung {name!r}; `foretell ladder show` lists them.")
    chosen = [each for each in rungs if all_rungs or each.rung_id in asked or each.name in asked]
    ways: list[str | None] = list(compare.split(",")) if compare else [None]
    if unknown := [way for way in ways if way is not None and way not in BACKENDS]:
        raise InputError(f"unknown way to run experts {unknown[0]!r}; use {', '.join(BACKENDS)}.")

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    rows, unfit = [], 0
    for each in chosen:
        for way in ways:
            request = planned_request(each, chip, topology, way)
            compiled, remedy = report(request, compile_rung(request, say)), ""
            if not compiled.fits:
                unfit += 1
                for what, other in () if compare else alternatives(request):
                    say(f"{each.name} needs {compiled.hbm_used / GIB:.1f} GiB; trying {what}")
                    if report(other, compile_rung(other, say)).fits:
                        remedy = what
                        break
            rows.append(as_row(compiled, remedy))
            if not as_json:
                typer.echo(as_text(compiled, remedy))
    if as_json:
        typer.echo(json.dumps({"rungs": rows}))
    if unfit:
        raise UnusableError(f"{unfit} of {len(rows)} steps do not fit their slice as planned.")
