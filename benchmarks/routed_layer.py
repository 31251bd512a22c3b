"""The routed layer of a pod beside Levanter's own, compiled for a TPU slice: FLOPs, temporary memory, bytes.

Gradient of one SwiGLU layer in bf16 on v5p:2x2x2: 8192 tokens a chip, width 2048, 64 experts of 1024, top-4, capacity
factor 1.25, an expert axis of 4 (FSDP: none). Needs `make setup-tpu`; some minutes. Prints one line of JSON:

    {"scatter": {"flops_ratio": ours over Levanter's, "temp_ratio": ..., "bytes_ratio": ..., "flops": ..., ...}, ...}
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models.compile_plan import BACKENDS
from models.experts import Experts
from models.hlo import parse_hlo
from models.hlo_costs import count_costs
from models.mesh import BATCH, make_mesh
from models.pod_child import tpu_devices
from models.pod_layers import PodOptions
from models.pod_moe import routed_experts

TOKENS, WIDTH, INNER, EXPERTS, TOP_K, FACTOR = 8 * 8192, 2048, 1024, 64, 4, 1.25
TOPOLOGY = "v5p:2x2x2"


def compiled(layer: Any, mesh: Mesh) -> dict[str, float]:
    """Return what one device does in a gradient of `layer`(x, chosen, weights, gate_up, down)."""

    def shaped(dims: tuple[int, ...], kind: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, kind, sharding=NamedSharding(mesh, spec))

    rows = P(BATCH, None)
    arguments = (
        shaped((TOKENS, WIDTH), jnp.bfloat16, rows),
        shaped((TOKENS, TOP_K), jnp.int32, rows),
        shaped((TOKENS, TOP_K), jnp.bfloat16, rows),
        shaped((EXPERTS, WIDTH, 2 * INNER), jnp.bfloat16, P("expert", "data", None)),
        shaped((EXPERTS, INNER, WIDTH), jnp.bfloat16, P("expert", "data", None)),
    )

    def total(*given: jax.Array) -> jax.Array:
        return jnp.sum(layer(*given).astype(jnp.float32) ** 2)

    with jax.set_mesh(mesh):
        program = jax.jit(jax.grad(total, argnums=(0, 2, 3, 4))).lower(*arguments).compile()
    costs, memory = count_costs(parse_hlo(program.as_text() or "")), program.memory_analysis()
    assert memory is not None
    return {
        "flops": costs.matmul_flops + costs.kernel_flops,
        "temp_bytes": float(memory.temp_size_in_bytes),
        "bytes": costs.bytes,
        "wire_bytes": costs.wire_bytes,
    }


def compared(backend: str) -> dict[str, Any]:
    """Return our layer and Levanter's under one backend, and the ratios of what both need."""
    from levanter.grug.grug_moe import moe_mlp

    mesh = make_mesh(tpu_devices(TOPOLOGY), expert=1 if backend == "scatter" else 4)
    options = PodOptions(backend, FACTOR)

    def ours(x: Any, chosen: Any, weights: Any, gate_up: Any, down: Any) -> jax.Array:
        return routed_experts(Experts(gate_up, down), x, chosen, weights, mesh, options)[0]

    def theirs(x: Any, chosen: Any, weights: Any, gate_up: Any, down: Any) -> Any:
        return moe_mlp(x, chosen, weights, gate_up, down, implementation=backend, mesh=mesh, capacity_factor=FACTOR)

    found, other = compiled(ours, mesh), compiled(theirs, mesh)
    ratios = {
        f"{name.removesuffix('_bytes')}_ratio": round(found[name] / other[name], 4) for name in found if other[name]
    }
    return {**ratios, "ours": found, "levanter": other}


def main() -> None:
    """Compile every backend both ways and print the document."""
    parser = argparse.ArgumentParser(description="The routed layer beside Levanter's, compiled for a TPU slice.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="not needed; there for uniformity")
    parser.parse_args()
    print(json.dumps({backend: compared(backend) for backend in BACKENDS.values()}))


if __name__ == "__main__":
    main()
