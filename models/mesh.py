"""The mesh of a pod and where each parameter lives on it: FSDP over data and expert axes, experts over their own.

The axes bear the names that Levanter's expert-parallel layers look for. A batch is split over `replica_dcn`, `data` and
`expert`; a matrix over `data` on its input side and `expert` on its output side; a stack of experts over `expert` first.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from ladder.errors import InputError
from ladder.shape import MoeShape

AXES = ("replica_dcn", "data", "context", "expert", "model")
BATCH = ("replica_dcn", "data", "expert")

# By the name of the field, with the part that holds it where two parts have the same; the leading axis of layers is
# never split. What is not named is a vector or a convolution, and replicated.
SPECS: dict[str, P] = {
    "embedding": P("expert", "data"),
    "head": P("data", "expert"),
    "qkv": P(None, "data", "expert"),
    "out": P(None, "expert", "data"),
    "gate": P(None, "data", None),
    "router": P(None, "data", None),
    "norm_down": P(None, "data", "expert"),
    "norm_up": P(None, "expert", "data"),
    "latent_down": P(None, "data", "expert"),
    "latent_up": P(None, "expert", "data"),
    "experts.gate_up": P(None, "expert", "data", None),
    "experts.down": P(None, "expert", None, "data"),
    "shared.gate_up": P(None, None, "data", "expert"),
    "shared.down": P(None, None, "expert", "data"),
}


def make_mesh(devices: Sequence[Any], *, expert: int = 1) -> Mesh:
    """Return the mesh of `devices` with `expert` of them along the expert axis, neighbours first.

    Raises InputError when `expert` does not divide the devices.
    """
    if len(devices) % expert:
        raise InputError(f"an expert axis of {expert} does not divide {len(devices)} devices; use a divisor.")
    grid = np.array(devices, dtype=object).reshape(1, len(devices) // expert, 1, expert, 1)
    return Mesh(grid, AXES, axis_types=(AxisType.Explicit,) * len(AXES))


def check_mesh(shape: MoeShape, mesh: Mesh, batch_seqs: int) -> None:
    """Raise InputError, naming both numbers, when the mesh does not divide experts or batch, or widths are too small."""
    data, expert = mesh.shape["data"], mesh.shape["expert"]
    if shape.experts % expert:
        raise InputError(f"an expert axis of {expert} does not divide {shape.experts} experts; use a divisor of them.")
    if batch_seqs % mesh.size:
        raise InputError(
            f"{batch_seqs} sequences do not divide over {mesh.size} devices; take a smaller slice or a larger batch."
        )
    if shape.hidden < data:
        raise InputError(f"hidden={shape.hidden} is smaller than the data axis of {data}; take a smaller slice.")


def spec_of(path: Any, leaf: Any) -> P:
    """Return where the leaf at `path` lives, the same for its moments. Vectors, and gates outside layers, are replicated."""
    names = [str(getattr(key, "name", "")) for key in path[-2:]]
    spec = SPECS.get(".".join(names)) or SPECS.get(names[-1] if names else "")
    return spec if spec is not None and len(spec) == leaf.ndim else P(*(None,) * leaf.ndim)


def fitting(spec: P, dims: Sequence[int], mesh: Mesh) -> P:
    """Return `spec` without the axes that do not divide their dimension: explicit sharding allows no remainder."""
    kept = []
    for axis, size in zip(spec, dims, strict=True):
        kept.append(axis if axis is not None and size % mesh.shape[axis] == 0 else None)
    return P(*kept)


def shardings(tree: PyTree, mesh: Mesh) -> PyTree:
    """Return the sharding of every leaf of `tree`, arrays or their shapes."""

    def place(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, fitting(spec_of(path, leaf), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)
