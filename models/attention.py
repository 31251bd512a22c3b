"""Grouped-query attention with rotary positions and normalised queries and keys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ladder.shape import MoeShape
from models.layers import Draw, linear, rms_norm, row_sums

QUERY_SCALE = 1.3  # of Marin's MoE recipes: queries after their norm, before the usual 1/sqrt(head_dim)


def _rope_tables(seq_len: int, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    half = head_dim // 2
    angles = np.outer(np.arange(seq_len), theta ** (-np.arange(half) / half))
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([cos, cos], -1).astype(np.float32), np.concatenate([-sin, sin], -1).astype(np.float32)


def rope(x: Float[Array, "*B S H h"], theta: float) -> Float[Array, "*B S H h"]:
    """Return `x` with the pairs (i, i + h/2) of each head rotated by position times theta^(-2i/h)."""
    cos, sin = _rope_tables(x.shape[-3], x.shape[-1], theta)
    return x * cos[:, None] + jnp.roll(x, x.shape[-1] // 2, axis=-1) * sin[:, None]


def _by_group(x: Float[Array, "B S H h"], groups: int) -> Float[Array, "Bn gS h"]:
    """Return the heads of each group of `x` one after the other, one row of positions and groups for each sequence."""
    batch, seq, heads, head_dim = x.shape
    grouped = x.reshape(batch, seq, groups, heads // groups, head_dim).transpose(0, 2, 3, 1, 4)
    return grouped.reshape(batch * groups, heads // groups * seq, head_dim)


def _powers(q: Float[Array, "N Q h"], k: Float[Array, "N S h"]) -> Float[Array, "N Q S"]:
    seq = k.shape[1]
    causal = np.tile(np.tril(np.ones((seq, seq), bool)), (q.shape[1] // seq, 1))
    # Normalised queries and keys bound the scores by QUERY_SCALE sqrt(h), so that no maximum need be taken off.
    return jnp.where(causal, jnp.exp(jnp.einsum("nqh,nkh->nqk", q, k)), 0.0)


@jax.custom_vjp
def causal_mix(q: Float[Array, "N Q h"], k: Float[Array, "N S h"], v: Float[Array, "N S h"]) -> Float[Array, "N Q h"]:
    """Return the values mixed by softmax(q k^T) over the keys at or before each query; Q is a multiple of S.

    Scores must be small enough for their exponential. The sum divides the mixture, not the weights, and the
    gradient keeps to plain batched products.
    """
    return _causal_mix_fwd(q, k, v)[0]


_Saved = tuple[Array, ...]


def _causal_mix_fwd(
    q: Float[Array, "N Q h"], k: Float[Array, "N S h"], v: Float[Array, "N S h"]
) -> tuple[Float[Array, "N Q h"], _Saved]:
    powers = _powers(q, k)
    inverse = 1 / jnp.sum(powers, axis=-1, keepdims=True)
    mixed = jnp.einsum("nqk,nkh->nqh", powers, v) * inverse
    return mixed, (q, k, v, powers, inverse, mixed)


def _causal_mix_bwd(saved: _Saved, grad: Float[Array, "N Q h"]) -> tuple[Array, Array, Array]:
    q, k, v, powers, inverse, mixed = saved
    grad = grad * inverse
    inner = jnp.einsum("nqh,nkh->nqk", grad, v) - row_sums(grad * mixed)[..., None]
    to_scores = powers * inner
    to_q = jnp.einsum("nqk,nkh->nqh", to_scores, k)
    to_k = jnp.einsum("nqk,nqh->nkh", to_scores, q)
    return to_q, to_k, jnp.einsum("nqk,nqh->nkh", powers, grad)


causal_mix.defvjp(_causal_mix_fwd, _causal_mix_bwd)


class Attention(eqx.Module):
    """Causal self-attention. Queries, keys and values come from one matrix, in this order."""

    qkv: Float[Array, "*L d qkv"]
    out: Float[Array, "*L q d"]
    shape: MoeShape = eqx.field(static=True)

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Attention":
        """Return the attention of all layers, stacked, with fresh weights."""
        width = shape.heads * shape.head_dim
        qkv = draw.matrix(shape.layers, shape.hidden, width + 2 * shape.kv_heads * shape.head_dim)
        return Attention(qkv, draw.matrix(shape.layers, width, shape.hidden), shape)

    def __call__(self, x: Float[Array, "B S d"]) -> Float[Array, "B S d"]:
        """Return the attention output for each position, which sees itself and those before it."""
        batch, seq, hidden = x.shape
        heads, kv_heads, head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        projected = linear(x.reshape(-1, hidden), self.qkv).reshape(batch, seq, heads + 2 * kv_heads, head_dim)
        qk = projected[:, :, : heads + kv_heads]
        normed = rms_norm(qk.reshape(-1, head_dim), jnp.ones(head_dim)).reshape(qk.shape)
        qk = rope(normed, self.shape.attention.rope_theta)
        q = _by_group(qk[:, :, :heads] * (QUERY_SCALE / head_dim**0.5), kv_heads)
        k, v = _by_group(qk[:, :, heads:], kv_heads), _by_group(projected[:, :, heads + kv_heads :], kv_heads)
        mixed = causal_mix(q, k, v)
        mixed = mixed.reshape(batch, kv_heads, heads // kv_heads, seq, head_dim).transpose(0, 3, 1, 2, 4)
        return linear(mixed.reshape(batch * seq, heads * head_dim), self.out).reshape(x.shape)
