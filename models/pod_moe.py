"""Routed experts and their balance on a pod: Levanter's expert-parallel backends, quantiles taken per device."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from ladder.shape import MoeShape
from models.mesh import BATCH


def routed(
    gate_up: Float[Array, "E d f2"],
    down: Float[Array, "E f d"],
    x: Float[Array, "T d"],
    chosen: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    mesh: Mesh,
    backend: str,
    capacity_factor: float,
) -> tuple[Float[Array, "T d"], Float[Array, ""]]:
    """Return the weighted outputs of each token's experts and how many choices were dropped."""
    from levanter.grug.grug_moe import moe_mlp

    out, counts = moe_mlp(
        x,
        chosen,
        weights.astype(x.dtype),
        gate_up.astype(x.dtype),
        down.astype(x.dtype),
        implementation=backend,
        mesh=mesh,
        capacity_factor=capacity_factor,
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
