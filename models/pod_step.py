"""One training step of a pod: forward, chunked loss, backward, clip, AdamH and Adam, in one donated program."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PyTree

from ladder.rung import Rung
from ladder.shape import MoeShape
from models.mesh import BATCH, shardings
from models.pod import Pod, PodOptions, hidden_states
from models.pod_loss import chunked_loss
from models.schedule import wsd
from models.train import Hyperparams

# By the name of the field, as in models.optimizer: matrices that AdamH trains; the rest is Adam's.
ADAMH = frozenset(("query", "key", "value", "out", "gate_up", "down", "shared_gate_up", "shared_down", "head"))
ADAMH |= {"gate_in", "gate_out"}
ADAM = frozenset(("embedding", "router", "gain", "attention_gate"))


class PodState(eqx.Module):
    """All that changes while training."""

    params: Pod
    mean: Pod
    square: Pod
    bias: Float[Array, "L E"]
    step: Int[Array, ""]


class PodMetrics(NamedTuple):
    """Of one step: cross-entropy in nats per token, gradient norm before the clip, dropped share of the choices."""

    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    drop_fraction: Float[Array, ""]


def abstract_state(shape: MoeShape, mesh: Mesh) -> PodState:
    """Return the shapes and shardings of a state, for compilation without memory."""
    params = Pod.shaped(shape)
    bias = jax.ShapeDtypeStruct((shape.layers, shape.experts), jnp.float32)
    state = PodState(params, params, params, bias, jax.ShapeDtypeStruct((), jnp.int32))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        shardings(state, mesh),
    )


def _update(path: Any, w: Array, m: Array, s: Array, adamh_lr: Array, adam_lr: Array, hyper: Hyperparams) -> Array:
    """Return the new weights: along Adam's direction, for AdamH with the norm of each matrix kept."""
    name = next(key.name for key in reversed(path) if hasattr(key, "name"))
    direction = m / (jnp.sqrt(s) + hyper.epsilon)
    if name in ADAM:
        return w - adam_lr * direction
    if name not in ADAMH:
        raise ValueError(f"parameter {jax.tree_util.keystr(path)} is in no optimizer group; add {name!r} to one.")
    if not math.prod(w.shape):
        return w

    def norm(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True))

    length = norm(direction)
    moved = w - adamh_lr * norm(w) * direction / jnp.where(length > 0, length, 1.0)
    after = norm(moved)
    return jnp.where((length > 0) & (after > 0), moved * norm(w) / jnp.where(after > 0, after, 1.0), w)


def pod_step(
    state: PodState, tokens: Int[Array, "B S1"], hyper: Hyperparams, shape: MoeShape, mesh: Mesh, options: PodOptions,
    z_loss: float,
) -> tuple[PodState, PodMetrics]:
    """Return the state after one step on rows of S + 1 tokens."""

    def objective(params: Pod) -> tuple[Array, tuple[Array, Any]]:
        states, stats = hidden_states(params, state.bias, tokens[:, :-1], shape, mesh, options)
        flat = states.reshape(-1, shape.hidden, out_sharding=P(BATCH, None))
        labels = tokens[:, 1:].reshape(-1, out_sharding=P(BATCH))
        total, entropy = chunked_loss(flat, params.head, labels, z_loss, options.chunk, mesh)
        return total, (entropy, stats)

    (_, (loss, stats)), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
    norm = jnp.sqrt(sum(jnp.sum(g.astype(jnp.float32) ** 2) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, hyper.clip_norm / jnp.maximum(norm, 1e-12))
    updates = state.step + 1
    unbias1, unbias2 = 1 - hyper.beta1**updates, 1 - hyper.beta2**updates
    mean = jax.tree.map(lambda m, g: hyper.beta1 * m + (1 - hyper.beta1) * scale * g, state.mean, grads)
    square = jax.tree.map(lambda s, g: hyper.beta2 * s + (1 - hyper.beta2) * (scale * g) ** 2, state.square, grads)
    fraction = wsd(state.step, hyper.steps, hyper.warmup_fraction, hyper.decay_fraction, hyper.final_fraction)
    params = jax.tree_util.tree_map_with_path(
        lambda path, w, m, s: _update(
            path, w, m / unbias1, s / unbias2, fraction * hyper.adamh_lr, fraction * hyper.adam_lr, hyper
        ),
        state.params,
        mean,
        square,
    )
    choices = tokens[:, 1:].size * shape.top_k
    after = PodState(params, mean, square, stats.bias, state.step + 1)
    return after, PodMetrics(loss, norm, jnp.mean(stats.dropped) / choices)


def lower_step(rung: Rung, mesh: Mesh, options: PodOptions, batch_seqs: int) -> Any:
    """Return the step of `rung` on `mesh` with `batch_seqs` sequences at once, lowered and ready to be compiled."""
    shape = rung.shape
    state = abstract_state(shape, mesh)
    everywhere = NamedSharding(mesh, P())
    tokens = jax.ShapeDtypeStruct(
        (batch_seqs, shape.seq_len + 1), jnp.int32, sharding=NamedSharding(mesh, P(BATCH, None))
    )
    scalars = Hyperparams(*(jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere) for _ in Hyperparams._fields))
    hyper = scalars._replace(steps=jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere))

    def step(state: PodState, tokens: Array, hyper: Hyperparams) -> tuple[PodState, PodMetrics]:
        return pod_step(state, tokens, hyper, shape, mesh, options, rung.optimizer.z_loss)

    out = (jax.tree.map(lambda leaf: leaf.sharding, state), PodMetrics(everywhere, everywhere, everywhere))
    with jax.set_mesh(mesh):
        return jax.jit(step, donate_argnums=0, out_shardings=out).lower(state, tokens, hyper)


def place(tree: PyTree, mesh: Mesh) -> PyTree:
    """Return `tree` with every leaf where it lives on `mesh`."""
    return jax.tree.map(jax.device_put, tree, shardings(tree, mesh))
