"""Rolling-origin backtest: fit what lies below a cut in compute, predict what lies above, for every cut.

The only evidence a ladder has, before its target exists, of how far to trust a law and its intervals. Every fit is
guarded: no run above the cap, of the target's rung (other seeds) or of its trunk (checkpoints) may enter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from fits.fit import fit
from fits.predictive import Predictive
from fits.result import FitResult, Target
from fits.rows import select_rows
from fits.spec import FitSpec
from ladder.errors import InputError, UnusableError, VerificationError
from ladder.runs import RunTable

MIN_KEPT = 3  # budgets below the first cut
MAX_CUTS, MAX_TARGETS = 8, 12  # of a table with many computes
BIN = 0.7  # of ln C, a factor of two: runs without budgets are grouped by it
LEVELS = (0.5, 0.8, 0.9, 0.95)
CRPS_LEVELS = np.arange(0.01, 1.0, 0.02)
WIS_LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
BASELINES = ("power-law", "power-law-floor")  # frozen at the same cut (laws.md 30.5), beside the last rung itself
PERSISTENCE = "last-rung"
HALVINGS = 45  # of a bracket of a few scales: to 1e-13
RESAMPLES = 100  # of laws with a bootstrap, in each cut

type Progress = Callable[[str], None]


@dataclass(frozen=True)
class Backtest:
    """The forecasts, one row a law, cut and target.

    Columns: law, cut, compute, factor (target over cut), observed, median, error (ln median - ln observed), crps and
    wis of ln L, lo50, hi50, inside50 and so on, status. Rows without a forecast have a status that says why.
    """

    frame: pd.DataFrame
    leaks: int

    def summary(self) -> pd.DataFrame:
        """Return one row a law: n, mean and median absolute error, bias, crps, wis, coverage, skill, failed.

        Skill is 1 - CRPS / CRPS of the baseline on the targets that both forecast.
        """
        rows = []
        for law, all_rows in self.frame.groupby("law", sort=False):
            done = all_rows.dropna(subset=["median"])
            row: dict[str, object] = {"law": law, "n": len(done), "failed": len(all_rows) - len(done)}
            row |= {
                "mean_abs_error": done["error"].abs().mean(),
                "median_abs_error": done["error"].abs().median(),
                "bias": done["error"].mean(),
                "crps": done["crps"].mean(),
                "wis": done["wis"].mean(),
            }
            row |= {f"coverage{100 * level:g}": done[f"inside{100 * level:g}"].mean() for level in LEVELS}
            for baseline in (*BASELINES, PERSISTENCE):
                other = self.frame[self.frame["law"] == baseline].dropna(subset=["median"])
                both = done.merge(other, on=["cut", "compute"], suffixes=("", "_b"))
                known = len(both) and both["crps_b"].mean() > 0
                row[f"skill_{baseline}"] = 1 - both["crps"].mean() / both["crps_b"].mean() if known else np.nan
            rows.append(row)
        return pd.DataFrame(rows)


def quantiles(predictive: Predictive, levels: Sequence[float]) -> Float[np.ndarray, " levels"]:
    """Return quantiles of ln L, all by one bisection; `Predictive.quantile` is for one level."""
    weights, centres, scales, dfs = (
        np.array(part)[:, None] for part in (predictive.weights, predictive.centres, predictive.scales, predictive.dfs)
    )
    goal = np.asarray(levels, dtype=float)
    parts = centres + scales * special.stdtrit(dfs, goal)
    low, high = parts.min(axis=0), parts.max(axis=0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = (weights * special.stdtr(dfs, (middle - centres) / scales)).sum(axis=0) < goal
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def refuse_leaks(rows: pd.DataFrame, targets: pd.DataFrame, cap: float) -> None:
    """Raise VerificationError when rows of a fit saw a target: its rung, its trunk, a repeat of it, or the cap.

    `rows` and `targets` are rows of run tables. A repeat has the target's loss at its tokens under another name.
    """
    reasons = {
        "is above the cap": rows["compute"] > cap * (1 + 1e-9),
        "is the target": rows["run_id"].isin(targets["run_id"]),
        "is a seed of the target": rows["rung_id"].isin(targets["rung_id"].dropna()),
        "shares the target's trunk": rows["trunk_id"].isin(targets["trunk_id"].dropna()),
        "repeats the target": pd.Series(
            [
                pair in set(zip(targets["loss"], targets["tokens"], strict=True))
                for pair in zip(rows["loss"], rows["tokens"], strict=True)
            ],
            index=rows.index,
        ),
    }
    for reason, hit in reasons.items():
        wrong = rows[hit.fillna(False).astype(bool)]
        if len(wrong):
            raise VerificationError(
                f"run {wrong['run_id'].iloc[0]} {reason} ({len(wrong)} such runs) and stands among the runs of a fit: "
                "that is leakage. Leave it out, or lower the cap."
            )


def backtest(runs: RunTable, specs: Sequence[FitSpec], *, progress: Progress | None = None) -> Backtest:
    """Return the backtest of the laws or policies in `specs`, and of the baselines.

    Targets are the lowest losses of the budgets above a cut (mean over the seeds of the rung), held-out rows included.
    Raises InputError with fewer than four budgets, or for specifications of different metrics.
    """
    if len({spec.metric for spec in specs}) != 1:
        raise InputError("a backtest compares laws on one metric; name specifications of one.")
    first = specs[0]
    table = select_rows(_open(runs), replace(first, max_compute=None)).frame
    level = _levels(table)
    order = np.sort(level.unique())
    if len(order) <= MIN_KEPT:
        raise InputError(
            f"a backtest needs {MIN_KEPT + 1} budgets or more, found {len(order)}: hiding one must leave {MIN_KEPT} to fit."
        )
    kept = np.unique(np.linspace(MIN_KEPT, len(order) - 1, min(MAX_CUTS, len(order) - MIN_KEPT)).round().astype(int))
    named = {spec.law: spec for spec in specs}
    for baseline in BASELINES:
        named.setdefault(baseline, replace(FitSpec.of(baseline, first.metric), size_column=first.size_column))
    rows: list[dict[str, object]] = []
    leaks = 0
    for count in kept.tolist():
        below = table[level <= order[count - 1]]
        cap = float(below["compute"].max())
        targets = _targets(table, level, order[count:])
        clean, dropped = _clean(below, targets)
        leaks += dropped
        refuse_leaks(clean, targets, cap)
        if progress is not None:
            progress(f"cut at {cap:.3g} FLOPs: {len(clean)} runs below, {targets['group'].nunique()} targets above")
        fits = {law: _fit(spec, clean, cap) for law, spec in named.items()}
        last = float(clean["loss"].min())
        for _, seeds in targets.groupby("group"):
            target = {key: float(value) for key, value in seeds.iloc[0].items() if key in VALUES and pd.notna(value)}
            observed = float(seeds["loss"].mean())
            base: dict[str, object] = {
                "cut": cap,
                "compute": target["compute"],
                "factor": target["compute"] / cap,
                "observed": observed,
            }
            rows += [{"law": law} | base | _scored(found, target, observed) for law, found in fits.items()]
            error = float(np.log(last / observed))
            rows.append(
                {"law": PERSISTENCE} | base | {"median": last, "error": error, "crps": abs(error), "status": ""}
            )
    return Backtest(pd.DataFrame(rows), leaks)


VALUES = ("compute", "tokens", "active_params", "nonembedding_active_params", "total_params")


def _open(runs: RunTable) -> RunTable:
    """Return the table with held-out rows counted in: a backtest hides rows itself."""
    return RunTable(runs.frame.assign(role=pd.Series(pd.NA, index=runs.frame.index, dtype="string")))


def _levels(table: pd.DataFrame) -> pd.Series:
    """Return what cuts are made of: budgets, or bins of compute where a table has none or too many."""
    budget = pd.Series(table["budget"].fillna(table["compute"]))
    if budget.nunique() <= MAX_CUTS + MAX_TARGETS:
        return budget
    return pd.Series(np.floor(np.log(table["compute"].to_numpy()) / BIN), index=table.index)


def _targets(table: pd.DataFrame, level: pd.Series, above: Float[np.ndarray, " levels"]) -> pd.DataFrame:
    """Return the rows of the best rung of each level above a cut, with `group`; all seeds of it."""
    if len(above) > MAX_TARGETS:
        above = above[np.unique(np.linspace(0, len(above) - 1, MAX_TARGETS).round().astype(int))]
    found = []
    for value in above:
        here = table[level == value]
        rung = here["rung_id"].astype("object").where(here["rung_id"].notna(), here["run_id"])
        best = rung.loc[here["loss"].groupby(rung).transform("mean").idxmin()]
        found.append(here[rung == best].assign(group=float(value)))
    return pd.DataFrame(pd.concat(found))


def _clean(below: pd.DataFrame, targets: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows below a cut without those of the targets' rungs and trunks, and how many those are."""
    seed = below["rung_id"].isin(targets["rung_id"].dropna()).fillna(False).astype(bool)
    branch = below["trunk_id"].isin(targets["trunk_id"].dropna()).fillna(False).astype(bool)
    leak = seed | branch
    return below[~leak], int(leak.sum())


