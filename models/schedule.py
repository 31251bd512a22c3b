"""The learning rate over a run."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ladder.recipe_interface import Schedule


class ScheduleValues(NamedTuple):
    """A schedule as scalars that may be traced; see `ladder.recipe_interface.Schedule`. `cosine` is 1 or 0."""

    warmup_fraction: Float[Array, ""]
    decay_fraction: Float[Array, ""]
    final_fraction: Float[Array, ""]
    cosine: Float[Array, ""]

    @staticmethod
    def of(schedule: Schedule) -> "ScheduleValues":
        """Return the values of `schedule`."""
        fractions = (schedule.warmup_fraction, schedule.decay_fraction, schedule.final_fraction)
        return ScheduleValues(*(jnp.float32(value) for value in (*fractions, schedule.decay == "cosine")))


def rate_fraction(step: Int[Array, ""], steps: Int[Array, ""], schedule: ScheduleValues) -> Float[Array, ""]:
    """Return the share of the peak rate at `step` (from 0) of `steps`: warmup, stable, decay.

    Warmup rises linearly over `warmup_fraction` of the steps and is never zero at the first; decay falls over the last
    `decay_fraction` of them, linearly or by half a cosine, to `final_fraction`, which it would reach at step `steps`.
    """
    total = steps.astype(jnp.float32)
    done = step.astype(jnp.float32)
    rise = (done + 1.0) / jnp.maximum(schedule.warmup_fraction * total, 1.0)
    left = jnp.minimum((total - done) / jnp.maximum(schedule.decay_fraction * total, 1.0), 1.0)
    left = jnp.where(schedule.cosine > 0, 0.5 - 0.5 * jnp.cos(jnp.pi * left), left)
    fall = schedule.final_fraction + (1.0 - schedule.final_fraction) * left
    return jnp.minimum(jnp.minimum(rise, 1.0), fall)
