"""The Mixture-of-Experts transformer as a pod runs it: bf16 products, layers scanned, everything rematerialised.

The same mathematics as `models.transformer` with the parts of Marin's recipes besides (GatedNorm, attention gate,
exclusive self-attention, windows); held to it by tests on virtual devices. Weights are gathered layer by layer (FSDP),
activations stay split by sequences.
"""

import math
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from ladder.shape import MoeShape
from models.mesh import BATCH
from models.pod_attention import Attend, rotate
from models.pod_moe import balance, routed

NORM_EPSILON = 1e-6
QUERY_SCALE = 1.3  # of Marin's MoE recipes, as in models.attention


class Norm(eqx.Module):
    """Root-mean-square norm with gains, and the thin gate that follows it (GatedNorm) where its rank is not 0."""

    gain: Float[Array, "*L d"]
    gate_in: Float[Array, "*L d r"]
    gate_out: Float[Array, "*L r d"]

    @staticmethod
    def shaped(shape: MoeShape, *layers: int) -> "Norm":
        """Return the shapes of a norm, or of a stack of them."""
        d, rank = shape.hidden, shape.gated_norm_rank
        return Norm(_f32(*layers, d), _f32(*layers, d, rank), _f32(*layers, rank, d))

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Return the normalised `x`; statistics in float32."""
        normed = unit(x) * self.gain.astype(x.dtype)
        if not self.gate_in.shape[-1]:
            return normed
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
    def shaped(shape: MoeShape) -> "Pod":
        """Return the shapes of all parameters; they add up to `ladder.counts.count_params`."""
        d, n, h = shape.hidden, shape.layers, shape.head_dim
        return Pod(
            _f32(shape.vocab_size, d),
            Norm.shaped(shape) if shape.embedding_norm else None,
            Layers(
                Norm.shaped(shape, n),
                _f32(n, d, shape.heads * h),
                _f32(n, d, shape.kv_heads * h),
                _f32(n, d, shape.kv_heads * h),
                _f32(n, shape.heads * h, d),
                _f32(n, d, shape.heads * shape.attention.gate),
                Norm.shaped(shape, n),
                _f32(n, d, shape.experts),
                _f32(n, shape.experts, d, 2 * shape.expert_width),
                _f32(n, shape.experts, shape.expert_width, d),
                _f32(n, shape.shared_experts, d, 2 * shape.shared_width),
                _f32(n, shape.shared_experts, shape.shared_width, d),
            ),
            Norm.shaped(shape),
            _f32(d, shape.vocab_size),
        )


def _f32(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def unit(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Return `x` over its root mean square along the last axis, statistics in float32."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + NORM_EPSILON)
    return (wide * scale).astype(x.dtype)


def whole(weight: Array, like: Array) -> Array:
    """Return `weight` in the type of `like` and on every device: what FSDP gathers before a product."""
    return jax.sharding.reshard(weight.astype(like.dtype), P(*(None,) * weight.ndim))


@dataclass(frozen=True)
class PodOptions:
    """How a pod computes what the model says.

    Attributes:
        backend: of the routed experts, by Levanter's name: scatter (no expert axis), ring, fixed_all_to_all,
            ragged_all_to_all.
        capacity_factor: slots per expert over its mean load, for backends with fixed capacity.
        dtype: of activations and gathered weights.
        splash: whether attention is the TPU's kernel; else plain masked attention, for other devices.
        chunk: tokens whose logits exist at once.
        remat: whether a layer's activations are made again in the backward pass.
    """

    backend: str = "ring"
    capacity_factor: float = 1.25
    dtype: str = "bfloat16"
    splash: bool = True
    chunk: int = 1024
    remat: bool = True


class LayerStats(eqx.Module):
    """What the routers of all layers did: the next bias, the load of each expert, dropped choices."""

    bias: Float[Array, "*L E"]
    load: Float[Array, "*L E"]
    dropped: Float[Array, "*L"]


def hidden_states(
    params: Pod, bias: Float[Array, "L E"], tokens: Int[Array, "B S"], shape: MoeShape, mesh: Mesh, options: PodOptions
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
        x = x + _attention(p, p.attention_norm(x), is_global, shape, attend)
        normed = p.expert_norm(x)
        flat = normed.reshape(-1, shape.hidden, out_sharding=P(BATCH, None))
        logits = flat.astype(jnp.float32) @ whole(p.router, jnp.zeros((), jnp.float32))
        chosen, weights, threshold = routed_choice(logits, layer_bias, shape.top_k)
        outputs, dropped = routed(p.gate_up, p.down, flat, chosen, weights, mesh, options.backend, options.capacity_factor)
        outputs = outputs.reshape(x.shape, out_sharding=P(BATCH, None, None))
        for at in range(shape.shared_experts):
            gate, up = jnp.split(normed @ whole(p.shared_gate_up[at], x), 2, axis=-1)
            outputs = outputs + (jax.nn.silu(gate) * up) @ whole(p.shared_down[at], x)
        next_bias, load = balance(logits, threshold, chosen, shape, mesh)
        return x + outputs, LayerStats(next_bias, load, dropped)

    body = partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)(layer) if options.remat else layer
    is_global = np.array([shape.attention.is_global(at, shape.layers) for at in range(shape.layers)])
    x, stats = jax.lax.scan(body, x, (params.layers, bias, jnp.asarray(is_global)))
    return params.head_norm(x), stats


def routed_choice(
    logits: Float[Array, "T E"], bias: Float[Array, " E"], top_k: int
) -> tuple[Int[Array, "T K"], Float[Array, "T K"], Float[Array, " T"]]:
    """Return each token's K experts on biased logits, their sigmoid weights, and the (K+1)-th largest biased logit."""
    biased = jax.lax.stop_gradient(logits) + bias
    values, order = jax.lax.top_k(biased, min(top_k + 1, logits.shape[-1]))
    chosen = order[:, :top_k]
    rows = jnp.sum(jax.nn.one_hot(chosen, logits.shape[-1], dtype=logits.dtype) * logits[:, None], axis=-1)
    return chosen, jax.nn.sigmoid(rows), values[:, -1]


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
        y = y * jax.nn.sigmoid(x @ whole(p.attention_gate, x))[..., None]
    return y.reshape(batch, seq, -1, out_sharding=P(BATCH, None, None)) @ whole(p.out, x)
