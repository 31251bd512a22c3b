"""One training step, pure, and many of them in one dispatch.

At tiny sizes a step takes a millisecond and calling it from Python as long, so a whole chunk of steps is one compiled
program. Its bounds, seed, rates and schedule are run-time arguments: it is compiled once for a shape and batch.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, UInt8

from ladder.recipe_interface import RouterPlan
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.data import batch_at
from models.experts import Gather
from models.optimizer import AdamHState, Rates, adamh, clip_by_global_norm, parameter_groups
from models.record import TAIL_FRACTION
from models.schedule import wsd
from models.support import TINY_ROUTER
from models.transformer import Transformer

CHUNK = 512  # most steps in one dispatch, the length of its buffer of metrics


class Hyperparams(NamedTuple):
    """The run-time arguments of a step, as scalars."""

    steps: Int[Array, ""]
    adamh_lr: Float[Array, ""]
    adam_lr: Float[Array, ""]
    beta1: Float[Array, ""]
    beta2: Float[Array, ""]
    epsilon: Float[Array, ""]
    clip_norm: Float[Array, ""]
    z_loss: Float[Array, ""]
    warmup_fraction: Float[Array, ""]
    decay_fraction: Float[Array, ""]
    final_fraction: Float[Array, ""]

    @staticmethod
    def of(rung: Rung) -> "Hyperparams":
        """Return the hyperparameters of `rung`."""
        plan, schedule = rung.optimizer, rung.schedule
        values = (plan.matrix_lr, plan.adam_lr, plan.beta1, plan.beta2, plan.epsilon, plan.clip_norm, plan.z_loss)
        fractions = (schedule.warmup_fraction, schedule.decay_fraction, schedule.final_fraction)
        return Hyperparams(jnp.int32(rung.steps), *(jnp.float32(value) for value in (*values, *fractions)))


class Metrics(NamedTuple):
    """What is recorded of one step, as float32 scalars.

    `loss` is the cross-entropy in nats per token before the update, without the z-loss; `grad_norm` is before the
    clip; `lr` that of the matrices; `drop_fraction` of the routed choices; `max_load` the fullest expert's share
    over the mean share; `load_entropy` in nats, mean over layers. The last three are 0 for a dense model.
    """

    loss: Float[Array, "*n"]
    grad_norm: Float[Array, "*n"]
    lr: Float[Array, "*n"]
    drop_fraction: Float[Array, "*n"]
    max_load: Float[Array, "*n"]
    load_entropy: Float[Array, "*n"]


class TrainState(eqx.Module):
    """All that changes while training; with the hyperparameters and the data it decides everything that follows.

    Attributes:
        params: the model.
        optimizer: Adam's moments.
        bias: balancing bias of each layer.
        step: steps done.
        tail_loss, tail_drops: sums over the steps of the tail.
    """

    params: Transformer
    optimizer: AdamHState
    bias: Float[Array, "L E"]
    step: Int[Array, ""]
    tail_loss: Float[Array, ""]
    tail_drops: Float[Array, ""]


@partial(jax.jit, static_argnums=(0, 2))
def initial_state(shape: MoeShape, seed: Int[Array, ""], router: RouterPlan = TINY_ROUTER) -> TrainState:
    """Return the state before the first step; `router` says for good how tokens choose experts."""
    params = Transformer.init(shape, router, key=jax.random.key(seed))
    optimizer = adamh(parameter_groups(params)).init(params)
    zero = jnp.zeros(())
    return TrainState(params, optimizer, jnp.zeros((shape.layers, shape.experts)), jnp.int32(0), zero, zero)


def train_step(
    state: TrainState, batch: Int[Array, "B S1"], hyper: Hyperparams, slots: int
) -> tuple[TrainState, Metrics]:
    """Return the state after one step on `batch`, rows of S + 1 tokens, with `slots` slots per expert."""
    dispatch = Gather(slots)
    shape = state.params.shape

    def objective(params: Transformer) -> tuple[Float[Array, ""], PyTree]:
        losses, partition, stats = params.losses(batch, state.bias, dispatch)
        loss = jnp.mean(losses)
        total = loss + hyper.z_loss * jnp.mean(partition * partition)
        if state.params.router.z_loss or state.params.router.balancing == "auxiliary":
            total += jnp.sum(stats.penalty)
        return total, (loss, stats)

    (_, (loss, stats)), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
    grads, norm = clip_by_global_norm(grads, hyper.clip_norm)
    fraction = wsd(state.step, hyper.steps, hyper.warmup_fraction, hyper.decay_fraction, hyper.final_fraction)
    rates = Rates(fraction * hyper.adamh_lr, fraction * hyper.adam_lr, hyper.beta1, hyper.beta2, hyper.epsilon)
    transform = adamh(parameter_groups(state.params))
    updates, optimizer = transform.update(grads, state.optimizer, state.params, rates=rates)
    params = jax.tree.map(jnp.add, state.params, updates)

    choices = batch[:, 1:].size * shape.top_k
    drops, busiest = jnp.zeros(()), jnp.zeros(())
    if not shape.dense:
        drops = jnp.mean(stats.dropped) / choices
        busiest = jnp.max(stats.load) * shape.experts / choices
    metrics = Metrics(loss, norm, rates.adamh, drops, busiest, jnp.mean(stats.entropy))
    in_tail = (state.step + 1 > hyper.steps - tail_steps(hyper.steps)).astype(jnp.float32)
    return (
        TrainState(
            params,
            optimizer,
            stats.next_bias,
            state.step + 1,
            state.tail_loss + in_tail * loss,
            state.tail_drops + in_tail * drops,
        ),
        metrics,
    )


def tail_steps(steps: Int[Array, ""]) -> Int[Array, ""]:
    """Return how many of the last steps are averaged over: a tenth, at least one."""
    return jnp.maximum(1, (steps * TAIL_FRACTION).astype(jnp.int32))


@partial(jax.jit, static_argnums=(5, 6), donate_argnums=0)
def train_chunk(
    state: TrainState,
    text: UInt8[Array, " bytes"],
    order: Int[Array, " windows"],
    hyper: Hyperparams,
    last: Int[Array, ""],
    batch_seqs: int,
    slots: int,
) -> tuple[TrainState, Metrics]:
    """Return the state after the steps up to `last` (at most CHUNK) and the metrics of each, one row of CHUNK a step.

    Stops early after a step whose loss is not finite; `state.step` says how far it came.
    """
    first = state.step
    seq_len = state.params.shape.seq_len
    buffers = Metrics(*(jnp.zeros(CHUNK) for _ in Metrics._fields))

    def unfinished(carry: tuple[TrainState, Metrics, Float[Array, ""]]) -> Array:
        return (carry[0].step < last) & jnp.isfinite(carry[2])

    def advance(carry: tuple[TrainState, Metrics, Float[Array, ""]]) -> tuple[TrainState, Metrics, Float[Array, ""]]:
        state, buffers, _ = carry
        batch = batch_at(text, order, state.step, batch_seqs, seq_len)
        after, metrics = train_step(state, batch, hyper, slots)
        at = state.step - first
        return after, Metrics(*(b.at[at].set(m) for b, m in zip(buffers, metrics, strict=True))), metrics.loss

    state, buffers, _ = jax.lax.while_loop(unfinished, advance, (state, buffers, jnp.zeros(())))
    return state, buffers
