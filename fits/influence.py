"""Which runs the fit hangs on: runs off trend, Cook's distance, and the forecast with each rung or budget left out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from fits.bootstrap import resample_optima
from fits.findings import Finding, Verdict, judged
from fits.law import AbstractLaw
from fits.points import Points, law_inputs
from fits.result import FitResult
from fits.solve import Solution
from fits.trends import MIN_DF, Linearised, joint_test, shift_of
from ladder.units import format_percent

AHEAD = 10.0  # how far past the largest fitted compute the forecast is asked for
ALIKE = 1.02  # compute within which runs are at one budget, where the largest of them is looked for
STEP = 1e-5  # of finite differences of ln L in the solver's coordinates, which are of order one
MAX_OFF = 0.1  # share of runs that may be called off trend; beyond, the law is wrong rather than they


@dataclass(frozen=True)
class RunInfluence:
    """What one observation does to the fit.

    Attributes:
        label: run or optimum.
        residual: ln observed - ln fitted.
        leverage: share of its own loss in its fitted value, 0 to 1.
        studentised: residual over its standard error, estimated without this run.
        cook: Cook's distance.
    """

    label: str
    residual: float
    leverage: float
    studentised: float
    cook: float


def influences(line: Linearised, labels: Sequence[str]) -> list[RunInfluence]:
    """Return the influence of every observation, largest Cook's distance first; empty with fewer than `MIN_DF` to spare."""
    from statsmodels.regression.linear_model import OLS
    from statsmodels.stats.outliers_influence import OLSInfluence

    if line.df - 1 < MIN_DF:
        return []
    with np.errstate(all="ignore"):
        measures = OLSInfluence(OLS(line.residuals, line.basis).fit())
        columns = (
            line.residuals,
            measures.hat_matrix_diag,
            measures.resid_studentized_external,
            measures.cooks_distance[0],
        )
    rows = [RunInfluence(str(label), *map(float, values)) for label, *values in zip(labels, *columns, strict=True)]
    return sorted(rows, key=lambda row: -row.cook if math.isfinite(row.cook) else -math.inf)


def off_trend_findings(line: Linearised, labels: Sequence[str]) -> list[Finding]:
    """Return the runs whose loss no other run supports, found one at a time, the worst first.

    The largest studentised deleted residual is tested (Student t, Bonferroni over the runs left), the run is taken out
    if the test rejects, and so on, up to a tenth of the runs: a second outlier no longer hides behind the first.
    """
    keep = list(range(len(labels)))
    found: list[Finding] = []
    while len(found) < max(1, int(MAX_OFF * len(labels))):
        rest = Linearised(line.residuals[keep], np.linalg.qr(line.basis[keep])[0])
        rows = {row.label: row for row in influences(rest, [str(index) for index in keep])}
        rows = {label: row for label, row in rows.items() if math.isfinite(row.studentised)}
        if not rows:
            break
        worst = max(rows, key=lambda label: abs(rows[label].studentised))
        t = rows[worst].studentised
        p = min(1.0, 2 * float(stats.t.sf(abs(t), rest.df - 1)) * len(keep))
        if judged(p) is not Verdict.FLAG:
            break
        row = rows[worst]
        size = row.residual / (1 - row.leverage)
        message = f"{labels[int(worst)]} lies {format_percent(size)} off the law of the others (t {t:.1f}, p {p:.2g})"
        found.append(Finding("off_trend", str(labels[int(worst)]), Verdict.FLAG, message, size, p))
        keep.remove(int(worst))
    if not found:
        enough = line.df - 1 >= MIN_DF
        verdict = Verdict.OK if enough else Verdict.UNTESTED
        found.append(Finding("off_trend", "runs", verdict, "no run is off trend" if enough else "too few runs to test"))
    return found


def influence_findings(rows: Sequence[RunInfluence], params: int) -> list[Finding]:
    """Return runs that move the whole estimate: Cook's distance beyond the median of F(p, n - p), the usual mark.

    Such a run moves the parameters to the edge of their own joint 50 % region. It is noted, not flagged: a large rung
    at the end of a ladder should have such weight.
    """
    if not rows:
        return [Finding("influence", "runs", Verdict.UNTESTED, "too few runs to tell their influence")]
    mark = float(stats.f.ppf(0.5, params, len(rows) - params))
    found = [
        Finding(
            "influence",
            row.label,
            Verdict.NOTE,
            f"{row.label} moves the estimate (Cook's distance {row.cook:.2g}, leverage {row.leverage:.2f})",
            row.residual,
        )
        for row in rows
        if row.cook > mark
    ]
    top = rows[0]
    calm = f"no run dominates; largest Cook's distance {top.cook:.2g} ({top.label}, leverage {top.leverage:.2f})"
    return found or [Finding("influence", "runs", Verdict.OK, calm)]


@dataclass(frozen=True)
class LeftOut:
    """The forecast without one rung or budget: change of ln L, and the standard error of the forecast with all."""

    name: str
    change: float
    se: float


