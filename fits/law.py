"""What a law is: a table of parameters and a formula. Everything else (fit, intervals, summary, plots) is shared."""

import abc
from collections.abc import Mapping
from enum import StrEnum

import equinox as eqx
from jaxtyping import Array, Float


class Scale(StrEnum):
    """How a parameter is optimised: as it is, or as its logarithm."""

    LINEAR = "linear"
    LOG = "log"


class Param(eqx.Module):
    """One parameter of a law.

    Attributes:
        name: identifier, such as ``alpha``.
        symbol: LaTeX, such as ``\\alpha``.
        bounds: closed interval; an estimate on a bound is reported, never called converged.
        scale: optimised as it is or as its logarithm.
        starts: values from which the multi-start is built.
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


type Theta = Mapping[str, Float[Array, ""]]
type Inputs = Mapping[str, Float[Array, " runs"]]


class AbstractLaw(eqx.Module):
    """A scaling law. Concrete laws are final, hold no state, and are at most about 30 lines.

    Attributes:
        name: key in `LAWS`.
        params: the parameter table, in the order of all vectors and covariances.
        inputs: run-table columns the formula reads, such as ``("active_params", "tokens")``.
        reference: citation key in reports/references.bib.
        linear: names of parameters the prediction is linear in, for variable projection; may be empty.
        published: literature values by citation key, shown beside the estimates and used as starts.
    """

    name: eqx.AbstractClassVar[str]
    params: eqx.AbstractClassVar[tuple[Param, ...]]
    inputs: eqx.AbstractClassVar[tuple[str, ...]]
    reference: eqx.AbstractClassVar[str]
    linear: eqx.AbstractClassVar[tuple[str, ...]]
    published: eqx.AbstractClassVar[Mapping[str, Mapping[str, float]]]

    @abc.abstractmethod
    def predict(self, theta: Theta, x: Inputs) -> Float[Array, " runs"]:
        """Return the loss for each run, in the unit of the losses the law was fitted to."""
