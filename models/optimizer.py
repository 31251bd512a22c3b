"""AdamH for matrices and Adam for the rest, as one Optax transform whose rates are run-time arguments.

AdamH moves a matrix along Adam's direction and keeps its Frobenius norm: with W the matrix and u the direction,
W' = W - rate |W| u / |u|, then W'' = W' |W| / |W'|. The rate is thus relative to the norm. Each matrix of a stack of
experts has its own norm. Source: Marin's MoE recipe; the norms are taken over the last two axes, never over a stack.
"""

import math
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


# Marin's: matrices and GatedNorms keep their norms; embedding, router, attention gate, gains and convolutions do not.
GROUPS: dict[str, Group] = {
    "embedding": Group.ADAM,
    "router": Group.ADAM,
    "attention_norm": Group.ADAM,
    "expert_norm": Group.ADAM,
    "head_norm": Group.ADAM,
    "embedding_norm": Group.ADAM,
    "latent_norm": Group.ADAM,
    "query_gain": Group.ADAM,
    "key_gain": Group.ADAM,
    "gate": Group.ADAM,
    "key_conv": Group.ADAM,
    "out_conv": Group.ADAM,
    "mlp_conv": Group.ADAM,
    "qkv": Group.ADAMH,
    "out": Group.ADAMH,
    "gate_up": Group.ADAMH,
    "down": Group.ADAMH,
    "head": Group.ADAMH,
    "latent_down": Group.ADAMH,
    "latent_up": Group.ADAMH,
    "norm_down": Group.ADAMH,
    "norm_up": Group.ADAMH,
}


def group_of(path: Any, leaf: Array) -> Group:
    """Return the group of the leaf at `path`, by the name of the field that holds it.

    Raises ValueError for a field that GROUPS does not know, and for a vector in a group of matrices.
    """
    name = getattr(path[-1], "name", str(path[-1]))
    if name not in GROUPS:
        raise ValueError(f"parameter {jax.tree_util.keystr(path)} is in no optimizer group; add {name!r} to GROUPS.")
    if GROUPS[name] is Group.ADAMH and leaf.ndim < 2:
        raise ValueError(f"parameter {jax.tree_util.keystr(path)} has shape {leaf.shape}, which AdamH cannot train.")
    return GROUPS[name]


def parameter_groups(params: PyTree) -> PyTree:
    """Return the group of every leaf of `params`; raises what `group_of` raises."""
    return jax.tree_util.tree_map_with_path(group_of, params)


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


def _dots(left: list[Array], right: list[Array]) -> Float[Array, " matrices"]:
    """Return the inner product of each pair of matrices, those of all stacks after each other."""
    return jnp.concatenate([jnp.einsum("...nm,...nm->...", a, b).reshape(-1) for a, b in zip(left, right, strict=True)])


def adamh_steps(matrices: list[Array], directions: list[Array], rate: Float[Array, ""]) -> list[Array]:
    """Return what to add to each matrix to move it by `rate`, relative to its norm, and keep that norm.

    Arguments:
        matrices: arrays [..., n, m]; leading axes stack matrices, each with its own norm.
        directions: one for each, of the same shape.

    A zero direction or a zero matrix stays where it is. The scalars of all matrices are worked out together, since
    a kernel for each would take longer to compile than all the rest of the optimizer.
    """
    norm2, length2 = _dots(matrices, matrices), _dots(directions, directions)
    step = rate * jnp.sqrt(norm2 / jnp.where(length2 > 0, length2, 1.0))
    # |W'|^2 follows from the products at hand, which saves a pass over W'.
    moved2 = norm2 - 2 * step * _dots(matrices, directions) + step * step * length2
    scale = jnp.where((norm2 > 0) & (length2 > 0), jnp.sqrt(norm2 / jnp.where(moved2 > 0, moved2, 1.0)), 1.0)
    deltas, first = [], 0
    for w, direction in zip(matrices, directions, strict=True):
        stack = (*w.shape[:-2], 1, 1)
        last = first + math.prod(stack)
        along = (scale * step)[first:last].reshape(stack)
        deltas.append((scale - 1)[first:last].reshape(stack) * w - along * direction)
        first = last
    return deltas


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

        # The barrier has the directions computed once; else each of the sums below would do so again.
        moments = zip(jax.tree.leaves(mean), jax.tree.leaves(square), strict=True)
        along: list[Array] = jax.lax.optimization_barrier(
            [(m / unbias1) / (jnp.sqrt(s / unbias2) + rates.epsilon) for m, s in moments]
        )
        kinds, structure = jax.tree.flatten(groups)
        weights = jax.tree.leaves(params)
        hyper = [index for index, kind in enumerate(kinds) if kind is Group.ADAMH]
        changes = [-rates.adam * direction for direction in along]
        moved = adamh_steps([weights[index] for index in hyper], [along[index] for index in hyper], rates.adamh)
        for index, change in zip(hyper, moved, strict=True):
            changes[index] = change
        return jax.tree.unflatten(structure, changes), AdamHState(updates, mean, square)

    return optax.GradientTransformationExtraArgs(init, update)


def clip_by_global_norm(grads: PyTree, limit: Float[Array, ""]) -> tuple[PyTree, Float[Array, ""]]:
    """Return `grads` scaled so that their joint norm is at most `limit`, and the norm they had."""
    norm = optax.global_norm(grads)
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * scale, grads), norm
