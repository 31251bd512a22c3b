"""Diagnostics of a fit, all together: what its residuals follow, which runs it hangs on, what the runs do not say.

Five families of tests, each at 1 % (Holm or Bonferroni within the family): trends, budgets, the smallest budget, mixed
recipes, runs off trend. A clean ladder is then flagged by any of them about one time in twenty (17 of 300 synthetic ladders of 45 runs,
2026-12-01).
Runs found off trend are left out of the other tests, so that one bad run does not make a trend.
"""

from dataclasses import dataclass
from math import isfinite, log

import numpy as np
import pandas as pd

from fits.findings import Finding, Verdict
from fits.fit import solution_of
from fits.floor_posterior import floor_posterior
from fits.influence import (
    AHEAD,
    LeftOut,
    RunInfluence,
    forecast_target,
    influence_findings,
    influences,
    left_out,
    left_out_findings,
    off_trend_findings,
    smallest_findings,
)
from fits.points import Points, points_of
from fits.result import FitResult
from fits.rows import select_rows
from fits.solve import Solution
from fits.spec import FLOOR_INTEGRATED
from fits.training_checks import curve_findings, missing_findings, table_findings
from fits.trends import MIN_DF, Linearised, mixing_findings, shift_findings, trend_findings
from ladder.errors import UnusableError
from ladder.runs import RunTable
from ladder.study import Study
from ladder.units import format_flops

BINS = 5  # budgets that runs of many different computes are grouped to
ONE_SIGMA = (0.15865525393145707, 0.8413447460685429)


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        findings: everything, in the order of the checks.
        influence: every observation, largest Cook's distance first; empty without spare degrees of freedom.
        left_out: the forecast without each rung or budget, largest change first.
        residuals: one row an observation: label, compute, size, tokens, tokens_per_param, sparsity, residual.
        ahead: how far past the largest compute the forecast is.
    """

    findings: tuple[Finding, ...]
    influence: tuple[RunInfluence, ...]
    left_out: tuple[LeftOut, ...]
    residuals: pd.DataFrame
    ahead: float = AHEAD

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """The findings that say the fit should not be used as it stands without a look."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FLAG)

    def plain(self) -> dict[str, object]:
        """Return it as JSON-like data; numbers that do not exist are None."""
        residuals = self.residuals.astype(object).where(self.residuals.notna(), None)
        return {
            "flagged": len(self.flagged),
            "findings": [vars(finding) for finding in self.findings],
            "influence": [
                {
                    key: value if not isinstance(value, float) or isfinite(value) else None
                    for key, value in vars(row).items()
                }
                for row in self.influence
            ],
            "left_out": [vars(row) for row in self.left_out],
            "ahead": self.ahead,
            "residuals": residuals.to_dict("records"),
        }


def diagnose(result: FitResult, runs: RunTable, study: Study | None = None, ahead: float = AHEAD) -> Diagnosis:
    """Return the diagnostics of `result` on the runs it was fitted to.

    `study` is where metrics.jsonl of the runs and ladder.json may be; without it only the table is read. The
    floor-integrated policy has no residual tests, as it is no optimum; its forecast without each budget is given.

    Raises InputError as `fit` does; UnusableError where the fit did not converge.
    """
    if not result.usable:
        raise UnusableError(
            f"the fit of {result.law} did not converge ({result.status}); there is nothing to diagnose."
        )
    rows = select_rows(runs, result.spec)
    points = points_of(rows, result.spec)
    facts = [
        *table_findings(rows.frame),
        *curve_findings([str(run) for run in rows.frame["run_id"]], study),
        *missing_findings(runs.select(result.spec.metric).frame, rows.frame, study),
    ]
    residuals = _residuals(result, points, rows.frame)
    if result.spec.law == FLOOR_INTEGRATED:
        budgets = _policy_left_out(result, ahead)
        return Diagnosis((*left_out_findings(budgets, "budget", ahead), *facts), (), tuple(budgets), residuals, ahead)
    law, solution, points = solution_of(result.spec, runs)
    target = forecast_target(result, points, law.inputs, ahead)
    if result.spec.on_optima:
        groups, what = list(points.clusters), "budget"
    else:
        groups, what = [str(name) for name in rows.frame["rung_id"].fillna(rows.frame["run_id"])], "rung"
    dropped = left_out(law, solution, groups, target)
    tests, influence = _tests(law.inputs, solution, points, rows.frame, residuals, result.spec.on_optima)
    budgets_of = _budgets(rows.frame, points, result.spec.on_optima)
    if not result.spec.on_optima and len(set(budgets_of)) > 2:
        by_budget = left_out(law, solution, budgets_of, target)
        tests += left_out_findings(by_budget, "budget", ahead)
        tests += smallest_findings(_rest(solution, tests, points), _kept(budgets_of, tests, points), by_budget)
    findings = (*tests, *left_out_findings(dropped, what, ahead), *facts)
    return Diagnosis(findings, tuple(influence), tuple(dropped), residuals, ahead)


