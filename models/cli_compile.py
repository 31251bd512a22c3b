"""Command `foretell train compile`: the real step of a rung through the TPU's own compiler, without a TPU."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder.chips import GIB
from ladder.errors import InputError, UnusableError
from ladder.units import format_duration

if TYPE_CHECKING:
    from models.pod_compile import Request
    from models.pod_report import Compiled


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
    optima: Annotated[
        bool, typer.Option("--optima", help="The rung nearest the expected optimum of each budget.")
    ] = False,
    chip: Annotated[str, typer.Option(help="Chip for which the plan chooses a slice.")] = "v5p",
    topology: Annotated[str | None, typer.Option(help="Slice, such as v5p:4x4x4; by default the plan's.")] = None,
    compare: Annotated[
        str | None, typer.Option(help="Ways to run the experts: fsdp, ring, fixed, ragged; comma-separated.")
    ] = None,
    keep_hidden: Annotated[
        bool, typer.Option("--keep-hidden", help="Keep the experts' hidden activations instead of making them again.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Compilations at once, each on one core with some 2 GB.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Compile the real training step of rungs with the TPU's compiler: does it fit, what does it compute and send.

    Needs `make setup-tpu` and no TPU. A compilation takes minutes; results are kept, and compiled.json beside the
    ladder marks what was compiled. Example:
    foretell train compile study/ladder.json --rung 1e21-d2560 --topology v5p:4x4x4
    """
    from ladder.compiled import add_compiled, compiled_path
    from ladder.optima import nearest_optima
    from ladder.rung import read_ladder
    from models.compile_plan import BACKENDS, compile_to_fit, planned_request, summary_of
    from models.pod_compile import compile_rung, compiler_version
    from models.pod_report import report

    compiler_version()
    value = read_ladder(ladder)
    asked = rung or []
    if bool(asked) + all_rungs + optima != 1:
        raise InputError("name rungs with --rung, or give --optima or --all.")
    for name in asked:
        if name not in {text for each in value.rungs for text in (each.rung_id, each.name)}:
            raise InputError(f"{ladder} has no rung {name!r}; `foretell ladder show` lists them.")
    of_optima = {each.rung_id for each in nearest_optima(value)} if optima else set()
    wanted = {*asked, *of_optima}
    chosen = [each for each in value.rungs if all_rungs or each.rung_id in wanted or each.name in wanted]
    ways: list[str | None] = list(compare.split(",")) if compare else [None]
    if unknown := [way for way in ways if way is not None and way not in BACKENDS]:
        raise InputError(f"unknown way to run experts {unknown[0]!r}; use {', '.join(BACKENDS)}.")
    requests = [planned_request(each, chip, topology, way) for each in chosen for way in ways]
    requests = [replace(each, remat="hidden") for each in requests] if keep_hidden else requests

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    def found(request: Request) -> tuple[Compiled, str, Compiled | None]:
        return (report(request, compile_rung(request, say)), "", None) if compare else compile_to_fit(request, say)

    rows, unfit = [], 0
    with ThreadPoolExecutor(workers) as pool:
        for compiled, remedy, fitting in pool.map(found, requests):
            if not compare:
                add_compiled(compiled_path(ladder), [summary_of(fitting or compiled)])
            unfit += not compiled.fits
            rows.append(as_row(compiled, remedy))
            if not as_json:
                typer.echo(as_text(compiled, remedy))
    if as_json:
        typer.echo(json.dumps({"rungs": rows}))
    if unfit:
        raise UnusableError(f"{unfit} of {len(rows)} steps do not fit their slice as planned.")
