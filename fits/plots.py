"""Figures of fits, each in two steps: a function that returns a tidy frame, and one that draws it on given axes.

Colour is compute, on one sequential map (viridis, readable with any colour vision) by its logarithm, the same in all
figures of a ladder when given the same `compute_range`. Filled markers entered the fit, hollow ones did not, stars
were held out, dashed lines extrapolate. Captions, not axes, carry titles.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from fits.floor_posterior import SEED_SD
from fits.isoflop import IsoflopResult
from fits.result import FitResult
from ladder.units import format_count, format_flops

COMPUTE_MAP = colormaps["viridis"]
CURVE, HELD_OUT, SOFT, GRID = "#0072b2", "#d55e00", "#6b7280", "#e3e6ea"  # blue and vermilion of Okabe and Ito
COMPARATORS = ("#8a929b", "#b08d57", "#7b6b8d")
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = ((0, (1, 1.5)), (0, (4, 1.5)), (0, (4, 1.5, 1, 1.5)))
CURVE_POINTS = 120
SIZE_LABELS = {
    "nonembedding_active_params": "active parameters without embedding and head",
    "active_params": "active parameters",
    "total_params": "total parameters",
}


def _colour(compute: float, compute_range: tuple[float, float]) -> tuple[float, float, float, float]:
    low, high = compute_range
    return COMPUTE_MAP(float(LogNorm(low, max(high, low * 1.01) * 1.6)(compute)))  # the light end is left out


def style(ax: Axes) -> Axes:
    """Return the axes with the grid and spines of the suite."""
    ax.grid(color=GRID, lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def log_ticks(ax: Axes, axis: str, count: bool) -> None:
    """Label a log axis like the rest of the suite, with ticks at 1, 2 and 5 where less than two decades are shown."""
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    target = ax.xaxis if axis == "x" else ax.yaxis
    target.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 100 * low else (1,)))
    target.set_minor_locator(NullLocator())
    target.set_major_formatter(FuncFormatter(lambda value, _: (format_count if count else format_flops)(value)))
    target.set_minor_formatter(NullFormatter())


def unit_label(unit: str) -> str:
    """Return a loss unit of the run table as words: ``nats_per_token`` becomes ``nats per token``."""
    return unit.replace("_", " ")


def isoflop_frame(result: IsoflopResult, excluded: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the IsoFLOP figure as rows of kind ``point``, ``curve``, ``optimum`` and ``excluded``.

    Columns: kind, budget, size, loss, runs, size_lo, size_hi (90 % interval of N*), loss_se, used (whether the budget
    gives an optimum). `excluded` are run-table rows that entered no fit; those with a loss are shown.
    """
    rows: list[dict[str, object]] = []
    for profile in result.profiles:
        common = {"budget": profile.budget, "used": profile.optimum is not None}
        sizes = [point.size for point in profile.points if point.size is not None]
        rows += [
            {"kind": "point", **common, "size": point.size, "loss": point.loss, "runs": point.runs}
            for point in profile.points
        ]
        if profile.parabola is not None and profile.centre is not None:
            c, b, a = profile.parabola
            x = np.linspace(np.log(min(sizes) / profile.centre), np.log(max(sizes) / profile.centre), 60)
            rows += [
                {"kind": "curve", **common, "size": float(size), "loss": float(loss)}
                for size, loss in zip(profile.centre * np.exp(x), c + b * x + a * x * x, strict=True)
            ]
        if profile.optimum is not None:
            kept = ("size", "loss", "size_lo", "size_hi", "loss_se", "runs")
            rows.append({"kind": "optimum", **common, **{key: vars(profile.optimum)[key] for key in kept}})
    if excluded is not None:
        shown = excluded.dropna(subset=["loss", result.size_column])
        rows += [
            {
                "kind": "excluded",
                "used": False,
                "budget": row["budget"],
                "size": row[result.size_column],
                "loss": row["loss"],
            }
            for row in shown.to_dict("records")
        ]
    columns = ["kind", "budget", "size", "loss", "runs", "size_lo", "size_hi", "loss_se", "used"]
    return pd.DataFrame(rows, columns=columns)


