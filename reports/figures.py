"""The figures of a report: each an SVG, the frame it was drawn from as CSV, a caption and a text alternative."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable

from fits.plots import COMPUTE_MAP
from forecasts.record import Check, Forecast
from ladder.units import format_flops, format_loss, format_percent
from reports.charts import BANDS, MARK, card_frame, compute_norm, draw_card, draw_curves, metrics_frame, smoothed
from reports.svg import canvas, to_svg
from reports.wording import count_of, format_level, readable_unit

WIDTH = 5.3  # inches; 509 CSS pixels: shown a little larger on a desk, and at two thirds still legible on a phone
TRAIN_LOSS, DROPS, MAX_LOAD = "loss", "drop_fraction", "max_load"  # keys of metrics.jsonl
TAIL = 0.9  # of the schedule: where drops are compared between runs


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        key: file stem under figures/ and id in the page.
        name: short name, for navigation.
        svg: the drawing, an SVG element.
        csv: the numbers behind it.
        alt: what a reader who cannot see it should know.
        caption: inline Markdown.
    """

    key: str
    name: str
    svg: str
    csv: bytes
    alt: str
    caption: str


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """Return `frame` as CSV, floats in the shortest form that reads back the same."""
    return frame.to_csv(index=False, lineterminator="\n").encode()


def daggers(unconverged: Collection[str]) -> str:
    """Return the sentence that explains the mark of fits that did not converge, empty when all did."""
    return f"{MARK} The fit did not converge." if unconverged else ""


def card_figure(forecast: Forecast, check: Check | None, unconverged: Collection[str] = ()) -> Figure:
    """Return the forecast card: one interval glyph a model, the observed loss as a star."""
    frame = card_frame(forecast, check, unconverged)
    metric = forecast.target.metric
    unit = readable_unit(metric.unit)
    low, high = forecast.main.predictive.interval(forecast.rule.level)
    alt = (
        f"Predictive intervals of {len(frame)} models for {forecast.target.rung_name}. "
        f"{forecast.main.name}: median {format_loss(forecast.main.median)}, "
        f"{format_level(forecast.rule.level)} interval {format_loss(low)} to {format_loss(high)}."
    )
    if check is not None and check.observed is not None:
        alt += f" Observed {format_loss(check.observed)} {unit}."
        observed = "The star and the line are the outcome, the tint one standard error of it."
    else:
        observed = "The outcome is not known yet."
    with canvas(WIDTH, 1.0 + 0.34 * len(frame)) as figure:
        draw_card(figure.add_subplot(), frame, f"{metric.name} ({unit})")
        svg = to_svg(figure, "card", alt)
    held = ", ".join(format_level(high - low) for low, high, _ in reversed(BANDS))
    caption = (
        f"**The forecast and the outcome.** Circles are medians; the bars hold {held} of the "
        f"probability, from thick to thin. The main forecast is blue, the comparators grey. {observed}{daggers(unconverged)}"
    )
    return Figure("card", "Forecast card", svg, csv_bytes(frame), alt, caption)


def curves_figure(
    folders: Mapping[str, Path], runs: pd.DataFrame, unit: str, compute_range: tuple[float, float]
) -> Figure | None:
    """Return training loss against tokens for every run that logged it, or None when none did."""
    frame = smoothed(metrics_frame(folders, runs, (TRAIN_LOSS,)), TRAIN_LOSS)
    if frame.empty:
        return None
    count = frame["run_id"].nunique()
    last = frame.groupby("run_id")[TRAIN_LOSS].last()
    alt = (
        f"Training loss of {count} runs against tokens; the last logged values lie between "
        f"{format_loss(last.min())} and {format_loss(last.max())} {unit}."
    )
    with canvas(WIDTH, 3.1) as figure:
        ax = figure.add_subplot()
        draw_curves(ax, frame, "tokens", f"{TRAIN_LOSS}_mean", compute_range)
        ax.set_xscale("log")
        ax.set_xlabel("training tokens")
        ax.set_ylabel(f"training loss ({unit})")
        colours = ScalarMappable(compute_norm(compute_range), COMPUTE_MAP)
        budgets = sorted(frame.loc[~frame["held_out"].astype(bool), "budget"].unique())
        bar = figure.colorbar(colours, ax=ax, label="budget (FLOPs)", ticks=budgets)
        bar.ax.set_yticklabels([format_flops(budget) for budget in budgets])
        bar.ax.minorticks_off()
        svg = to_svg(figure, "training_curves", alt)
    held_out = " Orange: the held-out runs." if frame["held_out"].any() else ""
    caption = f"**Training curves.** Training loss of each of the {count} runs, a running mean over a twentieth of its steps.{held_out}"
    return Figure("training_curves", "Training curves", svg, csv_bytes(frame), alt, caption)


def health_figure(folders: Mapping[str, Path], runs: pd.DataFrame, compute_range: tuple[float, float]) -> Figure | None:
    """Return drop fraction and load of the fullest expert against schedule fraction, or None when neither was logged."""
    frame = smoothed(smoothed(metrics_frame(folders, runs, (DROPS, MAX_LOAD)), DROPS), MAX_LOAD)
    shown = [
        (key, label)
        for key, label in ((DROPS, "dropped (%)"), (MAX_LOAD, "largest load / mean"))
        if frame[key].notna().any()
    ]
    if not shown:
        return None
    alt = f"Router health of {count_of(frame['run_id'].nunique(), 'run')} against the fraction of the schedule."
    last_tenth = frame[frame["step_fraction"] >= TAIL]
    if last_tenth[DROPS].notna().any():
        worst = last_tenth.groupby("run_id")[DROPS].mean().max()
        alt += (
            f" In the last tenth no run dropped more than {format_percent(worst, signed=False)} of its routed tokens."
        )
    drawn = frame.assign(**{f"{DROPS}_mean": 100 * frame[f"{DROPS}_mean"]})
    with canvas(WIDTH, 2.4) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(shown)))
        for ax, (key, label) in zip(axes, shown, strict=True):
            draw_curves(ax, drawn, "step_fraction", f"{key}_mean", compute_range)
            ax.set_xlabel("fraction of the schedule")
            ax.set_ylabel(label)
        svg = to_svg(figure, "router_health", alt)
    caption = (
        "**Router health in training.** Routed tokens dropped because an expert was full, and the load of the fullest "
        "expert over the mean load, against the fraction of each run's schedule; running means and colours as above."
    )
    return Figure("router_health", "Router health", svg, csv_bytes(frame), alt, caption)
