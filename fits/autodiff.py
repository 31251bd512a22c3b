"""The objective of a law that is no sum of terms, differentiated by JAX, which is imported on first use only."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from fits.law import AbstractLaw, Scale
from fits.objective import AbstractObjective, Evaluation, Linearisation, LossSpec

SIZES = (16, 256)  # batches are filled up to one of these, so that each law is compiled twice at most


@dataclass(frozen=True)
class AutodiffObjective(AbstractObjective):
    """Objective of any law, in coordinates that carry no units (see `Param.relative_to` and `Param.anchors`).

    Attributes:
        law: predicts; `x`: its inputs.
        log_loss: ln L of each run; `loss`: what is summed.
        names: all parameters of the law; `free` marks those in u, `fixed` holds the coordinates of the others.
        shift, origin: lead from all coordinates to parameters, logarithmic ones as logarithms.
    """

    law: AbstractLaw
    x: Mapping[str, Float[np.ndarray, " runs"]]
    log_loss: Float[np.ndarray, " runs"]
    loss: LossSpec
    names: tuple[str, ...]
    logarithmic: tuple[bool, ...]
    free: tuple[bool, ...]
    fixed: tuple[float, ...]
    shift: Float[np.ndarray, "all all"]
    origin: Float[np.ndarray, " all"]

    def evaluate(
        self,
        u: Float[np.ndarray, "batch params"],
        weights: Float[np.ndarray, "batch runs"],
        noise: Float[np.ndarray, "batch runs"] | None = None,
    ) -> Evaluation:
        """Return value, gradient and Hessian, compiled once a law and shape of the data."""
        import jax

        parts = []
        size = SIZES[0] if len(u) <= SIZES[0] else SIZES[1]
        with jax.enable_x64(True):
            for first in range(0, len(u), size):
                rows = slice(first, first + size)
                short = size - len(u[rows])
                more = np.zeros_like(weights[rows]) if noise is None else noise[rows]
                padded = [np.pad(part, ((0, short), (0, 0)), mode="edge") for part in (u[rows], weights[rows], more)]
                found = _compiled(self.law, self.loss)(*padded, self._data())
                parts.append([np.asarray(part)[: size - short] for part in found])
        value, gradient, hessian = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Evaluation(value, gradient, hessian)

    def linearise(self, u: Float[np.ndarray, " params"]) -> Linearisation:
        """Return residuals, their Jacobian and the largest share of each linear parameter in the prediction."""
        import jax

        with jax.enable_x64(True):
            residuals, jacobian = map(np.asarray, _linearised(self.law)(u, self._data()))
        theta = {name: float(value[0]) for name, value in self.to_theta(u[None, :]).items()}
        prediction = np.asarray(self.law.predict(theta, self.x))
        shares = {
            name: float(np.max(1 - np.asarray(self.law.predict({**theta, name: 0.0}, self.x)) / prediction))
            for name in self.law.linear
        }
        return Linearisation(residuals, jacobian, shares)

    def _data(self) -> dict[str, Any]:
        mask = np.array(self.free)
        return {
            "x": dict(self.x),
            "log_loss": self.log_loss,
            "shift": self.shift[:, mask],
            "base": self.shift[:, ~mask] @ np.array(self.fixed)[~mask] + self.origin,
        }

    @staticmethod
    def of(
        law: AbstractLaw,
        x: Mapping[str, Float[np.ndarray, " runs"]],
        log_loss: Float[np.ndarray, " runs"],
        loss: LossSpec,
        fixed: Mapping[str, float],
    ) -> "AutodiffObjective":
        """Return the objective of `law` on runs with inputs `x`; `fixed` holds values of parameters that are held."""
        names = tuple(param.name for param in law.params)
        shift, origin = np.eye(len(names)), np.zeros(len(names))
        held = np.zeros(len(names))
        for row, param in enumerate(law.params):
            if param.name in fixed:
                held[row] = math.log(fixed[param.name]) if param.scale is Scale.LOG else fixed[param.name]
                continue
            if param.relative_to:
                logs = log_loss if param.relative_to == "loss" else np.log(x[param.relative_to])
                origin[row] = float(logs.mean())
            for column, exponent in param.anchors.items():
                shift[row, names.index(exponent)] += float(np.log(x[column]).mean())
        return AutodiffObjective(
            law=law,
            x={name: np.asarray(x[name], dtype=float) for name in law.inputs},
            log_loss=log_loss,
            loss=loss,
            names=names,
            logarithmic=tuple(param.scale is Scale.LOG for param in law.params),
            free=tuple(name not in fixed for name in names),
            fixed=tuple(held.tolist()),
            shift=shift,
            origin=origin,
        )


def _residual_function(law: AbstractLaw) -> Callable[[Any, Any], Any]:
    import jax.numpy as jnp

    logarithmic = tuple(param.scale is Scale.LOG for param in law.params)

    def residuals(u: Any, data: Any) -> Any:
        raw = data["shift"] @ u + data["base"]
        theta = {
            param.name: jnp.exp(raw[index]) if logarithmic[index] else raw[index]
            for index, param in enumerate(law.params)
        }
        return jnp.log(law.predict(theta, data["x"])) - data["log_loss"]

    return residuals


@lru_cache(maxsize=32)
def _linearised(law: AbstractLaw) -> Callable[[Any, Any], Any]:
    import jax

    residuals = _residual_function(law)
    return jax.jit(lambda u, data: (residuals(u, data), jax.jacfwd(residuals)(u, data)))


@lru_cache(maxsize=32)
def _compiled(law: AbstractLaw, loss: LossSpec) -> Callable[..., Any]:
    import jax

    residuals = _residual_function(law)

    def value(u: Any, weights: Any, noise: Any, data: Any) -> Any:
        return (weights * loss.traced(residuals(u, data) - noise, data["log_loss"] + noise)).sum()

    def all_three(u: Any, weights: Any, noise: Any, data: Any) -> Any:
        height, slope = jax.value_and_grad(value)(u, weights, noise, data)
        return height, slope, jax.hessian(value)(u, weights, noise, data)

    return jax.jit(jax.vmap(all_three, in_axes=(0, 0, 0, None)))
