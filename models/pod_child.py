"""The process that compiles one step for a TPU: `python -m models.pod_child REQUEST ANSWER`."""

import json
import re
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from ladder.chips import GIB, chip_named
from ladder.errors import InputError
from ladder.flops import TRAINING_PASSES, forward_flops_per_token
from ladder.records import to_plain
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.hlo import parse_hlo
from models.hlo_costs import Costs, count_costs
from models.mesh import make_mesh
from models.pod_attention import BLOCK
from models.pod_compile import Compiled, Term, Traffic
from models.pod_moe import PodOptions
from models.pod_step import lower_step

# Clock in Hz: 459 TF over 262,144 FLOPs a cycle for v5p, which the compiler's estimate of a large product confirms to
# 4 %; v4 and v5e as published. v6e and tpu7x are not known: their cycles give no time.
CLOCK = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9}
KERNEL_EFFICIENCY = 0.6  # of peak, assumed for hand-written kernels
# Products of an attention kernel: 2 forward, 2 again for the backward pass, 4 for keys and values, 3 for queries.
ATTENTION_PRODUCTS = 11


def attention_flops(shape: MoeShape, sequences: float, *, remat: bool) -> float:
    """Return the FLOPs of the attention kernels in one step: whole blocks of BLOCK x BLOCK that a mask touches."""
    block = min(BLOCK, shape.seq_len)
    rows, reach = shape.seq_len // block, -(-shape.attention.window // block)
    on_global = shape.attention.global_layers(shape.layers)
    everything = rows * (rows + 1) // 2
    near = sum(min(row + 1, reach + 1) for row in range(rows)) if shape.attention.window else everything
    blocks = on_global * everything + (shape.layers - on_global) * near
    products = ATTENTION_PRODUCTS if remat else ATTENTION_PRODUCTS - 2
    return sequences * products * 2 * block * block * shape.head_dim * shape.heads * blocks


def flop_terms(rung: Rung, costs: Costs, devices: int) -> dict[str, Term]:
    """Return executed and analytic FLOPs of each kind on one device."""
    shape = rung.shape
    tokens = rung.batch_seqs * shape.seq_len / devices
    forward = forward_flops_per_token(shape)
    executed: dict[str, float] = defaultdict(float)
    for name, flops in costs.by_op.items():
        found = re.search(r"\b(head|routed|gated_norm|attention_gate)\b", name)
        kind = found.group(1) if found else "dense"
        executed["gates" if kind in ("gated_norm", "attention_gate") else kind] += flops
    executed["routed"] += costs.kernel_flops
    executed["attention"] = attention_flops(shape, rung.batch_seqs / devices, remat=True)
    gates = 2 * (2 * shape.hidden * shape.gated_norm_rank * shape.norms)
    gates += 2 * shape.layers * shape.hidden * shape.heads * shape.attention.gate
    analytic = {
        "head": forward.head,
        "routed": forward.routed_experts,
        "dense": forward.attention_projections + forward.shared_experts + forward.router,
        "gates": gates,
        "attention": forward.attention_map,
    }
    return {kind: Term(executed[kind], TRAINING_PASSES * tokens * of) for kind, of in analytic.items()}


def _traffic(costs: Costs) -> list[Traffic]:
    runs: Counter[tuple[str, int]] = Counter()
    received: dict[tuple[str, int], float] = defaultdict(float)
    for each in costs.collectives:
        runs[each.kind, each.group] += each.trips
        received[each.kind, each.group] += each.trips * each.wire_bytes
    return [Traffic(kind, group, count, received[kind, group]) for (kind, group), count in sorted(runs.items())]


def _gib(number: str, unit: str) -> float:
    return float(number) * {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[unit]


def _devices(topology: str) -> Any:
    from jax.experimental import topologies

    chip = chip_named(topology.partition(":")[0])
    chip.chips_in(topology)
    options = {"chip_config_name": "megacore"} if chip.name == "v4" else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices


def compile_step(data: dict[str, Any]) -> Compiled:
    """Compile what the request in `data` asks for and return what was found."""
    rung, topology = Rung.from_plain(data["rung"], "the request"), data["topology"]
    chip = chip_named(topology.partition(":")[0])
    devices = _devices(topology)
    mesh = make_mesh(devices, expert=data["expert_axis"])
    options = PodOptions(data["backend"], data["capacity_factor"], accumulation=data["accumulation"])
    start = time.monotonic()
    lowered = lower_step(rung, mesh, options)
    blank = Compiled(
        rung_id=rung.rung_id,
        name=rung.name,
        topology=topology,
        devices=len(devices),
        mesh={"data": mesh.shape["data"], "expert": mesh.shape["expert"]},
        backend=options.backend,
        capacity_factor=options.capacity_factor,
        accumulation=options.accumulation,
        fits=False,
        hbm_used=0.0,
        hbm_limit=0.0,
        terms={},
        flops_ratio=0.0,
        bytes=0.0,
        collectives=[],
        roofline_step_s=0.0,
        xla_s=0.0,
        kernel_s=0.0,
        wire_s=0.0,
        compile_s=0.0,
        message="",
        versions={name: version(name) for name in ("jax", "libtpu", "marin-levanter")},
    )
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or not found:
            raise
        used, limit = _gib(*found.group(1, 2)), _gib(*found.group(3, 4))
        return replace(
            blank, hbm_used=used, hbm_limit=limit, compile_s=time.monotonic() - start, message=str(error)[:500]
        )
    seconds = time.monotonic() - start
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes
    used += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    costs = count_costs(parse_hlo(compiled.as_text()))
    terms = flop_terms(rung, costs, len(devices))
    executed = sum(term.executed for term in terms.values())
    kernels = costs.kernel_flops + terms["attention"].executed
    xla_s = costs.cycles / CLOCK[chip.name] if chip.name in CLOCK else 0.0
    kernel_s = kernels / (KERNEL_EFFICIENCY * chip.peak_flops / chip.devices)
    wire_s = costs.wire_bytes / chip.ring_bytes_per_s * chip.devices
    return replace(
        blank,
        fits=used <= chip.usable_gib * GIB,
        hbm_used=float(used),
        hbm_limit=chip.usable_gib * GIB,
        terms=terms,
        flops_ratio=executed / sum(term.analytic for term in terms.values()),
        bytes=costs.bytes,
        collectives=_traffic(costs),
        roofline_step_s=xla_s + kernel_s + wire_s,
        xla_s=xla_s,
        kernel_s=kernel_s,
        wire_s=wire_s,
        compile_s=seconds,
    )


def main(asked: Path, answer: Path) -> None:
    """Answer the request in `asked`; what cannot be compiled at all is answered with the reason."""
    try:
        data = to_plain(compile_step(json.loads(asked.read_text())))
    except InputError as error:
        data = {"refused": str(error)}
    answer.write_text(json.dumps(data))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
