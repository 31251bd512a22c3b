"""Grouped-query attention of every pattern in `ladder.attention`, queries and keys normalised.

Plain causal attention takes a fast path. Every other pattern takes one path in which what differs between local and
global layers is chosen by a flag, so that one program serves all layers of a loop.
"""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ladder.attention import PLAIN_ATTENTION, AttentionPattern
from ladder.shape import MoeShape
from models.layers import Draw, causal_conv, identity_conv, linear, rms_norm, row_sums

# Of Marin's MoE recipes: queries after their norm, before the usual 1/sqrt(head_dim). Norms with gains learn a scale
# and have none besides (Delphi, Qwen3).
QUERY_SCALE = 1.3
QUERY_BLOCK = 512  # queries whose map exists at once where sequences are longer: splash attention's block on TPU
MASKED = -1e30  # a score that no key that is seen can have, and whose gradient is finite
# Llama 3.1's scaling: factor, bounds in turns over the original context, and that context (its model card's config).
LLAMA3_FACTOR, LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 8.0, 1.0, 4.0, 8192
TINY = 1e-12  # keeps the projection on a value that is zero at zero


def rope_frequencies(head_dim: int, theta: float, scaling: str = "") -> Float[np.ndarray, " pairs"]:
    """Return the angle per position of each pair of a head: theta^(-2i/h).

    With "llama3" those of wavelengths above the original context are divided by the factor, those of a quarter of it
    and below are kept, and between the two runs a line in the inverse wavelength (Llama 3.1's `apply_scaling`).
    """
    half = head_dim // 2
    plain: np.ndarray = theta ** (-np.arange(half) / half)
    if scaling != "llama3":
        return plain
    turns = LLAMA3_CONTEXT * plain / (2 * np.pi)  # of the pair over the original context
    share = np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0.0, 1.0)
    scaled: np.ndarray = plain * (share + (1 - share) / LLAMA3_FACTOR)
    return scaled


