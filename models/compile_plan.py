"""Which step to compile for a rung: as its hardware plan has it, and what to try where that does not fit."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ladder.chips import GIB, chip_named
from ladder.compiled import CompiledRung
from ladder.cost import DEFAULT_DAYS
from ladder.errors import InputError
from ladder.hardware import EXPERT_AXES, place_on, smallest_slice
from ladder.rung import Rung
from models.pod_compile import Request, compile_rung
from models.pod_report import Compiled, report

BACKENDS = {"fsdp": "scatter", "ring": "ring", "fixed": "fixed_all_to_all", "ragged": "ragged_all_to_all"}
Say = Callable[[str], None]


def planned_request(rung: Rung, chip_name: str, topology: str | None, backend: str | None) -> Request:
    """Return how the ladder's hardware plan would run `rung`: on the slice given, or the one `ladder cost` plans.

    `backend` is a name of BACKENDS; fsdp has no expert axis, the others one of at least 2. Raises InputError where
    the slice does not exist or cannot hold the rung.
    """
    chip = chip_named(topology.partition(":")[0] if topology else chip_name)
    placement = place_on(rung, chip, topology) if topology else smallest_slice(rung, chip, days=DEFAULT_DAYS)
    if placement is None:
        raise InputError(f"{rung.name} does not fit on {topology} by the plan; give a larger slice.")
    axis = placement.expert_axis
    if backend is None:
        backend = "fsdp" if axis == 1 else "ring"
    axis = 1 if backend == "fsdp" else max(2, axis)
    return Request(rung, placement.topology, axis, BACKENDS[backend], rung.capacity_factor, placement.accumulation)


def alternatives(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield what might fit where `request` does not: smaller parts, experts over more devices, larger slices."""
    chip, rung = chip_named(request.topology.partition(":")[0]), request.rung
    devices = chip.chips_in(request.topology) * chip.devices
    parts = request.accumulation * 2
    while rung.batch_seqs % (parts * devices) == 0:
        yield f"{parts} parts a step", replace(request, accumulation=parts)
        parts *= 2
    for axis in EXPERT_AXES:
        divides = rung.shape.experts and devices % axis == 0 and rung.shape.experts % axis == 0
        if axis > request.expert_axis and divides:
            backend = BACKENDS["ring"] if request.expert_axis == 1 else request.backend
            yield f"experts over {axis} devices", replace(request, expert_axis=axis, backend=backend)
    for dims in chip.slices:
        topology = f"{chip.name}:{dims}"
        larger = chip.chips_in(topology) * chip.devices
        if larger > devices and rung.batch_seqs % (larger * request.accumulation) == 0:
            yield f"the slice {topology}", replace(request, topology=topology)


def compile_to_fit(request: Request, say: Say = lambda text: None) -> tuple[Compiled, str, Compiled | None]:
    """Return what the compiler says of `request` and, where it does not fit, what would and what was said of that.

    The remedy is empty, and the last None, where `request` fits or nothing tried does.
    """
    first = report(request, compile_rung(request, say))
    if not first.fits:
        for what, other in alternatives(request):
            say(f"{first.name} needs {first.hbm_used / GIB:.1f} of {first.hbm_limit / GIB:.1f} GiB; trying {what}")
            found = report(other, compile_rung(other, say))
            if found.fits:
                return first, what, found
    return first, "", None


def summary_of(compiled: Compiled) -> CompiledRung:
    """Return what the ladder keeps of a result."""
    return CompiledRung(
        rung_id=compiled.rung_id,
        topology=compiled.topology,
        expert_axis=compiled.mesh["expert"],
        accumulation=compiled.accumulation,
        fits=compiled.fits,
        hbm_used=compiled.hbm_used,
        hbm_limit=compiled.hbm_limit,
        step_s=compiled.roofline_step_s,
        versions=compiled.versions,
    )
