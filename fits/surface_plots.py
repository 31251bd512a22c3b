"""Figures of laws in parameters and tokens: the fitted frontier, the compute-optimal path, profiles of parameters.

As in fits/plots.py each is a function that returns a tidy frame and one that draws it on given axes.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fits.compare import flops_factor
from fits.fit import solution_of
from fits.laws import law_named
from fits.optimum import allocation
from fits.plots import CURVE, HELD_OUT, SIZE_LABELS, SOFT, log_ticks, style, unit_label
from fits.profile import profile_curve
from fits.result import FitResult
from ladder.errors import UnusableError
from ladder.runs import RunTable

PATH_POINTS = 25  # computes at which the path is drawn
PATH_DRAWS = 100  # draws behind its band: an interval of 90 % of them is stable to a few per cent
LEVEL = 0.9


def path_frame(result: FitResult, upto: float) -> pd.DataFrame:
    """Return the compute-optimal path under a law of parameters and tokens, from the fitted range to `upto`.

    Columns: compute, size, size_lo, size_hi, tokens, tokens_lo, tokens_hi, loss, loss_lo, loss_hi (90 % over draws,
    missing without), extrapolated. Raises InputError for a law that reads more than compute, parameters and tokens.
    """
    law, factor = law_named(result.law), flops_factor(result)
    low, high = result.fit_range["compute"]
    draws: list[dict[str, float]] = []
    if result.draws is not None:
        stride = max(1, len(result.draws.values) // PATH_DRAWS)
        draws = [dict(zip(result.draws.names, row, strict=True)) for row in result.draws.values[::stride]]
    rows = []
    for compute in np.geomspace(low, max(upto, high), PATH_POINTS).tolist():
        best = allocation(law, result.theta, compute, factor)
        row = {"compute": compute, "size": best.size, "tokens": best.tokens, "loss": best.loss}
        others = [allocation(law, theta, compute, factor) for theta in draws]
        for name in ("size", "tokens", "loss"):
            values = [getattr(other, name) for other in others] or [np.nan]
            lo, hi = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
            row |= {f"{name}_lo": lo, f"{name}_hi": hi}
        rows.append({**row, "extrapolated": compute > high * (1 + 1e-9)})
    return pd.DataFrame(rows)


def draw_path(ax: Axes, path: pd.DataFrame, points: pd.DataFrame, size_column: str, convention: str) -> Axes:
    """Draw N* against compute with its 90 % band, over the sizes of the fitted runs; dashed where extrapolated.

    `points` are rows of `FitResult.residuals`.
    """
    ax.plot(points["compute"], points["size"], "o", ms=3, color=SOFT, alpha=0.5, mew=0, label="fitted runs")
    _band(ax, path, "size", "compute-optimal")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.margins(x=0.03)
    log_ticks(ax, "x", count=False)
    log_ticks(ax, "y", count=True)
    ax.set_xlabel(f"training compute (FLOPs, {convention})")
    ax.set_ylabel(SIZE_LABELS.get(size_column, size_column))
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return style(ax)


def draw_frontier(ax: Axes, path: pd.DataFrame, points: pd.DataFrame, convention: str, unit: str) -> Axes:
    """Draw the loss of the fitted runs against compute and the frontier of the law with its 90 % band."""
    ax.plot(points["compute"], points["observed"], "o", ms=3, color=SOFT, alpha=0.5, mew=0, label="fitted runs")
    _band(ax, path, "loss", "compute-optimal")
    ax.set_xscale("log")
    ax.margins(x=0.03)
    log_ticks(ax, "x", count=False)
    ax.set_xlabel(f"training compute (FLOPs, {convention})")
    ax.set_ylabel(f"loss ({unit_label(unit)})")
    ax.legend(frameon=False, fontsize="small", loc="upper right")
    return style(ax)


def _band(ax: Axes, path: pd.DataFrame, name: str, label: str) -> None:
    inside = path[~path["extrapolated"]]
    outside = path[path["compute"] >= inside["compute"].max()]
    ax.fill_between(path["compute"], path[f"{name}_lo"], path[f"{name}_hi"], color=CURVE, alpha=0.2, lw=0)
    ax.plot(inside["compute"], inside[name], color=CURVE, lw=1.6, label=label)
    ax.plot(outside["compute"], outside[name], color=CURVE, lw=1.6, ls=(0, (4, 1.6)))


def profile_frame(result: FitResult, runs: RunTable) -> pd.DataFrame:
    """Return the deviance of each free parameter: columns parameter, symbol, value, deviance, wald, estimate."""
    law, solution, _ = solution_of(result.spec, runs)
    free = [name for name, keep in zip(solution.objective.names, solution.objective.free, strict=True) if keep]
    symbols = {param.name: param.symbol for param in law.params}
    parts = []
    for curve in (profile_curve(solution, name) for name in free):
        part = pd.DataFrame({"value": curve.values, "deviance": curve.deviance, "wald": curve.wald})
        parts.append(part.assign(parameter=curve.name, symbol=symbols[curve.name], estimate=curve.estimate))
    if not parts:
        raise UnusableError(f"the fit of {result.law} has no free parameter to profile.")
    return pd.concat(parts, ignore_index=True)


def draw_profiles(axes: Sequence[Axes], frame: pd.DataFrame, threshold: float) -> Sequence[Axes]:
    """Draw one panel a parameter: the root of the deviance, its straight Wald form dashed, the threshold dotted.

    A straight V is a normal likelihood; a bent one has asymmetric intervals, a flat side is not identified.
    """
    groups = frame.groupby("parameter", sort=False)
    for ax, (_, rows) in zip(axes, groups, strict=False):
        ax.plot(rows["value"], np.sqrt(np.maximum(rows["deviance"], 0)), color=CURVE, lw=1.6)
        ax.plot(rows["value"], np.sqrt(rows["wald"]), color=SOFT, lw=1, ls=(0, (4, 2)))
        ax.axhline(threshold, color=HELD_OUT, lw=0.9, ls=":")
        ax.axvline(rows["estimate"].iloc[0], color=SOFT, lw=0.8)
        ax.set_xlabel(f"${rows['symbol'].iloc[0]}$")
        ax.locator_params(axis="x", nbins=4)
        style(ax)
    if len(axes):
        axes[0].set_ylabel("root of the deviance")
    return axes
