"""Whether a ladder supports a forecast, why not, and which further rung would narrow it most."""

import math
from dataclasses import dataclass

import numpy as np

from fits.floor_posterior import MIN_RUNGS
from fits.members import MemberForecast, of_floor, pooled_floor
from fits.policy import StackedPolicy
from fits.solve import FitStatus
from ladder.units import format_flops, format_percent

MIN_SPAN = 2.0  # largest over smallest compute; below, the slope is noise (the shortest public ladder spans 4)
BREAK_Z, BREAK_ERROR = (
    4.0,
    0.01,
)  # a rung is off the trend of those below by this many scales and this share of the loss
AT = 30.0  # extrapolation factor for which the next rung is chosen
CANDIDATES = (
    0.3,
    1.0,
    3.0,
)  # computes of a further rung, times the smallest (first) or the largest; further out is another regime


@dataclass(frozen=True)
class Support:
    """The verdict: CONVERGED or UNSUPPORTED, with what to say."""

    status: FitStatus
    message: str


def support_of(policy: StackedPolicy) -> Support:
    """Return whether the rungs support a forecast.

    Refused: compute that spans less than a factor of two, a loss that does not fall, and a break of trend: a rung that
    the rungs below did not allow for. Four rungs are advised; three are taken with a warning.
    """
    compute, loss = policy.frontier.compute, policy.frontier.loss
    wrong = []
    if compute.max() < MIN_SPAN * compute.min():
        wrong.append(f"the rungs span a factor of {compute.max() / compute.min():.2g} in compute, which shows no slope")
    if loss[-1] >= loss[0]:
        wrong.append("the loss does not fall with compute")
    elif (broken := _break(policy)) is not None:
        wrong.append(broken)
    advice = next_rung(policy)
    if wrong:
        return Support(
            FitStatus.UNSUPPORTED,
            f"These runs do not support a forecast: {'; '.join(wrong)}. Look at those runs, leave out what is of another "
            f"recipe or failed, or extend the ladder. {advice}",
        )
    few = "" if len(compute) > MIN_RUNGS else f" Warning: {len(compute)} budgets only; four are advised."
    return Support(FitStatus.CONVERGED, few.strip() + (" " if few else "") + advice)


def _break(policy: StackedPolicy) -> str | None:
    if len(policy.names) > 2:
        return None  # a dense curve has a member for breaks
    for cut in policy.rolled:
        weights = np.full(len(policy.names), 1 / len(policy.names))
        centre = float(weights @ cut.centre[:, 0])
        scale = math.sqrt(float(weights @ (cut.scale[:, 0] ** 2 + (cut.centre[:, 0] - centre) ** 2)))
        error = float(cut.outcome[0]) - centre
        if abs(error) > max(BREAK_Z * scale, BREAK_ERROR):
            return (
                f"a break of trend: the rung at {format_flops(float(policy.frontier.compute[cut.kept]))} FLOPs is "
                f"{format_percent(math.expm1(error))} off what the {cut.kept} below it say, {abs(error) / scale:.1f} sd"
            )
    return None


def next_rung(policy: StackedPolicy) -> str:
    """Return which further rung would narrow the forecast most, as a sentence.

    Each candidate is added at the loss that is expected of it, and the posterior is made again; what counts is the sd
    of the curve thirty times beyond the largest rung that there is now.
    """
    compute, loss = policy.frontier.compute, policy.frontier.loss
    target = np.array([AT * compute.max()])

    def spread(posterior: MemberForecast) -> float:
        return math.sqrt(float(posterior.parameter[0] + posterior.form[0]))

    now = pooled_floor(compute, loss, policy.run_sd)
    best, least = 0.0, math.inf
    for factor in CANDIDATES:
        at = factor * float(compute.min() if factor < 1 else compute.max())
        expected = math.exp(float(of_floor(now, np.array([at])).centre[0]))
        more = pooled_floor(np.append(compute, at), np.append(loss, expected), policy.run_sd)
        if (found := spread(of_floor(more, target))) < least:
            best, least = at, found
    before = spread(of_floor(now, target))
    return (
        f"Of one more rung, one at {format_flops(best)} FLOPs would help most: the curve's sd {AT:g}x out would go from "
        f"{format_percent(before, signed=False)} to {format_percent(least, signed=False)}."
    )
