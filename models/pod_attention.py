"""Attention of a pod: the TPU's splash kernel, or plain masked attention elsewhere."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from ladder.shape import MoeShape
from models.mesh import BATCH

Kernel = Callable[[Array, Array, Array], Array]
BLOCK = 512  # of queries and keys; sequences shorter than that are one block


def rotate(x: Float[Array, "B H S h"], theta: float) -> Float[Array, "B H S h"]:
    """Return `x` with the pairs (i, i + h/2) rotated by position times theta^(-2i/h)."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[-2]), theta ** (-np.arange(half) / half))
    cos, sin = (jnp.asarray(each.astype(np.float32)) for each in (np.cos(angles), np.sin(angles)))
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Attend:
    """Causal attention over heads-first arrays, on local layers within the window of the shape."""

    def __init__(self, shape: MoeShape, mesh: Mesh, splash: bool) -> None:
        self._shape, self._mesh, self._splash = shape, mesh, splash

    def __call__(
        self, q: Float[Array, "B H S h"], k: Float[Array, "B G S h"], v: Float[Array, "B G S h"], is_global: Array
    ) -> Float[Array, "B H S h"]:
        """Return the values mixed by softmax(q k^T); `is_global` says whether this layer sees all that precedes.

        Both masks are compiled and one is run, so that one loop body serves all layers.
        """
        window = self._shape.attention.window
        if not window or window >= self._shape.seq_len:
            return self._over(q, k, v, 0)
        mixed: Array = jax.lax.cond(is_global, lambda: self._over(q, k, v, 0), lambda: self._over(q, k, v, window))
        return mixed

    def _over(self, q: Array, k: Array, v: Array, window: int) -> Array:
        kernel = self._kernel(window) if self._splash else self._plain(window)
        split = P(BATCH, None, None, None)
        # Without barriers the compiler fuses the transposes around the kernel into the projections and aborts at some
        # widths (fusion_util.cc "split of a padded window dim").
        q, k, v = jax.lax.optimization_barrier((q, k, v))
        mapped = jax.shard_map(
            jax.vmap(kernel), mesh=self._mesh, in_specs=(split, split, split), out_specs=split, check_vma=False
        )
        mixed: Array = jax.lax.optimization_barrier(mapped(q, k, v))
        return mixed

    def _kernel(self, window: int) -> Kernel:
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        seq = self._shape.seq_len
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
        mask = splash.MultiHeadMask([one] * self._shape.heads)
        kernel: Kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
        return kernel

    def _plain(self, window: int) -> Kernel:
        seq, groups = self._shape.seq_len, self._shape.heads // self._shape.kv_heads
        rows, columns = np.arange(seq)[:, None], np.arange(seq)[None]
        mask = (columns <= rows) & ((columns > rows - window) if window else True)

        def attend(q: Array, k: Array, v: Array) -> Array:
            k, v = jnp.repeat(k, groups, axis=0), jnp.repeat(v, groups, axis=0)
            scores = jnp.where(mask, jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32), -jnp.inf)
            return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)

        return attend
