"""The recipe `tiny-cpu`: Mixture-of-Experts models that two CPU cores train in minutes."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ladder.attention import AttentionPattern
from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.recipe_interface import AbstractRecipe, OptimizerPlan, RouterPlan, Schedule
from ladder.shape import MoeShape


@dataclass(frozen=True)
class TinyCpu(AbstractRecipe):
    """A Mixture-of-Experts recipe small enough for a CPU core: 3e10 to 3e12 FLOPs, bytes, sequences of 64.

    Evidence: two ladders of 16 rungs each, measured on two CPU cores on English docstrings (LOG.md, 2026-12-01).
    Rates: matrix rate swept by 0.5, 1, 2 at four (size, budget) cells, at its optimum within a factor of two;
    embedding rate swept at 0.1 to 6 times the matrix rate at two cells, where it was the largest single effect.
    Width 8 was measured at 1e10 to 4e10 only, as the size that brackets the smallest budgets from below.
    Range: widths 8 to 64, 0.1 to 5 million tokens.
    """

    name: ClassVar[str] = "tiny-cpu"
    flop_convention: ClassVar[FlopConvention] = FlopConvention.MATMUL_FULL
    capacity_factor: ClassVar[float] = 1.5  # drops stayed below 1.2 % at batches of 256 tokens
    router: ClassVar[RouterPlan] = RouterPlan(
        balancing="quantile", estimator="topk", bins=0, weight_sum=2.0, z_loss=0.0
    )
    fit_budgets: ClassVar[tuple[int, ...]] = (3 * 10**10, 65 * 10**9, 14 * 10**10, 3 * 10**11)
    held_out_budgets: ClassVar[tuple[int, ...]] = (3 * 10**12,)

    def widths(self) -> tuple[int, ...]:
        """Return the widths with a shape."""
        return (8, 12, 16, 24, 32, 48, 56, 64)

    def shape(self, hidden: int) -> MoeShape:
        """Return two layers of 8 experts, top-2 and one shared, all of width `hidden`; heads of 16."""
        if hidden not in self.widths():
            raise InputError(f"recipe tiny-cpu has no width {hidden}; use one of {', '.join(map(str, self.widths()))}.")
        heads = math.ceil(hidden / 16)
        return MoeShape(
            vocab_size=256,
            seq_len=64,
            layers=2,
            hidden=hidden,
            heads=heads,
            kv_heads=heads // 2 if heads % 2 == 0 else heads,
            head_dim=16,
            experts=8,
            top_k=2,
            expert_width=hidden,
            shared_experts=1,
            shared_width=hidden,
            attention=AttentionPattern(rope_theta=100.0),  # 1e4 cost 0.19 nats at 64 positions (LOG.md, 2026-12-01)
        )

    def widths_at(self, budget: int) -> tuple[int, ...]:
        """Return all widths; two layers of any of them train at any budget."""
        return self.widths()

    def expected_optimum(self, budget: int) -> float:
        """Return N* = 7.9e3 (C / 3e10)^0.55.

        The vertex at 3e10 is that of the measured ladder of this recipe (7.8e3 on test text, 8.0e3 on validation);
        three ladders of it and its precursors had exponents of 0.51, 0.55 and 0.59 between 3e10 and 6e11.
        """
        return 7.9e3 * math.pow(budget / 3e10, 0.55)

    def batch_seqs(self, tokens: float, shape: MoeShape) -> int:
        """Return the power of two that keeps a run at or below 2^14 steps, at least 4.

        The rule of Marin's MoE recipes with its floor lowered; 4 beat 8 and 16 at the smallest budget measured.
        """
        return max(4, 1 << max(0, math.ceil(math.log2(tokens / (2**14 * shape.seq_len)))))

    def optimizer(self, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return AdamH with matrix rate 0.007 (T/1e6)^-0.3 (d/32)^-0.4 sqrt(B/4) and four times that for Adam."""
        matrix_lr = 0.007 * (tokens / 1e6) ** -0.3 * (shape.hidden / 32) ** -0.4 * math.sqrt(batch_seqs / 4)
        return OptimizerPlan(
            name="adamh",
            matrix_lr=matrix_lr,
            adam_lr=4 * matrix_lr,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            clip_norm=1.0,
            z_loss=1e-4,
        )

    def other_optimizer(self, name: str, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return AdamW with matrix rate 0.012 (24/d), weight decay 0.1 and the recipe's Adam rate.

        0.012 at d24 and 0.006 at d48 were the best, the latter the lowest, of what was tried with a precursor of this
        recipe, one seed each: sweep the rate about it. 0.1 is customary and was not swept.
        """
        if name != "adamw":
            return super().other_optimizer(name, tokens, batch_seqs, shape)
        own = self.optimizer(tokens, batch_seqs, shape)
        return replace(own, name="adamw", matrix_lr=0.012 * 24 / shape.hidden, weight_decay=0.1)

    def schedule(self) -> Schedule:
        """Return 10 % warmup and 30 % decay to zero; 20 to 50 % decay made no difference in one seed."""
        return Schedule(warmup_fraction=0.1, decay_fraction=0.3, final_fraction=0.0)

    def outside_range(self, tokens: float, shape: MoeShape) -> str:
        """Return why a rung lies outside 0.1 to 5 million tokens."""
        if not 1e5 <= tokens <= 5e6:
            return f"{tokens:.3g} tokens lie outside the 1e5 to 5e6 that recipe tiny-cpu was tuned in"
        return ""
