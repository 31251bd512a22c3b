"""One training step, pure, and many of them in one dispatch.

At tiny sizes a step takes a millisecond and calling it from Python as long, so a whole chunk of steps is one compiled
program. Its bounds, seed, rates and schedule are run-time arguments: it is compiled once for a shape and batch.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt

from ladder.recipe_interface import RouterPlan
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.experts import Gather
from models.groups import ADAMH, Method
from models.optimizer import OptimizerState, Rates, clip_by_global_norm, optimizer_of
from models.record import TAIL_FRACTION
from models.schedule import ScheduleValues, rate_fraction
from models.support import TINY_ROUTER
from models.transformer import Transformer

CHUNK = 512  # most steps in one dispatch, the length of its buffer of metrics


class Hyperparams(NamedTuple):
    """The run-time arguments of a step, as scalars."""

    steps: Int[Array, ""]
    peaks: Rates
    clip_norm: Float[Array, ""]
    z_loss: Float[Array, ""]
    schedule: ScheduleValues

    @staticmethod
    def of(rung: Rung) -> "Hyperparams":
        """Return the hyperparameters of `rung`."""
        plan = rung.optimizer
        head = plan.matrix_lr if plan.head_lr is None else plan.head_lr
        values = (plan.matrix_lr, head, plan.adam_lr, plan.beta1, plan.beta2, plan.epsilon, plan.weight_decay)
        peaks = Rates(*(jnp.float32(value) for value in values))
        bounds = (jnp.float32(plan.clip_norm), jnp.float32(plan.z_loss))
        return Hyperparams(jnp.int32(rung.steps), peaks, *bounds, ScheduleValues.of(rung.schedule))

    def rates_at(self, step: Int[Array, ""]) -> Rates:
        """Return the rates of the update after `step` steps."""
        fraction, peaks = rate_fraction(step, self.steps, self.schedule), self.peaks
        return peaks._replace(matrix=fraction * peaks.matrix, adamh=fraction * peaks.adamh, adam=fraction * peaks.adam)


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
        optimizer: moments.
        bias: balancing bias of each layer.
        step: steps done.
        tail_loss, tail_drops: sums over the steps of the tail.
        method: which optimizer this is a state of.
    """

    params: Transformer
    optimizer: OptimizerState
    bias: Float[Array, "L E"]
    step: Int[Array, ""]
    tail_loss: Float[Array, ""]
    tail_drops: Float[Array, ""]
    method: Method = eqx.field(static=True)

    def followed_by(
        self, params: Transformer, optimizer: OptimizerState, bias: Array, loss: Array, drops: Array, hyper: Hyperparams
    ) -> "TrainState":
        """Return the state after a step that led to these, with what it adds to the sums of the tail."""
        in_tail = (self.step + 1 > hyper.steps - tail_steps(hyper.steps)).astype(jnp.float32)
        tail_loss, tail_drops = self.tail_loss + in_tail * loss, self.tail_drops + in_tail * drops
        return TrainState(params, optimizer, bias, self.step + 1, tail_loss, tail_drops, self.method)


@partial(jax.jit, static_argnums=(0, 2, 3))
def initial_state(
    shape: MoeShape, seed: Int[Array, ""], router: RouterPlan = TINY_ROUTER, method: Method = ADAMH
) -> TrainState:
    """Return the state before the first step; router and method say for good how tokens choose experts, and leaves move."""
    params = Transformer.init(shape, router, key=jax.random.key(seed))
    optimizer = optimizer_of(method, params).init(params)
    zero = jnp.zeros(())
    bias = jnp.zeros((shape.layers, shape.experts))
    return TrainState(params, optimizer, bias, jnp.int32(0), zero, zero, method)


def train_step(
    state: TrainState,
    batch: Int[Array, "B S1"],
    hyper: Hyperparams,
    slots: int,
    separator: Int[Array, ""] | None = None,
) -> tuple[TrainState, Metrics]:
    """Return the state after one step on `batch`, rows of S + 1 tokens, with `slots` slots per expert.

    With a `separator` a token attends to its own document alone.
    """
    dispatch = Gather(slots)
    shape = state.params.shape

    def objective(params: Transformer) -> tuple[Float[Array, ""], PyTree]:
        losses, partition, stats = params.losses(batch, state.bias, dispatch, separator)
        loss = jnp.mean(losses)
        total = loss + hyper.z_loss * jnp.mean(partition * partition)
        if state.params.router.z_loss or state.params.router.balancing == "auxiliary":
            total += jnp.sum(stats.penalty)
        return total, (loss, stats)

    (_, (loss, stats)), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
    grads, norm = clip_by_global_norm(grads, hyper.clip_norm)
    rates = hyper.rates_at(state.step)
    transform = optimizer_of(state.method, state.params)
    updates, optimizer = transform.update(grads, state.optimizer, state.params, rates=rates)
    params = jax.tree.map(jnp.add, state.params, updates)

    choices = batch[:, 1:].size * shape.top_k
    drops, busiest = jnp.zeros(()), jnp.zeros(())
    if not shape.dense:
        drops = jnp.mean(stats.dropped) / choices
        busiest = jnp.max(stats.load) * shape.experts / choices
    metrics = Metrics(loss, norm, rates.matrix, drops, busiest, jnp.mean(stats.entropy))
    return state.followed_by(params, optimizer, stats.next_bias, loss, drops, hyper), metrics


def tail_steps(steps: Int[Array, ""]) -> Int[Array, ""]:
    """Return how many of the last steps are averaged over: a tenth, at least one."""
    return jnp.maximum(1, (steps * TAIL_FRACTION).astype(jnp.int32))


def full_chunk(batches: UInt[np.ndarray, "steps B S1"]) -> UInt[np.ndarray, "CHUNK B S1"]:
    """Return the batches of at most CHUNK steps filled up to as many, so that one program serves all lengths."""
    return np.pad(batches, ((0, CHUNK - len(batches)), (0, 0), (0, 0)))


@partial(jax.jit, static_argnums=4, donate_argnums=0)
def train_chunk(
    state: TrainState,
    batches: UInt[Array, "CHUNK B S1"],
    hyper: Hyperparams,
    last: Int[Array, ""],
    slots: int,
    separator: Int[Array, ""] | None = None,
) -> tuple[TrainState, Metrics]:
    """Return the state after the steps up to `last` (at most CHUNK) and the metrics of each, one row of CHUNK a step.

    `batches` are those of the steps from `state.step` on, see `full_chunk`. Stops early after a step whose loss is not
    finite; `state.step` says how far it came.
    """
    first = state.step
    buffers = Metrics(*(jnp.zeros(CHUNK) for _ in Metrics._fields))

    def unfinished(carry: tuple[TrainState, Metrics, Float[Array, ""]]) -> Array:
        return (carry[0].step < last) & jnp.isfinite(carry[2])

    def advance(carry: tuple[TrainState, Metrics, Float[Array, ""]]) -> tuple[TrainState, Metrics, Float[Array, ""]]:
        state, buffers, _ = carry
        at = state.step - first
        after, metrics = train_step(state, batches[at].astype(jnp.int32), hyper, slots, separator)
        return after, Metrics(*(b.at[at].set(m) for b, m in zip(buffers, metrics, strict=True))), metrics.loss

    state, buffers, _ = jax.lax.while_loop(unfinished, advance, (state, buffers, jnp.zeros(())))
    return state, buffers
