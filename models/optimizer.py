"""AdamH, MuonH, AdamW and Adam as one Optax transform whose rates are run-time arguments.

AdamH moves a matrix along Adam's direction and keeps its Frobenius norm: with W the matrix and u the direction,
W' = W - rate |W| u / |u|, then W'' = W' |W| / |W'|. The rate is thus relative to the norm. MuonH does the same along the
orthogonalised momentum. Each matrix of a stack of layers or experts has its own norm: norms are taken over the last two
axes, never over a stack. Source: Marin's MoE recipes.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from ladder.recipe_interface import MuonPlan
from models.groups import Group, Method, parameter_groups
from models.muon import orthogonalised


class Rates(NamedTuple):
    """What one update needs to know, as scalars that may be traced: the rate of each group, and Adam's constants."""

    matrix: Float[Array, ""]
    adamh: Float[Array, ""]
    adam: Float[Array, ""]
    beta1: Float[Array, ""]
    beta2: Float[Array, ""]
    epsilon: Float[Array, ""]
    weight_decay: Float[Array, ""]


class OptimizerState(NamedTuple):
    """Updates made, first moments (of MuonH the momentum) and second moments, which MuonH's matrices have not."""

    updates: Int[Array, ""]
    mean: PyTree
    square: PyTree


def _dots(left: list[Array], right: list[Array]) -> Float[Array, " matrices"]:
    """Return the inner product of each pair of matrices, those of all stacks after each other."""
    return jnp.concatenate([jnp.einsum("...nm,...nm->...", a, b).reshape(-1) for a, b in zip(left, right, strict=True)])


def norm_kept_steps(matrices: list[Array], directions: list[Array], rate: Float[Array, ""]) -> list[Array]:
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


def momentum_of(momentum: Array, grad: Array, plan: MuonPlan) -> tuple[Array, Array]:
    """Return MuonH's next momentum, m' = mu m + g, and what is orthogonalised: m', or mu m' + g with Nesterov's rule."""
    after = plan.momentum * momentum + grad
    return after, plan.momentum * after + grad if plan.nesterov else after


def optimizer_of(method: Method, params: PyTree) -> optax.GradientTransformationExtraArgs:
    """Return the transform for `params`, arrays or their shapes. Its update takes `rates: Rates` by keyword.

    Raises ValueError for a leaf that falls into no group.
    """
    groups = parameter_groups(params, method)
    kinds, structure = jax.tree.flatten(groups)

    def init(params: PyTree) -> OptimizerState:
        def second(group: Group, leaf: Array) -> Array | None:
            return None if group is Group.MUONH else jnp.zeros_like(leaf)

        return OptimizerState(
            jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), jax.tree.map(second, groups, params)
        )

    def update(
        grads: PyTree, state: OptimizerState, params: PyTree | None = None, *, rates: Rates, **_: Any
    ) -> tuple[PyTree, OptimizerState]:
        updates = state.updates + 1
        unbias1, unbias2 = 1 - rates.beta1**updates, 1 - rates.beta2**updates
        squares = iter(jax.tree.leaves(state.square))
        means, second, along = [], [], []
        for kind, m, g in zip(kinds, jax.tree.leaves(state.mean), jax.tree.leaves(grads), strict=True):
            if kind is Group.MUONH and method.muon is not None:
                mean, direction = momentum_of(m, g, method.muon)
                direction = orthogonalised(direction, method.muon.newton_schulz_steps, method.muon.epsilon)
                square = None
            else:
                mean = rates.beta1 * m + (1 - rates.beta1) * g
                square = rates.beta2 * next(squares) + (1 - rates.beta2) * g * g
                direction = (mean / unbias1) / (jnp.sqrt(square / unbias2) + rates.epsilon)
            means.append(mean)
            second.append(square)
            along.append(direction)
        # The barrier has the directions computed once; else each of the sums below would do so again.
        along = jax.lax.optimization_barrier(along)
        weights = jax.tree.leaves(params)
        changes = [-rates.adam * direction for direction in along]
        for kind, rate in ((Group.ADAMH, rates.adamh), (Group.MUONH, rates.matrix)):
            where = [index for index, each in enumerate(kinds) if each is kind]
            if where:
                moved = norm_kept_steps([weights[index] for index in where], [along[index] for index in where], rate)
                for index, change in zip(where, moved, strict=True):
                    changes[index] = change
        for index, kind in enumerate(kinds):
            if kind is Group.ADAMW:
                changes[index] = -rates.matrix * (along[index] + rates.weight_decay * weights[index])
        changed, mean, square = (jax.tree.unflatten(structure, leaves) for leaves in (changes, means, second))
        return changed, OptimizerState(updates, mean, square)

    return optax.GradientTransformationExtraArgs(init, update)


def clip_by_global_norm(grads: PyTree, limit: Float[Array, ""]) -> tuple[PyTree, Float[Array, ""]]:
    """Return `grads` scaled so that their joint norm is at most `limit`, 0 for no limit, and the norm they had."""
    norm = optax.global_norm(grads)
    scale = jnp.where(limit > 0, jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12)), 1.0)
    return jax.tree.map(lambda g: g * scale, grads), norm
