"""Fitting: from a run table to a `FitResult`, and the same again from a recorded specification."""

import math

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.bootstrap import Draws, Progress, bootstrap, leave_one_out
from fits.estimate import FittedPoint, ObservedRun, ParamEstimate
from fits.floor_posterior import MIN_RUNGS, floor_posterior
from fits.intervals import bca_interval, percentile_interval
from fits.law import AbstractLaw
from fits.laws import law_named
from fits.loss import LossKind
from fits.noise import SeedNoise, seed_noise
from fits.points import Points, law_inputs, points_of, reasons, refuse_too_few
from fits.policy import stacked_policy
from fits.policy_params import (
    design_warning,
    floor_message,
    observed_runs,
    policy_params,
    rung_points,
    weight_params,
    weights_message,
)
from fits.result import FitResult
from fits.rows import Rows, select_rows
from fits.solve import FitStatus, Solution, floors_of, solve
from fits.spec import FLOOR_INTEGRATED, STACKED, BootstrapKind, FitSpec
from fits.support import support_of
from ladder.errors import InputError, UnusableError
from ladder.provenance import Provenance, Resource, provenance
from ladder.runs import RunTable

LEVEL = 0.9  # of parameter intervals
MAX_FAILED = 0.1  # share of failed resamples from which the message says so
RANGE_COLUMNS = ("active_params", "nonembedding_active_params", "total_params", "tokens", "tokens_per_param")


def fit(
    law: FitSpec | AbstractLaw | str,
    runs: RunTable,
    *,
    metric: str | None = None,
    progress: Progress | None = None,
    inputs: tuple[Resource, ...] = (),
) -> FitResult:
    """Return the fit of a law or policy to the runs of a table that may enter it.

    Arguments:
        law: a specification; or a law or its name, which stands for the default specification of that law.
        runs: the run table; held-out and excluded rows are left out and counted.
        metric: with a law or name: which losses; may be left out when the table has only one metric.
        progress: called with (done, total) during the bootstrap.
        inputs: files the table came from, for the provenance block.

    A fit that did not converge is returned, with the reason in `status` and `message`. Raises InputError when the
    runs cannot be fitted at all: too few of them or of budgets, one tokens-per-parameter ratio for a law in both,
    mixed recipes or conventions, duplicates, a pinned floor above the lowest loss; UnusableError when no start has a
    finite optimum.
    """
    spec = (
        law
        if isinstance(law, FitSpec)
        else FitSpec.of(law if isinstance(law, str) else law.name, _metric(runs, metric))
    )
    rows = select_rows(runs, spec)
    noise = seed_noise(rows.frame)
    made = provenance(seed=spec.seed, inputs=inputs)
    if spec.law == STACKED:
        return _fit_stacked(spec, rows, noise, made)
    points = points_of(rows, spec)
    lowest = float(points.loss.min())
    if spec.pinned_floor is not None and spec.pinned_floor >= lowest:
        raise InputError(
            f"the floor is pinned at {spec.pinned_floor}, not below the lowest loss {lowest:.4f}; a floor cannot be "
            "above a loss that was reached. Pin it lower, or check that it belongs to this metric."
        )
    if spec.law == FLOOR_INTEGRATED:
        return _fit_policy(spec, rows, points, noise, made)
    return _fit_law(spec, rows, points, noise, made, progress)


def refit(result: FitResult, runs: RunTable, *, progress: Progress | None = None) -> FitResult:
    """Return the fit that the specification recorded in `result` gives on `runs`.

    On the same runs every number is the same (to rounding, 1e-9 relative); `inputs_sha256` tells whether they are.
    """
    return fit(result.spec, runs, progress=progress, inputs=result.provenance.inputs)


def _metric(runs: RunTable, metric: str | None) -> str:
    if metric is not None:
        return metric
    known = sorted(map(str, runs.frame["metric"].unique()))
    if len(known) != 1:
        raise InputError(f"the run table has the metrics {', '.join(known)}; say which one is fitted.")
    return known[0]


