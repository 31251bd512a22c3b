"""What a law is fitted to: the runs themselves, or one optimum a budget for laws in compute alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.isoflop import IsoflopResult, ProfileStatus, isoflop
from fits.law import AbstractLaw
from fits.laws import law_named
from fits.rows import Rows, require_columns
from fits.spec import FitSpec
from ladder.errors import InputError

MIN_RATIO_SPREAD = 1.2  # largest over smallest tokens per parameter; below, N and D cannot be told apart


@dataclass(frozen=True)
class Points:
    """Observations of a fit, all fields of one length.

    Attributes:
        labels: run ids, or ``vertex 3e18`` and the like.
        columns: compute, size (N) and tokens, missing values NaN; for laws of runs what else the law reads.
        loss: observed loss.
        runs: runs behind each observation.
        clusters: what the bootstrap draws together.
        cluster_kind: what the clusters are, in words.
        isoflop: the profiles the optima come from, None for laws of runs.
    """

    labels: tuple[str, ...]
    columns: Mapping[str, Float[np.ndarray, " points"]]
    loss: Float[np.ndarray, " points"]
    runs: tuple[int, ...]
    clusters: tuple[str, ...]
    cluster_kind: str
    isoflop: IsoflopResult | None


def points_of(rows: Rows, spec: FitSpec) -> Points:
    """Return the observations that `spec` fits."""
    return _optima(rows.frame, spec) if spec.on_optima else _runs(rows.frame, spec)


def _optima(frame: pd.DataFrame, spec: FitSpec) -> Points:
    result = isoflop(frame, spec.size_column, use_minimum=spec.use_minimum)
    optima = result.optima
    if not optima:
        raise InputError(f"no budget has a usable optimum: {reasons(result)}.")
    used = [profile for profile in result.profiles if profile.optimum is not None]
    kinds = ["minimum" if o.raw_minimum else _KIND[p.status] for p, o in zip(used, optima, strict=True)]
    nan = math.nan
    return Points(
        labels=tuple(f"{kind} {profile.budget:.3g}" for kind, profile in zip(kinds, used, strict=True)),
        columns={
            "compute": np.array([o.compute for o in optima]),
            "size": np.array([nan if o.size is None else o.size for o in optima]),
            "tokens": np.array([nan if o.tokens is None else o.tokens for o in optima]),
        },
        loss=np.array([o.loss for o in optima]),
        runs=tuple(o.runs for o in optima),
        clusters=tuple(repr(profile.budget) for profile in used),
        cluster_kind="budgets (pairs of compute and optimum)",
        isoflop=result,
    )


_KIND = {
    ProfileStatus.VERTEX: "vertex",
    ProfileStatus.EXACT_VERTEX: "vertex",
    ProfileStatus.SINGLE_SIZE: "rung",
}


def reasons(result: IsoflopResult) -> str:
    """Return why budgets are not used, as one phrase, empty when all are."""
    return "; ".join(profile.reason for profile in result.profiles if profile.optimum is None)


def _runs(frame: pd.DataFrame, spec: FitSpec) -> Points:
    inputs = law_named(spec.law).inputs
    more = tuple(name for name in inputs if name not in ("active_params", "compute", "tokens"))
    require_columns(frame, (spec.size_column, "tokens", *more))
    size, tokens = frame[spec.size_column].to_numpy(), frame["tokens"].to_numpy()
    ratio = tokens / size
    if {"active_params", "tokens"} <= set(inputs) and ratio.max() < MIN_RATIO_SPREAD * ratio.min():
        raise InputError(
            f"all runs have nearly one number of tokens per parameter ({ratio.min():.3g} to {ratio.max():.3g}): a law "
            "in parameters and tokens cannot tell their effects apart. Add IsoFLOP runs, or fit a law in compute."
        )
    alone = frame[spec.cluster_column].isna()
    clusters = frame[spec.cluster_column].astype("object").where(~alone, "run " + frame["run_id"])
    kind = spec.cluster_column.removesuffix("_id") + "s"
    return Points(
        labels=tuple(map(str, frame["run_id"])),
        columns={"compute": frame["compute"].to_numpy(), "size": size, "tokens": tokens}
        | {name: frame[name].to_numpy() for name in more},
        loss=frame["loss"].to_numpy(),
        runs=(1,) * len(frame),
        clusters=tuple(map(str, clusters)),
        cluster_kind=f"{kind} (runs without one alone)" if alone.any() else kind,
        isoflop=None,
    )


def law_inputs(
    law: AbstractLaw, columns: Mapping[str, Float[np.ndarray, "..."]]
) -> dict[str, Float[np.ndarray, "..."]]:
    """Return what `law` reads of the columns; ``active_params`` is the declared size."""
    return {name: columns["size" if name == "active_params" else name] for name in law.inputs}


def refuse_too_few(points: Points, needed: int, law: str) -> None:
    """Raise InputError when there are fewer than `needed` observations."""
    if len(points.loss) >= needed:
        return
    what = "budgets with an optimum" if points.isoflop else "runs"
    unused = reasons(points.isoflop) if points.isoflop else ""
    raise InputError(
        f"{law} needs at least {needed} {what}, found {len(points.loss)}"
        + (f" ({unused})" if unused else "")
        + "; add runs, or fit a law with fewer parameters."
    )