def draw_isoflop(
    ax: Axes, frame: pd.DataFrame, size_column: str, unit: str, compute_range: tuple[float, float] | None = None
) -> Axes:
    """Draw each budget's points, parabola and vertex with its 90 % interval; excluded points are hollow.

    A budget whose optimum is not used is drawn dashed and without a vertex. `compute_range` fixes the colours.
    """
    colours = compute_range or (frame["budget"].min(), frame["budget"].max())
    for budget, rows in frame.groupby("budget"):
        colour = _colour(float(str(budget)), colours)
        of = {kind: rows[rows["kind"] == kind] for kind in ("point", "curve", "optimum", "excluded")}
        used = bool(rows["used"].any())
        ax.plot(of["curve"]["size"], of["curve"]["loss"], color=colour, lw=1.3, ls="-" if used else (0, (4, 2)))
        ax.plot(of["point"]["size"], of["point"]["loss"], "o", ms=4.5, color=colour, mew=0)
        ax.plot(of["excluded"]["size"], of["excluded"]["loss"], "o", ms=5, mfc="none", mec=colour, mew=1)
        for optimum in of["optimum"].to_dict("records"):
            if np.isfinite(optimum["size_lo"] or np.nan):
                ax.plot([optimum["size_lo"], optimum["size_hi"]], [optimum["loss"]] * 2, color="black", lw=1, zorder=4)
            ax.plot(optimum["size"], optimum["loss"], "D", ms=5, mfc="white", mec="black", mew=1.1, zorder=5)
        last = of["point"].sort_values("size").iloc[-1]
        ax.annotate(
            format_flops(float(str(budget))),
            (last["size"], last["loss"]),
            xytext=(6, 2),
            textcoords="offset points",
            color=colour,
            va="bottom",
            fontsize="small",
        )
    ax.set_xscale("log")
    points = frame[frame["kind"].isin(["point", "excluded"])]
    ax.set_xlim(points["size"].min() / 1.15, points["size"].max() * 1.9)
    log_ticks(ax, "x", count=True)
    ax.set_xlabel(SIZE_LABELS.get(size_column, size_column))
    ax.set_ylabel(f"loss ({unit_label(unit)})")
    return style(ax)


