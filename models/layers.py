"""What every part of the model is made of: a fresh matrix, and root-mean-square normalisation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

NORM_EPSILON = 1e-6


def matrix(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Return a matrix, or a stack of them, [..., fan_in, fan_out]: normal, cut at 3 sigma, sigma = 0.5 / sqrt(fan_in).

    The scale of Marin's MoE recipes. AdamH keeps it for good, so it is a choice about the trained model as well.
    """
    sigma = 0.5 / shape[-2] ** 0.5
    return sigma * jax.random.truncated_normal(key, -3.0, 3.0, shape, jnp.float32)


def rms_norm(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Return `x` divided by the root of the mean square over its last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON)
