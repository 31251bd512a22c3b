"""One training step of a pod: forward, chunked loss, backward, clip, AdamH and Adam, in one donated program."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PyTree

from ladder.recipe_interface import RouterPlan
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.mesh import BATCH, check_mesh, shardings
from models.optimizer import Group, clip_by_global_norm, group_of
from models.pod import hidden_states
from models.pod_layers import PodOptions
from models.pod_loss import chunked_loss
from models.schedule import wsd
from models.support import TINY_ROUTER
from models.train import Hyperparams
from models.transformer import RouterStats, Transformer


class PodState(eqx.Module):
    """All that changes while training."""

    params: Transformer
    mean: Transformer
    square: Transformer
    bias: Float[Array, "L E"]
    step: Int[Array, ""]


class PodMetrics(NamedTuple):
    """Of one step: cross-entropy in nats per token, gradient norm before the clip, dropped share of the choices."""

    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    drop_fraction: Float[Array, ""]


def initial_state(shape: MoeShape, seed: Int[Array, ""], router: RouterPlan = TINY_ROUTER) -> PodState:
    """Return the state before the first step."""
    params = Transformer.init(shape, router, key=jax.random.key(seed))
    zeros = jax.tree.map(jnp.zeros_like, params)
    return PodState(params, zeros, zeros, jnp.zeros((shape.layers, shape.experts)), jnp.int32(0))


def _placed(tree: PyTree, places: PyTree) -> PyTree:
    """Return the shapes in `tree` with the shardings in `places`."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, places
    )


def _update(path: Any, w: Array, m: Array, s: Array, adamh_lr: Array, adam_lr: Array, hyper: Hyperparams) -> Array:
    """Return the new weights: along Adam's direction, for AdamH with the norm of each matrix kept."""
    direction = m / (jnp.sqrt(s) + hyper.epsilon)
    if group_of(path, w) is Group.ADAM:
        return w - adam_lr * direction
    if not math.prod(w.shape):
        return w

    def norm(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True))

    length = norm(direction)
    moved = w - adamh_lr * norm(w) * direction / jnp.where(length > 0, length, 1.0)
    after = norm(moved)
    return jnp.where((length > 0) & (after > 0), moved * norm(w) / jnp.where(after > 0, after, 1.0), w)


def _gradients(
    params: Transformer, bias: Array, tokens: Int[Array, "B S1"], rung: Rung, mesh: Mesh, options: PodOptions
) -> tuple[tuple[Array, RouterStats], Transformer]:
    """Return the cross-entropy, what the routers did, and the gradient on one part of a batch."""

    def objective(params: Transformer) -> tuple[Array, tuple[Array, RouterStats]]:
        states, stats = hidden_states(params, bias, tokens[:, :-1], mesh, options)
        flat = states.reshape(-1, rung.shape.hidden, out_sharding=P(BATCH, None))
        labels = tokens[:, 1:].reshape(-1, out_sharding=P(BATCH))
        with jax.named_scope("head"):
            total, entropy = chunked_loss(flat, params.head, labels, rung.optimizer.z_loss, options.chunk, mesh)
        return total + jnp.sum(stats.penalty), (entropy, stats)

    (_, found), grads = jax.value_and_grad(objective, has_aux=True)(params)
    return found, grads


def pod_step(
    state: PodState, tokens: Int[Array, "A B S1"], hyper: Hyperparams, rung: Rung, mesh: Mesh, options: PodOptions
) -> tuple[PodState, PodMetrics]:
    """Return the state after one step on A parts of a batch, rows of S + 1 tokens; gradients are means over parts.

    The balance of the next step is the mean of what each part asks for.
    """
    parts = tokens.shape[0]

    def part(total: PyTree, tokens: Array) -> tuple[PyTree, None]:
        found = _gradients(state.params, state.bias, tokens, rung, mesh, options)
        return jax.tree.map(lambda sum_, new: sum_ + new.astype(sum_.dtype) / parts, total, found), None

    if parts == 1:
        (loss, stats), grads = _gradients(state.params, state.bias, tokens[0], rung, mesh, options)
    else:
        shapes = jax.eval_shape(lambda: _gradients(state.params, state.bias, tokens[0], rung, mesh, options))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32, device=leaf.sharding), shapes)
        ((loss, stats), grads), _ = jax.lax.scan(part, zeros, tokens)
    grads, norm = clip_by_global_norm(grads, hyper.clip_norm)
    updates = state.step + 1
    unbias1, unbias2 = 1 - hyper.beta1**updates, 1 - hyper.beta2**updates
    mean = jax.tree.map(lambda m, g: hyper.beta1 * m + (1 - hyper.beta1) * g, state.mean, grads)
    square = jax.tree.map(lambda s, g: hyper.beta2 * s + (1 - hyper.beta2) * g * g, state.square, grads)
    fraction = wsd(state.step, hyper.steps, hyper.warmup_fraction, hyper.decay_fraction, hyper.final_fraction)
    params = jax.tree_util.tree_map_with_path(
        lambda path, w, m, s: _update(
            path, w, m / unbias1, s / unbias2, fraction * hyper.adamh_lr, fraction * hyper.adam_lr, hyper
        ),
        state.params,
        mean,
        square,
    )
    choices = tokens[0, :, 1:].size * rung.shape.top_k
    after = PodState(params, mean, square, stats.next_bias, state.step + 1)
    return after, PodMetrics(loss, norm, jnp.mean(stats.dropped) / choices)


def lower_step(rung: Rung, mesh: Mesh, options: PodOptions) -> Any:
    """Return the whole step of `rung` on `mesh`, lowered and ready to be compiled."""
    check_mesh(rung.shape, mesh, rung.batch_seqs // options.accumulation)
    state: Any = jax.eval_shape(lambda: initial_state(rung.shape, jnp.int32(0), rung.router))
    state = _placed(state, shardings(state, mesh))
    everywhere = NamedSharding(mesh, P())
    dims = (options.accumulation, rung.batch_seqs // options.accumulation, rung.shape.seq_len + 1)
    tokens = jax.ShapeDtypeStruct(dims, jnp.int32, sharding=NamedSharding(mesh, P(None, BATCH, None)))
    hyper: Any = jax.eval_shape(lambda: Hyperparams.of(rung))
    hyper = _placed(hyper, jax.tree.map(lambda _: everywhere, hyper))

    def step(state: PodState, tokens: Array, hyper: Hyperparams) -> tuple[PodState, PodMetrics]:
        return pod_step(state, tokens, hyper, rung, mesh, options)

    metrics: Any = [everywhere] * len(PodMetrics._fields)
    out = (jax.tree.map(lambda leaf: leaf.sharding, state), PodMetrics(*metrics))
    with jax.set_mesh(mesh):
        return jax.jit(step, donate_argnums=0, out_shardings=out).lower(state, tokens, hyper)