def forecast_target(result: FitResult, points: Points, inputs: Sequence[str], ahead: float = AHEAD) -> dict[str, float]:
    """Return the inputs of a run with `ahead` times the largest compute, shaped like the best of the largest runs.

    Parameters and tokens grow together; any other input stays. Keys are those of `law_inputs`.
    """
    compute = points.columns["compute"]
    largest = np.flatnonzero(compute * ALIKE >= compute.max())
    best = int(largest[np.argmin(points.loss[largest])])
    columns = {name: points.columns["size" if name == "active_params" else name] for name in inputs}
    grow = [name for name in inputs if name in ("active_params", "tokens", "unique_tokens")]
    both = len([name for name in grow if name != "unique_tokens"])
    target = {name: float(column[best]) for name, column in columns.items()}
    for name in grow:
        target[name] *= ahead ** (1 / both)
    if "compute" in target:
        target["compute"] = ahead * float(compute.max())
    return target


def left_out(law: AbstractLaw, solution: Solution, groups: Sequence[str], target: Mapping[str, float]) -> list[LeftOut]:
    """Return the change of the forecast when each group is left out and the rest is fitted again, largest first.

    Groups without which the parameters are not determined, or whose fit does not converge, are left out of the list.
    """
    objective, u = solution.objective, solution.u
    log_loss = _forecast(law, solution, target)
    centre = log_loss(u)
    gradient = np.array([(log_loss(u + d) - log_loss(u - d)) / (2 * STEP) for d in STEP * np.eye(len(u))])
    line = objective.linearise(u)
    spare = max(len(line.residuals) - len(u), 1)
    covariance = np.linalg.pinv(line.jacobian.T @ line.jacobian) * float(line.residuals @ line.residuals) / spare
    se = math.sqrt(float(gradient @ covariance @ gradient))
    found = []
    for name in dict.fromkeys(groups):
        weights = np.array([[float(group != name) for group in groups]])
        optimum = resample_optima(objective, u[None, :], weights)
        if len(optimum.u):
            found.append(LeftOut(name, log_loss(optimum.u[0]) - centre, se))
    return sorted(found, key=lambda each: -abs(each.change))


def _forecast(
    law: AbstractLaw, solution: Solution, target: Mapping[str, float]
) -> Callable[[Float[np.ndarray, " params"]], float]:
    x = law_inputs(law, {("size" if k == "active_params" else k): np.array([v]) for k, v in target.items()})

    def log_loss(u: Float[np.ndarray, " params"]) -> float:
        columns = solution.objective.to_theta(u[None, :])
        theta = {name: float(values[0]) for name, values in columns.items()}
        return math.log(float(np.asarray(law.predict(theta, x)).ravel()[0]))

    return log_loss


def left_out_findings(rows: Sequence[LeftOut], what: str, ahead: float) -> list[Finding]:
    """Return the groups on which the forecast hangs: without one it moves by more than its own standard error."""
    if not rows:
        return [Finding("forecast", what, Verdict.UNTESTED, f"no {what} can be left out")]
    found = [
        Finding(
            "forecast",
            row.name,
            Verdict.NOTE,
            f"without {what} {row.name} the loss at {ahead:g}x the largest compute moves by "
            f"{format_percent(math.expm1(row.change))} (its standard error is {format_percent(row.se, signed=False)})",
            row.change,
        )
        for row in rows
        if abs(row.change) > row.se
    ]
    top = rows[0]
    calm = (
        f"no {what} moves the loss at {ahead:g}x the largest compute by more than its standard error "
        f"{format_percent(top.se, signed=False)}; most does {top.name}, {format_percent(math.expm1(top.change))}"
    )
    return found or [Finding("forecast", what, Verdict.OK, calm)]


def smallest_findings(line: Linearised, budgets: Sequence[str], rows: Sequence[LeftOut]) -> list[Finding]:
    """Return whether the smallest budget obeys the law of the larger ones, and what the forecast is without it.

    One test that was chosen before looking, so it is not corrected for the other budgets. `budgets` names the budget
    of each run, smallest first among its distinct values.
    """
    name = min(dict.fromkeys(budgets), key=float)
    member = np.array([budget == name for budget in budgets], dtype=float)
    p_value = joint_test(line, member[:, None])
    change = next((row.change for row in rows if row.name == name), None)
    without = "" if change is None else f"; without it the forecast moves by {format_percent(math.expm1(change))}"
    if p_value is None:
        message = f"smallest budget {name}: the law meets its runs by itself{without}"
        return [Finding("smallest_budget", name, Verdict.UNTESTED, message)]
    shift = shift_of(line, member)
    message = (
        f"the smallest budget {name} lies {format_percent(shift)} off the law of the larger ones (p {p_value:.2g})"
        + without
    )
    return [Finding("smallest_budget", name, judged(p_value), message, shift, p_value)]
