"""What a compiled program does: floating-point operations, bytes, collectives and cycles, loops counted by their trips.

The compiler's own totals count the body of a loop once and kernels partly or not at all. Here every computation is
weighted by how often it runs. Kernels count by the estimate they carry; those without one are counted and named, so
that the caller can add what is known of them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from models.hlo import Computation, Instruction, Module, Shape, trip_count

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# No memory is moved by these themselves.
FREE = {"parameter", "constant", "iota", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all"}
FREE |= {"partition-id", "replica-id", "get-dimension-size", "while", "conditional", "call"}
UNKNOWN_CYCLES = 1 << 62  # the compiler writes about 2^63 where it has no estimate


@dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
        kind: its operation.
        group: devices that take part in one group.
        wire_bytes: bytes one device receives in one run of it: (g - 1) / g of the whole array for a gather, a
            scattered reduction or an exchange, twice that for a reduction that all receive, all of it for a permutation.
        trips: how often it runs.
    """

    kind: str
    group: int
    wire_bytes: float
    trips: int
    op_name: str


@dataclass
class Costs:
    """Totals of one device.

    Attributes:
        matmul_flops: of dots and convolutions, 2 for each multiplication.
        kernel_flops: of kernels, by the estimates they carry.
        bytes: read and written by every instruction that is not inside another; a slice counts as its own size.
        cycles: the compiler's estimates, of the instructions that have one.
        collectives: all collectives.
        kernels: runs of kernels without an estimate of FLOPs, by name.
        by_op: matmul FLOPs by the name of the operation they were made from.
        unknown_loops: loops whose trips the text does not say; they count once.
    """

    matmul_flops: float = 0.0
    kernel_flops: float = 0.0
    bytes: float = 0.0
    cycles: float = 0.0
    collectives: list[Collective] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)
    by_op: Counter[str] = field(default_factory=Counter)
    unknown_loops: list[str] = field(default_factory=list)

    @property
    def flops(self) -> float:
        """Matrix products and kernels together."""
        return self.matmul_flops + self.kernel_flops

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device receives in collectives."""
        return sum(each.wire_bytes * each.trips for each in self.collectives)


def _dims(text: str | None) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text or ""))


def dot_flops(dot: Instruction, left: Shape) -> int:
    """Return the FLOPs of a dot whose left operand has the shape `left`."""
    contracted = math.prod(left.dims[at] for at in _dims(dot.attribute("lhs_contracting_dims")))
    return 2 * math.prod(dot.shapes[0].dims) * contracted


def convolution_flops(convolution: Instruction, left: Shape, right: Shape) -> int:
    """Return the FLOPs of a convolution: only products of elements that exist count, as for padding and dilation.

    A TPU makes batched matrix products into convolutions whose batch is a padded, strided window; most of the window
    then lies outside, and does not count.
    """
    labels = convolution.attribute("dim_labels") or ""
    inputs, kernel, outputs = re.split(r"_|->", labels)
    result = convolution.shapes[0].dims
    window = convolution.attribute("window") or ""

    def each(name: str, default: str) -> list[str]:
        found = re.search(rf"\b{name}=([\w\-]+(?:x[\w\-]+)*)", window)
        return found.group(1).split("x") if found else [default] * sum(label.isdigit() for label in kernel)

    pairs = 1
    stride, dilate, holes = (each(name, "1") for name in ("stride", "rhs_dilate", "lhs_dilate"))
    padding = each("pad", "0_0")
    for at in range(len(stride)):
        size, width = left.dims[inputs.index(str(at))], right.dims[kernel.index(str(at))]
        reach, low = (size - 1) * int(holes[at]), int(padding[at].split("_")[0])
        valid = 0
        for output in range(result[outputs.index(str(at))]):
            for tap in range(width):
                position = output * int(stride[at]) + tap * int(dilate[at]) - low
                valid += 0 <= position <= reach and position % int(holes[at]) == 0
        pairs *= valid
    channels = right.dims[kernel.index("i")]
    batches = int(convolution.attribute("batch_group_count") or 1)
    rows = result[outputs.index("b")] if batches == 1 else left.dims[inputs.index("b")] // batches
    return 2 * rows * result[outputs.index("f")] * channels * pairs


def group_size(collective: Instruction) -> int:
    """Return how many devices one group of a collective holds; a permutation has none and counts as 2."""
    text = collective.attribute("replica_groups") or ""
    if (named := re.match(r"mesh\[(.*?)\]\s*\{(.*?)\}", text)) is not None:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named.group(1))}
        return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", named.group(2)))
    if (tiled := re.match(r"\[(\d+),(\d+)\]<=", text)) is not None:
        return int(tiled.group(2))
    if (listed := re.match(r"\{\{([\d,]*)\}", text)) is not None:
        return len(listed.group(1).split(","))
    return 2


def _collective(computation: Computation, instruction: Instruction, kind: str, trips: int) -> Collective:
    group = group_size(instruction)
    # A started gather or permutation has its operand among its results; the largest is what was made.
    result = max((shape.bytes for shape in instruction.shapes), default=0)
    operands = [computation.by_name[name] for name in instruction.operands if name in computation.by_name]
    whole = sum(operand.bytes for operand in operands)
    share = (group - 1) / group
    match kind:
        case "all-gather":
            received = (result if len(operands) == 1 else instruction.bytes) * share
        case "all-reduce":
            received = 2 * whole * share
        case "collective-permute" | "collective-broadcast":
            received = float(result)
        case "ragged-all-to-all":
            received = operands[1].bytes * share if len(operands) > 1 else whole * share  # the whole static buffer
        case _:
            received = whole * share
    named = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return Collective(kind, group, received, trips, named.group(1) if named else instruction.name)


def _moved(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Return the bytes that an instruction reads and writes in memory."""
    if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
        return 0.0
    operands = [computation.by_name[name] for name in instruction.operands if name in computation.by_name]
    if instruction.opcode in ("dynamic-slice", "gather", "slice"):
        return 2.0 * instruction.bytes
    if instruction.opcode == "dynamic-update-slice":
        return 2.0 * operands[1].bytes if len(operands) > 1 else float(instruction.bytes)
    if instruction.opcode != "fusion":
        return float(instruction.bytes + sum(operand.bytes for operand in operands))
    inner = module.computations[instruction.called("calls") or ""]
    read = 0.0
    for at, operand in enumerate(operands):
        name = inner.parameters[at].name if at in inner.parameters else ""
        users = inner.users.get(name, [])
        if users and all(user.opcode in ("dynamic-slice", "gather", "slice") for user in users):
            read += sum(user.bytes for user in users)
        elif users and all(user.opcode == "dynamic-update-slice" and user.operands[0] == name for user in users):
            continue  # written in place
        else:
            read += operand.bytes
    root = inner.root
    written = float(instruction.bytes)
    if root.opcode == "dynamic-update-slice" and root.operands[1] in inner.by_name:
        written = float(inner.by_name[root.operands[1]].bytes)
    return read + written


