"""The feed-forward part of a pod's layer: routing, Levanter's expert-parallel backends, shared experts, balance."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from ladder.recipe_interface import RouterPlan
from models.balance import bias_after, penalty_of
from models.experts import Experts
from models.layers import causal_conv
from models.mesh import BATCH
from models.pod_layers import PodOptions, unit, whole
from models.router import combine_weights, load_entropy, log_scores
from models.transformer import Block, RouterStats, Transformer


def feed_forward(
    block: Block,
    x: Float[Array, "B S d"],
    bias: Float[Array, " E"],
    params: Transformer,
    mesh: Mesh,
    options: PodOptions,
) -> tuple[Float[Array, "B S d"], RouterStats]:
    """Return what routed and shared experts of one layer add to the residual stream, and what its router did."""
    shape, plan = params.shape, params.router
    outputs = jnp.zeros_like(x)
    stats = RouterStats(bias, bias, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))
    if block.router is not None and block.experts is not None:
        flat = x.reshape(-1, shape.hidden, out_sharding=P(BATCH, None))
        with jax.named_scope("router"):
            logits = flat.astype(jnp.float32) @ whole(block.router, jnp.zeros((), jnp.float32))
            chosen, weights, threshold = routed_choice(logits, bias, shape.top_k, plan)
            after, load = balance(logits, threshold, chosen, bias, plan, mesh)
            penalty = penalty_of(logits, load, plan, axis=1)
        with jax.named_scope("routed"):
            inputs = flat
            if block.latent is not None:
                inputs = unit(flat @ whole(block.latent.latent_down, x)) * block.latent.latent_norm.astype(x.dtype)
            routed, dropped = routed_experts(block.experts, inputs, chosen, weights, mesh, options)
            if block.latent is not None:
                routed = routed @ whole(block.latent.latent_up, x)
        outputs = routed.reshape(x.shape, out_sharding=P(BATCH, None, None))
        stats = RouterStats(after, load, load_entropy(load), dropped, penalty)
    with jax.named_scope("shared"):
        for gate_up, down in zip(block.shared.gate_up, block.shared.down, strict=True):
            gate, up = jnp.split(x @ whole(gate_up, x), 2, axis=-1)
            outputs = outputs + (jax.nn.silu(gate) * up) @ whole(down, x)
    return outputs if block.mlp_conv is None else causal_conv(outputs, block.mlp_conv.astype(x.dtype)), stats


def routed_choice(
    logits: Float[Array, "T E"], bias: Float[Array, " E"], top_k: int, plan: RouterPlan
) -> tuple[Int[Array, "T K"], Float[Array, "T K"], Float[Array, " T"]]:
    """Return each token's K experts by biased logits, their weights, and the (K+1)-th largest biased logit.

    What `models.router.route` says, without its planes of K E T choices, which no device holds.
    """
    biased = jax.lax.stop_gradient(logits) + bias
    values, order = jax.lax.top_k(biased, min(top_k + 1, logits.shape[-1]))
    chosen = order[:, :top_k]
    scores = log_scores(logits, plan, axis=1)
    picked = jnp.sum(jax.nn.one_hot(chosen, logits.shape[-1], dtype=logits.dtype) * scores[:, None], axis=-1)
    return chosen, combine_weights(picked, plan, axis=1), values[:, -1]


def routed_experts(
    experts: Experts,
    x: Float[Array, "T l"],
    chosen: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    mesh: Mesh,
    options: PodOptions,
) -> tuple[Float[Array, "T l"], Float[Array, ""]]:
    """Return the weighted outputs of each token's experts and how many choices were dropped."""
    from levanter.grug.grug_moe import moe_mlp

    out, counts = moe_mlp(
        x,
        chosen,
        weights.astype(x.dtype),
        experts.gate_up.astype(x.dtype),
        experts.down.astype(x.dtype),
        implementation=options.backend,
        mesh=mesh,
        capacity_factor=options.capacity_factor,
        report_capacity_overflow=True,
    )
    return out, (counts.sender_dropped + counts.receiver_dropped).astype(jnp.float32)


def balance(
    logits: Float[Array, "T E"],
    threshold: Float[Array, " T"],
    chosen: Int[Array, "T K"],
    bias: Float[Array, " E"],
    plan: RouterPlan,
    mesh: Mesh,
) -> tuple[Float[Array, " E"], Float[Array, " E"]]:
    """Return the balancing bias for the next step and how many choices each expert got, of all devices' tokens."""

    def local(logits: Array, threshold: Array, chosen: Array, bias: Array) -> tuple[Array, Array]:
        hits = jax.nn.one_hot(chosen, logits.shape[1], dtype=jnp.float32)
        load = jax.lax.psum(jnp.sum(hits, axis=(0, 1)), BATCH)
        margins = (logits - threshold[:, None]).T
        return bias_after(margins, load, bias, chosen.shape[1], plan, BATCH), load

    found: tuple[Array, Array] = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(BATCH, None), P(BATCH), P(BATCH, None), P(None)),
        out_specs=(P(None), P(None)),
        check_vma=False,
    )(jax.lax.stop_gradient(logits), threshold, chosen, bias)
    return found
