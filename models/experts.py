"""Routed SwiGLU experts, and three ways to run them that agree where nothing is dropped.

`dense` runs every expert on every token: exact, for evaluation, E/K times the work. `Gather` gives every expert a
fixed number of slots, moves tokens into them and back, and drops what does not fit: the way to train. `reference`
fetches each token's own expert weights: the definition, K experts' work and slow; tests hold the other two to it.
"""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ladder.shape import MoeShape
from models.layers import Draw, linear, row_sums
from models.router import Routing


def swiglu(gate_up: Float[Array, "... f2"]) -> Float[Array, "... f"]:
    """Return silu(gate) * up, where the last axis holds gate and up after each other."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return jax.nn.silu(gate) * up


class Experts(eqx.Module):
    """A stack of SwiGLU experts; `gate_up` holds both input matrices of each side by side."""

    gate_up: Float[Array, "*E d f2"]
    down: Float[Array, "*E f d"]

    @staticmethod
    def init(experts: tuple[int, ...], hidden: int, width: int, draw: Draw) -> "Experts":
        """Return a stack of experts of width `width`, (layers, experts) or any other, with fresh weights."""
        return Experts(draw.matrix(*experts, hidden, 2 * width), draw.matrix(*experts, width, hidden))


# A way to run routed experts: outputs [T, d] and the number of choices that were dropped, from tokens [T, d].
Dispatch = Callable[[Experts, Array, Routing], tuple[Array, Array]]


def capacity(shape: MoeShape, capacity_factor: float, tokens: int) -> int:
    """Return the slots of one expert for a batch of `tokens`: `capacity_factor` times its mean load, rounded up.

    A dense model has no experts and no slots.
    """
    if shape.dense:
        return 0
    return min(tokens, math.ceil(capacity_factor * tokens * shape.top_k / shape.experts))


def dense(experts: Experts, x: Float[Array, "T d"], routing: Routing) -> tuple[Float[Array, "T d"], Float[Array, ""]]:
    """Run every expert on every token and weight the outputs; nothing is dropped."""
    weights = jnp.sum(jnp.where(routing.chosen, routing.weights[:, None], 0.0), axis=0)
    hidden = swiglu(jnp.einsum("td,edf->etf", x, experts.gate_up))
    return jnp.einsum("etf,efd->td", hidden * weights[..., None], experts.down), jnp.zeros(())


def reference(
    experts: Experts, x: Float[Array, "T d"], routing: Routing
) -> tuple[Float[Array, "T d"], Float[Array, ""]]:
    """Run each token's K experts with weights fetched for that token; nothing is dropped."""
    hidden = swiglu(jnp.einsum("td,ktdf->ktf", x, experts.gate_up[routing.experts]))
    outputs = jnp.einsum("ktf,ktfd->ktd", hidden, experts.down[routing.experts])
    return jnp.sum(routing.weights[..., None] * outputs, axis=0), jnp.zeros(())


class Slots(eqx.Module):
    """Which token sits in which slot; slot number e C + c is the c-th of expert e.

    Attributes:
        slot: slot of each choice of each token, or E C where it was dropped.
        token: token in each slot; 0 where the slot is empty.
        choice: which of the token's choices, times T, plus the token; K T where the slot is empty.
    """

    slot: Int[Array, "K T"]
    token: Int[Array, " EC"]
    choice: Int[Array, " EC"]


def assign_slots(routing: Routing, slots: int) -> Slots:
    """Return the slots: each expert takes its tokens in order until its `slots` are full."""
    top_k, experts, tokens = routing.chosen.shape
    place = jnp.cumsum(jnp.any(routing.chosen, axis=0), axis=-1, dtype=jnp.int32) - 1
    places = jnp.sum(jnp.where(routing.chosen, place, 0), axis=1)
    slot = jnp.where(places < slots, routing.experts * slots + places, experts * slots)
    numbers = jnp.arange(top_k * tokens, dtype=jnp.int32)
    empty = jnp.full(experts * slots, top_k * tokens, jnp.int32)
    choice = empty.at[slot.reshape(-1)].set(numbers, mode="drop", unique_indices=True)
    return Slots(slot, jnp.where(choice < top_k * tokens, choice % tokens, 0), choice)


def _fetched(rows: Float[Array, "EC d"], slot: Int[Array, " T"]) -> Float[Array, "T d"]:
    fetched: Array = rows.at[slot].get(mode="fill", fill_value=0)  # a dropped choice has the slot after the last: zeros
    return fetched


@jax.custom_vjp
def _into_slots(x: Float[Array, "T d"], slots: Slots) -> Float[Array, "EC d"]:
    return x[slots.token]


def _into_slots_fwd(x: Float[Array, "T d"], slots: Slots) -> tuple[Float[Array, "EC d"], Slots]:
    return x[slots.token], slots


def _into_slots_bwd(slots: Slots, grad: Float[Array, "EC d"]) -> tuple[Float[Array, "T d"], None]:
    # Empty slots hold token 0 but get no gradient, since nothing reads their output: gathering back is the adjoint.
    return functools.reduce(jnp.add, [_fetched(grad, slot) for slot in slots.slot]), None


_into_slots.defvjp(_into_slots_fwd, _into_slots_bwd)


@jax.custom_vjp
def _out_of_slots(y: Float[Array, "EC d"], weights: Float[Array, "K T"], slots: Slots) -> Float[Array, "T d"]:
    # Choice by choice: one sum over an axis of choices took three times as long.
    parts = [w[:, None] * _fetched(y, slot) for w, slot in zip(weights, slots.slot, strict=True)]
    total: Array = functools.reduce(jnp.add, parts)
    return total


_Saved = tuple[Float[Array, "EC d"], Float[Array, "K T"], Slots]


def _out_of_slots_fwd(
    y: Float[Array, "EC d"], weights: Float[Array, "K T"], slots: Slots
) -> tuple[Float[Array, "T d"], _Saved]:
    return _out_of_slots(y, weights, slots), (y, weights, slots)


def _out_of_slots_bwd(
    saved: _Saved, grad: Float[Array, "T d"]
) -> tuple[Float[Array, "EC d"], Float[Array, "K T"], None]:
    y, weights, slots = saved
    weight = weights.reshape(-1).at[slots.choice].get(mode="fill", fill_value=0)
    to_weights = jnp.stack([row_sums(_fetched(y, slot) * grad) for slot in slots.slot])
    return weight[:, None] * grad[slots.token], to_weights, None


_out_of_slots.defvjp(_out_of_slots_fwd, _out_of_slots_bwd)


class Gather(eqx.Module):
    """Run experts on `slots` slots each. Calls return the outputs and how many choices found no free slot."""

    slots: int = eqx.field(static=True)

    def __call__(
        self, experts: Experts, x: Float[Array, "T d"], routing: Routing
    ) -> tuple[Float[Array, "T d"], Float[Array, ""]]:
        """Return the weighted outputs of the experts; a dropped choice adds nothing to its token."""
        table = assign_slots(routing, self.slots)
        count, hidden, _ = experts.gate_up.shape
        inputs = _into_slots(x, table).reshape(count, self.slots, hidden)
        inner = swiglu(linear(inputs, experts.gate_up))
        outputs = linear(inner, experts.down).reshape(count * self.slots, hidden)
        dropped = jnp.sum(table.slot == count * self.slots, dtype=jnp.float32)
        return _out_of_slots(outputs, routing.weights, table), dropped
