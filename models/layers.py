"""What every part of the model is made of: fresh matrices, products, sums and root-mean-square normalisation.

Gradients that automatic differentiation would write in a slow form are written by hand; tests hold them to it. What
"slow" means was measured on one core with widths of 16 to 56: see LOG.md, 2026-12-01.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

NORM_EPSILON = 1e-6
DRAWN_AT_ONCE = 2**26  # parameters, 256 MB: more is no vector to hold beside the model, nor to split over devices


class Draw:
    """Hands out fresh matrices, cut from one long vector of normals, or each from a draw of its own in large models.

    One draw for a whole small model, because each separate one is compiled: 6 s against 1 s for two layers on a CPU.
    """

    def __init__(self, size: int, *, key: PRNGKeyArray) -> None:
        whole = size <= DRAWN_AT_ONCE
        self._normals = jax.random.truncated_normal(key, -3.0, 3.0, (size,), jnp.float32) if whole else None
        self._key, self._used = key, 0

    def matrix(self, *shape: int) -> Float[Array, "..."]:
        """Return a matrix, or a stack, [..., fan_in, fan_out]: normal, cut at 3 sigma, sigma = 0.5 / sqrt(fan_in).

        The scale of Marin's MoE recipes. AdamH keeps it for good, so it is a choice about the trained model as well.
        """
        if self._normals is None:
            self._key, key = jax.random.split(self._key)
            part: Array = jax.random.truncated_normal(key, -3.0, 3.0, shape, jnp.float32)
        else:
            first, self._used = self._used, self._used + math.prod(shape)
            part = self._normals[first : self._used].reshape(shape)
        drawn: Array = 0.5 / max(1, shape[-2]) ** 0.5 * part
        return drawn


@jax.custom_vjp
def linear(x: Float[Array, "*E n i"], w: Float[Array, "*E i o"]) -> Float[Array, "*E n o"]:
    """Return the product of rows and a matrix, or of a stack of both.

    The gradient of `w` is written as x^T y. Automatic differentiation makes it (y^T x)^T, whose layouts cost the CPU's
    matrix products up to four times the time at these sizes.
    """
    return x @ w


_Operands = tuple[Float[Array, "*E n i"], Float[Array, "*E i o"]]


def _linear_fwd(x: Float[Array, "*E n i"], w: Float[Array, "*E i o"]) -> tuple[Float[Array, "*E n o"], _Operands]:
    return x @ w, (x, w)


def _linear_bwd(saved: _Operands, grad: Float[Array, "*E n o"]) -> _Operands:
    x, w = saved
    return jnp.einsum("...no,...io->...ni", grad, w), jnp.einsum("...ni,...no->...io", x, grad)


linear.defvjp(_linear_fwd, _linear_bwd)


def row_sums(x: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Return the sum of each row, as a product with ones.

    A plain sum is fused with what makes its terms, and such a kernel took up to ten times as long on a CPU.
    """
    return x @ jnp.ones(x.shape[-1])


@jax.custom_vjp
def rms_norm(x: Float[Array, "n d"], gain: Float[Array, " d"]) -> Float[Array, "n d"]:
    """Return `x` divided by the root of the mean square of each row, times `gain`."""
    return _rms_norm_fwd(x, gain)[0]


_Normed = tuple[Float[Array, "n d"], Float[Array, " d"], Float[Array, " n"]]


def _rms_norm_fwd(x: Float[Array, "n d"], gain: Float[Array, " d"]) -> tuple[Float[Array, "n d"], _Normed]:
    inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1) + NORM_EPSILON)
    return x * inverse[:, None] * gain, (x, gain, inverse)


def _rms_norm_bwd(saved: _Normed, grad: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, " d"]]:
    x, gain, inverse = saved
    both = grad * x
    inner = (both @ gain) * inverse**3 / x.shape[-1]
    return grad * gain * inverse[:, None] - x * inner[:, None], inverse @ both


rms_norm.defvjp(_rms_norm_fwd, _rms_norm_bwd)


class GatedNorm(eqx.Module):
    """The gate that follows a norm: y sigmoid(silu(y D) U) with D [d, r] and U [r, d] (Marin's GatedNorm)."""

    norm_down: Float[Array, "*L d r"]
    norm_up: Float[Array, "*L r d"]

    @staticmethod
    def init(stack: tuple[int, ...], hidden: int, rank: int, draw: Draw) -> "GatedNorm | None":
        """Return a stack of gates with fresh weights, or None where `rank` is 0.

        Both are drawn: optimizers that keep a matrix's norm would leave a matrix of zeros as it is.
        """
        if not rank:
            return None
        return GatedNorm(draw.matrix(*stack, hidden, rank), draw.matrix(*stack, rank, hidden))


def gated_norm(x: Float[Array, "n d"], gain: Float[Array, " d"], gate: GatedNorm | None) -> Float[Array, "n d"]:
    """Return the norm of `x`, gated where there is a gate."""
    y = rms_norm(x, gain)
    if gate is None:
        return y
    return y * jax.nn.sigmoid(linear(jax.nn.silu(linear(y, gate.norm_down)), gate.norm_up))


def identity_conv(layers: int, length: int, channels: int) -> Float[Array, "L n c"] | None:
    """Return depthwise convolutions that change nothing, one for each layer, or None where `length` is 0."""
    return jnp.zeros((layers, length, channels)).at[:, 0].set(1.0) if length else None


def causal_conv(x: Float[Array, "B S c"], taps: Float[Array, "n c"]) -> Float[Array, "B S c"]:
    """Return, at each position and channel, the sum over j of `taps[j]` times `x` at j positions before; zeros first."""
    seq = x.shape[1]
    shifted = [jnp.pad(x, ((0, 0), (j, 0), (0, 0)))[:, :seq] * tap for j, tap in enumerate(taps)]
    total: Array = functools.reduce(jnp.add, shifted)
    return total
