"""The figures that only a report has: the forecast card, training curves and router health.

Each is a function that returns a tidy frame and one that draws it on axes it is given. Colours are those of
`fits.plots`.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.transforms import blended_transform_factory

from fits.plots import COMPUTE_MAP, CURVE, GRID, HELD_OUT
from forecasts.record import QUANTILE_LEVELS, Check, Forecast
from ladder.errors import InputError

COMPARATOR = "#8a929b"
SMOOTHING = 20  # single batches scatter by tenths of a nat; a twentieth of a run still shows the decay
MARK = " †"  # after the name of a fit that did not converge
BANDS = ((0.025, 0.975, 1.4), (0.05, 0.95, 4.0), (0.25, 0.75, 9.0))  # lower level, upper level, width in points


def compute_norm(compute_range: tuple[float, float]) -> LogNorm:
    """Return the colour scale of compute that the figures of `fits.plots` have for the same range."""
    low, high = compute_range
    return LogNorm(low, max(high, low * 1.01) * 1.6)  # the light end is left out


def card_frame(forecast: Forecast, check: Check | None, unconverged: Collection[str] = ()) -> pd.DataFrame:
    """Return one row a model: name, role, whether its fit converged, the loss at each quantile level, observed loss.

    Columns: model, role, converged, q0.025 to q0.975, observed, observed_se.
    """
    rows = []
    for role, model in [("main", forecast.main), *(("comparator", model) for model in forecast.comparators)]:
        quantiles = {f"q{level:g}": loss for level, loss in zip(QUANTILE_LEVELS, model.quantiles, strict=True)}
        rows.append({"model": model.name, "role": role, "converged": model.name not in unconverged, **quantiles})
    frame = pd.DataFrame(rows)
    frame["observed"] = check.observed if check and check.observed is not None else np.nan
    frame["observed_se"] = check.observed_se if check and check.observed_se is not None else np.nan
    return frame


def draw_card(ax: Axes, frame: pd.DataFrame, unit: str) -> Axes:
    """Draw each model's predictive distribution as an interval glyph and the observed loss as a star."""
    for row, record in enumerate(frame.to_dict("records")):
        colour = CURVE if record["role"] == "main" else COMPARATOR
        for low, high, width in BANDS:
            span = [record[f"q{low:g}"], record[f"q{high:g}"]]
            ax.plot(span, [row, row], color=colour, lw=width, solid_capstyle="butt", zorder=3)
        ax.plot(record["q0.5"], row, "o", ms=5, mfc="white", mec=colour, mew=1.3, zorder=4)
    names = [name if good else name + MARK for name, good in zip(frame["model"], frame["converged"], strict=True)]
    ax.set_yticks(range(len(frame)), names)
    for label, role in zip(ax.get_yticklabels(), frame["role"], strict=True):
        label.set_fontweight("bold" if role == "main" else "normal")
    ax.set_ylim(len(frame) - 0.4, -0.75)
    observed, error = frame[["observed", "observed_se"]].iloc[0]
    if np.isfinite(observed):
        if np.isfinite(error):
            ax.axvspan(observed - error, observed + error, color=HELD_OUT, alpha=0.18, lw=0, zorder=1)
        ax.axvline(observed, color=HELD_OUT, lw=1.1, zorder=2)
        place = blended_transform_factory(ax.transData, ax.transAxes)
        ax.plot(observed, 1.0, marker="*", ms=13, color=HELD_OUT, mec="white", mew=0.8, transform=place, clip_on=False)
        ax.annotate(
            "observed", (observed, 1.0), xycoords=place, xytext=(9, 1), textcoords="offset points", color=HELD_OUT
        )
    ax.set_xlabel(unit)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=GRID, lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def read_metrics(path: Path) -> list[Mapping[str, Any]]:
    """Return the records of a metrics.jsonl, oldest first; raises InputError naming the line that is damaged."""
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            raise InputError(f"{path}: line {number} is not JSON; the run was cut off there. Resume it.") from None
    return records


def metrics_frame(folder_of: Mapping[str, Path], runs: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    """Return the logged values of `keys` for every run of `runs` that has a metrics.jsonl.

    `folder_of` maps run ids to run folders. `runs` has a column held_out. Columns: run_id, rung_id, held_out, budget, step, step_fraction, tokens and
    `keys`; a record without any of the keys is left out, a key that a record lacks is missing there.
    """
    rows = []
    for run in runs.drop_duplicates("run_id").to_dict("records"):
        path = folder_of[run["run_id"]] / "metrics.jsonl"
        if not path.is_file():
            continue
        for record in read_metrics(path):
            if not any(key in record for key in keys):
                continue
            rows.append(
                {
                    **{name: run[name] for name in ("run_id", "rung_id", "budget")},
                    "held_out": run["held_out"],
                    "step": record["step"],
                    "step_fraction": record["step"] / run["steps"],
                    "tokens": record["step"] * run["batch_tokens"],
                    **{key: record.get(key, np.nan) for key in keys},
                }
            )
    columns = ["run_id", "rung_id", "held_out", "budget", "step", "step_fraction", "tokens", *keys]
    return pd.DataFrame(rows, columns=columns)


def smoothed(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return `frame` with a column ``<key>_mean``: the running mean over a twentieth of each run's logged steps."""

    def mean(run: pd.Series) -> pd.Series:
        return run.rolling(max(1, len(run) // SMOOTHING), center=True, min_periods=1).mean()

    return frame.assign(**{f"{key}_mean": frame.groupby("run_id", sort=False)[key].transform(mean)})


def draw_curves(ax: Axes, frame: pd.DataFrame, x: str, y: str, compute_range: tuple[float, float]) -> Axes:
    """Draw `y` against `x`, one line a run, coloured by budget; held-out runs have the colour of the star."""
    scale = compute_norm(compute_range)
    for _, run in frame.groupby("run_id", sort=False):
        run = run.dropna(subset=[y])
        held_out = run["held_out"].any()
        colour = HELD_OUT if held_out else COMPUTE_MAP(scale(run["budget"].iloc[0]))
        ax.plot(run[x], run[y], color=colour, lw=1.1 if held_out else 0.8, zorder=3 if held_out else 2)
    ax.grid(color=GRID, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