def loss_frame(
    result: FitResult,
    upto: float,
    *,
    comparators: Mapping[str, FitResult] | None = None,
    held_out: Sequence[tuple[float, float, float | None]] = (),
) -> pd.DataFrame:
    """Return the figure of loss against compute as rows of kind ``fitted``, ``curve``, ``comparator``, ``held_out``.

    Arguments:
        result: a fit in compute alone (law or policy).
        upto: largest compute shown, FLOPs.
        comparators: further fits in compute alone, by name.
        held_out: (compute, mean loss, its standard error or None) of each held-out rung.

    Columns: kind, name, compute, loss, lo50, hi50, lo90, hi90 (observation bands of the curve), loss_se, extrapolated.
    """
    low, high = result.fit_range["compute"]
    grid = np.geomspace(low, max(upto, high), CURVE_POINTS)
    grid = np.unique(np.append(grid, high))
    rows: list[dict[str, object]] = [
        {"kind": "fitted", "name": point.label, "compute": point.compute, "loss": point.observed}
        for point in result.points
    ]
    for compute in grid:
        part = result.predictive({"compute": float(compute)})
        (lo50, hi50), (lo90, hi90) = part.interval(0.5), part.interval(0.9)
        band = {"lo50": lo50, "hi50": hi50, "lo90": lo90, "hi90": hi90}
        rows.append({"kind": "curve", "name": result.law, "compute": float(compute), "loss": part.median, **band})
    for name, other in (comparators or {}).items():
        rows += [
            {
                "kind": "comparator",
                "name": name,
                "compute": float(compute),
                "loss": other.predictive({"compute": float(compute)}).median,
            }
            for compute in [*grid[::4].tolist(), float(grid[-1])]
        ]
    rows += [
        {"kind": "held_out", "name": "held out", "compute": compute, "loss": loss, "loss_se": se}
        for compute, loss, se in held_out
    ]
    columns = ["kind", "name", "compute", "loss", "lo50", "hi50", "lo90", "hi90", "loss_se"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(extrapolated=frame["compute"] > high)


def draw_loss(
    ax: Axes,
    frame: pd.DataFrame,
    convention: str,
    unit: str,
    *,
    floor: float = 0.0,
    compute_range: tuple[float, float] | None = None,
) -> Axes:
    """Draw loss against compute: optima, median with 50 and 90 % bands of the next run, end of the fit range, stars.

    With `floor` the loss minus that value is drawn, on log-log axes (the second panel). `compute_range` fixes the
    colours of the optima.
    """
    of = {kind: frame[frame["kind"] == kind] for kind in ("fitted", "curve", "comparator", "held_out")}
    fitted, curve = of["fitted"], of["curve"]
    colours = compute_range or (fitted["compute"].min(), fitted["compute"].max())
    for lo, hi, alpha in (("lo90", "hi90", 0.16), ("lo50", "hi50", 0.26)):
        bottom = np.maximum(curve[lo] - floor, 1e-3 * (curve["loss"] - floor).min() if floor else -np.inf)
        ax.fill_between(curve["compute"], bottom, curve[hi] - floor, color=CURVE, alpha=alpha, lw=0, zorder=1)
    inside = curve[~curve["extrapolated"]]
    outside = curve[curve["compute"] >= inside["compute"].max()]
    ax.plot(inside["compute"], inside["loss"] - floor, color=CURVE, lw=1.6, zorder=3)
    ax.plot(outside["compute"], outside["loss"] - floor, color=CURVE, lw=1.6, ls=(0, (4, 1.6)), zorder=3)
    for index, (name, line) in enumerate(of["comparator"].groupby("name", sort=False)):
        tint, dashes = COMPARATORS[index % 3], DASHES[index % 3]
        ax.plot(line["compute"], line["loss"] - floor, lw=1.1, color=tint, ls=dashes, label=str(name), zorder=2)
    for point in fitted.to_dict("records"):
        colour = _colour(point["compute"], colours)
        ax.plot(point["compute"], point["loss"] - floor, "o", ms=6, color=colour, mec="white", mew=0.7, zorder=5)
    for star in of["held_out"].to_dict("records"):
        if np.isfinite(star["loss_se"] or np.nan):
            ax.errorbar(star["compute"], star["loss"] - floor, yerr=star["loss_se"], color=HELD_OUT, lw=1.2, zorder=5)
        ax.plot(star["compute"], star["loss"] - floor, "*", ms=13, color=HELD_OUT, mec="white", mew=0.7, zorder=6)
    ax.axvline(fitted["compute"].max(), color=SOFT, lw=0.9, ls=":", zorder=1)
    ax.annotate(
        "end of fit range",
        (fitted["compute"].max(), 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -3),
        textcoords="offset points",
        va="top",
        color=SOFT,
        fontsize="small",
    )
    ax.set_xscale("log")
    if floor:
        ax.set_yscale("log")
    ax.margins(x=0.03)
    log_ticks(ax, "x", count=False)
    if floor:
        lowest = np.nanmin([curve["lo90"].min(), of["held_out"]["loss"].min()]) - floor
        ax.set_ylim(bottom=max(lowest / 1.5, 0.02 * (curve["loss"].min() - floor)))
        target = ax.yaxis
        target.set_major_locator(LogLocator(10, subs=(1, 2, 3, 5, 7)))
        target.set_minor_locator(NullLocator())
        target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel(f"training compute (FLOPs, {convention})")
    ax.set_ylabel(f"loss minus {floor:.3f} ({unit_label(unit)})" if floor else f"loss ({unit_label(unit)})")
    if len(of["comparator"]):
        ax.legend(frameon=False, fontsize="small", loc="best" if floor else "upper right", handlelength=2.6)
    return style(ax)


def residual_frame(result: FitResult) -> pd.DataFrame:
    """Return relative residuals: columns of `FitResult.residuals` and seed_sd (missing when it was not measured)."""
    noise = result.seed_noise
    frame = result.residuals
    return frame.assign(seed_sd=np.nan if noise is None else noise.sd, policy=result.spec.is_policy)


def draw_residuals(
    ax: Axes, frame: pd.DataFrame, x: str, x_label: str, *, compute_range: tuple[float, float] | None = None
) -> Axes:
    """Draw relative residuals in per cent against `x` (``compute`` or ``tokens_per_param``), seed noise as a band."""
    colours = compute_range or (frame["compute"].min(), frame["compute"].max())
    seed_sd = frame["seed_sd"].iloc[0]
    if np.isfinite(seed_sd):
        ax.axhspan(-100 * seed_sd, 100 * seed_sd, color=SOFT, alpha=0.13, lw=0, label="± seed sd")
        ax.legend(frameon=False, fontsize="small", loc="best")
    ax.axhline(0, color=SOFT, lw=0.9)
    for point in frame.dropna(subset=[x]).to_dict("records"):
        colour = _colour(point["compute"], colours)
        ax.plot(point[x], 100 * point["residual"], "o", ms=5, color=colour, mec="white", mew=0.5)
    ax.set_xscale("log")
    ax.margins(x=0.08, y=0.15)
    log_ticks(ax, "x", count=x != "compute")
    largest = max(float(np.abs(ax.get_ylim()).max()), 100 * SEED_SD)
    ax.set_ylim(-largest, largest)
    ax.set_xlabel(x_label)
    ax.set_ylabel("observed over fitted, minus one (%)")
    return style(ax)
