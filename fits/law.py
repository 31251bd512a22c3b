"""What a law is: a table of parameters and a formula. Everything else (fit, intervals, summary, plots) is shared.

Most laws are sums of power terms; such a law declares its terms, and its prediction, gradient and Hessian follow
without automatic differentiation. Any other law writes `predict` in operations that JAX can trace.
"""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, final


class Scale(StrEnum):
    """How a parameter is optimised: as it is, or as its logarithm."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True)
class Param:
    """One parameter of a law.

    Attributes:
        name: identifier, such as ``alpha``.
        symbol: LaTeX, such as ``\\alpha``.
        bounds: closed interval; an estimate on a bound is reported, never called converged.
        scale: optimised as it is or as its logarithm.
        starts: values from which the multi-start is built; empty for the coefficient of a term, whose starts are
            shares of the mean loss (so that they do not depend on units).
        meaning: one phrase for tables.
        unit: unit of the value, empty for pure numbers.
    """

    name: str
    symbol: str
    bounds: tuple[float, float]
    scale: Scale
    starts: tuple[float, ...]
    meaning: str
    unit: str = ""


@dataclass(frozen=True)
class Term:
    """One term of a sum: coefficient x product over columns of x ** -exponent. Without columns it is the floor.

    Attributes:
        coefficient: name of a parameter of scale LOG, to which alone the term is proportional.
        exponents: name of the exponent's parameter (scale LINEAR) by input column; terms may share exponents.
    """

    coefficient: str
    exponents: Mapping[str, str]


type Theta = Mapping[str, Any]  # floats or arrays of NumPy or JAX
type Inputs = Mapping[str, Any]


class AbstractLaw(abc.ABC):
    """A scaling law. Concrete laws are final, hold no state, and are at most about 30 lines.

    Attributes:
        name: key in `LAWS`.
        formula: LaTeX of the formula.
        params: the parameter table, in the order of all vectors and draws.
        inputs: run-table columns the formula reads, such as ``("active_params", "tokens")``. ``active_params``
            stands for N: the fit's specification says which column of parameter counts is used for it.
        reference: citation key in reports/references.bib.
        linear: names of parameters the prediction is linear in, for variable projection; may be empty.
        published: literature values by citation key, shown beside the estimates.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    params: ClassVar[tuple[Param, ...]]
    inputs: ClassVar[tuple[str, ...]]
    reference: ClassVar[str]
    linear: ClassVar[tuple[str, ...]]
    published: ClassVar[Mapping[str, Mapping[str, float]]]

    @abc.abstractmethod
    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss for each run, in the unit of the losses the law was fitted to."""


class AbstractTermLaw(AbstractLaw):
    """A law that is the sum of its `terms`; `linear` names their coefficients."""

    terms: ClassVar[tuple[Term, ...]]

    @final
    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the sum of the terms."""
        return sum(
            theta[term.coefficient]
            * math.prod((x[column] ** -theta[exponent] for column, exponent in term.exponents.items()), start=1.0)
            for term in self.terms
        )
