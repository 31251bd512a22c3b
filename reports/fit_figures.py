"""The figures of the fit, drawn by `fits.plots` and given captions, text alternatives and data."""

from collections.abc import Mapping

import pandas as pd

from fits.isoflop import LEVEL
from fits.plots import draw_isoflop, draw_loss, draw_residuals, isoflop_frame, loss_frame, residual_frame
from fits.result import FitResult
from forecasts.record import Check, Forecast
from ladder.units import format_flops, format_loss, format_percent
from reports.charts import MARK
from reports.figures import WIDTH, Figure, csv_bytes, daggers
from reports.material import held_out
from reports.svg import canvas, to_svg
from reports.wording import count_of, format_factor, format_level, readable_unit


def loss_figure(
    forecast: Forecast,
    check: Check | None,
    result: FitResult,
    comparators: Mapping[str, FitResult],
    compute_range: tuple[float, float],
) -> Figure | None:
    """Return loss against compute with the held-out star, or None for a law that needs more than compute."""
    if not result.spec.on_optima:
        return None
    target = forecast.target
    observed: list[tuple[float, float, float | None]] = []
    if check is not None and check.observed is not None:
        observed = [(float(target.compute), check.observed, check.observed_se)]
    drawn = {name if fit.usable else name + MARK: fit for name, fit in comparators.items() if fit.spec.on_optima}
    frame = loss_frame(result, float(target.compute), comparators=drawn, held_out=observed)
    factor = format_factor(forecast.extrapolation_factor["compute"])
    low, high = result.fit_range["compute"]
    unit = readable_unit(target.metric.unit)
    alt = (
        f"Loss against training compute. {count_of(len(result.points), 'fitted optimum').replace('optimums', 'optima')} "
        f"from {format_flops(low)} to {format_flops(high)} FLOPs and the forecast at {format_flops(target.compute)} "
        f"FLOPs, {format_loss(forecast.main.median)} {unit}."
    )
    if check is not None and check.observed is not None:
        alt += f" The observed loss there is {format_loss(check.observed)}."
    floor = result.theta.get("E", 0.0)
    with canvas(WIDTH, 6.0 if floor else 3.4) as figure:
        axes = figure.subplots(2 if floor else 1, 1, squeeze=False)[:, 0]
        draw_loss(axes[0], frame, result.flop_convention, result.metric_unit, compute_range=compute_range)
        if floor:
            draw_loss(
                axes[1], frame, result.flop_convention, result.metric_unit, floor=floor, compute_range=compute_range
            )
        svg = to_svg(figure, "loss_vs_compute", alt)
    star = "The star was held out; its bar is one standard error over seeds. " if observed else ""
    second = " Below: the same minus the irreducible loss, on logarithmic axes." if floor else ""
    caption = (
        f"**Loss against compute.** Circles are the optima the law was fitted to, the line is its median, dashed where "
        f"it extrapolates, the bands hold half and nine tenths of the probability of the next run. {star}The target "
        f"lies {factor} times beyond the largest fitted compute.{second}{daggers([name for name in drawn if name.endswith(MARK)])}"
    )
    return Figure("loss_vs_compute", "Loss against compute", svg, csv_bytes(frame), alt, caption)


def isoflop_figure(
    result: FitResult, runs: pd.DataFrame, metric: str, compute_range: tuple[float, float]
) -> Figure | None:
    """Return the IsoFLOP curves, or None for a fit that was not made from them."""
    profiles = result.isoflop
    if profiles is None:
        return None
    excluded = runs[(runs["metric"] == metric) & runs["excluded_reason"].notna() & ~held_out(runs)]
    frame = isoflop_frame(profiles, excluded)
    used = sum(profile.optimum is not None for profile in profiles.profiles)
    alt = (
        f"Loss against model size at {count_of(len(profiles.profiles), 'budget')}, "
        f"{count_of(int((frame['kind'] == 'point').sum()), 'size')} in all; "
        f"{used} of the budgets give an optimum inside their sizes."
    )
    with canvas(WIDTH, 3.8) as figure:
        ax = figure.add_subplot()
        draw_isoflop(ax, frame, profiles.size_column, result.metric_unit, compute_range)
        svg = to_svg(figure, "isoflop", alt)
    hollow = " Hollow circles entered no fit." if (frame["kind"] == "excluded").any() else ""
    misfit = (
        ""
        if profiles.misfit_sd is None
        else f" The points scatter about their parabolas by {format_percent(profiles.misfit_sd, signed=False)} of the loss."
    )
    caption = (
        "**IsoFLOP curves.** One colour a budget, labelled in FLOPs; each circle is the mean over seeds of one size. "
        f"Diamonds are the optima with their {format_level(LEVEL)} intervals; a dashed curve gives none.{hollow}{misfit}"
    )
    return Figure("isoflop", "IsoFLOP curves", svg, csv_bytes(frame), alt, caption)


def residual_figure(
    name: str, result: FitResult, comparators: Mapping[str, FitResult], compute_range: tuple[float, float]
) -> Figure:
    """Return residuals against compute and tokens per parameter: of the main fit and of each law fitted to runs."""
    fits = {name: result, **{key: fit for key, fit in comparators.items() if not fit.spec.on_optima}}
    shown = {key if fit.usable else key + MARK: fit for key, fit in fits.items()}
    frames = {key: residual_frame(fit).assign(fit=key) for key, fit in shown.items()}
    largest = {key: format_percent(float(frame["residual"].abs().max()), signed=False) for key, frame in frames.items()}
    alt = "Residuals against compute and against tokens per parameter. " + " ".join(
        f"{key}: at most {size} of the loss over {count_of(len(frames[key]), 'point')}."
        for key, size in largest.items()
    )
    with canvas(WIDTH, 2.6 * len(frames)) as figure:
        axes = figure.subplots(len(frames), 2, squeeze=False)
        for row, (key, frame) in zip(axes, frames.items(), strict=True):
            draw_residuals(row[0], frame, "compute", "training compute (FLOPs)", compute_range=compute_range)
            row[0].set_ylabel(f"{key}\nresidual (%)")
            if frame["tokens_per_param"].notna().any():
                draw_residuals(row[1], frame, "tokens_per_param", "tokens per parameter", compute_range=compute_range)
                row[1].set_ylabel("")
            else:
                row[1].set_axis_off()
        svg = to_svg(figure, "residuals", alt)
    what = ", ".join(f"`{key}` ({'optima' if fit.spec.on_optima else 'runs'})" for key, fit in shown.items())
    caption = (
        f"**Residuals**, observed over fitted minus one: {what}. The grey band is one standard deviation of the seed "
        "noise, where it was measured. A trend would mean that the law has the wrong form."
        + daggers([key for key in shown if key.endswith(MARK)])
    )
    return Figure("residuals", "Residuals", svg, csv_bytes(pd.concat(frames.values())), alt, caption)
