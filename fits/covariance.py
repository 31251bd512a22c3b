"""Covariance of estimates at the optimum: the cluster-robust sandwich, and what the runs do not tell apart.

Never an optimiser's inverse Hessian: L-BFGS returns the identity on the Epoch data (peers study, case 8).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fits.law import AbstractLaw, Scale
from fits.solve import Solution, floors_of
from ladder.errors import UnusableError


@dataclass(frozen=True)
class Covariance:
    """Covariance of the free parameters in the scale they are optimised in (ln for positive ones).

    Attributes:
        names: free parameters, rows and columns of `matrix`.
        matrix: covariance of ln theta or theta.
        se: standard error of theta itself by the delta method.
        clusters: clusters whose scores were summed.
    """

    names: tuple[str, ...]
    matrix: Float[np.ndarray, "params params"]
    se: dict[str, float]
    clusters: int


def sandwich(solution: Solution, clusters: tuple[str, ...]) -> Covariance:
    """Return H^-1 (sum over clusters of s s') H^-1 with the correction G/(G-1) (n-1)/(n-p) for few clusters.

    H is the Hessian of the summed loss and s the sum of psi(r) dr/du over a cluster. With a Huber delta far below the
    residuals H rests on the few runs inside delta; the bootstrap is then the better guide. Raises UnusableError when
    H is singular.
    """
    objective, u = solution.objective, solution.u
    n, p = len(objective.log_loss), len(u)
    hessian = objective.evaluate(u[None], np.ones((1, n))).hessian[0]
    line = objective.linearise(u)
    _, psi, _ = objective.loss.of_log(line.residuals, objective.log_loss)
    labels, index = np.unique(np.array(clusters), return_inverse=True)
    scores = np.zeros((len(labels), p))
    np.add.at(scores, index, psi[:, None] * line.jacobian)
    groups = len(labels)
    if np.linalg.cond(hessian) > 1e14 or groups < 2 or n <= p:
        raise UnusableError("the Hessian is singular or the clusters are too few: this fit has no sandwich covariance.")
    inner = scores.T @ scores * groups / (groups - 1) * (n - 1) / (n - p)
    bread = np.linalg.inv(hessian)
    return _in_parameters(solution, bread @ inner @ bread, groups)


def _in_parameters(solution: Solution, cov: Float[np.ndarray, "params params"], groups: int) -> Covariance:
    objective = solution.objective
    free = np.array(objective.free)
    lead = objective.shift[np.ix_(free, free)]
    matrix = lead @ cov @ lead.T
    names = tuple(name for name, keep in zip(objective.names, objective.free, strict=True) if keep)
    logs = dict(zip(objective.names, objective.logarithmic, strict=True))
    sds = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    se = {n: float(sd * (solution.theta[n] if logs[n] else 1.0)) for n, sd in zip(names, sds, strict=True)}
    return Covariance(names, matrix, se, groups)


@dataclass(frozen=True)
class Identifiability:
    """What the runs determine, from the Jacobian of ln L in the scale parameters are optimised in.

    Attributes:
        condition: of the column-scaled Jacobian in centred coordinates, as the solver has it.
        raw_condition: the same in the law's own parameters, where coefficients stand for N = 1 or C = 1.
        weakest: parameter to loading of the direction that changes the fit least, unit length, largest first.
        correlation: of the estimates, unit weights.
        floor_exponent: largest absolute correlation of an irreducible loss with any exponent, None without a floor.
        inflation: variance inflation of each parameter by the others.
    """

    condition: float
    raw_condition: float
    names: tuple[str, ...]
    weakest: dict[str, float]
    correlation: Float[np.ndarray, "params params"]
    floor_exponent: float | None
    inflation: dict[str, float]

    def __str__(self) -> str:
        loads = ", ".join(f"{value:+.2f} {name}" for name, value in list(self.weakest.items())[:3])
        text = f"condition {self.condition:.3g} centred, {self.raw_condition:.3g} raw; weakest direction {loads}"
        if self.floor_exponent is not None:
            text += f"; correlation of floor and exponent {self.floor_exponent:.3f}"
            if self.floor_exponent > RIDGE:
                text += " (a ridge: the runs hardly tell a floor from a slower power)"
        return text


RIDGE = 0.95  # correlation of floor and exponent that is typical below two decades of reducible loss (laws.md 33)


def identifiability(law: AbstractLaw, solution: Solution) -> Identifiability:
    """Return the identifiability report of a fit; raises UnusableError when the Jacobian has no full rank."""
    objective = solution.objective
    jacobian = objective.linearise(solution.u).jacobian
    free = np.array(objective.free)
    raw = jacobian @ np.linalg.inv(objective.shift[np.ix_(free, free)])
    names = tuple(name for name, keep in zip(objective.names, objective.free, strict=True) if keep)
    lengths = np.linalg.norm(raw, axis=0)
    if not names or not np.isfinite(raw).all() or lengths.min() == 0 or np.linalg.matrix_rank(jacobian) < len(names):
        raise UnusableError("a parameter changes no fitted value: these runs do not identify the law.")
    _, singular, right = np.linalg.svd(raw / lengths)
    weakest = sorted(zip(names, right[-1].tolist(), strict=True), key=lambda pair: -abs(pair[1]))
    inverse = np.linalg.pinv(raw.T @ raw)
    sds = np.sqrt(np.diag(inverse))
    correlation = inverse / np.outer(sds, sds)
    floors = [names.index(name) for name in floors_of(law) if name in names]
    exponents = [i for i, name in enumerate(names) if _scale(law, name) is Scale.LINEAR]
    pairs = [abs(float(correlation[i, j])) for i in floors for j in exponents]
    return Identifiability(
        condition=solution.condition,
        raw_condition=float(singular[0] / singular[-1]) if singular[-1] else math.inf,
        names=names,
        weakest=dict(weakest),
        correlation=correlation,
        floor_exponent=max(pairs, default=None),
        inflation={name: float(lengths[i] ** 2 * inverse[i, i]) for i, name in enumerate(names)},
    )


def _scale(law: AbstractLaw, name: str) -> Scale:
    return next(param.scale for param in law.params if param.name == name)
