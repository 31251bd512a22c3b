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


STUDENT_DF = 4.0  # degrees of freedom of the Student-t loss (laws.md section 34.4 tries 4, 8 and infinity)


@dataclass(frozen=True)
class LossSpec:
    """sum of rho(r) with r = ln L_hat - ln L.

    ``huber``: r^2/2 below `delta`, delta (|r| - delta/2) above. ``mse``: r^2/2. ``student_t``: the negative log
    likelihood of a Student-t of 4 degrees of freedom and scale `delta`, times delta^2 and so that it begins as r^2/2.

    `delta` = 1e-3 (Hoffmann et al. 2022) lies below nearly all residuals, so that loss is close to least absolute
    deviations; it is None for MSE.
    """

    kind: LossKind
    delta: float | None

    def __post_init__(self) -> None:
        if (self.kind is LossKind.MSE) != (self.delta is None):
            raise InputError(f"loss {self.kind} and delta={self.delta} do not go together; all but mse take a delta.")
        if self.delta is not None and not 0 < self.delta < math.inf:
            raise InputError(f"delta={self.delta} must be positive and finite; use mse for no limit.")

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
        match self.kind:
            case LossKind.MSE:
                return "half squared ln L residuals"
            case LossKind.HUBER:
                return f"Huber({self.delta:g}) on ln L"
            case _:
                return f"Student-t({STUDENT_DF:g}, scale {self.delta:g}) on ln L"

    def rho(self, r: Float[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."], ...]:
        """Return rho, its derivative and its second derivative at residuals `r`."""
        if self.kind is LossKind.MSE:
            return r * r / 2, r, np.ones_like(r)
        assert self.delta is not None  # kept by __post_init__
        if self.kind is LossKind.HUBER:
            psi = np.minimum(np.maximum(r, -self.delta), self.delta)
            return psi * (r - psi / 2), psi, (psi == r).astype(float)
        squares = STUDENT_DF * self.delta**2
        ratio = r * r / squares
        return (
            squares / 2 * np.log1p(ratio),
            r / (1 + ratio),
            (1 - ratio) / (1 + ratio) ** 2,
        )

    def traced(self, r: Any) -> Any:
        """Return rho at residuals `r`, an array that JAX traces."""
        import jax.numpy as jnp

        if self.kind is LossKind.MSE:
            return r * r / 2
        assert self.delta is not None
        if self.kind is LossKind.HUBER:
            psi = jnp.clip(r, -self.delta, self.delta)
            return psi * (r - psi / 2)
        squares = STUDENT_DF * self.delta**2
        return squares / 2 * jnp.log1p(r * r / squares)
