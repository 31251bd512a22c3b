"""Figures of a backtest and of the stacked policy: frame function and draw function, as in fits/plots.py."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fits.backtest import PERSISTENCE, Backtest
from fits.plots import COMPARATORS, CURVE, GRID, HELD_OUT, SOFT, log_ticks, style
from fits.result import FitResult

TINTS = (CURVE, HELD_OUT, "#009e73", "#cc79a7", "#56b4e9", *COMPARATORS)  # Okabe and Ito, then greys
FACTORS = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 1e9])


def error_frame(result: Backtest) -> pd.DataFrame:
    """Return every forecast: law, factor, error in per cent; the last rung, which is no forecast, is left out."""
    frame = result.frame[(result.frame["law"] != PERSISTENCE)].dropna(subset=["median"])
    return frame.assign(percent=100 * np.expm1(frame["error"]))[["law", "cut", "compute", "factor", "percent"]]


def draw_error(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the relative error against the extrapolation factor, one mark a forecast, a line through each law's medians."""
    for index, (law, rows) in enumerate(frame.groupby("law", sort=False)):
        tint = TINTS[index % len(TINTS)]
        ax.plot(rows["factor"], rows["percent"], "o", ms=4, color=tint, alpha=0.45, mew=0)
        bins = np.digitize(rows["factor"], FACTORS)
        middle = rows.groupby(bins)[["factor", "percent"]].median()
        ax.plot(middle["factor"], middle["percent"], "-", lw=1.6, color=tint, label=str(law))
    ax.axhline(0, color=SOFT, lw=0.9)
    ax.set_xscale("log")
    log_ticks(ax, "x", count=True)
    ax.set_xlabel("extrapolation factor (target over largest fitted compute)")
    ax.set_ylabel("forecast over observed, minus one (%)")
    ax.legend(frameon=False, fontsize="small", loc="best")
    return style(ax)


def coverage_frame(result: Backtest) -> pd.DataFrame:
    """Return coverage by law, level and bin of the extrapolation factor: columns law, level, factor, coverage, n."""
    done = result.frame.dropna(subset=["median", "inside90"])
    rows = []
    for law, group in done.groupby("law", sort=False):
        bins = np.digitize(group["factor"], FACTORS)
        for number in np.unique(bins):
            here = group[bins == number]
            centre = float(np.exp(np.log(here["factor"]).mean()))
            rows += [
                {
                    "law": law,
                    "level": level,
                    "factor": centre,
                    "coverage": here[f"inside{level}"].mean(),
                    "n": len(here),
                }
                for level in (50, 90)
            ]
    return pd.DataFrame(rows)


def draw_coverage(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the share of targets inside the 90 % (solid) and 50 % (dotted) interval against the extrapolation factor.

    Colours are those of `draw_error`, whose legend serves both.
    """
    for index, (law, rows) in enumerate(frame.groupby("law", sort=False)):
        for shown, dash in ((90, "-"), (50, ":")):
            line = rows[rows["level"] == shown].sort_values("factor")
            tint = TINTS[index % len(TINTS)]
            ax.plot(line["factor"], line["coverage"], dash, marker="o", ms=4, lw=1.4, color=tint, mec="white", mew=0.5,
                    label=str(law) if shown == 90 else None)  # fmt: skip
    for level in (0.9, 0.5):
        ax.axhline(level, color=SOFT, lw=0.9, ls=(0, (4, 2)))
    ax.set_ylim(-0.03, 1.03)
    ax.set_xscale("log")
    log_ticks(ax, "x", count=True)
    ax.set_xlabel("extrapolation factor")
    ax.set_ylabel("share inside (90 % solid, 50 % dotted)")
    return style(ax)


def weight_frame(result: FitResult, upto: float = 1000.0) -> pd.DataFrame:
    """Return the members' weights against the extrapolation factor of a stacked fit: columns factor and members."""
    factors = np.geomspace(1.0, upto, 60)
    weights = np.array([result.policy.weights(float(factor))[0] for factor in factors])
    return pd.DataFrame(weights, columns=list(result.policy.names)).assign(factor=factors)


def draw_weights(ax: Axes, frame: pd.DataFrame) -> Axes:
    """Draw the weights as stacked areas."""
    names = [name for name in frame.columns if name != "factor"]
    ax.stackplot(frame["factor"], frame[names].T.to_numpy(), labels=names, colors=TINTS[: len(names)], alpha=0.75)
    ax.set_xscale("log")
    log_ticks(ax, "x", count=True)
    ax.set_ylim(0, 1)
    ax.set_xlim(float(frame["factor"].min()), float(frame["factor"].max()))
    ax.set_xlabel("extrapolation factor")
    ax.set_ylabel("weight")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return style(ax)


def draw_floor(ax: Axes, result: FitResult) -> Axes:
    """Draw posterior and prior density of the irreducible share r of the loss at the largest fitted compute."""
    shares, _ = result.posterior.marginals()
    ax.fill_between(shares["r"], shares["posterior"], color=CURVE, alpha=0.25, lw=0)
    ax.plot(shares["r"], shares["posterior"], color=CURVE, lw=1.6, label="posterior")
    ax.plot(shares["r"], shares["prior"], color=SOFT, lw=1.2, ls=(0, (4, 2)), label="prior (Beta, mean .63, n 50)")
    ax.set_ylim(bottom=0)
    ax.set_xlim(0.2, 1.0)
    ax.set_xlabel("irreducible share of the loss at the largest fitted compute, r")
    ax.set_ylabel("density")
    ax.grid(color=GRID)
    ax.legend(frameon=False, fontsize="small")
    return style(ax)
