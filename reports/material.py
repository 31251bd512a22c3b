"""The parts of a report that follow from the ladder and the run table: data, exclusions, seed noise."""

import math

import pandas as pd

from fits.noise import SeedNoise
from forecasts.record import Forecast
from ladder.rung import Ladder
from ladder.units import format_count, format_flops, format_loss, format_percent
from reports.context import Data
from reports.outcome import SEEN
from reports.tables import Field, Table, table_of
from reports.wording import count_of, format_factor, readable_unit

REASONS = {
    "diverged": "diverged",
    "unfinished": "unfinished",
    "off_trend": "off the trend",
    "under_annealed": "not annealed to the end",
    "duplicate": "a duplicate",
    "manual": "excluded by hand",
    "bad_value": "a number that cannot be used",
    "no_loss": "no loss stated",
    "no_compute": "no FLOPs stated",
    "other_recipe": "of another recipe",
}


def last_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the last evaluated step of every run and metric."""
    return frame.sort_values("eval_step", kind="stable").drop_duplicates(["run_id", "metric"], keep="last")


def held_out(frame: pd.DataFrame) -> pd.Series:
    """Return which rows were held out; rows of imported tables may have no role, and were not."""
    return frame["role"].eq("held_out").fillna(False).astype(bool)


def rung_frame(runs: pd.DataFrame, ladder: Ladder, metric: str) -> pd.DataFrame:
    """Return one row a rung with runs: counts, budget, realised compute, mean loss by metric and its sd over seeds.

    Columns: rung_id (the run where it has none), name, held_out, budget, compute, compute_error, active_params, total_params, tokens,
    tokens_per_param, runs (that entered the mean), excluded, loss, loss_sd (missing for one run), and ``other``, the
    mean of the validation loss where the table has one besides `metric`.
    """
    last = last_rows(runs)
    last = last.assign(rung_id=last["rung_id"].fillna(last["run_id"]), held_out=held_out(last))
    names = {rung.rung_id: rung.name for rung in ladder.rungs}
    other = other_metric(runs, metric)
    rows = []
    for rung_id, group in last[last["metric"] == metric].groupby("rung_id", sort=False):
        good = group[group["excluded_reason"].isna()]
        first = group.iloc[0]
        paired = last[(last["metric"] == other) & last["run_id"].isin(good["run_id"])]
        rows.append(
            {
                "rung_id": rung_id,
                "name": names.get(str(rung_id), str(rung_id)),
                **{
                    key: first[key]
                    for key in ("held_out", "budget", "compute", "active_params", "total_params", "tokens")
                },
                "compute_error": first["compute"] / first["budget"] - 1,
                "tokens_per_param": first["tokens"] / first["active_params"],
                "runs": len(good),
                "excluded": len(group) - len(good),
                "loss": good["loss"].mean(),
                "loss_sd": good["loss"].std() if len(good) > 1 else math.nan,
                "other": paired["loss"].mean() if len(paired) else math.nan,
            }
        )
    frame = pd.DataFrame(rows)
    return frame.sort_values(["held_out", "budget", "active_params"], kind="stable").reset_index(drop=True)


def other_metric(runs: pd.DataFrame, metric: str) -> str:
    """Return the validation loss in the unit of `metric`, or an empty string when the table has none.

    That of the same domain where there are several: validation/code/loss beside test/code/loss.
    """
    unit = runs.loc[runs["metric"] == metric, "loss_unit"].iloc[0]
    names = runs.loc[runs["loss_unit"] == unit, "metric"].unique()
    others = [str(name) for name in sorted(names) if name != metric and "val" in str(name)]
    return min(others, key=lambda name: name.partition("/")[2] != metric.partition("/")[2], default="")


def rung_table(frame: pd.DataFrame, metric: str, other: str, unit: str) -> Table:
    """Return the rungs as a table grouped by budget, the held-out rungs marked."""
    fields = [
        Field("name", "rung", number=False),
        Field("compute", "compute", format_flops, "FLOPs"),
        Field("compute_error", "realised", _near_zero, "vs budget"),
        Field("active_params", "active", format_count, "parameters"),
        Field("total_params", "total", format_count, "parameters"),
        Field("tokens", "tokens", format_count),
        Field("tokens_per_param", "tokens / active", format_factor, "parameter"),
        Field("runs", "runs", lambda value: str(int(value))),
        Field("loss", metric, format_loss, unit),
        Field("loss_sd", "seed sd", format_loss),
    ]
    if other:
        fields.insert(-1, Field("other", other, format_loss, unit))
    return table_of(
        frame,
        fields,
        caption="Rungs with runs in this study. Losses are means over the runs that count; rows on a tint were held out.",
        group="budget",
        marks=["held-out" if held else "" for held in frame["held_out"]],
    )


def _near_zero(fraction: float) -> str:
    return format_percent(round(fraction, 4) + 0.0)  # no minus sign before a zero


def excluded_table(runs: pd.DataFrame, ladder: Ladder, metric: str) -> Table | None:
    """Return the excluded runs with their reasons, or None when there are none."""
    rows = last_rows(runs)
    rows = rows[(rows["metric"] == metric) & rows["excluded_reason"].notna()]
    if rows.empty:
        return None
    names = {rung.rung_id: rung.name for rung in ladder.rungs}
    rows = rows.assign(rung=[names.get(rung_id, rung_id) for rung_id in rows["rung_id"]])
    return table_of(
        rows,
        [
            Field("rung", "rung", number=False),
            Field("run_id", "run", number=False),
            Field("seed", "seed", lambda value: str(int(value))),
            Field("status", "ended as", number=False),
            Field("excluded_reason", "why it is excluded", lambda value: REASONS[value], number=False),
            Field("loss", "loss", format_loss),
        ],
        caption="Runs that entered no fit.",
    )


def data_of(forecast: Forecast, runs: pd.DataFrame, ladder: Ladder, noise: SeedNoise | None) -> Data:
    """Return what the law was fitted to, what was excluded and what had been seen; `noise` is the fit's."""
    metric = forecast.target.metric
    frame = rung_frame(runs, ladder, metric.name)
    statement = forecast.data
    excluded = sum(statement.runs_excluded.values())
    reasons = ", ".join(
        f"{REASONS.get(reason, reason)} ({number})" for reason, number in sorted(statement.runs_excluded.items())
    )
    return Data(
        used=count_of(statement.runs_used, "run"),
        excluded=f"{count_of(excluded, 'run')} {'was' if excluded == 1 else 'were'}",
        excluded_reasons=reasons,
        budgets=count_of(len(statement.budgets), "budget"),
        lowest=format_flops(min(statement.budgets)),
        highest=format_flops(max(statement.budgets)),
        seen=SEEN[statement.seen],
        freedom=statement.selection_freedom,
        rungs=rung_table(frame, metric.name, other_metric(runs, metric.name), readable_unit(metric.unit)),
        excluded_runs=excluded_table(runs, ladder, metric.name),
        seed_noise="" if noise is None else format_percent(noise.sd, signed=False),
        replicated="" if noise is None else count_of(noise.rungs, "fit rung"),
    )