def _rope_tables(seq_len: int, head_dim: int, theta: float, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    angles = np.outer(np.arange(seq_len), rope_frequencies(head_dim, theta, scaling))
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([cos, cos], -1).astype(np.float32), np.concatenate([-sin, sin], -1).astype(np.float32)


def rope(x: Float[Array, "*B S H h"], theta: float, scaling: str = "") -> Float[Array, "*B S H h"]:
    """Return `x` with the pairs (i, i + h/2) of each head rotated by position times their frequency."""
    cos, sin = _rope_tables(x.shape[-3], x.shape[-1], theta, scaling)
    return x * cos[:, None] + jnp.roll(x, x.shape[-1] // 2, axis=-1) * sin[:, None]


def _by_group(x: Float[Array, "B S H h"], groups: int) -> Float[Array, "Bn gS h"]:
    """Return the heads of each group of `x` one after the other, one row of positions and groups for each sequence."""
    batch, seq, heads, head_dim = x.shape
    grouped = x.reshape(batch, seq, groups, heads // groups, head_dim).transpose(0, 2, 3, 1, 4)
    return grouped.reshape(batch * groups, heads // groups * seq, head_dim)


def _powers(
    q: Float[Array, "N Q h"], k: Float[Array, "N S h"], documents: Int[Array, "N S"] | None
) -> Float[Array, "N Q S"]:
    seq = k.shape[1]
    causal = np.tile(np.tril(np.ones((seq, seq), bool)), (q.shape[1] // seq, 1))
    if documents is not None:
        causal = causal & (jnp.tile(documents, (1, q.shape[1] // seq))[:, :, None] == documents[:, None, :])
    # Normalised queries and keys bound the scores by QUERY_SCALE sqrt(h), so that no maximum need be taken off.
    return jnp.where(causal, jnp.exp(jnp.einsum("nqh,nkh->nqk", q, k)), 0.0)


@jax.custom_vjp
def causal_mix(
    q: Float[Array, "N Q h"],
    k: Float[Array, "N S h"],
    v: Float[Array, "N S h"],
    documents: Int[Array, "N S"] | None = None,
) -> Float[Array, "N Q h"]:
    """Return the values mixed by softmax(q k^T) over the keys at or before each query; Q is a multiple of S.

    Where the document of each position is given, over those of the same one. Scores must be small enough for their
    exponential. The sum divides the mixture, not the weights, and the gradient keeps to plain batched products.
    """
    return _causal_mix_fwd(q, k, v, documents)[0]


_Saved = tuple[Array, ...]


def _causal_mix_fwd(
    q: Float[Array, "N Q h"], k: Float[Array, "N S h"], v: Float[Array, "N S h"], documents: Int[Array, "N S"] | None
) -> tuple[Float[Array, "N Q h"], _Saved]:
    powers = _powers(q, k, documents)
    inverse = 1 / jnp.sum(powers, axis=-1, keepdims=True)
    mixed = jnp.einsum("nqk,nkh->nqh", powers, v) * inverse
    return mixed, (q, k, v, powers, inverse, mixed)


def _causal_mix_bwd(saved: _Saved, grad: Float[Array, "N Q h"]) -> tuple[Array, Array, Array, None]:
    q, k, v, powers, inverse, mixed = saved
    grad = grad * inverse
    inner = jnp.einsum("nqh,nkh->nqk", grad, v) - row_sums(grad * mixed)[..., None]
    to_scores = powers * inner
    to_q = jnp.einsum("nqk,nkh->nqh", to_scores, k)
    to_k = jnp.einsum("nqk,nqh->nkh", to_scores, q)
    return to_q, to_k, jnp.einsum("nqk,nqh->nkh", powers, grad), None


causal_mix.defvjp(_causal_mix_fwd, _causal_mix_bwd)


def windowed_mix(
    q: Float[Array, "B S H h"],
    k: Float[Array, "B S H h"],
    v: Float[Array, "B S H h"],
    window: Int[Array, ""],
    documents: Int[Array, "B S"] | None = None,
) -> Float[Array, "B S H h"]:
    """Return the values mixed by softmax(q k^T) over the last `window` keys at or before each query, itself included.

    Where the document of each position is given, over those of the same one. Scores of any size. The map of a block of queries is made, used and, in the gradient, made again, so that the map
    of all queries never exists.
    """
    seq = q.shape[1]
    block = min(seq, QUERY_BLOCK)
    positions = jnp.arange(seq)

    @jax.checkpoint
    def rows(at: Int[Array, " block"]) -> Float[Array, "B block H h"]:
        queries = q.at[:, at].get(mode="fill", fill_value=0)
        scores = jnp.einsum("bqhc,bkhc->bhqk", queries, k)
        seen = (positions <= at[:, None]) & (positions > at[:, None] - window)
        if documents is not None:
            mine = documents.at[:, at].get(mode="fill", fill_value=-1)
            seen = seen & (mine[:, None, :, None] == documents[:, None, None, :])
        weights = jax.nn.softmax(jnp.where(seen, scores, MASKED), axis=-1)
        return jnp.einsum("bhqk,bkhc->bqhc", weights, v)

    blocks = jnp.arange(math.ceil(seq / block) * block).reshape(-1, block)
    mixed: Array = rows(blocks[0])[None] if len(blocks) == 1 else jax.lax.map(rows, blocks)
    return jnp.moveaxis(mixed, 0, 1).reshape(q.shape[0], -1, *q.shape[2:])[:, :seq]


class Attention(eqx.Module):
    """Causal self-attention. Queries, keys and values come from one matrix, in this order; what is off is None.

    Attributes:
        gate: a vector per head; its output is scaled by 2 sigmoid(x . gate).
        query_gain, key_gain: gains of the norms of queries and keys.
        key_conv, out_conv: causal depthwise convolutions on keys and on the output.
    """

    qkv: Float[Array, "*L d qkv"]
    out: Float[Array, "*L q d"]
    gate: Float[Array, "*L d H"] | None
    query_gain: Float[Array, "*L h"] | None
    key_gain: Float[Array, "*L h"] | None
    key_conv: Float[Array, "*L n k"] | None
    out_conv: Float[Array, "*L n d"] | None
    shape: MoeShape = eqx.field(static=True)

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Attention":
        """Return the attention of all layers, stacked, with fresh weights; gates and gains are one, convolutions off.

        The gate's vectors start at zero, as in Marin's hero recipe.
        """
        width, keys = shape.heads * shape.head_dim, shape.stored_kv_heads * shape.head_dim
        gains = jnp.ones((shape.layers, shape.head_dim)) if shape.attention.qk_gains else None
        qkv = draw.matrix(shape.layers, shape.hidden, width + 2 * keys)
        return Attention(
            qkv,
            draw.matrix(shape.layers, width, shape.hidden),
            jnp.zeros((shape.layers, shape.hidden, shape.heads)) if shape.attention.gate else None,
            gains,
            gains,
            identity_conv(shape.layers, shape.short_conv, keys),
            identity_conv(shape.layers, shape.short_conv, shape.hidden),
            shape,
        )

    def __call__(
        self, x: Float[Array, "B S d"], is_global: Bool[Array, ""], documents: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B S d"]:
        """Return the attention output for each position, which sees itself and those before it in the layer's window.

        `is_global` says which kind of layer this is; patterns whose layers are all alike do not read it. With
        `documents`, the number of each position's document, a position sees those of its own; offset keys and short
        convolutions still reach back over a boundary.
        """
        plain = replace(PLAIN_ATTENTION, rope_theta=self.shape.attention.rope_theta)
        if self.shape.attention == plain and not self.shape.short_conv:
            return self._plain(x, documents)
        return self._patterned(x, is_global, documents)

    def _plain(self, x: Float[Array, "B S d"], documents: Int[Array, "B S"] | None) -> Float[Array, "B S d"]:
        batch, seq, hidden = x.shape
        heads, kv_heads, head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        projected = linear(x.reshape(-1, hidden), self.qkv).reshape(batch, seq, heads + 2 * kv_heads, head_dim)
        qk = projected[:, :, : heads + kv_heads]
        normed = rms_norm(qk.reshape(-1, head_dim), jnp.ones(head_dim)).reshape(qk.shape)
        qk = rope(normed, self.shape.attention.rope_theta)
        q = _by_group(qk[:, :, :heads] * (QUERY_SCALE / head_dim**0.5), kv_heads)
        k, v = _by_group(qk[:, :, heads:], kv_heads), _by_group(projected[:, :, heads + kv_heads :], kv_heads)
        mixed = causal_mix(q, k, v, None if documents is None else jnp.repeat(documents, kv_heads, axis=0))
        mixed = mixed.reshape(batch, kv_heads, heads // kv_heads, seq, head_dim).transpose(0, 3, 1, 2, 4)
        return linear(mixed.reshape(batch * seq, heads * head_dim), self.out).reshape(x.shape)

    def _patterned(
        self, x: Float[Array, "B S d"], is_global: Bool[Array, ""], documents: Int[Array, "B S"] | None
    ) -> Float[Array, "B S d"]:
        batch, seq, hidden = x.shape
        shape, pattern = self.shape, self.shape.attention
        heads, stored, head_dim = shape.heads, shape.stored_kv_heads, shape.head_dim
        rows = x.reshape(-1, hidden)
        projected = linear(rows, self.qkv).reshape(batch, seq, heads + 2 * stored, head_dim)
        q, k, v = jnp.split(projected, [heads, heads + stored], axis=2)
        if self.key_conv is not None:
            k = causal_conv(k.reshape(batch, seq, -1), self.key_conv).reshape(k.shape)
        q, k = _normed(q, self.query_gain), _normed(k, self.key_gain)
        q, k = self._positioned(q, is_global), self._positioned(k, is_global)
        if pattern.key_offset:
            free = rotated_width(head_dim, pattern)
            back = jnp.pad(k[:, :-1, :, free:], ((0, 0), (1, 0), (0, 0), (0, 0)))
            k = k.at[..., free:].set(jnp.where(is_global, back, k[..., free:]))
        # Layers use the first of the stored key and value heads; each serves as many query heads in a row.
        used = jnp.where(is_global, pattern.global_kv_heads or shape.kv_heads, shape.kv_heads)
        group = jnp.arange(heads) * used // heads
        k, v = k[:, :, group], v[:, :, group]
        window = jnp.where(is_global, seq, pattern.window or seq)
        scale = (1.0 if pattern.qk_gains else QUERY_SCALE) / head_dim**0.5
        mixed = windowed_mix(q * scale, k, v, window, documents)
        if pattern.exclusive:
            length2 = jnp.sum(v * v, axis=-1, keepdims=True)
            mixed = mixed - jnp.sum(mixed * v, axis=-1, keepdims=True) / jnp.maximum(length2, TINY) * v
        if self.gate is not None:
            mixed = mixed * (2 * jax.nn.sigmoid(linear(rows, self.gate))).reshape(batch, seq, heads, 1)
        y = linear(mixed.reshape(batch * seq, heads * head_dim), self.out).reshape(x.shape)
        return y if self.out_conv is None else causal_conv(y, self.out_conv)

    def _positioned(self, x: Float[Array, "B S n h"], is_global: Bool[Array, ""]) -> Float[Array, "B S n h"]:
        pattern = self.shape.attention
        width = rotated_width(x.shape[-1], pattern)
        rotated = jnp.concatenate(
            [rope(x[..., :width], pattern.rope_theta, pattern.rope_scaling), x[..., width:]], axis=-1
        )
        return rotated if pattern.global_rope else jnp.where(is_global, x, rotated)


def rotated_width(head_dim: int, pattern: AttentionPattern) -> int:
    """Return how many leading dimensions of a head are rotated, an even number."""
    return 2 * round(head_dim * pattern.rope_fraction / 2)


def _normed(x: Float[Array, "B S n h"], gain: Float[Array, " h"] | None) -> Float[Array, "B S n h"]:
    gains = jnp.ones(x.shape[-1]) if gain is None else gain
    return rms_norm(x.reshape(-1, x.shape[-1]), gains).reshape(x.shape)
