"""What the FLOP convention does to fitted exponents: Marin's v16 ladder with the head left out and with it counted.

    python benchmarks/convention_sensitivity.py --figure docs/flop-conventions.svg

The 45 runs of the six budgets 1e18 to 3e20 (issue #4447), their compute under MATMUL_NO_HEAD (how the budgets were
set) and MATMUL_FULL (what was logged). Under the second the runs of a budget are not compute-matched: they lie a factor
of up to 2.1 apart. Four ways to read the same runs:

    no_head     parabolas over the published budgets
    full        loss of each width interpolated to equal full compute, then parabolas: the ladder as it would be read
                under the other convention
    relabelled  vertices of no_head, their compute counted in full
    mixed       the same, only the three smallest budgets in full: two conventions in one fit

Each gives the exponent of N*(C), that of the loss above a floor of 1.6 (Marin's pin), and a forecast of the 1e23 run
(measured: 2.234), asked at its compute under the same convention. Prints one line of JSON and exits with 1 unless mixing
moves the loss exponent further than the choice of one convention does.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fits.isoflop import isoflop
from fits.plots import CURVE, HELD_OUT, SOFT, log_ticks, style
from ladder.counts import count_params
from ladder.flops import FlopConvention, training_flops_per_token
from ladder.recipe import recipe_named
from ladder.sizing import make_rung

V16 = recipe_named("marin-moe-v16")
NO_HEAD, FULL = FlopConvention.MATMUL_NO_HEAD, FlopConvention.MATMUL_FULL
FLOOR, MEASURED, LARGEST_FITTED = 1.6, 2.234, 5e20  # the last leaves out the runs at 1e21
TARGET = make_rung(V16, 10**23, 5120, overrides={"layers": 48, "batch_seqs": 2048})
LOSS_TICKS = (0.6, 0.8, 1.0, 1.4, 1.8)
COLOURS = {"no_head": CURVE, "full": HELD_OUT, "mixed": SOFT}


@dataclass(frozen=True)
class Reading:
    """One way to read the runs: vertices (compute, N*, L*), and the target's compute under its convention."""

    name: str
    vertices: tuple[tuple[float, float, float], ...]
    target: float

    def slope(self, column: int, keep: Sequence[int] | None = None) -> tuple[float, float]:
        """Return exponent and coefficient of N* (column 1) or of L* - floor (column 2) in compute, by least squares."""
        table = np.array(self.vertices)[list(keep) if keep is not None else slice(None)]
        y = np.log(table[:, 1] if column == 1 else table[:, 2] - FLOOR)
        slope, intercept = np.polyfit(np.log(table[:, 0]), y, 1)
        return float(slope), float(intercept)

    def loss_at(self, compute: float) -> float:
        """Return the loss at `compute`."""
        slope, intercept = self.slope(2)
        return FLOOR + math.exp(intercept + slope * math.log(compute))

    def row(self) -> dict[str, Any]:
        """Return what the reading says; ranges are over leaving each budget out in turn."""
        count = len(self.vertices)
        without = [[i for i in range(count) if i != left] for left in range(count)]
        sizes, losses = ([self.slope(column, keep)[0] for keep in without] for column in (1, 2))
        forecast = self.loss_at(self.target)
        return {
            "vertices": count,
            "size_exponent": round(self.slope(1)[0], 4),
            "size_exponent_range": [round(min(sizes), 4), round(max(sizes), 4)],
            "loss_exponent": round(-self.slope(2)[0], 5),
            "loss_exponent_range": [round(-max(losses), 5), round(-min(losses), 5)],
            "forecast_1e23": round(forecast, 4),
            "error_percent": round(100 * (forecast / MEASURED - 1), 2),
        }


def runs(data: Path) -> pd.DataFrame:
    """Return the finished runs up to 3e20 that no later run replaced, with both computes and N without embeddings."""
    rows = []
    with (data / "marin_moe" / "isoflop_v16_runs.csv").open() as file:
        for row in csv.DictReader(file):
            budget = float(row["budget_flops_nonlmhead"])
            if row["superseded_by_v2"] == "1" or budget > LARGEST_FITTED:
                continue
            shape, tokens = V16.shape(int(row["hidden_dim"])), float(row["tokens"])
            rows.append(
                {
                    "budget": budget,
                    "hidden": shape.hidden,
                    "size": float(count_params(shape).nonembedding_active),
                    "tokens": tokens,
                    "loss": float(row["paloma_macro_loss"]),
                    "no_head": training_flops_per_token(shape, NO_HEAD) * tokens,
                    "full": training_flops_per_token(shape, FULL) * tokens,
                }
            )
    return pd.DataFrame(rows)


def vertices(frame: pd.DataFrame) -> tuple[tuple[float, float, float], ...]:
    """Return (compute, N*, L*) of every budget of a frame with columns budget, compute, size, tokens, loss."""
    table = frame.assign(rung_id=frame["budget"].astype(str) + "-" + frame["hidden"].astype(str), seed=0.0)
    optima = isoflop(table, "size").optima
    return tuple((o.compute, float(o.size or 0), o.loss) for o in optima)


def interpolated(frame: pd.DataFrame, column: str, targets: Sequence[float]) -> pd.DataFrame:
    """Return each width's loss at each target compute, ln L linear in ln C between its runs, never beyond them."""
    rows = []
    for hidden, group in frame.sort_values(column).groupby("hidden"):
        x, y = np.log(group[column].to_numpy()), np.log(group["loss"].to_numpy())
        tokens = np.log(group["tokens"].to_numpy())
        for target in targets:
            at = math.log(target)
            if len(x) > 1 and x[0] - 1e-9 <= at <= x[-1] + 1e-9:
                rows.append(
                    {
                        "budget": target,
                        "compute": target,
                        "hidden": hidden,
                        "size": group["size"].iloc[0],
                        "tokens": math.exp(float(np.interp(at, x, tokens))),
                        "loss": math.exp(float(np.interp(at, x, y))),
                    }
                )
    return pd.DataFrame(rows)


