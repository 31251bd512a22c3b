"""The numbers of a fit, one record each: parameters and observations."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ParamEstimate:
    """One estimated parameter; `se`, `lo` and `hi` (90 %) are None without draws.

    `start_spread` is the range over the starts that reached the optimum, `published` holds literature values.
    """

    name: str
    symbol: str
    meaning: str
    unit: str
    estimate: float
    se: float | None
    lo: float | None
    hi: float | None
    start_spread: float | None
    at_bound: bool
    published: dict[str, float]


@dataclass(frozen=True)
class FittedPoint:
    """One observation of the fit, a run or an optimum; `residual` is ln observed - ln fitted."""

    label: str
    compute: float
    size: float | None
    tokens: float | None
    runs: int
    observed: float
    fitted: float
    residual: float


@dataclass(frozen=True)
class ObservedRun:
    """One run as the stacked policy reads it; None where the table does not say."""

    compute: float
    size: float | None
    tokens: float | None
    budget: float | None
    loss: float
