"""The Mixture-of-Experts transformer as a pod runs it: bf16 products, layers scanned, everything rematerialised.

The same mathematics as `models.transformer` with the parts of Marin's recipes besides (GatedNorm, attention gate,
exclusive self-attention, windows); held to it by tests on virtual devices. Weights are gathered layer by layer (FSDP),
activations stay split by sequences.
"""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ladder.counts import count_params
from ladder.recipe_interface import RouterPlan
from ladder.shape import MoeShape
from models.layers import Draw
from models.mesh import BATCH
from models.pod_attention import Attend, rotate
from models.pod_moe import PodOptions, balance, routed

NORM_EPSILON = 1e-6
QUERY_SCALE = 1.3  # of Marin's MoE recipes, as in models.attention


class Norm(eqx.Module):
    """Root-mean-square norm with gains, and the thin gate that follows it (GatedNorm) where its rank is not 0."""

    gain: Float[Array, "*L d"]
    gate_in: Float[Array, "*L d r"]
    gate_out: Float[Array, "*L r d"]

    @staticmethod
    def init(shape: MoeShape, draw: Draw, *layers: int) -> "Norm":
        """Return a norm, or a stack of them, with gains of one and fresh gates."""
        d, rank = shape.hidden, shape.gated_norm_rank
        return Norm(jnp.ones((*layers, d)), draw.matrix(*layers, d, rank), draw.matrix(*layers, rank, d))

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Return the normalised `x`; statistics in float32."""
        normed = unit(x) * self.gain.astype(x.dtype)
        if not self.gate_in.shape[-1]:
            return normed
        with jax.named_scope("gated_norm"):
            return normed * jax.nn.sigmoid(jax.nn.silu(normed @ whole(self.gate_in, x)) @ whole(self.gate_out, x))


class Layers(eqx.Module):
    """All layers, stacked: the leading axis is scanned over."""

    attention_norm: Norm
    query: Float[Array, "*L d q"]
    key: Float[Array, "*L d k"]
    value: Float[Array, "*L d k"]
    out: Float[Array, "*L q d"]
    attention_gate: Float[Array, "*L d h"]
    expert_norm: Norm
    router: Float[Array, "*L d E"]
    gate_up: Float[Array, "*L E d f2"]
    down: Float[Array, "*L E f d"]
    shared_gate_up: Float[Array, "*L s d g2"]
    shared_down: Float[Array, "*L s g d"]


class Pod(eqx.Module):
    """The parameters, all float32."""

    embedding: Float[Array, "V d"]
    embedding_norm: Norm | None
    layers: Layers
    head_norm: Norm
    head: Float[Array, "d V"]

    @staticmethod
    def init(shape: MoeShape, *, key: PRNGKeyArray) -> "Pod":
        """Return fresh parameters; they add up to `ladder.counts.count_params`. See `models.layers.Draw`."""
        d, n, h = shape.hidden, shape.layers, shape.head_dim
        draw = Draw(count_params(shape).total, key=key)
        return Pod(
            draw.matrix(d, shape.vocab_size).T,
            Norm.init(shape, draw) if shape.embedding_norm else None,
            Layers(
                Norm.init(shape, draw, n),
                draw.matrix(n, d, shape.heads * h),
                draw.matrix(n, d, shape.kv_heads * h),
                draw.matrix(n, d, shape.kv_heads * h),
                draw.matrix(n, shape.heads * h, d),
                draw.matrix(n, d, shape.heads * shape.attention.gate),
                Norm.init(shape, draw, n),
                draw.matrix(n, d, shape.experts),
                draw.matrix(n, shape.experts, d, 2 * shape.expert_width),
                draw.matrix(n, shape.experts, shape.expert_width, d),
                draw.matrix(n, shape.shared_experts, d, 2 * shape.shared_width),
                draw.matrix(n, shape.shared_experts, shape.shared_width, d),
            ),
            Norm.init(shape, draw),
            draw.matrix(d, shape.vocab_size),
        )


def unit(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Return `x` over its root mean square along the last axis, statistics in float32."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + NORM_EPSILON)
    return (wide * scale).astype(x.dtype)


def whole(weight: Array, like: Array) -> Array:
    """Return `weight` in the type of `like` and on every device: what FSDP gathers before a product."""
    gathered: Array = jax.sharding.reshard(weight.astype(like.dtype), P(*(None,) * weight.ndim))
    return gathered


class LayerStats(eqx.Module):
    """What the routers of all layers did.

    Attributes:
        bias: quantile-balancing bias for the next step.
        load: choices per expert.
        dropped: choices that found no free slot.
        partition: mean squared log-partition of the router's logits, for its z-loss.
    """

    bias: Float[Array, "*L E"]
    load: Float[Array, "*L E"]
    dropped: Float[Array, "*L"]
    partition: Float[Array, "*L"]


def hidden_states(
    params: Pod,
    bias: Float[Array, "L E"],
    tokens: Int[Array, "B S"],
    shape: MoeShape,
    router: RouterPlan,
    mesh: Mesh,
    options: PodOptions,
) -> tuple[Float[Array, "B S d"], LayerStats]:
    """Return the normalised states before the head, and what the routers did."""
    dtype = jnp.dtype(options.dtype)
    table = jax.sharding.reshard(params.embedding.astype(dtype), P(None, None))
    x = table.at[tokens].get(out_sharding=NamedSharding(mesh, P(BATCH, None, None)))
    if params.embedding_norm is not None:
        x = params.embedding_norm(x)
    attend = Attend(shape, mesh, options.splash)

    def layer(
        x: Float[Array, "B S d"], inputs: tuple[Layers, Float[Array, " E"], Array]
    ) -> tuple[Float[Array, "B S d"], LayerStats]:
        p, layer_bias, is_global = inputs
        normed = p.attention_norm(x)
        with jax.named_scope("attention"):
            x = x + _attention(p, normed, is_global, shape, attend)
        normed = p.expert_norm(x)
        flat = normed.reshape(-1, shape.hidden, out_sharding=P(BATCH, None))
        with jax.named_scope("router"):
            logits = flat.astype(jnp.float32) @ whole(p.router, jnp.zeros((), jnp.float32))
            chosen, weights, threshold = routed_choice(logits, layer_bias, shape.top_k, router.weight_sum)
            next_bias, load = balance(logits, threshold, chosen, shape, mesh)
            partition = jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)
        with jax.named_scope("routed"):
            outputs, dropped = routed(p.gate_up, p.down, flat, chosen, weights, mesh, options)
        outputs = outputs.reshape(x.shape, out_sharding=P(BATCH, None, None))
        with jax.named_scope("shared"):
            for at in range(shape.shared_experts):
                gate, up = jnp.split(normed @ whole(p.shared_gate_up[at], x), 2, axis=-1)
                outputs = outputs + (jax.nn.silu(gate) * up) @ whole(p.shared_down[at], x)
        return x + outputs, LayerStats(next_bias, load, dropped, partition)

    body = partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)(layer) if options.remat else layer
    is_global = np.array([shape.attention.is_global(at, shape.layers) for at in range(shape.layers)])
    x, stats = jax.lax.scan(body, x, (params.layers, bias, jnp.asarray(is_global)))
    return params.head_norm(x), stats


def routed_choice(
    logits: Float[Array, "T E"], bias: Float[Array, " E"], top_k: int, weight_sum: float
) -> tuple[Int[Array, "T K"], Float[Array, "T K"], Float[Array, " T"]]:
    """Return each token's K experts by biased logits, their weights, and the (K+1)-th largest biased logit.

    Weights are sigmoids of the unbiased logits, rescaled to `weight_sum` where that is not 0.
    """
    biased = jax.lax.stop_gradient(logits) + bias
    values, order = jax.lax.top_k(biased, min(top_k + 1, logits.shape[-1]))
    chosen = order[:, :top_k]
    rows = jnp.sum(jax.nn.one_hot(chosen, logits.shape[-1], dtype=logits.dtype) * logits[:, None], axis=-1)
    # The rescaled sigmoids as a softmax of their logarithms, as in models.router: a ratio of tiny ones has no gradient.
    weights = weight_sum * jax.nn.softmax(jax.nn.log_sigmoid(rows), axis=-1) if weight_sum else jax.nn.sigmoid(rows)
    return chosen, weights, values[:, -1]


def _attention(
    p: Layers, x: Float[Array, "B S d"], is_global: Array, shape: MoeShape, attend: Attend
) -> Float[Array, "B S d"]:
    """Return the attention output; heads lead, since a TPU's kernel and the exclusion read them so."""
    batch, seq, _ = x.shape
    spec = P(BATCH, None, None, None)

    def heads(weight: Array, count: int) -> Array:
        flat = x @ whole(weight, x)
        return flat.reshape(batch, seq, count, shape.head_dim, out_sharding=spec).transpose(0, 2, 1, 3)

    q, k = unit(heads(p.query, shape.heads)) * QUERY_SCALE, unit(heads(p.key, shape.kv_heads))
    v = heads(p.value, shape.kv_heads)
    theta = shape.attention.rope_theta
    y = attend(rotate(q, theta) / math.sqrt(shape.head_dim), rotate(k, theta), v, is_global)
    if shape.attention.exclusive:
        own = jnp.repeat(v, shape.heads // shape.kv_heads, axis=1, out_sharding=spec).astype(jnp.float32)
        wide = y.astype(jnp.float32)
        along = jnp.sum(wide * own, -1, keepdims=True) / (jnp.sum(own * own, -1, keepdims=True) + NORM_EPSILON)
        y = (wide - along * own).astype(x.dtype)
    y = y.transpose(0, 2, 1, 3)
    if shape.attention.gate:
        with jax.named_scope("attention_gate"):
            y = y * jax.nn.sigmoid(x @ whole(p.attention_gate, x))[..., None]
    return y.reshape(batch, seq, -1, out_sharding=P(BATCH, None, None)) @ whole(p.out, x)
