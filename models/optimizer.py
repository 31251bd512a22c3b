"""AdamH for matrices and Adam for the rest, as one Optax transform whose rates are run-time arguments.

AdamH moves a matrix along Adam's direction and keeps its Frobenius norm: with W the matrix and u the direction,
W' = W - rate |W| u / |u|, then W'' = W' |W| / |W'|. The rate is thus relative to the norm. Each matrix of a stack of
experts has its own norm. Source: Marin's MoE recipe; the norms are taken over the last two axes, never over a stack.
"""

from enum import StrEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree


class Group(StrEnum):
    """How a parameter is trained."""

    ADAMH = "adamh"
    ADAM = "adam"


GROUPS: dict[str, Group] = {
    "embedding": Group.ADAM,
    "router": Group.ADAM,
    "attention_norm": Group.ADAM,
    "expert_norm": Group.ADAM,
    "head_norm": Group.ADAM,
    "qkv": Group.ADAMH,
    "out": Group.ADAMH,
    "gate_up": Group.ADAMH,
    "down": Group.ADAMH,
    "head": Group.ADAMH,
}


def parameter_groups(params: PyTree) -> PyTree:
    """Return the group of every leaf of `params`, by the name of the field that holds it.

    Raises ValueError for a field that GROUPS does not know, and for a vector in a group of matrices.
    """

    def group(path: Any, leaf: Array) -> Group:
        name = getattr(path[-1], "name", str(path[-1]))
        if name not in GROUPS:
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} is in no optimizer group; add {name!r} to GROUPS."
            )
        if GROUPS[name] is Group.ADAMH and leaf.ndim < 2:
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} has shape {leaf.shape}, which AdamH cannot train."
            )
        return GROUPS[name]

    return jax.tree_util.tree_map_with_path(group, params)


class Rates(NamedTuple):
    """What one update needs to know, as scalars that may be traced."""

    adamh: Float[Array, ""]
    adam: Float[Array, ""]
    beta1: Float[Array, ""]
    beta2: Float[Array, ""]
    epsilon: Float[Array, ""]


class AdamHState(NamedTuple):
    """Updates made, and Adam's two moments."""

    updates: Int[Array, ""]
    mean: PyTree
    square: PyTree


def _matrix_dot(a: Float[Array, "*E n m"], b: Float[Array, "*E n m"]) -> Float[Array, "*E 1 1"]:
    return jnp.sum(a * b, axis=(-2, -1), keepdims=True)


def adamh_step(
    w: Float[Array, "*E n m"], direction: Float[Array, "*E n m"], rate: Float[Array, ""]
) -> Float[Array, "*E n m"]:
    """Return what to add to each matrix in `w` to move it by `rate`, relative to its norm, and keep that norm.

    A zero direction or a zero matrix stays where it is.
    """
    norm2 = _matrix_dot(w, w)
    length2 = _matrix_dot(direction, direction)
    step = rate * jnp.sqrt(norm2 / jnp.where(length2 > 0, length2, 1.0))
    # |W'|^2 follows from the products at hand, which saves a pass over W'.
    moved2 = norm2 - 2 * step * _matrix_dot(w, direction) + step * step * length2
    scale = jnp.where((norm2 > 0) & (length2 > 0), jnp.sqrt(norm2 / jnp.where(moved2 > 0, moved2, 1.0)), 1.0)
    return scale * (w - step * direction) - w


def adamh(groups: PyTree) -> optax.GradientTransformationExtraArgs:
    """Return the transform; `groups` is what `parameter_groups` says. Its update takes `rates: Rates` by keyword."""

    def init(params: PyTree) -> AdamHState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamHState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: PyTree, state: AdamHState, params: PyTree | None = None, *, rates: Rates, **_: Any
    ) -> tuple[PyTree, AdamHState]:
        updates = state.updates + 1
        mean = jax.tree.map(lambda m, g: rates.beta1 * m + (1 - rates.beta1) * g, state.mean, grads)
        square = jax.tree.map(lambda s, g: rates.beta2 * s + (1 - rates.beta2) * g * g, state.square, grads)
        unbias1 = 1 - rates.beta1**updates
        unbias2 = 1 - rates.beta2**updates

        def step(group: Group, m: Array, s: Array, w: Array) -> Array:
            direction = (m / unbias1) / (jnp.sqrt(s / unbias2) + rates.epsilon)
            if group is Group.ADAM:
                return -rates.adam * direction
            return adamh_step(w, direction, rates.adamh)

        return jax.tree.map(step, groups, mean, square, params), AdamHState(updates, mean, square)

    return optax.GradientTransformationExtraArgs(init, update)


def clip_by_global_norm(grads: PyTree, limit: Float[Array, ""]) -> tuple[PyTree, Float[Array, ""]]:
    """Return `grads` scaled so that their joint norm is at most `limit`, and the norm they had."""
    norm = optax.global_norm(grads)
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * scale, grads), norm
