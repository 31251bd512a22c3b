"""IsoFLOP profiles (approach 2 of Hoffmann et al. 2022): a parabola of the loss in ln N at each budget.

A vertex is used only where the parabola is convex and its minimum lies strictly inside the sampled sizes; other
budgets are kept with the reason. Even noise-free parabolas are biased where the surface is not symmetric or the
sizes lie to one side (3 % of D* at +-8x for Chinchilla's exponents; laws.md section 33): cross-check with a law.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from fits.noise import SeedNoise, seed_noise
from fits.rows import budget_name, require_columns
from ladder.errors import InputError

NEAR_OPTIMAL = 0.0025  # of the loss, where seed noise is not measured (DeepSeek LLM 2024: near-optimal within 0.25 %)
LEVEL = 0.9  # of all intervals here


class ProfileStatus(StrEnum):
    """What a budget's profile gives."""

    VERTEX = "vertex"
    EXACT_VERTEX = "exact_vertex"  # three sizes: the parabola meets all points and cannot show misfit
    SINGLE_SIZE = "single_size"  # a ladder of one size a budget: the run itself is taken as the optimum
    TOO_FEW_SIZES = "too_few_sizes"
    CONCAVE = "concave"
    UNBRACKETED = "unbracketed"


USABLE = (ProfileStatus.VERTEX, ProfileStatus.EXACT_VERTEX, ProfileStatus.SINGLE_SIZE)


@dataclass(frozen=True)
class SizePoint:
    """All seeds of one size at one budget: mean loss and number of runs. `size` is None where it was not recorded."""

    size: float | None
    tokens: float | None
    compute: float
    loss: float
    runs: int


@dataclass(frozen=True)
class Optimum:
    """The optimum of a budget; intervals hold 90 % and are None where no noise could be measured.

    Attributes:
        compute: geometric mean of the realised compute of the budget's sizes.
        size, tokens: N* and D*; `size_lo`, `size_hi` the interval of N* (delta method).
        near_lo, near_hi: sizes between which the loss is within noise of the minimum: the flat bottom.
        loss: L*, and `loss_se` its standard error.
        raw_minimum: whether this is the smallest observed loss because the caller asked for it, not a vertex.
        tokens_lo, tokens_hi: 90 % interval of D*, with N D as at the vertex.
        near_tokens_lo, near_tokens_hi: tokens along the flat bottom.
    """

    compute: float
    size: float | None
    size_lo: float | None
    size_hi: float | None
    near_lo: float | None
    near_hi: float | None
    tokens: float | None
    loss: float
    loss_se: float | None
    runs: int
    raw_minimum: bool
    tokens_lo: float | None = None
    tokens_hi: float | None = None
    near_tokens_lo: float | None = None
    near_tokens_hi: float | None = None


@dataclass(frozen=True)
class Profile:
    """One budget. `parabola` holds (c, b, a) of c + b x + a x^2 with x = ln(size / `centre`), None without one."""

    budget: float
    status: ProfileStatus
    reason: str
    points: tuple[SizePoint, ...]
    centre: float | None
    parabola: tuple[float, float, float] | None
    optimum: Optimum | None


@dataclass(frozen=True)
class IsoflopResult:
    """The profiles of all budgets in ascending order.

    Attributes:
        size_column: what N is.
        misfit_sd: relative residual of the points about their parabolas, pooled, None without degrees of freedom.
        misfit_df: its degrees of freedom, sizes minus three over all budgets with a parabola.
        noise: seed noise, None when no rung was repeated.
    """

    size_column: str
    profiles: tuple[Profile, ...]
    misfit_sd: float | None
    misfit_df: int
    noise: SeedNoise | None

    @property
    def optima(self) -> tuple[Optimum, ...]:
        """Optima of the budgets that have one."""
        return tuple(profile.optimum for profile in self.profiles if profile.optimum is not None)

    def frame(self) -> pd.DataFrame:
        """Return one row a budget: budget, status, reason, and the fields of `Optimum` (missing without one)."""
        rows = [
            {"budget": profile.budget, "status": str(profile.status), "reason": profile.reason}
            | (vars(profile.optimum) if profile.optimum else {})
            for profile in self.profiles
        ]
        return pd.DataFrame(rows, columns=["budget", "status", "reason", *Optimum.__dataclass_fields__])


