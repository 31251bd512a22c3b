"""Hardware plans against whole training steps compiled for TPU slices."""

from dataclasses import replace

import pytest

from ladder.chips import CHIPS, GIB, Chip, chip_named
from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.hardware import memory_per_device, place_on, smallest_slice, wire_bytes
from ladder.recipe import recipe_named
from ladder.rung import Rung
from ladder.sizing import make_rung

# Compiled steps of the study's model: width, layers, devices, batch, expert axis, capacity factor, GiB needed.
COMPILED = [
    (512, 6, 4, 32, 1, 1.0, 3.00),
    (1024, 11, 4, 128, 1, 1.0, 23.06),
    (2048, 21, 64, 1024, 4, 1.25, 28.92),
    (5120, 48, 1024, 4096, 8, 1.25, 27.44),
    (5120, 48, 512, 2048, 4, 1.0, 29.08),
]


def rung_of(hidden: int, layers: int, batch: int) -> Rung:
    """Return a v16 rung with layers and batch as compiled."""
    rung = make_rung(recipe_named("marin-moe-v16"), 10**21, hidden)
    return replace(rung, shape=replace(rung.shape, layers=layers), batch_seqs=batch)


@pytest.mark.parametrize(("hidden", "layers", "devices", "batch", "axis", "factor", "need"), COMPILED)
def test_memory_is_near_the_compilers(
    hidden: int, layers: int, devices: int, batch: int, axis: int, factor: float, need: float
) -> None:
    memory = memory_per_device(
        rung_of(hidden, layers, batch), devices, batch // devices, expert_axis=axis, capacity_factor=factor
    )
    ratio = memory.total / GIB / need
    print(f"d{hidden} on {devices}: {memory.total / GIB:.2f} GiB estimated, {need} compiled, ratio {ratio:.2f}")
    assert 0.85 < ratio < 1.6  # generous on small models, where the compiler overlaps more


def test_wire_is_near_the_compilers() -> None:
    rung = rung_of(5120, 48, 4096)
    counts = rung.counts
    dense = counts.total - counts.routed_experts
    received = wire_bytes(rung.shape, dense, counts.routed_experts, 4 * 4096, 1024, 8)
    assert received / 461e9 == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("chip", [chip for chip in CHIPS.values() if chip.slices])
def test_smallest_slice_is_smallest_and_time_is_compute_over_speed(chip: Chip) -> None:
    rung = make_rung(recipe_named("marin-moe-v16"), 10**20, 1536)
    plan = smallest_slice(rung, chip, 0.2)
    assert plan.memory.total <= chip.usable_gib * GIB
    for dims in chip.slices[: chip.slices.index(plan.topology.partition(":")[2])]:
        smaller = f"{chip.name}:{dims}"
        if rung.batch_seqs % (chip.chips_in(smaller) * chip.devices) == 0:
            assert place_on(rung, chip, smaller) is None
    if plan.bound == "compute":
        full = rung.training_flops(FlopConvention.MATMUL_FULL)
        assert plan.chip_hours * 3600 * chip.peak_flops * 0.2 == pytest.approx(full)


def test_bad_requests_say_what_to_do() -> None:
    rung = make_rung(recipe_named("marin-moe-v16"), 10**20, 1536)
    with pytest.raises(InputError, match="does not exist; those of v5p"):
        place_on(rung, CHIPS["v5p"], "v5p:3x3x3")
    with pytest.raises(InputError, match="does not divide"):
        place_on(rung, CHIPS["v5p"], "v5p:8x8x16")
    with pytest.raises(InputError, match="tpu7x"):
        chip_named("v7x")
    with pytest.raises(InputError, match="mfu"):
        place_on(rung, CHIPS["v5p"], "v5p:2x2x1", 1.5)
    with pytest.raises(InputError, match="days"):
        smallest_slice(rung, CHIPS["v5e"], days=0.001)
