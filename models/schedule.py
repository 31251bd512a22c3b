"""The learning rate over a run."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def wsd(
    step: Int[Array, ""],
    steps: Int[Array, ""],
    warmup_fraction: Float[Array, ""],
    decay_fraction: Float[Array, ""],
    final_fraction: Float[Array, ""],
) -> Float[Array, ""]:
    """Return the share of the peak rate at `step` (from 0) of `steps`: warmup, stable, decay, each linear.

    Warmup rises over `warmup_fraction` of the steps and is never zero at the first; decay falls over the last
    `decay_fraction` of them to `final_fraction`, which it would reach at step `steps`. All arguments may be traced.
    """
    total = steps.astype(jnp.float32)
    done = step.astype(jnp.float32)
    rise = (done + 1.0) / jnp.maximum(warmup_fraction * total, 1.0)
    left = (total - done) / jnp.maximum(decay_fraction * total, 1.0)
    fall = final_fraction + (1.0 - final_fraction) * jnp.minimum(left, 1.0)
    return jnp.minimum(jnp.minimum(rise, 1.0), fall)
