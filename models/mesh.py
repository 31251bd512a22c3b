"""The mesh of a pod and where each parameter lives on it: FSDP over data and expert axes, experts over their own.

The axes bear the names that Levanter's expert-parallel layers look for. A batch is split over `replica_dcn`, `data` and
`expert`; a matrix over both of the latter, a stack of experts over `expert` first.
"""

import math
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

ALL = ("data", "expert")


def _split(*dims: Any) -> P:
    return P(None, *dims)  # the leading axis of layers is never split


# By the name of the field, with the part that holds it where two parts have the same: the first whose axes divide its
# dimensions. What is split along one dimension alone has its gradient reduced and scattered at once; along two, the
# compiler reduces all of it everywhere, twice the bytes, and then keeps a part. What is not named is a vector or a
# convolution, and replicated.
SPECS: dict[str, tuple[P, ...]] = {
    "embedding": (P("expert", "data"),),
    "head": (P("data", "expert"),),
    "qkv": (_split(ALL, None), _split("data", "expert")),
    "out": (_split(ALL, None), _split("expert", "data")),
    "gate": (_split(ALL, None), _split("data", None)),
    "router": (_split(ALL, None), _split("data", None)),
    "norm_down": (_split(ALL, None), _split("data", "expert")),
    "norm_up": (_split(None, ALL), _split("expert", "data")),
    "latent_down": (_split(ALL, None), _split("data", "expert")),
    "latent_up": (_split(ALL, None), _split("expert", "data")),
    "experts.gate_up": (_split("expert", "data", None),),
    "experts.down": (_split("expert", "data", None), _split("expert", None, "data")),
    "shared.gate_up": (_split(None, ALL, None), _split(None, "data", "expert")),
    "shared.down": (_split(None, ALL, None), _split(None, "expert", "data")),
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


def spec_of(path: Any, dims: Sequence[int], mesh: Mesh) -> P:
    """Return where a leaf of size `dims` at `path` lives on `mesh`, the same for its moments.

    Vectors, and gates outside layers, are replicated. Explicit sharding allows no remainder: where no choice divides,
    the axes of the last that do not are left out.
    """
    names = [str(getattr(key, "name", "")) for key in path[-2:]]
    choices = SPECS.get(".".join(names)) or SPECS.get(names[-1] if names else "") or ()
    for spec in choices:
        if len(spec) == len(dims) and _fitting(spec, dims, mesh) == spec:
            return spec
    last = choices[-1] if choices and len(choices[-1]) == len(dims) else P(*(None,) * len(dims))
    return _fitting(last, dims, mesh)


def _fitting(spec: P, dims: Sequence[int], mesh: Mesh) -> P:
    """Return `spec` without the axes that do not divide their dimension."""
    kept = []
    for axis, size in zip(spec, dims, strict=True):
        parts = math.prod(mesh.shape[name] for name in ((axis,) if isinstance(axis, str) else axis or ()))
        kept.append(axis if size % parts == 0 else None)
    return P(*kept)


def shardings(tree: PyTree, mesh: Mesh) -> PyTree:
    """Return the sharding of every leaf of `tree`, arrays or their shapes."""

    def place(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec_of(path, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)


def place_rows(rows: np.ndarray, mesh: Mesh, *, parts: bool = False) -> jax.Array:
    """Return rows of tokens, the same on every process, as one array split over the devices of `mesh`.

    With `parts`, the first axis is of the parts of a step and the rows lie along the second.
    """
    spec = P(None, BATCH, *(None,) * (rows.ndim - 2)) if parts else P(BATCH, *(None,) * (rows.ndim - 1))

    def own(index: Any) -> np.ndarray:
        part: np.ndarray = rows[index]
        return part

    return jax.make_array_from_callback(rows.shape, NamedSharding(mesh, spec), own)
