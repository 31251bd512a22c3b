"""The optimizer's update of parameters split over a mesh: what `models.optimizer` does, leaf by leaf.

There the scalars of all matrices are worked out together; here each leaf keeps its own, since they lie on different
devices. Tests hold the two to each other.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from models.groups import Group, Method, group_of
from models.muon import orthogonalised_on_mesh
from models.optimizer import OptimizerState, Rates, momentum_of
from models.transformer import Transformer


def norm_kept(
    w: Float[Array, "*n r c"], direction: Float[Array, "*n r c"], rate: Float[Array, ""]
) -> Float[Array, "*n r c"]:
    """Return each matrix of `w` moved by `rate`, relative to its norm, along `direction`, and brought back to its norm.

    A zero direction or a zero matrix stays where it is.
    """
    if not w.size:
        return w

    def norm(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True))

    length = norm(direction)
    moved = w - rate * norm(w) * direction / jnp.where(length > 0, length, 1.0)
    after = norm(moved)
    return jnp.where((length > 0) & (after > 0), moved * norm(w) / jnp.where(after > 0, after, 1.0), w)


def update_on_mesh(
    params: Transformer, grads: Transformer, state: OptimizerState, rates: Rates, method: Method, mesh: Mesh
) -> tuple[Transformer, OptimizerState]:
    """Return the parameters after one update, and the state of the optimizer."""
    updates = state.updates + 1
    unbias1, unbias2 = 1 - rates.beta1**updates, 1 - rates.beta2**updates
    squares: Iterator[Array] = iter(jax.tree.leaves(state.square))
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    found = []
    for (path, w), m, g in zip(leaves, jax.tree.leaves(state.mean), jax.tree.leaves(grads), strict=True):
        kind = group_of(path, w, method)
        if kind is Group.MUONH and method.muon is not None:
            mean, direction = momentum_of(m, g, method.muon)
            with jax.named_scope("muon"):
                direction = orthogonalised_on_mesh(
                    direction, method.muon.newton_schulz_steps, method.muon.epsilon, mesh
                )
            found.append((norm_kept(w, direction, rates.matrix), mean, None))
            continue
        mean = rates.beta1 * m + (1 - rates.beta1) * g
        square = rates.beta2 * next(squares) + (1 - rates.beta2) * g * g
        direction = (mean / unbias1) / (jnp.sqrt(square / unbias2) + rates.epsilon)
        match kind:
            case Group.ADAMH:
                after = norm_kept(w, direction, rates.adamh)
            case Group.ADAMW:
                after = w - rates.matrix * (direction + rates.weight_decay * w)
            case _:
                after = w - rates.adam * direction
        found.append((after, mean, square))
    after, means, second = (jax.tree.unflatten(structure, list(part)) for part in zip(*found, strict=True))
    return after, OptimizerState(updates, means, second)
