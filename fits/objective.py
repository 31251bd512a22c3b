"""What a fit minimises: a loss of the residuals ln L_hat - ln L, as values, gradients and Hessians of many problems.

All objectives work on a batch of parameter vectors with a weight a run and problem, so that the starts of a fit and
the resamples of a bootstrap are solved together. The sum, never the mean, over runs is taken: a mean makes default
tolerances stop early (that is how Hoffmann et al.'s approach 3 went wrong; Besiroglu et al. 2024).
"""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Float

from fits.law import AbstractTermLaw
from ladder.errors import InputError


class LossKind(StrEnum):
    """Which loss of the log residuals is summed."""

    HUBER = "huber"
    MSE = "mse"


@dataclass(frozen=True)
class LossSpec:
    """sum of rho(ln L_hat - ln L): Huber, r^2/2 below `delta` and delta (|r| - delta/2) above; or r^2/2 throughout.

    `delta` = 1e-3 (Hoffmann et al. 2022) lies below nearly all residuals, so that loss is close to least absolute
    deviations; it is None for MSE.
    """

    kind: LossKind
    delta: float | None

    def __post_init__(self) -> None:
        if (self.kind is LossKind.MSE) != (self.delta is None):
            raise InputError(f"loss {self.kind} and delta={self.delta} do not go together; only huber takes a delta.")
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

    def __str__(self) -> str:
        return "half squared ln L residuals" if self.delta is None else f"Huber({self.delta:g}) on ln L"

    def rho(self, r: Float[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."], ...]:
        """Return rho, its derivative and its second derivative at residuals `r`."""
        delta = math.inf if self.delta is None else self.delta
        psi = np.clip(r, -delta, delta)
        return psi * (r - psi / 2), psi, (np.abs(r) < delta).astype(float)


@dataclass(frozen=True)
class Evaluation:
    """An objective at a batch of vectors: value, gradient, Hessian, and `flux`.

    `flux` is the sum of the absolute contributions of runs to each component of the gradient: gradient over flux is
    a measure of stationarity without units.
    """

    value: Float[np.ndarray, " batch"]
    gradient: Float[np.ndarray, "batch params"]
    hessian: Float[np.ndarray, "batch params params"]
    flux: Float[np.ndarray, "batch params"]


@dataclass(frozen=True)
class Linearisation:
    """Residuals ln L_hat - ln L at one vector, d(residual)/du, and the largest share of the prediction that each term,
    by the name of its coefficient, has in any run (empty for laws without terms).
    """

    residuals: Float[np.ndarray, " runs"]
    jacobian: Float[np.ndarray, "runs params"]
    largest_share: Mapping[str, float]


class AbstractObjective(abc.ABC):
    """An objective in its own coordinates u, in which solvers work; `to_theta` leads back to the law's parameters."""

    @abc.abstractmethod
    def evaluate(self, u: Float[np.ndarray, "batch params"], weights: Float[np.ndarray, "batch runs"]) -> Evaluation:
        """Return value, gradient and Hessian for each row of `u`, runs weighted by the same row of `weights`."""

    @abc.abstractmethod
    def linearise(self, u: Float[np.ndarray, " params"]) -> Linearisation:
        """Return residuals and Jacobian at one vector."""

    @abc.abstractmethod
    def to_theta(self, u: Float[np.ndarray, "batch params"]) -> dict[str, Float[np.ndarray, " batch"]]:
        """Return the law's parameters for each row of `u`."""


@dataclass(frozen=True)
class TermObjective(AbstractObjective):
    """Objective of a law that is a sum of terms, with centred logarithms of the inputs.

    The log of term k is phi_k u with u = (log coefficients at the geometric mean of the inputs, exponents), so that
    units of N, D or C change nothing, and the problem is well conditioned: with raw logarithms 18-20 % of starts
    reach the optimum on the Epoch data, with centred ones 99-100 % (peers study, 2026-11-30).

    Attributes:
        phi: d(log term)/du, terms x runs x free parameters; `offset`: the part of fixed parameters.
        log_loss: ln L of each run.
        loss: what is summed.
        terms: name of each term's coefficient.
        names: all parameters of the law; `free` marks those in u, `fixed` holds the coordinates of the others.
        shift: matrix that leads from all coordinates to logs of coefficients and exponents.
    """

    phi: Float[np.ndarray, "terms runs params"]
    offset: Float[np.ndarray, "terms runs"]
    log_loss: Float[np.ndarray, " runs"]
    loss: LossSpec
    terms: tuple[str, ...]
    names: tuple[str, ...]
    coefficients: tuple[bool, ...]
    free: tuple[bool, ...]
    fixed: tuple[float, ...]
    shift: Float[np.ndarray, "all all"]

    def evaluate(self, u: Float[np.ndarray, "batch params"], weights: Float[np.ndarray, "batch runs"]) -> Evaluation:
        """Return value, gradient and Hessian; the prediction is a log-sum-exp of linear forms."""
        shares, log_prediction = self._shares(u)
        value, psi, curvature = self.loss.rho(log_prediction - self.log_loss)
        jacobian = sum(share[:, :, None] * phi for share, phi in zip(shares, self.phi, strict=True))
        pull = weights * psi
        params = u.shape[1]
        hessian = np.swapaxes(jacobian * (weights * curvature - pull)[:, :, None], 1, 2) @ jacobian
        for share, phi in zip(shares, self.phi, strict=True):
            squares = (phi[:, :, None] * phi[:, None, :]).reshape(len(phi), -1)
            hessian += ((pull * share) @ squares).reshape(-1, params, params)
        return Evaluation(
            value=(weights * value).sum(axis=1),
            gradient=(pull[:, None, :] @ jacobian)[:, 0],
            hessian=hessian,
            flux=(np.abs(pull)[:, None, :] @ np.abs(jacobian))[:, 0],
        )

    def linearise(self, u: Float[np.ndarray, " params"]) -> Linearisation:
        """Return residuals, their Jacobian and the largest share of each term."""
        shares, log_prediction = self._shares(u[None, :])
        jacobian = sum(share[0, :, None] * phi for share, phi in zip(shares, self.phi, strict=True))
        terms = dict(zip(self.terms, shares[:, 0].max(axis=1).tolist(), strict=True))
        return Linearisation(log_prediction[0] - self.log_loss, jacobian, terms)

    def _shares(
        self, u: Float[np.ndarray, "batch params"]
    ) -> tuple[Float[np.ndarray, "terms batch runs"], Float[np.ndarray, "batch runs"]]:
        logs = np.stack([u @ phi.T + offset for phi, offset in zip(self.phi, self.offset, strict=True)])
        top = logs.max(axis=0)
        shares = np.exp(logs - top)
        total = shares.sum(axis=0)
        return shares / total, top + np.log(total)

    def coordinates(self, u: Float[np.ndarray, "batch params"]) -> Float[np.ndarray, "batch all"]:
        """Return all coordinates, fixed ones put back."""
        full = np.tile(np.array(self.fixed), (len(u), 1))
        full[:, np.array(self.free)] = u
        return full

    def to_theta(self, u: Float[np.ndarray, "batch params"]) -> dict[str, Float[np.ndarray, " batch"]]:
        """Return the law's parameters; a coefficient beyond the range of floats is infinite."""
        raw = self.coordinates(u) @ self.shift.T
        with np.errstate(over="ignore"):
            return {
                name: np.exp(raw[:, index]) if self.coefficients[index] else raw[:, index]
                for index, name in enumerate(self.names)
            }

    @staticmethod
    def of(
        law: AbstractTermLaw,
        x: Mapping[str, Float[np.ndarray, " runs"]],
        log_loss: Float[np.ndarray, " runs"],
        loss: LossSpec,
        fixed: Mapping[str, float],
    ) -> "TermObjective":
        """Return the objective of `law` on runs with inputs `x`; `fixed` holds values of the floor or of exponents."""
        names = tuple(param.name for param in law.params)
        size = len(names)
        phi = np.zeros((len(law.terms), len(log_loss), size))
        shift = np.eye(size)
        for k, term in enumerate(law.terms):
            row = names.index(term.coefficient)
            phi[k, :, row] = 1.0
            for column, exponent in term.exponents.items():
                log_x = np.log(x[column])
                phi[k, :, names.index(exponent)] -= log_x - log_x.mean()
                shift[row, names.index(exponent)] += log_x.mean()
        coefficients = tuple(name in law.linear for name in names)
        free = tuple(name not in fixed for name in names)
        values = tuple(
            (math.log(fixed[name]) if coefficient else fixed[name]) if name in fixed else 0.0
            for name, coefficient in zip(names, coefficients, strict=True)
        )
        mask = np.array(free)
        offset = phi[:, :, ~mask] @ np.array(values)[~mask]
        terms = tuple(term.coefficient for term in law.terms)
        return TermObjective(phi[:, :, mask], offset, log_loss, loss, terms, names, coefficients, free, values, shift)