def _fit(spec: FitSpec, rows: pd.DataFrame, cap: float) -> FitResult | str:
    """Return the fit, or why there is none."""
    capped = replace(spec, max_compute=cap * (1 + 1e-9), resamples=min(spec.resamples, RESAMPLES))
    try:
        return fit(capped, RunTable(rows.reset_index(drop=True)))
    except (InputError, UnusableError) as error:
        return str(error)


def _scored(found: FitResult | str, target: Target, observed: float) -> dict[str, object]:
    if isinstance(found, str):
        return {"status": found}
    try:
        predictive = found.predictive(target)
    except (InputError, UnusableError) as error:
        return {"status": str(error)}
    y = float(np.log(observed))
    middle = float(np.log(predictive.median))
    row: dict[str, object] = {"median": predictive.median, "error": middle - y, "status": str(found.status)}
    for name, levels in (("crps", CRPS_LEVELS.tolist()), ("wis", WIS_LEVELS)):
        at = quantiles(predictive, levels)
        row[name] = 2 * float(np.mean((y - at) * (np.array(levels) - (y < at))))
    for level in LEVELS:
        low, high = predictive.interval(level)
        row |= {f"lo{100 * level:g}": low, f"hi{100 * level:g}": high}
        row[f"inside{100 * level:g}"] = float(low <= observed <= high)
    return row
