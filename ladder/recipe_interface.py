"""What a recipe is: how shape, batch, steps, rates and schedule follow from a size and a number of tokens.

A recipe is a frozen value whose constants carry their evidence (formula, sweep, range, source). It proposes; the
generator solves for tokens at a budget and records where a rung lies outside the range the recipe was tuned in.
"""

import abc
from dataclasses import dataclass, replace
from typing import ClassVar

from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.shape import MoeShape


@dataclass(frozen=True)
class MuonPlan:
    """Orthogonalised momentum of MuonH: `newton_schulz_steps` quintic steps on the (Nesterov) momentum."""

    momentum: float
    nesterov: bool
    newton_schulz_steps: int
    epsilon: float


@dataclass(frozen=True)
class OptimizerPlan:
    """Optimizer of one rung, all values resolved.

    Attributes:
        name: ``"adamh"``: matrices by AdamH (Adam direction, Frobenius norm kept), the rest by Adam;
            ``"muonh"``: matrices by MuonH (orthogonalised direction, Frobenius norm kept), the head by AdamH, the
            rest by Adam; ``"adam"`` and ``"adamw"``: matrices by Adam, the latter with weight decay, the rest by Adam.
        matrix_lr: peak rate of the matrix group, relative to the matrix's norm for AdamH and MuonH.
        adam_lr: peak rate of the Adam group (embedding, router, gains).
        beta1, beta2, epsilon: Adam moments.
        clip_norm: bound on the global gradient norm; 0 for none.
        z_loss: weight on the mean squared log-partition of the output logits.
        head_lr: peak rate of the head where it is a group of its own; None where it is one of the matrices.
        muon: what MuonH needs besides a rate; None for other optimizers.
        weight_decay: decoupled weight decay of AdamW's matrices.
    """

    name: str
    matrix_lr: float
    adam_lr: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float
    z_loss: float
    head_lr: float | None = None
    muon: MuonPlan | None = None
    weight_decay: float = 0.0


@dataclass(frozen=True)
class RouterPlan:
    """How tokens choose experts.

    Attributes:
        balancing: ``"quantile"``: a bias per expert, set each step to the quantile of its margin (QB); ``"bias"``: a
            bias per expert, moved each step by `rate` towards its equal share (loss-free balancing, arXiv 2408.15664);
            ``"auxiliary"``: a loss of weight `rate` on the product of an expert's load and its mean score
            (arXiv 2101.03961, equation 4); ``"none"``.
        estimator: how that quantile is found: ``"topk"`` exactly per device and averaged, ``"histogram"`` over all
            devices; empty without balancing.
        bins: bins of the histogram; 0 for other estimators.
        weight_sum: what the weights of the chosen experts are rescaled to add up to; 0 for no rescaling.
        z_loss: weight on the mean squared log-partition of the router's logits.
        scores: ``"sigmoid"`` or ``"softmax"``: what makes weights of logits.
        rate: step of the bias, or weight of the auxiliary loss; 0 for other ways of balancing.
    """

    balancing: str
    estimator: str
    bins: int
    weight_sum: float
    z_loss: float
    scores: str = "sigmoid"
    rate: float = 0.0


# Weight of the auxiliary loss and step of the loss-free bias that their publications use: 0.01 (arXiv 2101.03961, also
# OLMoE, arXiv 2409.02060) and 0.001 (arXiv 2408.15664).
CUSTOMARY_RATES = {"auxiliary": 0.01, "bias": 0.001, "none": 0.0}


def router_balanced(router: RouterPlan, balancing: str) -> RouterPlan:
    """Return `router` with its experts balanced another way, at the rate that is customary for it.

    Raises InputError for a way that is not known. Quantiles are exact where `router` has none.
    """
    if balancing == router.balancing:
        return router
    if balancing == "quantile":
        return replace(router, balancing=balancing, estimator="topk", bins=0, rate=0.0)
    if balancing not in CUSTOMARY_RATES:
        raise InputError(f"balancing={balancing!r} is not known; use quantile, {', '.join(CUSTOMARY_RATES)}.")
    return replace(router, balancing=balancing, estimator="", bins=0, rate=CUSTOMARY_RATES[balancing])


NO_ROUTER = RouterPlan(balancing="none", estimator="", bins=0, weight_sum=0.0, z_loss=0.0)  # dense models


@dataclass(frozen=True)
class Schedule:
    """Linear warmup, constant, decay to `final_fraction` of the peak.

    Attributes:
        warmup_fraction, decay_fraction: shares of all steps.
        decay: ``"linear"`` or ``"cosine"``, half of one.
    """

    warmup_fraction: float
    decay_fraction: float
    final_fraction: float
    decay: str = "linear"

    @property
    def name(self) -> str:
        """What the field calls it: wsd where there is a constant part, else by its decay."""
        return "wsd" if self.warmup_fraction + self.decay_fraction < 1 else self.decay

    def __post_init__(self) -> None:
        if self.decay not in ("linear", "cosine"):
            raise InputError(f"decay={self.decay!r} is no way to decay; use linear or cosine.")
        if not (
            self.warmup_fraction >= 0 and self.decay_fraction >= 0 and self.warmup_fraction + self.decay_fraction <= 1
        ):
            raise InputError(
                f"warmup_fraction={self.warmup_fraction} and decay_fraction={self.decay_fraction} must be shares of the "
                "steps that add up to at most 1."
            )


@dataclass(frozen=True)
class PowerLaw:
    """A published law y = coefficient * C^exponent, with the evidence for it."""

    coefficient: float
    exponent: float
    evidence: str

    def __call__(self, budget: float) -> float:
        """Return the law's value at `budget` FLOPs."""
        return float(self.coefficient * budget**self.exponent)


class AbstractRecipe(abc.ABC):
    """What a ladder needs to know of a recipe; concrete recipes are final frozen dataclasses.

    A recipe of one's own is such a class in any Python file: `--recipe path/to/file.py:NAME`.
    """

    name: ClassVar[str]
    flop_convention: ClassVar[FlopConvention]
    capacity_factor: ClassVar[float]
    router: ClassVar[RouterPlan]
    fit_budgets: ClassVar[tuple[int, ...]]  # FLOPs planned for when none are asked for
    held_out_budgets: ClassVar[tuple[int, ...]]

    @abc.abstractmethod
    def shape(self, hidden: int) -> MoeShape:
        """Return the shape of width `hidden`; raises InputError when the recipe has no such shape."""

    @abc.abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Return the widths the recipe offers, ascending."""

    @abc.abstractmethod
    def widths_at(self, budget: int) -> tuple[int, ...]:
        """Return the widths the recipe allows at `budget` FLOPs, ascending."""

    @abc.abstractmethod
    def expected_optimum(self, budget: int) -> float:
        """Return the non-embedding active parameters expected to be compute-optimal at `budget` FLOPs."""

    @abc.abstractmethod
    def batch_seqs(self, tokens: float, shape: MoeShape) -> int:
        """Return the sequences per batch for a run of about `tokens` tokens."""

    @abc.abstractmethod
    def optimizer(self, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return the optimizer with every rate resolved."""

    def other_optimizer(self, name: str, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return an optimizer that is not the recipe's own, to compare with.

        Raises InputError where the recipe has no evidence for its rates.
        """
        raise InputError(f"recipe {self.name} has no rates for optimizer {name!r}; write a recipe that has.")

    @abc.abstractmethod
    def schedule(self) -> Schedule:
        """Return the learning-rate schedule."""

    @abc.abstractmethod
    def outside_range(self, tokens: float, shape: MoeShape) -> str:
        """Return why a rung lies outside the range the recipe was tuned in, or an empty string."""
