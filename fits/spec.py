"""What a fit was asked to do, complete enough to do it again: recorded in fit.json and read by `refit`."""

from dataclasses import dataclass, field
from enum import StrEnum

from fits.laws import law_named
from fits.objective import LossSpec
from ladder.errors import InputError

FLOOR_INTEGRATED = "floor-integrated"  # the forecasting policy of fits/floor_posterior.py, beside the laws
STACKED = "stacked"  # the default policy, fits/policy.py: that one and others, weighed on the ladder itself
POLICIES = (FLOOR_INTEGRATED, STACKED)
SIZE_COLUMNS = ("nonembedding_active_params", "active_params", "total_params")
CLUSTER_COLUMNS = ("rung_id", "trunk_id")
RESAMPLES = 500  # of the cluster bootstrap; the 5 % quantile of 500 draws has a relative error of about 20 % in level


class BootstrapKind(StrEnum):
    """What is resampled: clusters of runs, or the signs of their residuals at unchanged inputs."""

    CLUSTER = "cluster"
    WILD = "wild"


@dataclass(frozen=True)
class FitSpec:
    """A fit, before any data.

    Attributes:
        law: name in `LAWS`, or a policy: ``stacked`` or ``floor-integrated``.
        metric: which losses of the run table are fitted.
        size_column: run-table column that is called N. Embedding and head belong to no scaling count of an MoE
            ladder, so the default is active parameters without them; laws fitted under another count differ.
        loss: what is summed over runs or optima (not used by policies).
        resamples: bootstrap resamples, 0 for none (then there are no intervals).
        seed: of the bootstrap.
        cluster_column: runs that share its value are resampled together.
        max_compute: runs above it stay out, or None.
        pinned_floor: value at which the irreducible loss is held, or None.
        bootstrap: what is resampled. Wild keeps the design, so few rungs of great leverage are never missing.
        use_minimum: take the smallest observed loss of a budget whose parabola cannot be used, instead of leaving
            the budget out.
    """

    law: str
    metric: str
    size_column: str = "nonembedding_active_params"
    loss: LossSpec = field(default_factory=LossSpec.huber)
    resamples: int = RESAMPLES
    seed: int = 0
    cluster_column: str = "rung_id"
    max_compute: float | None = None
    pinned_floor: float | None = None
    use_minimum: bool = False
    bootstrap: BootstrapKind = BootstrapKind.CLUSTER

    def __post_init__(self) -> None:
        if self.law not in POLICIES:
            law_named(self.law)
        if self.size_column not in SIZE_COLUMNS:
            raise InputError(f"size column {self.size_column!r} is none of {', '.join(SIZE_COLUMNS)}.")
        if self.cluster_column not in CLUSTER_COLUMNS:
            raise InputError(f"cluster column {self.cluster_column!r} is none of {', '.join(CLUSTER_COLUMNS)}.")
        if self.resamples < 0 or 0 < self.resamples < 20:
            raise InputError(f"resamples={self.resamples} must be 0 (no intervals) or at least 20.")
        if self.pinned_floor is not None and not self.pinned_floor > 0:
            raise InputError(f"pinned_floor={self.pinned_floor} must be positive.")
        if self.max_compute is not None and not self.max_compute > 0:
            raise InputError(f"max_compute={self.max_compute} must be positive.")

    @property
    def is_policy(self) -> bool:
        """Whether this is a forecasting policy, which has a posterior and no optimum."""
        return self.law in POLICIES

    @property
    def on_optima(self) -> bool:
        """Whether the fit is a curve in compute through one rung a budget, instead of one loss a run."""
        return self.is_policy or law_named(self.law).inputs == ("compute",)

    @staticmethod
    def of(law: str, metric: str) -> "FitSpec":
        """Return the default specification of a law.

        Laws in compute alone are fitted by least squares: they see one smooth optimum a budget, of which a robust
        loss would ignore some. Laws of runs use the Huber loss of Hoffmann et al. (2022).
        """
        plain = FitSpec(law, metric)
        return FitSpec(law, metric, loss=LossSpec.mse()) if plain.on_optima else plain
