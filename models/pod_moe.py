"""Routed experts and their balance on a pod: Levanter's expert-parallel backends, quantiles taken per device."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from ladder.shape import MoeShape
from models.mesh import BATCH


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
        remat: whether a layer's activations are made again in the backward pass.
        accumulation: parts that a step's batch is taken in, one after the other.
    """

    backend: str = "ring"
    capacity_factor: float = 1.25
    dtype: str = "bfloat16"
    splash: bool = True
    chunk: int = 1024
    remat: bool = True
    accumulation: int = 1


def routed(
    gate_up: Float[Array, "E d f2"],
    down: Float[Array, "E f d"],
    x: Float[Array, "T d"],
    chosen: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    mesh: Mesh,
    options: PodOptions,
) -> tuple[Float[Array, "T d"], Float[Array, ""]]:
    """Return the weighted outputs of each token's experts and how many choices were dropped."""
    from levanter.grug.grug_moe import moe_mlp

    out, counts = moe_mlp(
        x,
        chosen,
        weights.astype(x.dtype),
        gate_up.astype(x.dtype),
        down.astype(x.dtype),
        implementation=options.backend,
        mesh=mesh,
        capacity_factor=options.capacity_factor,
        report_capacity_overflow=True,
    )
    return out, (counts.sender_dropped + counts.receiver_dropped).astype(jnp.float32)


def balance(
    logits: Float[Array, "T E"], threshold: Float[Array, " T"], chosen: Int[Array, "T K"], shape: MoeShape, mesh: Mesh
) -> tuple[Float[Array, " E"], Float[Array, " E"]]:
    """Return the quantile-balancing bias for the next step and how many choices each expert got.

    Each device takes its max(1, T K / E)-th largest margin of each expert; the mean over devices counts (TOPK).
    """

    def local(logits: Array, threshold: Array, chosen: Array) -> tuple[Array, Array]:
        share = max(1, logits.shape[0] * shape.top_k // shape.experts)
        beta = jax.lax.top_k((logits - threshold[:, None]).T, share)[0][:, -1]
        load = jnp.sum(jax.nn.one_hot(chosen, shape.experts, dtype=jnp.float32), axis=(0, 1))
        return jax.lax.pmean(beta, BATCH), jax.lax.psum(load, BATCH)

    beta, load = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(BATCH, None), P(BATCH), P(BATCH, None)),
        out_specs=(P(None), P(None)),
        check_vma=False,
    )(jax.lax.stop_gradient(logits), threshold, chosen)
    return jnp.mean(beta) - beta, load
