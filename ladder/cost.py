"""The cost of a ladder: every rung on the smallest slice that will do, totals, and how long it takes on N slices."""

import heapq
from dataclasses import dataclass

from ladder.chips import GIB, Chip
from ladder.errors import InputError
from ladder.hardware import DEFAULT_MFU, Layout, Placement, layout_on, place_on, smallest_slice
from ladder.rung import Ladder, Rung
from ladder.units import format_duration

DEFAULT_DAYS = 30.0  # a run longer than this is planned on a larger slice


MAX_DEVICES = 2**14


def described(chip: Chip) -> str:
    """Return the figures of a chip and where they come from."""
    return (
        f"{chip.peak_flops / 1e12:g} TFLOP/s bf16, {chip.usable_gib:.4g} GiB usable per device, "
        f"{chip.hbm_bytes_per_s / 1e9:g} GB/s memory, {chip.ring_bytes_per_s / 1e9:g} GB/s interconnect; {chip.source}"
    )


@dataclass(frozen=True)
class LadderMemory:
    """A ladder laid out on the fewest devices (a power of two that divides the batch) of one chip that hold each rung."""

    chip: Chip
    rungs: tuple[tuple[Rung, int, Layout], ...]

    def rows(self) -> list[dict[str, str | int | float]]:
        """Return one row per rung: devices, layout, and GiB per device by part."""
        return [
            {
                "rung": rung.name,
                "rung_id": rung.rung_id,
                "devices": devices,
                "accumulation": layout.accumulation,
                "expert_axis": layout.expert_axis,
                "gib_per_device": round(layout.memory.total / GIB, 2),
                "parameters": round(layout.memory.parameters / GIB, 2),
                "optimizer": round(layout.memory.optimizer / GIB, 2),
                "gradients": round(layout.memory.gradients / GIB, 2),
                "activations": round((layout.memory.residuals + layout.memory.layer) / GIB, 2),
                "weights": round(layout.memory.weights / GIB, 2),
                "logits": round(layout.memory.logits / GIB, 2),
            }
            for rung, devices, layout in self.rungs
        ]

    def statement(self) -> str:
        """Return the assumptions in words."""
        return (
            f"GiB per {self.chip.name} on the fewest devices that hold a rung; no time or cost is planned for this chip. "
            f"A model of the step, nothing measured. Chip: {described(self.chip)}."
        )


def memory_of(ladder: Ladder, chip: Chip) -> LadderMemory:
    """Return every rung of `ladder` on the fewest devices of `chip` that hold it.

    Raises InputError when a rung fits on no power of two of them that divides its batch.
    """
    found = []
    for rung in ladder.rungs:
        counts = (1 << power for power in range(MAX_DEVICES.bit_length()))
        whole = (devices for devices in counts if rung.batch_seqs % devices == 0)
        fitting = ((devices, layout) for devices in whole if (layout := layout_on(rung, chip, devices)))
        first = next(fitting, None)
        if first is None:
            raise InputError(
                f"{rung.name} fits on no number of {chip.name} that divides its batch of {rung.batch_seqs} sequences; "
                "use a chip with more memory."
            )
        found.append((rung, *first))
    return LadderMemory(chip, tuple(found))


@dataclass(frozen=True)
class LadderCost:
    """A ladder placed on one kind of chip; `price` is per chip-hour, 0 when not given."""

    chip: Chip
    mfu: float
    price: float
    rungs: tuple[tuple[Rung, Placement], ...]

    @property
    def chip_hours(self) -> float:
        """Chip-hours of all runs."""
        return sum(placement.chip_hours for _, placement in self.rungs)

    def wall_hours(self, slices: int) -> float:
        """Return the wall hours of all runs on `slices` workers at once, longest first.

        Each worker is taken to be as large as the run at hand needs, so this is a bound on scheduling, not a booking.
        """
        if slices < 1:
            raise InputError(f"slices={slices} must be at least 1.")
        ends = [0.0] * slices
        for hours in sorted((p.hours for _, p in self.rungs for _ in range(p.runs)), reverse=True):
            heapq.heapreplace(ends, ends[0] + hours)
        return max(ends)

    def rows(self) -> list[dict[str, str | int | float]]:
        """Return one row per rung: slice, memory, time, chip-hours and, with a price, cost."""
        return [
            {
                "rung": rung.name,
                "rung_id": rung.rung_id,
                "role": str(rung.role),
                "slice": placement.topology,
                "chips": placement.chips,
                "expert_axis": placement.expert_axis,
                "accumulation": placement.accumulation,
                "gib_per_device": round(placement.memory.total / GIB, 2),
                "step_s": round(placement.step_s, 4),
                "bound": placement.bound,
                "wall_hours": round(placement.hours, 3),
                "chip_hours": round(placement.chip_hours, 2),
                "cost": round(placement.chip_hours * self.price, 2),
            }
            for rung, placement in self.rungs
        ]

    def statement(self, slices: int = 1) -> str:
        """Return the totals and the assumptions in words."""
        cost = f", {self.chip_hours * self.price:,.0f} at {self.price:g} per chip-hour" if self.price else ""
        return (
            f"{self.chip_hours:,.0f} chip-hours of {self.chip.name}{cost}; "
            f"{format_duration(3600 * self.wall_hours(slices))} on {slices} at a time. Estimates: "
            f"{self.mfu:.0%} MFU assumed, memory by a model of the step, nothing measured. Chip: {described(self.chip)}."
        )


def cost_of(
    ladder: Ladder,
    chip: Chip,
    *,
    mfu: float = DEFAULT_MFU,
    price: float = 0.0,
    days: float = DEFAULT_DAYS,
    topology: str | None = None,
) -> LadderCost:
    """Return every rung of `ladder` on the smallest slice of `chip` that holds it and ends a run within `days`.

    With `topology`, every rung is on that slice, however long it takes. Raises InputError when no slice does, when the
    slice does not exist, does not hold a rung or a batch does not divide over it, and for a chip that has only a memory
    table or a negative price.
    """
    if not chip.slices:
        raise InputError(
            f"{chip.name} is known by its memory only (`memory_of`); plan time and cost on a TPU, such as v5p."
        )
    if not 0 <= price < float("inf") or not days > 0:
        raise InputError(f"price={price} must not be negative and days={days} must be positive.")
    if topology is not None:
        placed = tuple((rung, _on(rung, chip, topology, mfu)) for rung in ladder.rungs)
    else:
        placed = tuple((rung, smallest_slice(rung, chip, mfu, days)) for rung in ladder.rungs)
    return LadderCost(chip, mfu, price, placed)


def _on(rung: Rung, chip: Chip, topology: str, mfu: float) -> Placement:
    found = place_on(rung, chip, topology, mfu)
    if found is None:
        raise InputError(
            f"{rung.name} does not fit on {topology}, not with one sequence a device at a time; use a larger slice, or "
            "leave --slice out to see the smallest that holds it."
        )
    return found
