"""Scores of a predictive distribution against an outcome. Lower is better for all but the coverage flag and the PIT.

Distributions and CRPS are in ln L. In the loss itself the CRPS of a Student-t in ln L does not exist: its integrand
falls as (ln x)^(-2 df), slower than 1/x. CRPS in ln L is, times the loss, the error in the loss to first order.
Interval scores and pinball losses need quantiles only and are in the loss's unit.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import special

from fits.predictive import Predictive
from forecasts.record import QUANTILE_LEVELS, Forecast, ForecastModel, ModelScore
from ladder.errors import InputError

ONE_SIGMA = 0.15865525393145707  # lower tail of a normal beyond one standard deviation
DENSITY_FLOOR = 1e-6  # of ln L in the log score, so that one far miss does not decide an average (laws.md 31)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
DOUBLINGS = 42  # of a scale into the tails; for df > 1 less than 1e-12 of a scale is left beyond


def crps(predictive: Predictive, loss: float) -> float:
    """Return the continuous ranked probability score of ln `loss`: the integral of (F(x) - [x >= ln loss])^2.

    Closed form of scoringrules for one Student-t (Jordan, Krueger and Lerch 2019), quadrature for mixtures.
    Raises InputError for df <= 1, where it is infinite.
    """
    if min(predictive.dfs) <= 1:
        raise InputError(f"CRPS needs more than one degree of freedom, found {min(predictive.dfs):g}; it is infinite.")
    y = math.log(loss)
    if len(predictive.weights) == 1:
        import scoringrules  # here: 1.7 s to import, and nothing but a check needs it

        (centre,), (scale,), (df,) = predictive.centres, predictive.scales, predictive.dfs
        return float(scoringrules.crps_t(y, df, centre, scale, backend="numpy"))
    return crps_by_quadrature(predictive, y)


def crps_by_quadrature(predictive: Predictive, y: float) -> float:
    """Return the CRPS of ln L at `y` by Gauss-Legendre rules between the outcome, the centres and doubling scales."""
    centres = np.array(predictive.centres)
    low, high = min(y, float(centres.min())), max(y, float(centres.max()))
    steps = min(predictive.scales) * 2.0 ** np.arange(-2, DOUBLINGS)
    inner = np.linspace(low, high, 1 + min(400, math.ceil((high - low) / min(predictive.scales) * 2)))
    edges = np.unique(np.concatenate([low - steps, inner, centres, [y], high + steps]))
    half = np.diff(edges) / 2
    x = (edges[:-1] + half)[:, None] + half[:, None] * NODES
    above = x > y
    distance = np.where(above, _tail(predictive, x, upper=True), _tail(predictive, x, upper=False))
    return float((half[:, None] * WEIGHTS * distance**2).sum())


def _tail(predictive: Predictive, x: Float[np.ndarray, "..."], *, upper: bool) -> Float[np.ndarray, "..."]:
    """Return the probability beyond `x`; each tail by itself, for 1 - F loses all digits far up."""
    total = np.zeros_like(x)
    parts = zip(predictive.weights, predictive.centres, predictive.scales, predictive.dfs, strict=True)
    for weight, centre, scale, df in parts:
        z = (x - centre) / scale
        total += weight * special.stdtr(df, -z if upper else z)
    return total


def log_density(predictive: Predictive, y: float) -> float:
    """Return the logarithm of the density of ln L at `y`."""
    z = (y - np.array(predictive.centres)) / np.array(predictive.scales)
    df = np.array(predictive.dfs)
    logs = (
        special.gammaln((df + 1) / 2)
        - special.gammaln(df / 2)
        - np.log(df * math.pi) / 2
        - np.log(predictive.scales)
        - (df + 1) / 2 * np.log1p(z**2 / df)
    )
    return float(special.logsumexp(logs, b=np.array(predictive.weights)))


def interval_score(low: float, high: float, outcome: float, alpha: float) -> float:
    """Return the Winkler score of the central 1 - `alpha` interval: its width, plus 2/alpha times how far it misses.

    >>> round(interval_score(0.0, 1.0, 1.2, 0.1), 12)
    5.0
    """
    return high - low + 2 / alpha * (max(low - outcome, 0.0) + max(outcome - high, 0.0))


def pinball(level: float, quantile: float, outcome: float) -> float:
    """Return the pinball loss (y - q)(level - [y < q]) of one quantile."""
    return (outcome - quantile) * (level - (outcome < quantile))


def weighted_interval_score(quantiles: Sequence[float], outcome: float) -> float:
    """Return the WIS of the quantile table: (|y - median|/2 + sum of alpha_k/2 IS_k) / (K + 1/2), Bracher et al. 2021.

    It equals twice the mean pinball loss over the table. Not scoringrules': 0.11.0 without numba adds the median itself
    where |y - median| belongs.
    """
    pairs = len(QUANTILE_LEVELS) // 2
    total = abs(outcome - quantiles[pairs]) / 2
    for index in range(pairs):
        alpha = 2 * QUANTILE_LEVELS[index]
        total += alpha / 2 * interval_score(quantiles[index], quantiles[-1 - index], outcome, alpha)
    return total / (pairs + 0.5)


def score(model: ForecastModel, outcome: float, level: float) -> ModelScore:
    """Return all scores of one model against an outcome; `level` is that of the decision rule's interval."""
    predictive = model.predictive
    low, high = predictive.interval(level)
    half = math.log(predictive.quantile(1 - ONE_SIGMA) / predictive.quantile(ONE_SIGMA)) / 2
    return ModelScore(
        name=model.name,
        relative_error=model.median / outcome - 1,
        pit=predictive.cdf(outcome),
        z=math.log(outcome / model.median) / half,
        crps=crps(predictive, outcome),
        interval_score=interval_score(low, high, outcome, 1 - level),
        wis=weighted_interval_score(model.quantiles, outcome),
        log_score=-max(log_density(predictive, math.log(outcome)), math.log(DENSITY_FLOOR)),
        inside=low <= outcome <= high,
        pinball=tuple(pinball(q, value, outcome) for q, value in zip(QUANTILE_LEVELS, model.quantiles, strict=True)),
    )


def scores(forecast: Forecast, outcome: float) -> tuple[ModelScore, tuple[ModelScore, ...], dict[str, float]]:
    """Return the scores of main and comparators, and the skill of main against each: 1 - CRPS / its CRPS."""
    main = score(forecast.main, outcome, forecast.rule.level)
    others = tuple(score(model, outcome, forecast.rule.level) for model in forecast.comparators)
    return main, others, {other.name: 1 - main.crps / other.crps for other in others}
