"""What a compiled step means: memory, FLOPs term by term, collectives, and a bound on its time from below.

Memory is the compiler's. FLOPs, bytes and collectives are counted in the optimised program, loops by their trips; the
attention kernel carries no estimate, so its FLOPs are reckoned from its blocks. Times were never measured here.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from ladder.chips import GIB, chip_named
from ladder.flops import TRAINING_PASSES, forward_flops_per_token
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.hlo import parse_hlo
from models.hlo_costs import Costs, count_costs
from models.pod_compile import Answer, Request

ATTENTION_BLOCK = 512  # of queries and keys, as models.pod_attention asks of the kernel
# Products of an attention kernel: 2 forward, 2 again in the backward pass, 4 for keys and values, 3 for queries.
ATTENTION_PRODUCTS = 11
# Clock in Hz: 459 TF over 262,144 FLOPs a cycle for v5p, which the compiler's estimate of a large product confirms to
# 4 %; v4 and v5e as published. v6e and tpu7x are not known: their cycles give no time.
CLOCK = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9}
KERNEL_EFFICIENCY = 0.6  # of peak, assumed for hand-written kernels


@dataclass(frozen=True)
class Term:
    """FLOPs of one kind on one device in one step.

    Attributes:
        executed: what the program does.
        analytic: three forward passes by the ladder's count; of MuonH, its products shared evenly by the devices.
        factor: by which rematerialisation and capacity multiply them; see `expected_factors`.
    """

    executed: float
    analytic: float
    factor: float

    @property
    def accounted(self) -> float:
        """Executed over expected: 1 where every product is accounted for."""
        return self.executed / (self.analytic * self.factor) if self.analytic else 1.0


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind over groups of one size: how many run in a step, bytes a device receives."""

    kind: str
    group: int
    runs: int
    wire_bytes: float


@dataclass(frozen=True)
class Compiled:
    """What the compiler said of one step; FLOPs, bytes and seconds are those of one device.

    Attributes:
        fits: whether the program is within the memory that the compiler grants.
        hbm_used, hbm_limit: bytes on a device, argument + output - alias + temporary, and what is granted.
        terms: by kind: head, routed, dense, gates (GatedNorm and attention gates, which no convention counts),
            attention (reckoned, not compiled), muon.
        flops_ratio: executed over analytic FLOPs, all terms; None where there is no program.
        bytes: read and written in memory.
        xla_s: the compiler's cycle estimates over the clock; None where the chip's is not known.
        kernel_s: FLOPs of kernels at 0.6 of the chip's peak, an assumption.
        wire_s: bytes received over both directions of one ring.
        unknown_loops: loops whose trips could not be read and that count once.
        message: the compiler's refusal where it does not fit.
    """

    rung_id: str
    name: str
    topology: str
    devices: int
    mesh: dict[str, int]
    backend: str
    capacity_factor: float
    accumulation: int
    remat: str
    fits: bool
    hbm_used: float
    hbm_limit: float
    terms: dict[str, Term]
    flops_ratio: float | None
    bytes: float
    collectives: list[Traffic]
    xla_s: float | None
    kernel_s: float
    wire_s: float
    unknown_loops: list[str]
    compile_s: float
    message: str
    versions: dict[str, str]

    @property
    def roofline_step_s(self) -> float | None:
        """Seconds a step takes at least: the three times added, since nothing overlaps in the program."""
        return None if self.xla_s is None or not self.terms else self.xla_s + self.kernel_s + self.wire_s


def attention_flops(shape: MoeShape, sequences: float) -> float:
    """Return the FLOPs of the attention kernels in one rematerialised step: whole blocks that a mask touches."""
    block = min(ATTENTION_BLOCK, shape.seq_len)
    rows, reach = shape.seq_len // block, -(-shape.attention.window // block)
    on_global = shape.attention.global_layers(shape.layers)
    everything = rows * (rows + 1) // 2
    near = sum(min(row + 1, reach + 1) for row in range(rows)) if shape.attention.window else everything
    blocks = on_global * everything + (shape.layers - on_global) * near
    return sequences * ATTENTION_PRODUCTS * 2 * block * block * shape.head_dim * shape.heads * blocks


def _gate_flops(shape: MoeShape) -> tuple[int, int]:
    """Return the forward FLOPs per token of gated norms and attention gates, and those of norms outside layers."""
    norm = 4 * shape.hidden * shape.gated_norm_rank
    in_attention = 2 * shape.layers * shape.hidden * shape.heads * shape.attention.gate
    return norm * shape.norms + in_attention, norm * (1 + shape.embedding_norm)


def muon_flops(shape: MoeShape, steps: int) -> float:
    """Return the FLOPs of Newton-Schulz on every matrix of MuonH: a step on r x c, r <= c, takes 4 r^2 c + 2 r^3."""
    d, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.stored_kv_heads * shape.head_dim
    layers, norms = shape.layers, shape.norms * (shape.gated_norm_rank > 0)
    matrices = [
        (layers, d, queries + 2 * keys),
        (layers, queries, d),
        (layers * shape.experts, shape.expert_input, 2 * shape.expert_width),
        (layers * shape.experts, shape.expert_width, shape.expert_input),
        (layers * shape.shared_experts, d, 2 * shape.shared_width),
        (layers * shape.shared_experts, shape.shared_width, d),
        (2 * layers * (shape.latent_width > 0), d, shape.latent_width),
        (2 * norms, d, shape.gated_norm_rank),
    ]
    sides = [(count, min(one, other), max(one, other)) for count, one, other in matrices]
    return float(steps * sum(count * (4 * r * r * c + 2 * r**3) for count, r, c in sides))