def _fit_law(
    spec: FitSpec, rows: Rows, points: Points, noise: SeedNoise | None, made: Provenance, progress: Progress | None
) -> FitResult:
    law = law_named(spec.law)
    floors = floors_of(law)
    if spec.pinned_floor is not None and not floors:
        raise InputError(f"{law.name} has no floor to pin; leave pinned_floor out.")
    pinned = {} if spec.pinned_floor is None else {floors[0]: spec.pinned_floor}
    refuse_too_few(points, len(law.params) - len(pinned) + 1, law.name)
    x = law_inputs(law, points.columns)
    solution = solve(law, x, np.log(points.loss), spec.loss, pinned)
    if solution.status is FitStatus.NON_FINITE:
        raise UnusableError(f"the fit of {law.name} has no finite optimum. {solution.message}")
    draws = None
    if spec.resamples:
        draws = bootstrap(
            law,
            solution,
            points.clusters,
            kind=spec.bootstrap,
            resamples=spec.resamples,
            seed=spec.seed,
            what=points.cluster_kind,
            progress=progress,
        )
    message = solution.message + _loss_remark(spec, solution)
    if draws is not None and draws.failed > MAX_FAILED * draws.requested:
        message += f" {draws.failed} of {draws.requested} resamples failed: its intervals leave those out."
    return _result(
        spec,
        rows,
        points,
        noise,
        made,
        status=solution.status,
        message=message,
        params=_law_params(law, solution, draws, points, spec),
        fitted=np.asarray(law.predict(solution.theta, x)),
        draws=draws,
        objective=solution.value if math.isfinite(solution.value) else None,
        condition=solution.condition if math.isfinite(solution.condition) else None,
        agreement=solution.agreement,
    )


def _loss_remark(spec: FitSpec, solution: Solution) -> str:
    """Return what to say of a robust loss that is none: with no residual beyond delta it is least squares."""
    residuals = np.abs(solution.objective.linearise(solution.u).residuals)
    if spec.loss.kind is not LossKind.HUBER or spec.loss.delta is None or residuals.max() > spec.loss.delta:
        return ""
    sigma = 1.4826 * float(np.median(residuals))  # of a normal from its median absolute deviation
    if residuals.max() < 1e-9:
        return ""
    return (
        f" But no residual exceeds delta = {spec.loss.delta:g}, so this Huber loss is least squares; a robust one has a "
        f"delta near {1.345 * sigma:.2g}."
    )


def solution_of(spec: FitSpec, runs: RunTable) -> tuple[AbstractLaw, Solution, Points]:
    """Return law, solution and points of a specification on `runs`, without a bootstrap; for checks of a fit.

    Raises InputError as `fit` does, and for policies, which are no optimum.
    """
    if spec.is_policy:
        raise InputError(f"{spec.law} is a posterior, not an optimum; it has no profile or starts to check.")
    law = law_named(spec.law)
    points = points_of(select_rows(runs, spec), spec)
    pinned = {} if spec.pinned_floor is None else {floors_of(law)[0]: spec.pinned_floor}
    refuse_too_few(points, len(law.params) - len(pinned) + 1, law.name)
    return law, solve(law, law_inputs(law, points.columns), np.log(points.loss), spec.loss, pinned), points


def _law_params(
    law: AbstractLaw, solution: Solution, draws: Draws | None, points: Points, spec: FitSpec
) -> tuple[ParamEstimate, ...]:
    columns = draws.columns() if draws is not None and len(draws.values) > 1 else {}
    pairs = columns and spec.bootstrap is BootstrapKind.CLUSTER
    left_out = leave_one_out(solution, points.clusters) if pairs else {}
    estimates = []
    for param in law.params:
        values = columns.get(param.name)
        lo, hi = None, None
        if values is not None and param.name in left_out:
            lo, hi = bca_interval(values, solution.theta[param.name], left_out[param.name], LEVEL)
        elif values is not None:
            lo, hi = percentile_interval(values, LEVEL)
        estimates.append(
            ParamEstimate(
                name=param.name,
                symbol=param.symbol,
                meaning=param.meaning,
                unit=param.unit,
                estimate=solution.theta[param.name],
                se=None if values is None else float(values.std(ddof=1)),
                lo=lo,
                hi=hi,
                start_spread=solution.spread[param.name],
                at_bound=param.name in solution.at_bound,
                published={source: values[param.name] for source, values in law.published.items()},
            )
        )
    return tuple(estimates)


