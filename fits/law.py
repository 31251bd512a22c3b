"""What a law is: a table of parameters and a formula. Everything else (fit, intervals, summary, plots) is shared.

Most laws are sums of power terms; such a law declares its terms, and its prediction, gradient and Hessian follow
without automatic differentiation. Any other law writes `predict` with `array_namespace`, so that JAX can trace it.
"""

import abc
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, final

import numpy as np


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
        starts: values from which the multi-start is built, relative to `relative_to`; empty for the coefficient of a
            term, whose starts are shares of the mean loss (so that they do not depend on units).
        meaning: one phrase for tables.
        unit: unit of the value, empty for pure numbers.
        relative_to: for parameters of scale LOG with a unit, what carries it: ``loss`` (its geometric mean) or an
            input column; starts are multiples of it, so that units change no fit. Empty for coefficients of terms.
        anchors: input column to name of an exponent: a coefficient in front of column ** -exponent is optimised at the
            geometric mean of the column, where it hardly depends on the exponent.
    """

    name: str
    symbol: str
    bounds: tuple[float, float]
    scale: Scale
    starts: tuple[float, ...]
    meaning: str
    unit: str = ""
    relative_to: str = ""
    anchors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Term:
    """One term of a sum: coefficient x exp(-sum of exponent x feature). Without features it is the floor.

    Attributes:
        coefficient: name of a parameter of scale LOG, to which alone the term is proportional.
        exponents: name of the exponent's parameter (scale LINEAR) by feature; terms may share exponents. A feature
            that is an input column stands for its logarithm: the term falls as column ** -exponent.
    """

    coefficient: str
    exponents: Mapping[str, str]


class Evidence(StrEnum):
    """Where a published value was read."""

    PAPER = "P"  # in the paper or the authors' repository
    SECONDARY = "S"  # in a digest of the paper
    RECOMPUTED = "R"  # recomputed here from the formula or the public data
    MEMORY = "M"  # unverified


@dataclass(frozen=True)
class Source:
    """What published values of a law mean.

    Attributes:
        evidence: where the values were read.
        counts: which parameters, tokens and FLOPs the publication counts, and the unit of its loss.
        domain: smallest and largest value of inputs the publication fitted; values beyond are extrapolation.
    """

    evidence: Evidence
    counts: str
    domain: Mapping[str, tuple[float, float]]


type Theta = Mapping[str, Any]  # floats or arrays of NumPy or JAX
type Inputs = Mapping[str, Any]


def array_namespace(*groups: Mapping[str, Any]) -> Any:
    """Return jax.numpy when any value is a JAX array, else NumPy; JAX is not imported for it."""
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(value, jax.Array) for group in groups for value in group.values()):
        return jax.numpy
    return np


def detached(xp: Any, value: Any) -> Any:
    """Return `value` without its derivatives, for iterations whose last two steps alone are differentiated."""
    return value if xp is np else sys.modules["jax"].lax.stop_gradient(value)


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
        sources: what each of them means and where it holds.
        floor: name of the irreducible loss, empty without one; sums of terms have it in their term without features.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    params: ClassVar[tuple[Param, ...]]
    inputs: ClassVar[tuple[str, ...]]
    reference: ClassVar[str]
    linear: ClassVar[tuple[str, ...]]
    published: ClassVar[Mapping[str, Mapping[str, float]]]
    sources: ClassVar[Mapping[str, Source]] = {}
    floor: ClassVar[str] = ""

    @abc.abstractmethod
    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the loss for each run, in the unit of the losses the law was fitted to."""


class AbstractTermLaw(AbstractLaw):
    """A law that is the sum of its `terms`; `linear` names their coefficients."""

    terms: ClassVar[tuple[Term, ...]]

    def features(self, x: Inputs) -> Mapping[str, Any]:
        """Return the features that terms name; without a definition of its own a law uses logarithms of its inputs."""
        xp = array_namespace(x)
        return {name: xp.log(x[name]) for name in self.inputs}

    @final
    def predict(self, theta: Theta, x: Inputs) -> Any:
        """Return the sum of the terms."""
        xp, features = array_namespace(theta, x), self.features(x)
        return sum(
            theta[term.coefficient]
            * math.prod(
                (xp.exp(-theta[exponent] * features[name]) for name, exponent in term.exponents.items()), start=1.0
            )
            for term in self.terms
        )


POSITIVE = (0.0, math.inf)  # a coefficient that goes to zero is found as a dead term
EXPONENT = (0.005, 3.0)  # published exponents lie in .02 .. 1.2 (laws.md sections 1-15); beyond, a term is degenerate


def coefficient(name: str, meaning: str, unit: str = "loss") -> Param:
    """Return the coefficient of a term."""
    return Param(name, name, POSITIVE, Scale.LOG, (), meaning, unit)


def exponent(
    name: str, starts: tuple[float, ...], meaning: str, bounds: tuple[float, float] = EXPONENT, symbol: str = ""
) -> Param:
    """Return an exponent; without a symbol its name is the Greek letter."""
    return Param(name, symbol or rf"\{name}", bounds, Scale.LINEAR, starts, meaning)


def scaled(
    name: str, relative_to: str, starts: tuple[float, ...], meaning: str, anchors: Mapping[str, str] | None = None
) -> Param:
    """Return a positive parameter in units of the loss or of an input, for laws that are no sums of terms."""
    return Param(name, name, POSITIVE, Scale.LOG, starts, meaning, relative_to, relative_to, anchors or {})