def expected_factors(shape: MoeShape, capacity_factor: float, remat: str = "full") -> dict[str, float]:
    """Return by how much each kind exceeds three forward passes where every layer is made again in the backward pass.

    Made again are the products whose results the backward pass reads: all of a layer but the last of a shared expert and
    the one out of a latent. Head, last norm and the embedding's are no layers. Routed experts compute all their slots;
    where their hidden activations are kept, only the product out of them is made again.
    """
    forward = forward_flops_per_token(shape)
    dense = forward.attention_projections + forward.shared_experts + forward.router
    out_of_latent = shape.layers * 2 * shape.hidden * shape.latent_width
    experts = forward.routed_experts - 2 * out_of_latent
    again = 1 / 3 if remat == "hidden" else 1
    routed = (3 + again) * capacity_factor * experts + 4 * out_of_latent + 3 * out_of_latent
    gates, outside = _gate_flops(shape)
    return {
        "head": 1.0,
        "routed": routed / (TRAINING_PASSES * forward.routed_experts) if forward.routed_experts else 1.0,
        "dense": 1 + (dense - forward.shared_experts / 3) / (TRAINING_PASSES * dense),
        "gates": 1 + (gates - outside) / (TRAINING_PASSES * gates) if gates else 1.0,
    }


def flop_terms(rung: Rung, costs: Costs, devices: int, capacity_factor: float, remat: str = "full") -> dict[str, Term]:
    """Return executed, analytic and expected FLOPs of each kind on one device; those of attention are reckoned."""
    shape = rung.shape
    tokens = rung.batch_seqs * shape.seq_len / devices
    forward = forward_flops_per_token(shape)
    executed: dict[str, float] = defaultdict(float)
    for name, flops in costs.by_op.items():
        found = re.search(r"\b(head|routed|gated_norm|attention_gate|muon)\b", name)
        kind = found.group(1) if found else "dense"
        executed["gates" if kind in ("gated_norm", "attention_gate") else kind] += flops
    executed["routed"] += costs.kernel_flops
    executed["attention"] = attention_flops(shape, rung.batch_seqs / devices)
    analytic = {
        "head": forward.head,
        "routed": forward.routed_experts,
        "dense": forward.attention_projections + forward.shared_experts + forward.router,
        "gates": _gate_flops(shape)[0],
        "attention": forward.attention_map,
    }
    factors = expected_factors(shape, capacity_factor, remat) | {"muon": 1.0}
    factors["attention"] = executed["attention"] / (TRAINING_PASSES * tokens * forward.attention_map)
    passes = {kind: TRAINING_PASSES * tokens * of for kind, of in analytic.items()}
    if rung.optimizer.muon is not None:
        passes["muon"] = muon_flops(shape, rung.optimizer.muon.newton_schulz_steps) / devices
    return {kind: Term(executed[kind], of, factors[kind]) for kind, of in passes.items()}


def _traffic(costs: Costs) -> list[Traffic]:
    runs: Counter[tuple[str, int]] = Counter()
    received: dict[tuple[str, int], float] = defaultdict(float)
    for each in costs.collectives:
        runs[each.kind, each.group] += each.trips
        received[each.kind, each.group] += each.trips * each.wire_bytes
    return [Traffic(kind, group, count, received[kind, group]) for (kind, group), count in sorted(runs.items())]


def report(request: Request, answer: Answer) -> Compiled:
    """Return what `answer` means for `request`."""
    chip, said = chip_named(request.topology.partition(":")[0]), answer.said
    costs = count_costs(parse_hlo(answer.program)) if answer.program else Costs()
    slots = request.capacity_factor if request.expert_axis > 1 else 1.0  # without an axis nothing has slots or drops
    terms = flop_terms(request.rung, costs, said["devices"], slots, request.remat) if answer.program else {}
    limit = said.get("hbm_limit", chip.usable_gib * GIB)
    kernels = costs.kernel_flops + (terms["attention"].executed if terms else 0.0)
    peak = chip.peak_flops / chip.devices
    ratio = (
        sum(each.executed for each in terms.values()) / sum(each.analytic for each in terms.values()) if terms else None
    )
    return Compiled(
        rung_id=request.rung.rung_id,
        name=request.rung.name,
        topology=request.topology,
        devices=said["devices"],
        mesh={"data": said["devices"] // request.expert_axis, "expert": request.expert_axis},
        backend=request.backend,
        capacity_factor=request.capacity_factor,
        accumulation=request.accumulation,
        remat=request.remat,
        fits=answer.program is not None and said["hbm_used"] <= limit,
        hbm_used=said["hbm_used"],
        hbm_limit=limit,
        terms=terms,
        flops_ratio=ratio,
        bytes=costs.bytes,
        collectives=_traffic(costs),
        xla_s=costs.cycles / CLOCK[chip.name] if chip.name in CLOCK else None,
        kernel_s=kernels / (KERNEL_EFFICIENCY * peak),
        wire_s=costs.wire_bytes * chip.devices / chip.ring_bytes_per_s,
        unknown_loops=costs.unknown_loops,
        compile_s=said["compile_s"],
        message=said["message"],
        versions=said["versions"],
    )
