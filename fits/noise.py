"""Seed noise: how much the loss of one rung differs from run to run, measured where rungs were repeated."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class SeedNoise:
    """Pooled standard deviation of ln L over seeds of the same rung.

    Attributes:
        sd: of ln L, one run.
        df: degrees of freedom, runs minus rungs over the repeated rungs.
        rungs: repeated rungs.
    """

    sd: float
    df: int
    rungs: int


def seed_noise(rows: pd.DataFrame) -> SeedNoise | None:
    """Return the seed noise of `rows` (columns rung_id, loss), pooled over the rungs with more than one run.

    The variance is assumed equal in ln L across rungs. None when no rung is repeated: the noise is then inferred from
    residuals, which hold the misfit of the law as well, and whoever shows it must say so.
    """
    groups = [np.log(group["loss"].to_numpy()) for _, group in rows.dropna(subset=["rung_id"]).groupby("rung_id")]
    repeated = [group for group in groups if len(group) > 1]
    if not repeated:
        return None
    df = sum(len(group) - 1 for group in repeated)
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in repeated)
    return SeedNoise(math.sqrt(squares / df), df, len(repeated))
