"""What a forecast states about its target and its data, derived from ladder, run table and fits; and what forbids it."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import pandas as pd

from fits.result import FitResult
from fits.rows import Rows, select_rows
from forecasts.record import DataStatement, Metric, SeenState, Target
from ladder.errors import InputError, VerificationError
from ladder.flops import FlopConvention
from ladder.rung import Rung
from ladder.runs import RunTable

TOLERANCE = 0.02  # relative, of compute and tokens: beyond it a run is not the one that was forecast (laws.md 30.6)


def target_values(rung: Rung, convention: str) -> dict[str, float]:
    """Return what laws read of a rung: compute under `convention`, tokens and every count that may be called N."""
    counts = rung.counts
    return {
        "compute": float(rung.training_flops(FlopConvention(convention))),
        "tokens": float(rung.tokens),
        "active_params": float(counts.active),
        "nonembedding_active_params": float(counts.nonembedding_active),
        "total_params": float(counts.total),
    }


def target_of(rung: Rung, metric: str, fit: FitResult, rows: Rows) -> Target:
    """Return the target block: the rung, its compute as the fit counts it, and the metric as the fitted runs have it.

    Raises InputError when the fit is of another metric or recipe.
    """
    if fit.spec.metric != metric:
        raise InputError(f"the fit is of {fit.spec.metric}, the forecast of {metric}; fit the metric that is forecast.")
    if fit.recipe not in ("", rung.recipe):
        raise InputError(
            f"the fit is of recipe {fit.recipe}, the target follows {rung.recipe}; they have no common law."
        )
    return Target(
        rung_id=rung.rung_id,
        rung_name=rung.name,
        recipe=rung.recipe,
        compute=rung.training_flops(FlopConvention(fit.flop_convention)),
        flop_convention=fit.flop_convention,
        active_params=rung.counts.active,
        total_params=rung.counts.total,
        tokens=rung.tokens,
        seeds=rung.seeds,
        metric=Metric(metric, fit.metric_unit, text_of(rows.frame, "eval_set"), text_of(rows.frame, "tokenizer")),
    )


def text_of(frame: pd.DataFrame, column: str) -> str:
    """Return the value of a column that is the same in all rows, empty where the table does not say."""
    value = frame[column].iloc[0]
    return "" if pd.isna(value) else str(value)


def extrapolation(target: Target, fit: FitResult) -> dict[str, float]:
    """Return target over largest fitted value for compute, active parameters and tokens, where the fit has them."""
    values = {"compute": target.compute, "active_params": target.active_params, "tokens": target.tokens}
    return {key: value / fit.fit_range[key][1] for key, value in values.items() if key in fit.fit_range}


def data_statement(
    fit: FitResult, rows: Rows, *, seen: SeenState, selection_freedom: str, declared_leaks: Sequence[str]
) -> DataStatement:
    """Return what the main fit used. `runs_sha256` is over the rows that entered, so that it outlives later rows."""
    budgets = rows.frame["budget"].fillna(rows.frame["compute"]).unique()
    return DataStatement(
        runs_sha256=rows.sha256,
        runs_used=fit.n_runs,
        runs_excluded=rows.excluded,
        budgets=tuple(sorted(int(Decimal(repr(float(budget)))) for budget in budgets)),  # 1e23 is 10**23
        seen=seen,
        selection_freedom=selection_freedom,
        declared_leaks=tuple(declared_leaks),
    )


def refuse_leaks(target: Target, fits: Mapping[str, FitResult], runs: RunTable, declared: Sequence[str]) -> None:
    """Raise VerificationError when a fit saw the target: a run of its rung, or of its compute or more.

    Compute within the tolerance below the target's counts as the target's: other shapes at its budget tell its loss.
    """
    for name, fit in fits.items():
        frame = select_rows(runs, fit.spec).frame
        of_rung = (frame["rung_id"] == target.rung_id).fillna(False).astype(bool)
        leaking = frame[of_rung | (frame["compute"] >= (1 - TOLERANCE) * target.compute)]
        undeclared = leaking[~leaking["run_id"].isin(list(declared))]
        if len(undeclared):
            run = undeclared.iloc[0]
            raise VerificationError(
                f"fit {name} used run {run['run_id']} of {run['compute']:.3g} FLOPs, which is of the target's rung or of "
                f"its compute ({float(target.compute):.3g}) or more ({len(undeclared)} such runs). That is leakage: fit "
                "again with --max-compute below the target, or declare the runs (--declared-leak), which makes the "
                "forecast exploratory."
            )