def _fit_policy(spec: FitSpec, rows: Rows, points: Points, noise: SeedNoise | None, made: Provenance) -> FitResult:
    if spec.pinned_floor is not None:
        raise InputError(f"{FLOOR_INTEGRATED} integrates over the floor; pin one with power-law-floor instead.")
    refuse_too_few(points, MIN_RUNGS, FLOOR_INTEGRATED)
    compute = points.columns["compute"]
    posterior = floor_posterior(compute, points.loss, noise.sd if noise else 0.0)
    message = floor_message(posterior)
    if len(points.loss) < MIN_RUNGS + 1:
        message += " Four optima are advised."
    fitted = np.exp([posterior.centre(float(c)) for c in compute])
    return _result(
        spec,
        rows,
        points,
        noise,
        made,
        status=FitStatus.CONVERGED,
        message=message,
        params=policy_params(posterior),
        fitted=fitted,
        draws=None,
        objective=None,
        condition=None,
        agreement=None,
    )


def _fit_stacked(spec: FitSpec, rows: Rows, noise: SeedNoise | None, made: Provenance) -> FitResult:
    if spec.pinned_floor is not None:
        raise InputError(f"{STACKED} integrates over the floor; pin one with power-law-floor instead.")
    observed = observed_runs(rows.frame, spec.size_column)
    policy = stacked_policy(observed, noise.sd if noise else 0.0)
    support = support_of(policy)
    points = rung_points(policy)
    compute = points.columns["compute"]
    return _result(
        spec,
        rows,
        points,
        noise,
        made,
        status=support.status,
        message=f"{floor_message(policy.pooled)} {weights_message(policy)} {support.message}{design_warning(observed)}",
        params=(*policy_params(policy.pooled), *weight_params(policy)),
        fitted=np.exp([policy.forecast(float(c)).centre for c in compute]),
        draws=None,
        objective=None,
        condition=None,
        agreement=None,
        observed=observed,
    )


def _result(
    spec: FitSpec,
    rows: Rows,
    points: Points,
    noise: SeedNoise | None,
    made: Provenance,
    *,
    status: FitStatus,
    message: str,
    params: tuple[ParamEstimate, ...],
    fitted: Float[np.ndarray, " points"],
    draws: Draws | None,
    objective: float | None,
    condition: float | None,
    agreement: float | None,
    observed: tuple[ObservedRun, ...] = (),
) -> FitResult:
    frame = rows.frame
    compute = points.columns["compute"]
    ranges = {"compute": (float(compute.min()), float(compute.max()))}
    for column in RANGE_COLUMNS:
        if frame[column].notna().any():
            ranges[column] = (float(frame[column].min()), float(frame[column].max()))
    unused = reasons(points.isoflop) if points.isoflop else ""
    message = " ".join([message, *(f"Warning: {remark}" for remark in rows.remarks)])
    return FitResult(
        spec=spec,
        status=status,
        message=message + (f" Not used: {unused}." if unused else ""),
        param_estimates=params,
        draws=draws,
        points=tuple(_fitted_point(points, index, float(value)) for index, value in enumerate(fitted)),
        isoflop=points.isoflop,
        seed_noise=noise,
        fit_range=ranges,
        objective=objective,
        condition=condition,
        agreement=agreement,
        n_runs=len(frame),
        n_rungs=int(frame["rung_id"].fillna(frame["run_id"]).nunique()),
        excluded=rows.excluded,
        metric_unit=_only(frame, "loss_unit"),
        recipe=_only(frame, "recipe"),
        flop_convention=_only(frame, "flop_convention"),
        inputs_sha256=rows.sha256,
        provenance=made,
        observed=observed,
    )


def _only(frame: pd.DataFrame, column: str) -> str:
    value = frame[column].iloc[0]
    return "" if pd.isna(value) else str(value)


def _fitted_point(points: Points, index: int, fitted: float) -> FittedPoint:
    size, tokens = float(points.columns["size"][index]), float(points.columns["tokens"][index])
    observed = float(points.loss[index])
    return FittedPoint(
        label=points.labels[index],
        compute=float(points.columns["compute"][index]),
        size=None if math.isnan(size) else size,
        tokens=None if math.isnan(tokens) else tokens,
        runs=points.runs[index],
        observed=observed,
        fitted=fitted,
        residual=math.log(observed / fitted),
    )
