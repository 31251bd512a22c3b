"""A predictive distribution of one loss: a mixture of Student-t in the logarithm of the loss.

Losses are positive and errors proportional, so everything is stated in ln L: quantiles are exponentials of the
mixture's quantiles, and the median is the point forecast.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from ladder.errors import InputError

MAX_HALVINGS = 100  # halve any bracket below the spacing of doubles
QUANTILE_WIDTH = 1e-13  # in ln L, at which bisection ends; bisection, as scipy.optimize takes long to import


@dataclass(frozen=True)
class Predictive:
    """ln L ~ sum of weight_i * (centre_i + scale_i * t(df_i)).

    Attributes:
        weights: mixture weights, positive, summing to 1.
        centres: locations in ln L (nats, bits: whatever unit L has).
        scales: scales in ln L, positive.
        dfs: degrees of freedom, positive; infinity is not written to JSON, use 1e6.
    """

    weights: tuple[float, ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]
    dfs: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = {len(self.weights), len(self.centres), len(self.scales), len(self.dfs)}
        if len(sizes) != 1 or not self.weights:
            raise InputError("a predictive distribution needs equally many weights, centres, scales and dfs.")
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9:
            raise InputError(f"weights of a predictive distribution must be a share of 1, found {self.weights}.")
        if not (min(self.scales) > 0 and min(self.dfs) > 0 and all(map(math.isfinite, self.centres))):
            raise InputError("scales and dfs of a predictive distribution must be positive and centres finite.")

    @staticmethod
    def student_t(centre: float, scale: float, df: float) -> "Predictive":
        """Return a single Student-t in ln L."""
        return Predictive((1.0,), (centre,), (scale,), (df,))

    def cdf(self, loss: float) -> float:
        """Return the probability of a loss at or below `loss`; its value at the outcome is the PIT."""
        z = (math.log(loss) - np.array(self.centres)) / np.array(self.scales)
        return float(np.dot(self.weights, special.stdtr(np.array(self.dfs), z)))

    def quantile(self, level: float) -> float:
        """Return the loss below which the probability is `level`, strictly between 0 and 1."""
        if not 0 < level < 1:
            raise InputError(f"level={level} must lie strictly between 0 and 1.")
        weights, centres, scales, dfs = map(np.array, (self.weights, self.centres, self.scales, self.dfs))
        parts = centres + scales * special.stdtrit(dfs, level)
        low, high = float(parts.min()), float(parts.max())  # the mixture's quantile lies between those of its parts
        for _ in range(MAX_HALVINGS):
            if high - low <= QUANTILE_WIDTH:
                break
            middle = (low + high) / 2
            if float(weights @ special.stdtr(dfs, (middle - centres) / scales)) < level:
                low = middle
            else:
                high = middle
        return math.exp((low + high) / 2)

    @property
    def median(self) -> float:
        """The point forecast."""
        return self.quantile(0.5)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the central interval that holds `level` of the probability."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def sample(self, size: int, seed: int) -> Float[np.ndarray, " draws"]:
        """Return `size` losses drawn from the distribution, for scores without a closed form and for plots."""
        rng = np.random.default_rng(seed)
        part = rng.choice(len(self.weights), size=size, p=np.array(self.weights))
        noise = rng.standard_t(np.array(self.dfs)[part])
        return np.asarray(np.exp(np.array(self.centres)[part] + np.array(self.scales)[part] * noise))
