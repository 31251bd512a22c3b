"""What a rung needs of a machine: memory per device, the smallest slice that fits, time and cost. Estimates all.

Memory follows tensors that are known (parameters, moments, gradients, saved residuals, logits, gathered weights, what
one layer's backward holds); how many copies of them the compiler holds at once was fitted to compiled steps; see
`memory_per_device`.
"""

from dataclasses import dataclass, fields

from ladder.chips import GIB, Chip
from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.rung import Rung
from ladder.shape import MoeShape

# Assumed. One figure is published: 14.23 % of Marin's 1e23 run on v4 (issue #4697). Two more are derived here from
# published tokens per second on a v5p-8 and this study's roofline of the compiled step: 27 % / 1.83 = 15 % at d512 and
# 29 % / 1.40 = 21 % at d1024, other code and another layout than theirs.
DEFAULT_MFU = 0.20
HEADROOM = 0.95  # of the compiler's limit, for what the estimate does not see
CHUNK = 1024  # tokens whose logits exist at once, in f32
# Copies that are held at once, by non-negative least squares of relative errors on 26 steps of `marin-moe-v16` compiled by
# libtpu 0.0.48 for v5p and v4: widths 512 to 5376, 4 to 1024 chips, expert axes 1 to 8, 1 to 16 parts, four ways to run
# experts. Errors within 6.5 %, 11 % at a step of 3.4 GiB.
ROUTED_COPIES = 3.1  # of every dispatched token's input, hidden and output in bf16
WEIGHT_BYTES = 8.75  # for each parameter of one layer's gathered weights: bf16 and gradients before reduction
RESIDUAL_COPIES = 1.86
ACCUMULATED_COPIES = 4.2  # of the f32 gradient where a step has parts: sum, part, bf16 weights made before the loop
EXPERT_AXES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the peak of a step."""

    parameters: float
    optimizer: float
    gradients: float
    residuals: float
    layer: float
    weights: float
    logits: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


def memory_per_device(
    rung: Rung, devices: int, seqs: int, *, expert_axis: int = 1, capacity_factor: float | None = None
) -> Memory:
    """Return the bytes on each of `devices` that take `seqs` sequences at a time.

    Parameters, moments and gradients are f32 and sharded over all devices (FSDP, with experts over `expert_axis` of
    them first); MuonH keeps one moment for its matrices. Full rematerialisation keeps one bf16 residual per layer.
    `layer` is what the backward pass of one layer holds of its dispatched tokens; `weights` one layer's gathered weights
    with their gradient; `logits` one chunk and the f32 gradient of the head. Copies: see the constants.
    """
    shape, counts, tokens = rung.shape, rung.counts, seqs * rung.shape.seq_len
    factor = rung.capacity_factor if capacity_factor is None else capacity_factor
    matrices = counts.nonembedding_total - counts.gates_and_norms - counts.router
    moments = 2 * counts.total - (matrices if rung.optimizer.name == "muonh" else 0)
    accumulated = seqs * devices < rung.batch_seqs
    dispatched = shape.top_k * factor * (2 * shape.expert_input + 3 * shape.expert_width)
    if shape.dense:
        dispatched = 2 * shape.hidden + 3 * shape.shared_width
    dense = counts.nonembedding_total - counts.routed_experts
    return Memory(
        parameters=4 * counts.total / devices,
        optimizer=4 * moments / devices,
        gradients=4 * (ACCUMULATED_COPIES if accumulated else 1) * counts.total / devices,
        residuals=RESIDUAL_COPIES * 2 * shape.layers * tokens * shape.hidden,
        layer=ROUTED_COPIES * 2 * tokens * dispatched,
        weights=WEIGHT_BYTES * (counts.routed_experts / expert_axis + dense) / shape.layers,
        logits=4 * shape.vocab_size * (min(CHUNK, tokens) + shape.hidden),
    )


def wire_bytes(shape: MoeShape, dense: int, routed: int, tokens: int, devices: int, expert_axis: int) -> float:
    """Return the bytes a device receives in one forward, recomputation and backward of `tokens` tokens.

    Three bf16 passes of the weights (two gathers, one reduction) and, with experts over `expert_axis` devices in a
    ring, three of the tokens out and back.
    """
    share = (devices - 1) / devices
    weights = 3 * 2 * (dense + routed / expert_axis) * share
    return weights + 3 * 2 * (expert_axis - 1) * tokens * shape.expert_input * 2 * shape.layers


@dataclass(frozen=True)
class Placement:
    """A rung on a slice.

    Attributes:
        topology: the slice, as the compiler names it.
        chips: how many it has.
        seqs: sequences on a device at a time.
        accumulation: how often per step.
        expert_axis: devices the experts are spread over; the rest is FSDP.
        memory: bytes per device.
        step_s: seconds per step, the larger of compute at the assumed MFU, interconnect and optimizer traffic.
        bound: which of them.
        hours: wall hours of one run.
        runs: runs of the rung, one per seed.
    """

    topology: str
    chips: int
    seqs: int
    accumulation: int
    expert_axis: int
    memory: Memory
    step_s: float
    bound: str
    hours: float
    runs: int

    @property
    def chip_hours(self) -> float:
        """Chip-hours of all runs of the rung."""
        return self.hours * self.chips * self.runs


@dataclass(frozen=True)
class Layout:
    """How a rung lies on some devices: sequences at a time, how often per step, expert axis, memory, bytes received."""

    seqs: int
    accumulation: int
    expert_axis: int
    memory: Memory
    wire: float


def layout_on(rung: Rung, chip: Chip, devices: int) -> Layout | None:
    """Return the layout with as few accumulation steps, then bytes received, as fits; None when none fits.

    Raises InputError when the batch does not divide over the devices.
    """
    if rung.batch_seqs % devices:
        raise InputError(
            f"{rung.name}: a batch of {rung.batch_seqs} sequences does not divide over {devices} devices of "
            f"{chip.name}; use a smaller slice, or another batch."
        )
    share, shape, counts = rung.batch_seqs // devices, rung.shape, rung.counts
    axes = [axis for axis in EXPERT_AXES if axis == 1 or (shape.experts % axis == 0 and shape.experts >= axis)]
    axes = [axis for axis in axes if devices % axis == 0 and (shape.experts or axis == 1)]
    dense = counts.total - counts.routed_experts
    for seqs in (size for size in range(share, 0, -1) if share % size == 0):
        wires = {
            axis: wire_bytes(shape, dense, counts.routed_experts, seqs * shape.seq_len, devices, axis) for axis in axes
        }
        for axis in sorted(wires, key=lambda axis: wires[axis]):
            memory = memory_per_device(rung, devices, seqs, expert_axis=axis)
            if memory.total <= HEADROOM * chip.usable_gib * GIB:
                return Layout(seqs, share // seqs, axis, memory, wires[axis])
    return None


def place_on(rung: Rung, chip: Chip, topology: str, mfu: float = DEFAULT_MFU) -> Placement | None:
    """Return `rung` on the slice, with as few accumulation steps as fit; None when it does not fit.

    Raises InputError when the slice does not exist, the batch does not divide over its devices, or `mfu` is no share.
    """
    if not 0 < mfu <= 1:
        raise InputError(f"mfu={mfu} must be above 0 and at most 1; measured runs have 0.1 to 0.5.")
    chips = chip.chips_in(topology)
    found = layout_on(rung, chip, chips * chip.devices)
    if found is None:
        return None
    per_step = rung.training_flops(FlopConvention.MATMUL_FULL) / rung.steps
    times = {
        "compute": per_step / (chips * chip.peak_flops * mfu),
        "interconnect": found.accumulation * found.wire * chip.devices / chip.ring_bytes_per_s,
        # read p, m, v, g; write p, m, v in f32
        "memory": 28 * rung.counts.total / (chips * chip.hbm_bytes_per_s),
    }
    bound = max(times, key=lambda name: times[name])
    return Placement(
        topology=topology,
        chips=chips,
        seqs=found.seqs,
        accumulation=found.accumulation,
        expert_axis=found.expert_axis,
        memory=found.memory,
        step_s=times[bound],
        bound=bound,
        hours=times[bound] * rung.steps / 3600,
        runs=len(rung.seeds),
    )


def smallest_slice(rung: Rung, chip: Chip, mfu: float = DEFAULT_MFU, days: float = float("inf")) -> Placement:
    """Return `rung` on the smallest slice of `chip` that holds it and ends within `days`.

    Raises InputError when no slice does, saying what the largest usable one would take.
    """
    best: Placement | None = None
    for dims in chip.slices:
        topology = f"{chip.name}:{dims}"
        if rung.batch_seqs % (chip.chips_in(topology) * chip.devices):
            continue
        best = place_on(rung, chip, topology, mfu) or best
        if best and best.topology == topology and best.hours <= 24 * days:
            return best
    if best is None:
        raise InputError(f"{rung.name} fits on no slice of {chip.name}; use a chip with more memory.")
    raise InputError(
        f"{rung.name} takes {best.hours / 24:.3g} days even on {best.topology}, more than {days:g}; allow more days, "
        "use a faster chip, or a larger batch, which divides over more chips."
    )
