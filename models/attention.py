"""Grouped-query attention with rotary positions and normalised queries and keys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ladder.shape import MoeShape
from models.layers import Draw, rms_norm

ROPE_THETA = 100.0  # at 64 positions and heads of 16; 1e4 cost 0.19 nats there (LOG.md, 2026-12-01)
QUERY_SCALE = 1.3  # of Marin's MoE recipes: queries after their norm, before the usual 1/sqrt(head_dim)


def _rope_tables(seq_len: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    half = head_dim // 2
    angles = np.outer(np.arange(seq_len), ROPE_THETA ** (-np.arange(half) / half))
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([cos, cos], -1).astype(np.float32), np.concatenate([-sin, sin], -1).astype(np.float32)


def rope(x: Float[Array, "*B S H h"]) -> Float[Array, "*B S H h"]:
    """Return `x` with the pairs (i, i + h/2) of each head rotated by position times theta^(-2i/h)."""
    cos, sin = _rope_tables(x.shape[-3], x.shape[-1])
    return x * cos[:, None] + jnp.roll(x, x.shape[-1] // 2, axis=-1) * sin[:, None]


class Attention(eqx.Module):
    """Causal self-attention. Queries, keys and values come from one matrix, in this order."""

    qkv: Float[Array, "d qkv"]
    out: Float[Array, "q d"]
    shape: MoeShape = eqx.field(static=True)

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Attention":
        """Return attention with fresh weights."""
        width = shape.heads * shape.head_dim
        qkv = draw.matrix(shape.hidden, width + 2 * shape.kv_heads * shape.head_dim)
        return Attention(qkv, draw.matrix(width, shape.hidden), shape)

    def __call__(self, x: Float[Array, "B S d"]) -> Float[Array, "B S d"]:
        """Return the attention output for each position, which sees itself and those before it."""
        batch, seq, _ = x.shape
        heads, kv_heads, head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        projected = (x @ self.qkv).reshape(batch, seq, heads + 2 * kv_heads, head_dim)
        qk = rope(rms_norm(projected[:, :, : heads + kv_heads]))
        q = qk[:, :, :heads].reshape(batch, seq, kv_heads, heads // kv_heads, head_dim)
        k, v = qk[:, :, heads:], projected[:, :, heads + kv_heads :]
        scores = jnp.einsum("bqngh,bknh->bngqk", q * (QUERY_SCALE / head_dim**0.5), k)
        causal = np.tril(np.ones((seq, seq), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("bngqk,bknh->bqngh", weights, v)
        return mixed.reshape(batch, seq, heads * head_dim) @ self.out