def _runs(module: Module, name: str, trips: int, costs: Costs) -> Iterator[tuple[Computation, int]]:
    """Yield every computation that is run from `name` as a step of its own, with how often; fusions are not."""
    computation = module.computations[name]
    yield computation, trips
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            times = trip_count(module, computation, instruction)
            if times is None:
                costs.unknown_loops.append(instruction.name)
            yield from _runs(module, instruction.called("body") or "", trips * (1 if times is None else times), costs)
        elif instruction.opcode == "call" or instruction.opcode.endswith("call-start"):
            yield from _runs(module, instruction.called("to_apply") or instruction.called("calls") or "", trips, costs)
        elif instruction.opcode == "async-start" and (inside := instruction.called("calls")):
            yield from _runs(module, inside, trips, costs)
        elif instruction.opcode == "conditional":
            branches = re.findall(r"%([\w.\-]+)", instruction.attribute("branch_computations") or "")
            either = [instruction.called("true_computation"), instruction.called("false_computation")]
            # One of them is run; which, the program does not say: the costlier, an upper bound.
            known = branches or [each for each in either if each]
            costliest = max(known, key=lambda branch: _cycles(module, branch))
            yield from _runs(module, costliest, trips, costs)


def _estimate(instruction: Instruction) -> float:
    """Return the compiler's cycle estimate of one run of `instruction`, 0 where it has none."""
    cycles = instruction.number("estimated_cycles")
    return cycles if cycles is not None and cycles < UNKNOWN_CYCLES else 0.0


def _cycles(module: Module, name: str) -> float:
    ran = _runs(module, name, 1, Costs())
    return sum(trips * _estimate(each) for computation, trips in ran for each in computation.instructions)


def _fused(module: Module, computation: Computation) -> Iterator[Computation]:
    """Yield `computation` and all that are fused into it."""
    yield computation
    for instruction in computation.instructions:
        if instruction.opcode == "fusion" and (inside := instruction.called("calls")):
            yield from _fused(module, module.computations[inside])


def count_costs(module: Module) -> Costs:
    """Return what one device does in one run of `module`."""
    costs = Costs()
    for computation, trips in _runs(module, module.entry, 1, costs):
        for instruction in computation.instructions:
            costs.bytes += trips * _moved(module, computation, instruction)
            costs.cycles += trips * _estimate(instruction)
            kind = instruction.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                costs.collectives.append(_collective(computation, instruction, kind, trips))
            if instruction.opcode == "fusion" and instruction.called("calls"):
                _count_fused_reduction(module, computation, instruction, trips, costs)
            if instruction.opcode == "custom-call":
                _count_kernel(instruction, trips, costs)
        for inner in _fused(module, computation):
            for instruction in inner.instructions:
                if instruction.opcode in ("dot", "convolution"):
                    _count_product(inner, instruction, trips, costs)
    return costs


def _count_product(computation: Computation, instruction: Instruction, trips: int, costs: Costs) -> None:
    left, right = (computation.by_name[name].shapes[0] for name in instruction.operands[:2])
    dot = instruction.opcode == "dot"
    flops = dot_flops(instruction, left) if dot else convolution_flops(instruction, left, right)
    costs.matmul_flops += trips * flops
    named = re.search(r'op_name="([^"]*)"', instruction.attributes)
    costs.by_op[named.group(1) if named else instruction.name] += trips * flops


def _count_kernel(instruction: Instruction, trips: int, costs: Costs) -> None:
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    estimate = re.search(r'"?cost_estimate"?:\{[^}]*"?flops"?:"?(\d+)', instruction.attributes)
    if estimate:
        costs.kernel_flops += trips * int(estimate.group(1))
    elif target == "tpu_custom_call":
        costs.kernels[re.sub(r"\.\d+$", "", instruction.name)] += trips


def _count_fused_reduction(
    module: Module, computation: Computation, instruction: Instruction, trips: int, costs: Costs
) -> None:
    """Count a reduction that a TPU fuses with the slice each device keeps: a scattered reduction."""
    for inner in module.computations[instruction.called("calls") or ""].instructions:
        if inner.opcode == "all-reduce":
            body = module.computations[instruction.called("calls") or ""]
            found = _collective(body, inner, "reduce-scatter", trips)
            costs.collectives.append(found)
