"""What is summed over runs: a loss of the residuals ln L_hat - ln L, with its first two derivatives.

The sum, never the mean, is taken: a mean makes default tolerances stop early, which is how Hoffmann et al.'s approach
3 went wrong (Besiroglu et al. 2024).
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Float

from ladder.errors import InputError


class LossKind(StrEnum):
    """Which loss of the log residuals is summed."""

    HUBER = "huber"
    MSE = "mse"
    STUDENT_T = "student_t"


class ResidualKind(StrEnum):
    """What a residual is: ln L_hat - ln L, or L_hat - L in the unit of the loss."""

    LOG = "log"
    LINEAR = "linear"


STUDENT_DF = 4.0  # degrees of freedom of the Student-t loss (laws.md section 34.4 tries 4, 8 and infinity)


@dataclass(frozen=True)
class LossSpec:
    """sum of rho(r) with r = ln L_hat - ln L.

    ``huber``: r^2/2 below `delta`, delta (|r| - delta/2) above. ``mse``: r^2/2. ``student_t``: the negative log
    likelihood of a Student-t of 4 degrees of freedom and scale `delta`, times delta^2 and so that it begins as r^2/2.

    `residual` ``linear`` takes r = L_hat - L instead, with `delta` in the unit of the loss; `overestimate_weight`
    multiplies rho where the law lies above the run, for rungs that may be under-tuned (10 in OLMo-core PR 554).

    `delta` = 1e-3 (Hoffmann et al. 2022) lies below nearly all residuals, so that loss is close to least absolute
    deviations; it is None for MSE.
    """

    kind: LossKind
    delta: float | None
    residual: ResidualKind = ResidualKind.LOG
    overestimate_weight: float = 1.0

    def __post_init__(self) -> None:
        if (self.kind is LossKind.MSE) != (self.delta is None):
            raise InputError(f"loss {self.kind} and delta={self.delta} do not go together; all but mse take a delta.")
        if self.delta is not None and not 0 < self.delta < math.inf:
            raise InputError(f"delta={self.delta} must be positive and finite; use mse for no limit.")
        if not 0 < self.overestimate_weight < math.inf:
            raise InputError(f"overestimate_weight={self.overestimate_weight} must be positive and finite.")

    @staticmethod
    def huber(delta: float = 1e-3) -> "LossSpec":
        """Return the Huber loss of log residuals."""
        return LossSpec(LossKind.HUBER, delta)

    @staticmethod
    def mse() -> "LossSpec":
        """Return half the squared log residuals."""
        return LossSpec(LossKind.MSE, None)

    @staticmethod
    def student_t(scale: float) -> "LossSpec":
        """Return the Student-t loss of log residuals with `scale`."""
        return LossSpec(LossKind.STUDENT_T, scale)

    def __str__(self) -> str:
        what = "ln L" if self.residual is ResidualKind.LOG else "L"
        heavier = "" if self.overestimate_weight == 1 else f", overestimates x {self.overestimate_weight:g}"
        match self.kind:
            case LossKind.MSE:
                return f"half squared {what} residuals{heavier}"
            case LossKind.HUBER:
                return f"Huber({self.delta:g}) on {what}{heavier}"
            case _:
                return f"Student-t({STUDENT_DF:g}, scale {self.delta:g}) on {what}{heavier}"

    def rho(self, r: Float[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."], ...]:
        """Return rho, its derivative and its second derivative at residuals `r`."""
        if self.overestimate_weight == 1:
            return self._symmetric(r)
        weight = np.where(r > 0, self.overestimate_weight, 1.0)
        value, slope, curvature = self._symmetric(r)
        return weight * value, weight * slope, weight * curvature

    def of_log(
        self, q: Float[np.ndarray, "*batch runs"], log_loss: Float[np.ndarray, "*#batch runs"]
    ) -> tuple[Float[np.ndarray, "*batch runs"], ...]:
        """Return rho and its first two derivatives in q = ln L_hat - ln L, whichever the residual is."""
        if self.residual is ResidualKind.LOG:
            return self.rho(q)
        slope = np.exp(q + log_loss)
        value, psi, curvature = self.rho(np.exp(log_loss) * np.expm1(q))
        return value, psi * slope, (curvature * slope + psi) * slope

    def _symmetric(self, r: Float[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."], ...]:
        if self.kind is LossKind.MSE:
            return r * r / 2, r, np.ones_like(r)
        assert self.delta is not None  # kept by __post_init__
        if self.kind is LossKind.HUBER:
            psi = np.minimum(np.maximum(r, -self.delta), self.delta)
            return psi * (r - psi / 2), psi, (psi == r).astype(float)
        squares = STUDENT_DF * self.delta**2
        ratio = r * r / squares
        return squares / 2 * np.log1p(ratio), r / (1 + ratio), (1 - ratio) / (1 + ratio) ** 2

    def traced(self, q: Any, log_loss: Any) -> Any:
        """Return rho at q = ln L_hat - ln L, an array that JAX traces."""
        import jax.numpy as jnp

        r = q if self.residual is ResidualKind.LOG else jnp.exp(log_loss) * jnp.expm1(q)
        weight = 1.0 if self.overestimate_weight == 1 else jnp.where(r > 0, self.overestimate_weight, 1.0)
        if self.kind is LossKind.MSE:
            return weight * r * r / 2
        assert self.delta is not None
        if self.kind is LossKind.HUBER:
            psi = jnp.clip(r, -self.delta, self.delta)
            return weight * psi * (r - psi / 2)
        squares = STUDENT_DF * self.delta**2
        return weight * squares / 2 * jnp.log1p(r * r / squares)