def full_at(size: float, compute: float) -> float:
    """Return the full compute of a run of `compute` without head, by the ratio of the recipe's widths at `size`."""
    sizes, ratios = [], []
    for hidden in V16.widths():
        shape = V16.shape(hidden)
        sizes.append(math.log(count_params(shape).nonembedding_active))
        ratios.append(math.log(training_flops_per_token(shape, FULL) / training_flops_per_token(shape, NO_HEAD)))
    return compute * math.exp(float(np.interp(math.log(size), sizes, ratios)))


def readings(frame: pd.DataFrame) -> dict[str, Reading]:
    """Return the four readings, and the control that interpolates under the published convention."""
    published = vertices(frame.assign(compute=frame["no_head"]))
    budgets = sorted(frame["budget"].unique())
    counted = tuple((full_at(size, compute), size, loss) for compute, size, loss in published)
    half = len(published) // 2
    ends = float(TARGET.training_flops(NO_HEAD)), float(TARGET.training_flops(FULL))
    # as many levels as there are budgets, from the lowest to the highest at which widths on both sides have runs
    levels = np.geomspace(counted[0][0], counted[-1][0], len(budgets)).tolist()
    control = np.geomspace(budgets[0], budgets[-1], len(budgets)).tolist()
    made = (
        Reading("no_head", published, ends[0]),
        Reading("no_head_interpolated", vertices(interpolated(frame, "no_head", control)), ends[0]),
        Reading("full", vertices(interpolated(frame, "full", levels)), ends[1]),
        Reading("relabelled", counted, ends[1]),
        Reading("mixed", (*counted[:half], *published[half:]), ends[0]),
    )
    return {reading.name: reading for reading in made}


def draw(ax: Axes, found: dict[str, Reading], column: int) -> Axes:
    """Draw N* (column 1) or the loss above the floor (column 2) against compute, with the fitted powers."""
    for name, colour in COLOURS.items():
        reading = found[name]
        table = np.array(reading.vertices)
        y = table[:, 1] if column == 1 else table[:, 2] - FLOOR
        slope, intercept = reading.slope(column)
        words = {"no_head": "head left out", "full": "head counted", "mixed": "mixed"}[name]
        mark = "o" if name != "mixed" else "x"
        ax.plot(table[:, 0], y, mark, color=colour, ms=5, label=f"{words}: exponent {abs(slope):.4f}")
        ends = np.array([table[0, 0], table[-1, 0], reading.target])
        fitted = np.exp(intercept + slope * np.log(ends))
        ax.plot(ends[:2], fitted[:2], color=colour, lw=1.2)
        ax.plot(ends[1:], fitted[1:], color=colour, lw=1.2, ls="--")
    if column == 2:
        ax.plot(float(TARGET.compute), MEASURED - FLOOR, "*", color="black", ms=11, label=f"measured, {MEASURED}")
    ax.set(xscale="log", yscale="log", xlabel="training FLOPs, as each reading counts them")
    ax.set_ylabel("N*, active without embedding and head" if column == 1 else f"loss above {FLOOR}, nats per token")
    log_ticks(ax, "x", count=False)
    if column == 1:
        log_ticks(ax, "y", count=True)
    else:
        ax.set_yticks(LOSS_TICKS, [f"{tick:g}" for tick in LOSS_TICKS])
        ax.yaxis.set_minor_locator(NullLocator())
    ax.legend(frameon=False, fontsize=8)
    return style(ax)


def save_figure(found: dict[str, Reading], path: Path) -> None:
    """Write both panels to `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, found, 1)
    draw(right, found, 2)
    with rc_context({"svg.hashsalt": "conventions", "svg.fonttype": "none"}):  # the same bytes every time
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(description="Fit one ladder under two FLOP conventions.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public data")
    parser.add_argument("--figure", type=Path, help="write the figure here")
    arguments = parser.parse_args()
    if not (arguments.data / "marin_moe").is_dir():
        print(f"{arguments.data} has no folder marin_moe; name the folder of the public data.", file=sys.stderr)
        return 2
    frame = runs(arguments.data)
    found = readings(frame)
    rows = {name: reading.row() for name, reading in found.items()}
    spread = frame.groupby("budget")["full"].agg(lambda column: column.max() / column.min())
    head = {
        hidden: round(float((group["full"] / group["no_head"]).iloc[0]), 3) for hidden, group in frame.groupby("hidden")
    }
    result = {
        "runs": len(frame),
        "full_over_no_head_by_width": {str(hidden): ratio for hidden, ratio in head.items()},
        "full_over_no_head_at_1e23": round(TARGET.training_flops(FULL) / TARGET.training_flops(NO_HEAD), 3),
        "largest_spread_of_full_compute_within_a_budget": round(float(spread.max()), 2),
        "readings": rows,
    }
    if arguments.figure is not None:
        save_figure(found, arguments.figure)
    print(json.dumps(result))
    exponents = {name: row["loss_exponent"] for name, row in rows.items()}
    choice = abs(exponents["full"] - exponents["no_head"])
    return int(abs(exponents["mixed"] - exponents["no_head"]) <= choice)


if __name__ == "__main__":
    sys.exit(main())
