"""Why a forecast is where it is, and why it moved: members, floors, and the steps between two fits."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from fits.fit import fit
from fits.fit import refit as fit_again
from fits.floor_posterior import GAMMAS
from fits.result import FitResult, Target
from fits.spec import STACKED
from ladder.errors import InputError
from ladder.runs import RunTable

PINS = (0.5, 0.6, 0.7)  # shares of the lowest loss; Marin's pin of 1.6 is .59 of its lowest fitted loss


def alternatives(result: FitResult, target: Target, level: float = 0.9) -> pd.DataFrame:
    """Return where the forecast, each member alone, and pinned and free floors land: columns name, weight, median, lo, hi.

    Pinned and free floors are least squares on the same rungs, without intervals. Raises InputError for fits that are
    not of the stacked policy.
    """
    stack = result.stacked_forecast(target)
    predictive = stack.predictive()
    rows: list[dict[str, object]] = [_row(STACKED, 1.0, predictive.median, *predictive.interval(level))]
    for (name, alone), weight in zip(stack.alone().items(), stack.weights, strict=True):
        rows.append(_row(name, weight, alone.median, *alone.interval(level)))
    rungs = result.policy.frontier
    shares = [(f"floor pinned at {pin:g}", np.array([pin])) for pin in PINS]
    for name, share in (*shares, ("free floor", np.linspace(0, 0.98, 99))):
        point = _least_squares(rungs.compute, rungs.loss, share, float(target["compute"]))
        rows.append(_row(name, 0.0, point * math.exp(stack.offset), math.nan, math.nan))
    return pd.DataFrame(rows)


def _row(name: str, weight: float, median: float, lo: float, hi: float) -> dict[str, object]:
    return {"name": name, "weight": weight, "median": median, "lo": lo, "hi": hi}


def _least_squares(compute: "np.ndarray", loss: "np.ndarray", shares: "np.ndarray", at: float) -> float:
    """Return the least-squares forecast of ln L = m + ln(r + (1 - r) x^-gamma) on a grid of gamma and r."""
    x = np.log(compute / float(compute.max()))
    gamma, share = (part.ravel()[:, None] for part in np.meshgrid(GAMMAS, shares, indexing="ij"))
    z = np.log(loss) - np.log(share + (1 - share) * np.exp(-gamma * x))
    level = z.mean(axis=1)
    best = int(((z - level[:, None]) ** 2).sum(axis=1).argmin())
    r, g = float(share[best, 0]), float(gamma[best, 0])
    return float(math.exp(float(level[best])) * (r + (1 - r) * (at / float(compute.max())) ** -g))


def why_moved(old: FitResult, new: FitResult, runs: RunTable, target: Target) -> pd.DataFrame:
    """Return the steps from an old to a new fit of one law at a target: columns step, median, change (of ln L).

    The old specification on the table as it is now shows what new or changed rows did, and the new specification the
    rest; for the stacked policy each step also names the floor and the weights it rests on.

    Raises InputError for fits of different metrics.
    """
    if old.spec.metric != new.spec.metric:
        raise InputError(
            f"the fits are of {old.spec.metric} and {new.spec.metric}; a forecast does not move between them."
        )
    steps = [("old fit", old)]
    if old.spec.max_compute is not None or old.spec != new.spec:
        steps.append(("old specification, runs of today", fit_again(old, runs)))
    opened = replace(new.spec, law=old.spec.law, loss=old.spec.loss)
    if opened != new.spec:
        steps.append((f"runs of the new fit, still {old.law}", fit(opened, runs)))
    steps.append(("new fit", new))
    rows, before = [], math.nan
    for name, step in steps:
        y = math.log(step.predictive(target).median)
        theta = step.theta
        rests = {key: theta[key] for key in theta if key in ("E", "gamma", "alpha") or key.startswith("weight_")}
        rows.append(
            {"step": name, "law": step.law, "runs": step.n_runs, "median": math.exp(y), "change": y - before, **rests}
        )
        before = y
    return pd.DataFrame(rows)
