"""All figures of a fit as files: fit, residuals, profile, IsoFLOP, compute-optimal path."""

import io
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import special

from fits.backtest import Backtest
from fits.backtest_plots import (
    coverage_frame,
    draw_coverage,
    draw_error,
    draw_floor,
    draw_weights,
    error_frame,
    weight_frame,
)
from fits.fit import solution_of
from fits.isoflop import isoflop
from fits.laws import law_named
from fits.plots import draw_isoflop, draw_loss, draw_residuals, isoflop_frame, loss_frame, residual_frame
from fits.profile import deviance_scale
from fits.result import FitResult
from fits.rows import select_rows
from fits.spec import STACKED
from fits.surface_plots import draw_frontier, draw_path, draw_profiles, path_frame, profile_frame
from ladder.errors import UnusableError
from ladder.records import write_atomic
from ladder.runs import RunTable

BEYOND = 10.0  # how far past the fitted compute figures go
LEVEL = 0.95  # of the line in the profiles


def save_figures(result: FitResult, runs: RunTable, folder: Path, *, dpi: int = 160) -> tuple[Path, ...]:
    """Write the figures that this fit has as PNG into `folder` and return their paths.

    ``fit`` and ``residuals`` always; ``isoflop`` where the runs have profiles; ``profile`` for laws whose fit
    converged; ``path`` for laws of parameters and tokens alone; ``floor`` for
    policies, ``weights`` for the stacked one.
    """
    written = []

    def save(name: str, figure: Figure) -> None:
        buffer = io.BytesIO()
        FigureCanvasAgg(figure)
        figure.savefig(buffer, format="png")
        write_atomic(folder / f"{name}.png", buffer.getvalue())
        written.append(folder / f"{name}.png")

    def blank(width: float = 6.4, height: float = 4.2, columns: int = 1) -> tuple[Figure, list[Any]]:
        figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
        return figure, list(figure.subplots(1, columns, squeeze=False)[0])

    on_optima = result.spec.on_optima
    inputs = () if result.spec.is_policy else law_named(result.law).inputs
    surface = not on_optima and set(inputs) <= {"active_params", "tokens", "compute"}
    upto = BEYOND * result.fit_range["compute"][1]
    figure, (ax,) = blank()
    if on_optima:
        draw_loss(ax, loss_frame(result, upto), result.flop_convention, result.metric_unit)
        save("fit", figure)
    elif surface:
        path = path_frame(result, upto)
        draw_frontier(ax, path, result.residuals, result.flop_convention, result.metric_unit)
        save("fit", figure)
        figure, (ax,) = blank()
        draw_path(ax, path, result.residuals, result.spec.size_column, result.flop_convention)
        save("path", figure)
    frame = residual_frame(result)
    both = bool(frame["tokens_per_param"].notna().any())
    figure, axes = blank(9.6 if both else 6.4, 4.0, 2 if both else 1)
    draw_residuals(axes[0], frame, "compute", f"training compute (FLOPs, {result.flop_convention})")
    if both:
        draw_residuals(axes[1], frame, "tokens_per_param", "tokens per parameter")
        axes[1].set_ylabel("")
    save("residuals", figure)
    rows = select_rows(runs, result.spec).frame
    sizes = rows.groupby("budget")[result.spec.size_column].nunique()
    if len(sizes) and sizes.max() > 2:
        figure, (ax,) = blank()
        profiles = result.isoflop or isoflop(rows, result.spec.size_column)
        draw_isoflop(ax, isoflop_frame(profiles), result.spec.size_column, result.metric_unit)
        save("isoflop", figure)
    if result.spec.is_policy:
        figure, (ax,) = blank()
        draw_floor(ax, result)
        save("floor", figure)
    if result.law == STACKED:
        figure, (ax,) = blank()
        draw_weights(ax, weight_frame(result))
        save("weights", figure)
    if result.usable and not result.spec.is_policy:
        _, solution, _ = solution_of(result.spec, runs)
        try:
            df = deviance_scale(solution)[1]
        except UnusableError:
            return tuple(written)
        curves = profile_frame(result, runs)
        count = curves["parameter"].nunique()
        figure, axes = blank(min(2.6 * count, 14.0), 2.9, count)
        draw_profiles(axes, curves, float(special.stdtrit(df, (1 + LEVEL) / 2)))
        save("profile", figure)
    return tuple(written)


def save_backtest(result: Backtest, path: Path, *, dpi: int = 160) -> None:
    """Write error and coverage against the extrapolation factor side by side; the suffix decides the format."""
    figure = Figure(figsize=(11.0, 4.2), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    draw_error(left, error_frame(result))
    draw_coverage(right, coverage_frame(result))
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lstrip(".") or "png")
    write_atomic(path, buffer.getvalue())