def _tests(
    inputs: tuple[str, ...],
    solution: Solution,
    points: Points,
    frame: pd.DataFrame,
    residuals: pd.DataFrame,
    on_optima: bool,
) -> tuple[list[Finding], list[RunInfluence]]:
    whole = Linearised.of(solution)
    influence = influences(whole, points.labels)
    if whole.df - 1 < MIN_DF:
        message = f"{len(points.loss)} observations for {whole.basis.shape[1]} parameters leave nothing to test"
        return [Finding("trend", "residuals", Verdict.UNTESTED, message)], influence
    found = off_trend_findings(whole, points.labels)
    rest, kept = _rest(solution, found, points), residuals[~residuals["label"].isin(_off(found))]
    names = ("compute",) if on_optima else ("compute", "size", "tokens", "tokens_per_param", "sparsity")
    found += trend_findings(rest, {name: kept[name].to_numpy(float) for name in names if kept[name].notna().any()})
    found += influence_findings(influence, whole.basis.shape[1])
    if not on_optima:
        rows = frame[~frame["run_id"].isin(_off(found))]
        budgets = _kept(_budgets(frame, points, on_optima), found, points)
        if len(set(budgets)) > 2:
            found += shift_findings(rest, budgets, "budget", "budget")
        found += mixing_findings(rest, rows, inputs)
    return found, influence


def _off(found: list[Finding]) -> set[str]:
    return {f.subject for f in found if f.check == "off_trend" and f.verdict is Verdict.FLAG}


def _rest(solution: Solution, found: list[Finding], points: Points) -> Linearised:
    """Return the linearised fit without the runs found off trend."""
    line, off = Linearised.of(solution), _off(found)
    keep = np.array([label not in off for label in points.labels])
    return Linearised(line.residuals[keep], np.linalg.qr(line.basis[keep])[0])


def _kept(names: list[str], found: list[Finding], points: Points) -> list[str]:
    off = _off(found)
    return [name for name, label in zip(names, points.labels, strict=True) if label not in off]


def _budgets(frame: pd.DataFrame, points: Points, on_optima: bool) -> list[str]:
    """Return the budget of each observation; where runs have none in common, one of five bins of compute."""
    if on_optima:
        return [format_flops(float(value)) for value in points.columns["compute"]]
    budgets = frame["budget"]
    if budgets.notna().all() and 2 * budgets.nunique() <= len(frame):
        return [format_flops(float(value)) for value in budgets]
    compute = frame["compute"].to_numpy(float)
    edges = np.quantile(compute, np.linspace(0, 1, BINS + 1)[1:-1])
    place = np.searchsorted(edges, compute, side="left")
    middle = {
        index: format_flops(float(np.exp(np.log(compute[place == index]).mean()))) for index in set(place.tolist())
    }
    return [middle[index] for index in place.tolist()]


def _residuals(result: FitResult, points: Points, frame: pd.DataFrame) -> pd.DataFrame:
    table = result.residuals[["label", "compute", "size", "tokens", "tokens_per_param", "residual"]].copy()
    experts, top_k = frame["experts"], frame["top_k"]
    sparse = (1 - top_k / experts).where(experts > 0)
    table["sparsity"] = sparse.to_numpy(float) if not result.spec.on_optima else np.nan
    return table


def _policy_left_out(result: FitResult, ahead: float) -> list[LeftOut]:
    """Return the policy's forecast without each budget."""
    compute = np.array([point.compute for point in result.points])
    loss = np.array([point.observed for point in result.points])
    noise = result.seed_noise.sd if result.seed_noise else 0.0
    target = ahead * float(compute.max())
    whole = floor_posterior(compute, loss, noise)
    low, high = (whole.curve(target).quantile(q) for q in ONE_SIGMA)
    found = []
    for index, point in enumerate(result.points):
        keep = np.arange(len(loss)) != index
        if keep.sum() >= MIN_DF:
            other = floor_posterior(compute[keep], loss[keep], noise)
            change = log(other.curve(target).quantile(0.5) / whole.curve(target).quantile(0.5))
            found.append(LeftOut(format_flops(point.compute), change, log(high / low) / 2))
    return sorted(found, key=lambda row: -abs(row.change))
