"""What a fit of a policy shows of itself: parameters, rungs, weights, and what the floor rests on."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.estimate import ObservedRun, ParamEstimate
from fits.floor_posterior import R_PRIOR, SHARES, FloorPosterior
from fits.points import Points
from fits.policy import StackedPolicy

LEVEL = 0.9  # of parameter intervals
SHOWN_AT = 10.0  # extrapolation factor at which the weights of a fit are shown
KINDS = {"runs": "rung", "vertices": "vertex", "collapse": "collapsed"}

type Cells = Callable[[FloorPosterior], Float[np.ndarray, "gammas shares"]]


def _shares(posterior: FloorPosterior) -> Float[np.ndarray, "gammas shares"]:
    return np.broadcast_to(SHARES, posterior.weights.shape)


def _moments(posterior: FloorPosterior, cells: Cells) -> tuple[float, float, float, float]:
    """Return posterior mean, sd and 90 % interval of a quantity on the grid."""
    values, weights = cells(posterior).ravel(), posterior.weights.ravel()
    mean = float(weights @ values)
    order = np.argsort(values, kind="stable")
    tails = np.searchsorted(np.cumsum(weights[order]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    lo, hi = values[order][np.minimum(tails, len(values) - 1)].tolist()
    return mean, math.sqrt(float(weights @ (values - mean) ** 2)), lo, hi


POLICY_PARAMS: tuple[tuple[str, str, str, str, Cells], ...] = (
    (
        "E",
        "E",
        "irreducible loss, r times L_max; governed by the prior of r",
        "loss",
        lambda p: SHARES * np.exp(p.level),
    ),
    ("r", "r", "irreducible share of the loss at the largest fitted compute", "", _shares),
    ("gamma", r"\gamma", "exponent on compute", "", lambda p: np.broadcast_to(p.gammas[:, None], p.weights.shape)),
    ("L_max", r"L_{\max}", "loss of the curve at the largest fitted compute", "loss", lambda p: np.exp(p.level)),
)


def policy_params(posterior: FloorPosterior) -> tuple[ParamEstimate, ...]:
    """Return posterior means, sds and 90 % intervals of the floor and the exponent."""
    estimates = []
    for name, symbol, meaning, unit, cells in POLICY_PARAMS:
        mean, sd, lo, hi = _moments(posterior, cells)
        estimates.append(
            ParamEstimate(name, symbol, meaning, unit, mean, sd, lo, hi, None, at_bound=False, published={})
        )
    return tuple(estimates)


def floor_message(posterior: FloorPosterior) -> str:
    """Return whether the floor is the prior's or the runs'."""
    a, b = R_PRIOR
    share, prior = _moments(posterior, _shares)[1], math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    return (
        f"Floor and exponent integrated over {posterior.rungs} optima; the sd of r went from {prior:.3f} (prior) to "
        f"{share:.3f}: " + ("E is mostly the prior's." if share > 0.7 * prior else "the runs inform E.")
    )


def weight_params(policy: StackedPolicy) -> tuple[ParamEstimate, ...]:
    """Return the members' weights ten times beyond the largest rung, and the inflation of their scales."""
    weights, inflation = policy.weights(SHOWN_AT)
    named = {f"weight_{name}": (rf"w_{{{name}}}", f"weight of {name} at {SHOWN_AT:g}x", value)
             for name, value in zip(policy.names, weights.tolist(), strict=True)}  # fmt: skip
    named["inflation"] = (r"\lambda", "how much wider than other ladders this one's backtest asks for", inflation)
    return tuple(
        ParamEstimate(name, symbol, meaning, "", value, None, None, None, None, at_bound=False, published={})
        for name, (symbol, meaning, value) in named.items()
    )


def weights_message(policy: StackedPolicy) -> str:
    """Return which members the forecast rests on, and what the ladder's own backtest said."""
    weights, inflation = policy.weights(SHOWN_AT)
    shares = ", ".join(f"{name} {100 * w:.0f} %" for name, w in zip(policy.names, weights.tolist(), strict=True))
    text = f"Rungs are {policy.frontier.kind}; weights {SHOWN_AT:g}x out: {shares}."
    if inflation > 1:
        text += f" The ladder's own backtest widens the interval by {inflation:.2f}."
    return text


def observed_runs(frame: pd.DataFrame, size_column: str) -> tuple[ObservedRun, ...]:
    """Return the rows as the stacked policy reads them."""

    def known(value: float) -> float | None:
        return None if pd.isna(value) else float(value)

    return tuple(
        ObservedRun(
            float(row["compute"]),
            known(row[size_column]),
            known(row["tokens"]),
            known(row["budget"]),
            float(row["loss"]),
        )
        for row in frame.to_dict("records")
    )


def rung_points(policy: StackedPolicy) -> Points:
    """Return the rungs of the frontier as the points of a fit; N and D are known for vertices only."""
    rungs = policy.frontier
    size = np.full(len(rungs.compute), math.nan) if rungs.vertices is None else np.exp(rungs.vertices.log_size)
    return Points(
        labels=tuple(f"{KINDS[rungs.kind]} {compute:.3g}" for compute in rungs.compute),
        columns={"compute": rungs.compute, "size": size, "tokens": np.full(len(rungs.compute), math.nan)},
        loss=rungs.loss,
        runs=(1,) * len(rungs.compute),
        clusters=tuple(map(repr, rungs.compute.tolist())),
        cluster_kind="rungs",
        isoflop=None,
    )


def design_warning(observed: tuple[ObservedRun, ...]) -> str:
    """Return a warning where all runs have one size: their curve is that of the size, not of compute-optimal runs."""
    sizes = {run.size for run in observed}
    tokens = {run.tokens for run in observed}
    if len(sizes) == 1 and None not in sizes and len(tokens) > 1:
        return (
            " Warning: all runs have one size, so this is the curve of that size; its floor holds what a larger model "
            "would still gain, and a target of another size is not forecast by it."
        )
    return ""
