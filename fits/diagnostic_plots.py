"""Figures of diagnostics: residual panels, quantiles, influence, the forecast without each rung; ax in, ax out."""

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from fits.diagnostics import Diagnosis
from fits.findings import Verdict
from fits.influence import LeftOut, RunInfluence
from fits.plots import CURVE, HELD_OUT, SIZE_LABELS, SOFT, draw_residuals, style
from fits.result import FitResult
from ladder.records import write_atomic

SHOWN = 10  # bars of the forecast without a rung
COOK_MARKS = (0.5, 1.0)  # Cook's distances that are drawn
PANEL = (4.6, 3.7)  # inches


def diagnosis_frame(result: FitResult, diagnosis: Diagnosis) -> pd.DataFrame:
    """Return residuals one row an observation, with seed_sd and whether a check flagged the observation by name."""
    named = {finding.subject for finding in diagnosis.findings if finding.verdict is Verdict.FLAG}
    noise = result.seed_noise
    frame = diagnosis.residuals
    return frame.assign(seed_sd=math.nan if noise is None else noise.sd, flagged=frame["label"].isin(named))


def draw_quantiles(ax: Axes, residuals: Sequence[float]) -> Axes:
    """Draw residuals in per cent, sorted, against normal quantiles, with the line of the normal that has their quartiles."""
    values = 100 * np.sort(np.asarray(residuals, dtype=float))
    ranks = stats.norm.ppf((np.arange(len(values)) + 0.5) / len(values))
    low, high = np.quantile(values, [0.25, 0.75])
    slope = (high - low) / (2 * stats.norm.ppf(0.75))
    ends = np.array([ranks[0], ranks[-1]])
    ax.plot(ends, (low + high) / 2 + slope * ends, color=SOFT, lw=1)
    ax.plot(ranks, values, "o", ms=4, color=CURVE, mec="white", mew=0.4)
    ax.set_xlabel("normal quantile")
    ax.set_ylabel("residual (%)")
    return style(ax)


def draw_influence(ax: Axes, rows: Sequence[RunInfluence], params: int, flagged: set[str]) -> Axes:
    """Draw studentised residuals against leverage, with curves of equal Cook's distance; flagged runs are vermilion."""
    leverage = np.array([row.leverage for row in rows])
    student = np.array([row.studentised for row in rows])
    shown = np.isfinite(student)
    colours = [HELD_OUT if row.label in flagged else CURVE for row in rows]
    for x, y, colour in zip(leverage[shown], student[shown], np.array(colours)[shown], strict=True):
        ax.plot(x, y, "o", ms=4.5, color=colour, mec="white", mew=0.4)
    right = min(0.98, 1.15 * float(leverage.max()))
    grid = np.linspace(0.01, right, 100)
    largest = max(4.0, 1.15 * float(np.abs(student[shown]).max())) if shown.any() else 4.0
    for mark in COOK_MARKS:
        line = np.sqrt(mark * params * (1 - grid) / grid)  # Cook's D = t^2 h / (p (1 - h))
        for sign in (1, -1):
            ax.plot(grid, sign * line, color=SOFT, lw=0.8, ls=(0, (4, 2)))
        edge = float(line[-1])
        if edge < largest:
            ax.annotate(
                f"{mark:g}", (right, edge), xytext=(2, 0), textcoords="offset points", fontsize="small", color=SOFT
            )
    ax.axhline(0, color=SOFT, lw=0.9)
    ax.set_xlim(0, right)
    ax.set_ylim(-largest, largest)
    ax.set_xlabel("leverage (dashed: Cook's distance)")
    ax.set_ylabel("studentised residual")
    return style(ax)


def draw_left_out(ax: Axes, rows: Sequence[LeftOut], ahead: float) -> Axes:
    """Draw by how much the forecast moves without each rung or budget, the standard error of the forecast as a band."""
    top = list(rows[:SHOWN])[::-1]
    ax.axvspan(-100 * top[0].se, 100 * top[0].se, color=SOFT, alpha=0.13, lw=0, label="± standard error")
    ax.axvline(0, color=SOFT, lw=0.9)
    ax.barh([_short(row.name) for row in top], [100 * math.expm1(row.change) for row in top], color=CURVE, height=0.6)
    ax.tick_params(axis="y", labelsize="small")
    largest = max(1.1 * float(np.abs(ax.get_xlim()).max()), 110 * top[0].se)
    ax.set_xlim(-largest, largest)
    ax.set_xlabel(f"change of the loss at {ahead:g}x compute (%)")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return style(ax)


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:10]}…{name[-10:]}"


def save_diagnosis(result: FitResult, diagnosis: Diagnosis, path: Path, *, dpi: int = 160) -> Path:
    """Write the panels that this diagnosis has as one PNG and return its path."""
    frame = diagnosis_frame(result, diagnosis)
    panels: list[Callable[[Axes], Axes]] = []
    labels = {
        "compute": f"training compute (FLOPs, {result.flop_convention})",
        "tokens_per_param": "tokens per parameter",
        "size": SIZE_LABELS.get(result.spec.size_column, result.spec.size_column),
    }
    for column, label in labels.items():
        if frame[column].max() > frame[column].min():
            panels.append(partial(_panel, frame=frame, x=column, label=label))
    if frame["sparsity"].max() > frame["sparsity"].min():
        panels.append(lambda ax: _against_sparsity(ax, frame))
    panels.append(lambda ax: draw_quantiles(ax, frame["residual"].tolist()))
    if diagnosis.influence:
        params = len(result.param_estimates) - (result.spec.pinned_floor is not None)
        flagged = set(frame.loc[frame["flagged"], "label"])
        panels.append(lambda ax: draw_influence(ax, diagnosis.influence, params, flagged))
    if diagnosis.left_out:
        panels.append(lambda ax: draw_left_out(ax, diagnosis.left_out, diagnosis.ahead))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * lines), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, draw in zip(axes, panels, strict=False):
        draw(ax)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())
    return path


def _panel(ax: Axes, frame: pd.DataFrame, x: str, label: str) -> Axes:
    return _ringed(draw_residuals(ax, frame, x, label), frame, x)


def _ringed(ax: Axes, frame: pd.DataFrame, x: str) -> Axes:
    """Ring the flagged observations of a residual panel."""
    rows = frame[frame["flagged"]]
    ax.plot(rows[x], 100 * rows["residual"], "o", ms=9, mfc="none", mec=HELD_OUT, mew=1.2)
    ax.set_ylabel("residual (%)")
    return ax


def _against_sparsity(ax: Axes, frame: pd.DataFrame) -> Axes:
    ax.axhline(0, color=SOFT, lw=0.9)
    ax.plot(frame["sparsity"], 100 * frame["residual"], "o", ms=5, color=CURVE, mec="white", mew=0.5)
    ax.set_xlabel("sparsity, 1 - top-k / experts")
    return style(_ringed(ax, frame, "sparsity"))