def isoflop(rows: pd.DataFrame, size_column: str, *, use_minimum: bool = False) -> IsoflopResult:
    """Return the IsoFLOP profiles of run rows (columns of the run table; one row a run, one metric).

    Rows belong to one budget when their `budget` is exactly equal (where the whole column is empty, realised compute
    stands for it); budgets are never rounded together. Seeds of a size are averaged first. With `use_minimum` a
    budget without a usable vertex gives its smallest observed mean loss, marked `raw_minimum`.

    Raises InputError when some but not all rows have a budget, or when rows of a budget lack a size.
    """
    if rows["budget"].isna().any() and not rows["budget"].isna().all():
        raise InputError("some runs have a budget and some have none; fill in the column or leave it out for all.")
    rows = rows.assign(budget=rows["budget"].fillna(rows["compute"]))
    groups = [(float(str(budget)), group) for budget, group in rows.groupby("budget")]
    one_size_each = all(len(group[size_column].unique()) == 1 for _, group in groups)
    noise = seed_noise(rows)
    if one_size_each:
        singles = tuple(_single(budget, _points(group, size_column)[0], noise) for budget, group in groups)
        return IsoflopResult(size_column, singles, None, 0, noise)
    require_columns(rows, (size_column, "tokens"))
    fitted = [
        (budget, points, parabola(points)) for budget, group in groups for points in [_points(group, size_column)]
    ]
    df = sum(len(points) - 3 for _, points, fit in fitted if fit is not None)
    misfit = math.sqrt(sum(fit.squares for _, _, fit in fitted if fit is not None) / df) if df else None
    scatter = Scatter.of(misfit, df, noise)
    profiles = tuple(_profile(budget, points, fit, scatter, use_minimum) for budget, points, fit in fitted)
    return IsoflopResult(size_column, profiles, misfit, df, noise)


@dataclass(frozen=True)
class Scatter:
    """Relative scatter of points about their parabola and its degrees of freedom; sd is None where unmeasured."""

    sd: float | None
    df: int
    tolerance: float  # relative loss above the minimum that noise cannot tell from it

    @staticmethod
    def of(misfit: float | None, df: int, noise: SeedNoise | None) -> "Scatter":
        """Return the larger of misfit and seed noise: the first holds both where seeds are not averaged out."""
        tolerance = NEAR_OPTIMAL if noise is None else noise.sd
        known = [(sd, freedom) for sd, freedom in ((misfit, df), (noise.sd, noise.df) if noise else (None, 0)) if sd]
        sd, freedom = max(known, default=(None, 0), key=lambda pair: pair[0])
        return Scatter(sd, freedom, tolerance)


@dataclass(frozen=True)
class Parabola:
    """Least squares of loss on (1, x, x^2), x = ln(size / centre)."""

    centre: float
    coefficients: tuple[float, float, float]
    inverse: Float[np.ndarray, "3 3"]  # (X'X)^-1
    squares: float  # sum of squared residuals relative to the mean loss


def _points(group: pd.DataFrame, size_column: str) -> tuple[SizePoint, ...]:
    """Return the sizes of a budget in ascending order, seeds averaged."""
    points = []
    for size, rows in group.groupby(size_column, dropna=False):
        tokens = rows["tokens"].mean()
        points.append(
            SizePoint(
                size=None if pd.isna(size) else float(str(size)),
                tokens=None if pd.isna(tokens) else float(tokens),
                compute=float(np.exp(np.log(rows["compute"]).mean())),
                loss=float(rows["loss"].mean()),
                runs=len(rows),
            )
        )
    return tuple(points)


def parabola(points: tuple[SizePoint, ...]) -> Parabola | None:
    """Return the parabola through at least three sizes, else None."""
    if len(points) < 3:
        return None
    logs = np.log([point.size for point in points if point.size is not None])
    losses = np.array([point.loss for point in points])
    design = np.vander(logs - logs.mean(), 3, increasing=True)
    coefficients, *_ = np.linalg.lstsq(design, losses)
    squares = float(((design @ coefficients - losses) ** 2).sum() / losses.mean() ** 2) if len(points) > 3 else 0.0
    c, b, a = map(float, coefficients)
    return Parabola(float(np.exp(logs.mean())), (c, b, a), np.linalg.inv(design.T @ design), squares)


def _single(budget: float, point: SizePoint, noise: SeedNoise | None) -> Profile:
    """Return the profile of a budget with one size, which is taken as its optimum."""
    se = None if noise is None else point.loss * noise.sd / math.sqrt(point.runs)
    optimum = Optimum(
        point.compute, point.size, None, None, None, None, point.tokens, point.loss, se, point.runs, raw_minimum=False
    )
    reason = "one size at this budget: the run is taken as its optimum"
    return Profile(budget, ProfileStatus.SINGLE_SIZE, reason, (point,), None, None, optimum)


