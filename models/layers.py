"""What every part of the model is made of: a fresh matrix, and root-mean-square normalisation."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

NORM_EPSILON = 1e-6


class Draw:
    """Hands out fresh matrices, cut from one long vector of normals.

    One draw for the whole model, because each separate one is compiled: 6 s against 1 s for two layers on a CPU.
    """

    def __init__(self, size: int, *, key: PRNGKeyArray) -> None:
        self._normals = jax.random.truncated_normal(key, -3.0, 3.0, (size,), jnp.float32)
        self._used = 0

    def matrix(self, *shape: int) -> Float[Array, "..."]:
        """Return a matrix, or a stack, [..., fan_in, fan_out]: normal, cut at 3 sigma, sigma = 0.5 / sqrt(fan_in).

        The scale of Marin's MoE recipes. AdamH keeps it for good, so it is a choice about the trained model as well.
        """
        first, self._used = self._used, self._used + math.prod(shape)
        part: Array = self._normals[first : self._used]
        drawn: Array = 0.5 / shape[-2] ** 0.5 * part.reshape(shape)
        return drawn


def rms_norm(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Return `x` divided by the root of the mean square over its last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON)
