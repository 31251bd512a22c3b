"""Attention of a pod: every pattern of `ladder.attention`, mixed by the TPU's splash kernel or by plain masked attention.

Heads lead, since the kernel and the exclusion read them so.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from ladder.shape import MoeShape
from models.attention import QUERY_SCALE, TINY, Attention, rope_frequencies, rotated_width
from models.layers import causal_conv
from models.mesh import BATCH
from models.pod_layers import unit, whole

Kernel = Callable[[Array, Array, Array], Array]
BLOCK = 512  # of queries and keys; sequences shorter than that are one block
SPLIT = P(BATCH, None, None, None)


def rotate(x: Float[Array, "B H S h"], theta: float, scaling: str) -> Float[Array, "B H S h"]:
    """Return `x` with the pairs (i, i + h/2) rotated by position times their frequency."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[-2]), rope_frequencies(x.shape[-1], theta, scaling))
    cos, sin = (jnp.asarray(each.astype(np.float32)) for each in (np.cos(angles), np.sin(angles)))
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(
    p: Attention, x: Float[Array, "B S d"], is_global: Array, mesh: Mesh, *, splash: bool
) -> Float[Array, "B S d"]:
    """Return what `models.attention.Attention` returns; `is_global` says which kind of layer this is."""
    shape = p.shape
    batch, seq, _ = x.shape
    width, keys = shape.heads * shape.head_dim, shape.stored_kv_heads * shape.head_dim
    # One gather, three products: a TPU writes each with its heads first, which it does not do with parts of one.
    q, k, v = (x @ weight for weight in jnp.split(whole(p.qkv, x), [width, width + keys], axis=-1))
    if p.key_conv is not None:
        k = causal_conv(k, p.key_conv.astype(x.dtype))
    q, k, v = (
        each.reshape(batch, seq, -1, shape.head_dim, out_sharding=SPLIT).transpose(0, 2, 1, 3) for each in (q, k, v)
    )
    q = unit(q) * (QUERY_SCALE if p.query_gain is None else p.query_gain.astype(x.dtype))
    k = unit(k) if p.key_gain is None else unit(k) * p.key_gain.astype(x.dtype)
    q, k = (_positioned(each, is_global, shape) for each in (q, k))
    y = _mixed(q / math.sqrt(shape.head_dim), k, v, is_global, shape, mesh, splash)
    y = y.transpose(0, 2, 1, 3)
    if p.gate is not None:
        with jax.named_scope("attention_gate"):
            y = y * (2 * jax.nn.sigmoid(x @ whole(p.gate, x)))[..., None]
    y = y.reshape(batch, seq, -1, out_sharding=P(BATCH, None, None)) @ whole(p.out, x)
    return y if p.out_conv is None else causal_conv(y, p.out_conv.astype(x.dtype))


def _positioned(x: Float[Array, "B n S h"], is_global: Array, shape: MoeShape) -> Float[Array, "B n S h"]:
    pattern = shape.attention
    width = rotated_width(shape.head_dim, pattern)
    rotated = rotate(x[..., :width], pattern.rope_theta, pattern.rope_scaling)
    if width < shape.head_dim:
        rotated = jnp.concatenate([rotated, x[..., width:]], axis=-1)
    return rotated if pattern.global_rope else jnp.where(is_global, x, rotated)


def _mixed(
    q: Array, k: Array, v: Array, is_global: Array, shape: MoeShape, mesh: Mesh, splash: bool
) -> Float[Array, "B H S h"]:
    """Return the mixed values; both kinds of layers are compiled and one is run, so that one loop body serves all."""
    pattern = shape.attention
    on_global = pattern.global_kv_heads or shape.kv_heads

    def over(window: int, heads: int, offset: bool) -> Array:
        keys = k[:, :heads]
        if offset:
            free = rotated_width(shape.head_dim, pattern)
            back = jnp.pad(keys[:, :, :-1, free:], ((0, 0), (0, 0), (1, 0), (0, 0)))
            keys = jnp.concatenate([keys[..., :free], back], axis=-1)
        return _kernel_over(q, keys, v[:, :heads], window, shape, mesh, splash)

    def own(heads: int) -> Array:
        return jnp.repeat(v[:, :heads], shape.heads // heads, axis=1, out_sharding=SPLIT)

    everywhere = partial(over, 0, on_global, pattern.key_offset)
    window = pattern.window if pattern.window < shape.seq_len else 0
    nearby = partial(over, window, shape.kv_heads, False)
    mixed: Array = jax.lax.cond(is_global, everywhere, nearby) if pattern.window else everywhere()
    if not pattern.exclusive:
        return mixed
    # Outside the branches, where the compiler fuses it with what comes after.
    values = own(on_global)
    if pattern.window and on_global != shape.kv_heads:
        values = jnp.where(is_global, values, own(shape.kv_heads))
    values, wide = values.astype(jnp.float32), mixed.astype(jnp.float32)
    along = jnp.sum(wide * values, -1, keepdims=True) / jnp.maximum(jnp.sum(values * values, -1, keepdims=True), TINY)
    return (wide - along * values).astype(q.dtype)


def _kernel_over(
    q: Array, k: Array, v: Array, window: int, shape: MoeShape, mesh: Mesh, splash: bool
) -> Float[Array, "B H S h"]:
    """Return the values mixed by softmax(q k^T) over the last `window` keys, all where it is 0; grouped heads."""
    kernel = _splash(shape, window) if splash else _plain(shape, window)
    # Without barriers the compiler fuses the transposes around the kernel into the projections and aborts at some
    # widths (fusion_util.cc "split of a padded window dim").
    q, k, v = jax.lax.optimization_barrier((q, k, v))
    mapped = jax.shard_map(
        jax.vmap(kernel), mesh=mesh, in_specs=(SPLIT, SPLIT, SPLIT), out_specs=SPLIT, check_vma=False
    )
    mixed: Array = jax.lax.optimization_barrier(mapped(q, k, v))
    return mixed


def _splash(shape: MoeShape, window: int) -> Kernel:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    seq = shape.seq_len
    block = min(BLOCK, seq)
    one = splash.LocalMask((seq, seq), (window - 1, 0), 0) if window else splash.CausalMask((seq, seq))
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    mask = splash.MultiHeadMask([one] * shape.heads)
    kernel: Kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    return kernel


def _plain(shape: MoeShape, window: int) -> Kernel:
    seq = shape.seq_len
    rows, columns = np.arange(seq)[:, None], np.arange(seq)[None]
    mask = (columns <= rows) & ((columns > rows - window) if window else True)

    def attend(q: Array, k: Array, v: Array) -> Array:
        groups = q.shape[0] // k.shape[0]
        k, v = jnp.repeat(k, groups, axis=0), jnp.repeat(v, groups, axis=0)
        scores = jnp.where(mask, jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32), -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)

    return attend
