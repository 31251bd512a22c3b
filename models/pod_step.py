"""One training step of a pod: forward, chunked loss, backward, clip and update, in one donated program."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PyTree

from ladder.rung import Rung
from models.groups import Method
from models.mesh import BATCH, check_mesh, shardings
from models.optimizer import clip_by_global_norm
from models.pod import hidden_states
from models.pod_layers import PodOptions
from models.pod_loss import chunked_loss
from models.pod_update import update_on_mesh
from models.train import Hyperparams, Metrics, TrainState, initial_state
from models.transformer import RouterStats, Transformer


def _placed(tree: PyTree, places: PyTree) -> PyTree:
    """Return the shapes in `tree` with the shardings in `places`."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, places
    )


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
    state: TrainState, tokens: Int[Array, "A B S1"], hyper: Hyperparams, rung: Rung, mesh: Mesh, options: PodOptions
) -> tuple[TrainState, Metrics]:
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
    rates = hyper.rates_at(state.step)
    params, optimizer = update_on_mesh(state.params, grads, state.optimizer, rates, state.method, mesh)
    choices, drops, busiest = tokens[0, :, 1:].size * rung.shape.top_k, jnp.zeros(()), jnp.zeros(())
    if not rung.shape.dense:
        drops = jnp.mean(stats.dropped) / choices
        busiest = jnp.max(stats.load) * rung.shape.experts / choices
    after = state.followed_by(params, optimizer, stats.next_bias, loss, drops, hyper)
    return after, Metrics(loss, norm, rates.matrix, drops, busiest, jnp.mean(stats.entropy))


def jitted_step(rung: Rung, mesh: Mesh, options: PodOptions) -> Any:
    """Return the whole step of `rung` on `mesh`, to be called with state, tokens and hyperparameters; the state is donated.

    Called and lowered within `jax.set_mesh(mesh)`.
    """
    places = shardings(_state_shapes(rung), mesh)
    everywhere = NamedSharding(mesh, P())

    def step(state: TrainState, tokens: Array, hyper: Hyperparams) -> tuple[TrainState, Metrics]:
        return pod_step(state, tokens, hyper, rung, mesh, options)

    metrics: Any = [everywhere] * len(Metrics._fields)
    return jax.jit(step, donate_argnums=0, out_shardings=(places, Metrics(*metrics)))


def _state_shapes(rung: Rung) -> Any:
    return jax.eval_shape(lambda: initial_state(rung.shape, jnp.int32(0), rung.router, Method.of(rung.optimizer)))


def lower_step(rung: Rung, mesh: Mesh, options: PodOptions) -> Any:
    """Return the whole step of `rung` on `mesh`, lowered and ready to be compiled."""
    check_mesh(rung.shape, mesh, rung.batch_seqs // options.accumulation)
    shapes = _state_shapes(rung)
    state = _placed(shapes, shardings(shapes, mesh))
    everywhere = NamedSharding(mesh, P())
    dims = (options.accumulation, rung.batch_seqs // options.accumulation, rung.shape.seq_len + 1)
    tokens = jax.ShapeDtypeStruct(dims, jnp.int32, sharding=NamedSharding(mesh, P(None, BATCH, None)))
    hyper: Any = jax.eval_shape(lambda: Hyperparams.of(rung))
    hyper = _placed(hyper, jax.tree.map(lambda _: everywhere, hyper))
    with jax.set_mesh(mesh):
        return jitted_step(rung, mesh, options).lower(state, tokens, hyper)
