"""A second look at a fit: what the runs identify, profile intervals, how the loss's delta moves it, IsoFLOP bias."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fits.compare import flops_factor
from fits.covariance import Identifiability, identifiability, sandwich
from fits.fit import fit, solution_of
from fits.isoflop import isoflop
from fits.isoflop_check import surface_check
from fits.loss import LossSpec
from fits.profile import ProfileInterval, profile
from fits.result import FitResult
from fits.rows import select_rows
from ladder.errors import ForetellError, UnusableError
from ladder.runs import RunTable

EFFICIENT = 1.345  # delta over the residuals' sigma at which Huber's estimate keeps 95 % efficiency (Huber 1981)
NORMAL_MAD = 1.4826  # sigma of a normal over its median absolute deviation


@dataclass(frozen=True)
class FitCheck:
    """What `check` found.

    Attributes:
        identifiability: condition, weakest direction, correlations.
        profiles: profile interval of each free parameter, and `sandwich_se` by parameter (empty where it failed).
        sweep: one row a loss: loss, objective, parameters, from delta 1e-3 over 1.345 sigma to least squares.
        isoflop: one row a budget, the bias of approach 2 on this surface; None where there are no profiles.
    """

    identifiability: Identifiability
    profiles: tuple[ProfileInterval, ...]
    sandwich_se: dict[str, float]
    sweep: pd.DataFrame
    isoflop: pd.DataFrame | None

    def plain(self) -> dict[str, object]:
        """Return it as JSON-like data; what was not reached or is missing is None."""
        ident = self.identifiability
        return {
            "condition": ident.condition,
            "raw_condition": ident.raw_condition,
            "weakest": ident.weakest,
            "floor_exponent": ident.floor_exponent,
            "inflation": ident.inflation,
            "profiles": [vars(interval) for interval in self.profiles],
            "sandwich_se": self.sandwich_se,
            "sweep": json.loads(self.sweep.to_json(orient="records", double_precision=15)),
            "isoflop": None
            if self.isoflop is None
            else json.loads(self.isoflop.to_json(orient="records", double_precision=15)),
        }


def check(result: FitResult, runs: RunTable, level: float = 0.95) -> FitCheck:
    """Return the second look at `result` on the runs it was fitted to.

    Raises InputError for the floor-integrated policy, UnusableError where the fit has no degrees of freedom or did not
    converge.
    """
    if not result.usable:
        raise UnusableError(f"the fit of {result.law} did not converge ({result.status}); there is nothing to check.")
    law, solution, points = solution_of(result.spec, runs)
    try:
        errors = sandwich(solution, points.clusters).se
    except UnusableError:
        errors = {}
    bias = None
    if set(law.inputs) == {"active_params", "tokens"}:
        frame = select_rows(runs, result.spec).frame
        if frame["budget"].notna().all() and frame.groupby("budget")[result.spec.size_column].nunique().max() > 2:
            profiles = isoflop(frame, result.spec.size_column)
            bias = surface_check(profiles, law, solution.theta, flops_factor(result))
    return FitCheck(
        identifiability(law, solution),
        profile(law, solution, level=level),
        errors,
        delta_sweep(result, runs),
        bias,
    )


def delta_sweep(result: FitResult, runs: RunTable) -> pd.DataFrame:
    """Return one row a loss: its name, status, and the parameters, fitted without a bootstrap.

    Losses: Huber 1e-3, Huber at 1.345 sigma of this fit's residuals (median absolute deviation), and least squares.
    """
    sigma = NORMAL_MAD * float(np.median(np.abs([point.residual for point in result.points])))
    losses = [LossSpec.huber(1e-3), LossSpec.mse()]
    if sigma > 1e-9:
        losses.insert(1, LossSpec.huber(EFFICIENT * sigma))
    rows = []
    for loss in losses:
        try:
            other = fit(replace(result.spec, loss=loss, resamples=0), runs)
            rows.append({"loss": str(loss), "status": str(other.status), **other.theta})
        except ForetellError as error:
            rows.append({"loss": str(loss), "status": str(error)})
    return pd.DataFrame(rows)