def _profile(
    budget: float, points: tuple[SizePoint, ...], fit: Parabola | None, scatter: Scatter, use_minimum: bool
) -> Profile:
    status, reason = _status(budget, points, fit)
    optimum = None
    if fit is not None and status in USABLE:
        optimum = _vertex(points, fit, scatter)
    elif use_minimum:
        best = min(points, key=lambda point: point.loss)
        optimum = Optimum(
            compute=_compute(points),
            size=best.size,
            size_lo=None,
            size_hi=None,
            near_lo=None,
            near_hi=None,
            tokens=best.tokens,
            loss=best.loss,
            loss_se=None if scatter.sd is None else best.loss * scatter.sd,
            runs=best.runs,
            raw_minimum=True,
        )
        reason += "; its smallest observed loss is used instead, as asked"
    return Profile(
        budget, status, reason, points, fit.centre if fit else None, fit.coefficients if fit else None, optimum
    )


def _status(budget: float, points: tuple[SizePoint, ...], fit: Parabola | None) -> tuple[ProfileStatus, str]:
    if fit is None:
        return ProfileStatus.TOO_FEW_SIZES, f"{budget_name(budget)} has {len(points)} sizes; a parabola needs three"
    _, b, a = fit.coefficients
    if a <= 0:
        return ProfileStatus.CONCAVE, f"the parabola of {budget_name(budget)} is not convex; it has no minimum"
    sizes = [point.size for point in points if point.size is not None]
    vertex = fit.centre * math.exp(min(max(-b / (2 * a), -50.0), 50.0))
    if not sizes[0] < vertex < sizes[-1]:
        side = "larger" if vertex >= sizes[-1] else "smaller"
        return (
            ProfileStatus.UNBRACKETED,
            f"the minimum of {budget_name(budget)} lies outside its sizes; train a {side} one",
        )
    if len(points) == 3:
        return ProfileStatus.EXACT_VERTEX, "three sizes: the parabola meets every point and cannot show misfit"
    return ProfileStatus.VERTEX, ""


def _compute(points: tuple[SizePoint, ...]) -> float:
    return float(np.exp(np.mean(np.log([point.compute for point in points]))))


def _vertex(points: tuple[SizePoint, ...], fit: Parabola, scatter: Scatter) -> Optimum:
    """Return vertex and intervals: delta method with the pooled scatter, t quantile; flat bottom from the curvature."""
    c, b, a = fit.coefficients
    x, loss = -b / (2 * a), c - b * b / (4 * a)
    size_lo = size_hi = loss_se = None
    if scatter.sd is not None:
        covariance = fit.inverse * (scatter.sd * loss) ** 2
        along_x = np.array([0.0, -1 / (2 * a), b / (2 * a * a)])
        along_loss = np.array([1.0, x, x * x])  # by the envelope theorem the shift of x does not enter
        half = float(special.stdtrit(scatter.df, (1 + LEVEL) / 2) * math.sqrt(along_x @ covariance @ along_x))
        size_lo, size_hi = fit.centre * math.exp(x - min(half, 50.0)), fit.centre * math.exp(x + min(half, 50.0))
        loss_se = math.sqrt(float(along_loss @ covariance @ along_loss))
    flat = math.sqrt(scatter.tolerance * loss / a)
    logs = np.log([[point.size or math.nan, point.tokens or math.nan] for point in points])
    tokens = float(np.exp(np.interp(x + math.log(fit.centre), logs[:, 0], logs[:, 1])))
    size = fit.centre * math.exp(x)
    return Optimum(
        compute=_compute(points),
        size=size,
        size_lo=size_lo,
        size_hi=size_hi,
        near_lo=fit.centre * math.exp(x - flat),
        near_hi=fit.centre * math.exp(x + flat),
        tokens=tokens,
        loss=loss,
        loss_se=loss_se,
        runs=sum(point.runs for point in points),
        raw_minimum=False,
        tokens_lo=None if size_hi is None else tokens * size / size_hi,
        tokens_hi=None if size_lo is None else tokens * size / size_lo,
        near_tokens_lo=tokens * math.exp(-flat),
        near_tokens_hi=tokens * math.exp(flat),
    )
