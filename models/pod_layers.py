"""What every part of a pod's model is made of: gathered weights, norms with float32 statistics, and its options."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from models.layers import NORM_EPSILON, GatedNorm


@dataclass(frozen=True)
class PodOptions:
    """How a pod computes what the model says.

    Attributes:
        backend: of the routed experts, by Levanter's name: scatter (no expert axis, dropless), ring,
            fixed_all_to_all, ragged_all_to_all.
        capacity_factor: slots per expert over its mean load, for backends with fixed capacity.
        dtype: of activations and gathered weights.
        splash: whether attention is the TPU's kernel; else plain masked attention, for other devices.
        chunk: tokens whose logits exist at once; 4096 was no better at two widths.
        remat: what of a layer is made again in the backward pass: "full", all of it; "hidden", all but the hidden
            activations of the routed experts, which are kept (of Levanter's backends the ring and scatter name them);
            "none".
        accumulation: parts that a step's batch is taken in, one after the other.
    """

    backend: str = "ring"
    capacity_factor: float = 1.25
    dtype: str = "bfloat16"
    splash: bool = True
    chunk: int = 1024
    remat: str = "full"
    accumulation: int = 1


def unit(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Return `x` over its root mean square along the last axis, statistics in float32."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + NORM_EPSILON)
    return (wide * scale).astype(x.dtype)


def whole(weight: Array, like: Array) -> Array:
    """Return `weight` in the type of `like` and on every device: what FSDP gathers before a product."""
    gathered: Array = jax.sharding.reshard(weight.astype(like.dtype), P(*(None,) * weight.ndim))
    return gathered


def normed(x: Float[Array, "... d"], gain: Float[Array, " d"], gate: GatedNorm | None) -> Float[Array, "... d"]:
    """Return the norm of `x`, gated where there is a gate."""
    y = unit(x) * gain.astype(x.dtype)
    if gate is None:
        return y
    with jax.named_scope("gated_norm"):
        return y * jax.nn.sigmoid(jax.nn.silu(y @ whole(gate.norm_down, x)) @ whole(gate.norm_up, x))
