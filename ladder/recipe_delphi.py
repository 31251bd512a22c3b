"""`delphi-v2`: Marin's dense Delphi ladder of March 2026, Qwen3 shapes under AdamH with a token-horizon correction.

Sources: experiments/scaling_law_sweeps/completed_adamh.py and experiments/exp1337_delphi_suite.py of
marin-community/marin; openathena.ai/blog/delphi (14 April 2026). Every formula below reproduces all 81 runs of the
suite, and the counts and FLOPs all 339 of the family.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import FlopConvention, training_flops_per_token
from ladder.recipe_interface import NO_ROUTER, AbstractRecipe, OptimizerPlan, PowerLaw, RouterPlan, Schedule
from ladder.recipe_marin_moe import HEAD_DIM, SEQ_LEN, VOCAB_SIZE, check_width, depth
from ladder.shape import MoeShape

TUNED_BATCH, TUNED_TOKENS = 64, 2.5e9  # the reference run (d512, about 130M parameters), tuned with Vizier
MAX_LR = 0.01
MIN_BETA2 = 0.9
MIN_BATCH_SEQS, MAX_BATCH_SEQS = 8, 8192
MAX_STEPS = 2**16  # the batch is rounded up to the power of two that keeps a run at or below this many
MAX_TOKENS_PER_PARAM = 250  # added after the sweep: 3 of its 81 runs lie above
NARROW_BUDGET = 2e19  # up to here widths step by 128, above by 256


@dataclass(frozen=True)
class DelphiV2(AbstractRecipe):
    """Dense: full multi-head attention with learned QK norm, MLP of 4d, AdamH, sequences of 4096.

    Evidence: 81 IsoFLOP runs at 3e18 to 3e20, seven held-out runs at 1e21 to 1e23. The exponent 0.3 of the token
    horizon comes from a small grid (a weak basis, says its author); checked on 24 settings of two widths, four
    batches, three horizons. Range measured: widths 512 to 5376, 6e8 to 6.3e11 tokens.
    """

    name: ClassVar[str] = "delphi-v2"
    flop_convention: ClassVar[FlopConvention] = FlopConvention.MATMUL_FULL
    capacity_factor: ClassVar[float] = 1.0  # no experts, nothing to drop
    router: ClassVar[RouterPlan] = NO_ROUTER
    fit_budgets: ClassVar[tuple[int, ...]] = tuple(
        c * 10**17 for c in (30, 90, 180, 300, 900, 1800, 3000)
    )  # the published grid, 3e18 to 3e20
    held_out_budgets: ClassVar[tuple[int, ...]] = (10**21, 10**22, 10**23)
    optimal_tokens: ClassVar[PowerLaw] = PowerLaw(
        0.04758, 0.5684, "refit of the seven published vertices 3e18 to 3e20; code and docstrings call it N*"
    )

    def widths(self) -> tuple[int, ...]:
        """Return all multiples of 128 from 512 to 16384."""
        return tuple(range(512, 16384 + 1, 128))

    def widths_at(self, budget: int) -> tuple[int, ...]:
        """Return the candidates of the published sweep at `budget`.

        Steps of 128 up to 2e19 FLOPs, of 256 above; at most clip(12e9 sqrt(C / 3e20), 12e9, 1e12) parameters; at most
        250 tokens per parameter; batches from 8 to 8192.
        """
        step = 128 if budget <= NARROW_BUDGET else 256
        most = min(max(12e9 * math.sqrt(budget / 3e20), 12e9), 1e12)
        kept = []
        for hidden in range(512, self.widths()[-1] + 1, step):
            shape = self.shape(hidden)
            params = count_params(shape).total
            if params > most:
                break
            tokens = budget / training_flops_per_token(shape, self.flop_convention)
            batch = self._batch(tokens, shape)
            if tokens <= MAX_TOKENS_PER_PARAM * params and MIN_BATCH_SEQS <= batch <= MAX_BATCH_SEQS:
                kept.append(hidden)
        return tuple(kept)

    def shape(self, hidden: int) -> MoeShape:
        """Return the shape of any width that is a multiple of 128; the MLP is the one always-on expert."""
        check_width(self.name, hidden)
        heads = hidden // HEAD_DIM
        return MoeShape(
            vocab_size=VOCAB_SIZE,
            seq_len=SEQ_LEN,
            layers=depth(hidden),
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=HEAD_DIM,
            experts=0,
            top_k=0,
            expert_width=0,
            shared_experts=1,
            shared_width=4 * hidden,
            attention=AttentionPattern(rope_theta=5e5, qk_gains=True, rope_scaling="llama3"),
        )

    def expected_optimum(self, budget: int) -> float:
        """Return the parameters of the candidate with the fewest tokens that are at least T*(C) = 0.04758 C^0.5684.

        The published rule: biased to more data; the candidate with the most tokens where none has as many.
        """
        shapes = [self.shape(hidden) for hidden in self.widths_at(budget)]
        if not shapes:
            raise InputError(f"recipe {self.name} allows no width at {budget:.3g} FLOPs; use 1e18 to 1e26.")
        most = budget / self.optimal_tokens(budget)
        long_enough = [shape for shape in shapes if training_flops_per_token(shape, self.flop_convention) <= most]
        return float(count_params((long_enough or shapes)[-1 if long_enough else 0]).nonembedding_active)

    def _batch(self, tokens: float, shape: MoeShape) -> int:
        batch = 1 << max(0, math.ceil(math.log2(tokens / (MAX_STEPS * shape.seq_len))))
        while batch > MIN_BATCH_SEQS and self._too_hot(tokens, batch):
            batch //= 2
        return batch

    def _too_hot(self, tokens: float, batch: int) -> bool:
        return max(_matrix_lr(tokens, batch), _adam_lr(tokens, batch)) >= MAX_LR or _beta2(batch) <= MIN_BETA2

    def batch_seqs(self, tokens: float, shape: MoeShape) -> int:
        """Return 2^ceil(log2(T / (2^16 S))) sequences, halved while a rate or beta2 is at its bound, at least 8."""
        return max(MIN_BATCH_SEQS, self._batch(tokens, shape))

    def optimizer(self, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return AdamH: matrices min(0.01, 0.0063 sqrt(B/64) (2.5e9/T)^0.3), whatever the width.

        Embeddings and gains min(0.01, 6.56e-4 sqrt(B 2.5e9 / (64 T))); beta2 = 0.9999^(B/64) within 0.9 and 0.9999;
        epsilon = 1.85e-8 sqrt(64 T / (B 2.5e9)).
        """
        return OptimizerPlan(
            name="adamh",
            matrix_lr=min(MAX_LR, _matrix_lr(tokens, batch_seqs)),
            adam_lr=min(MAX_LR, _adam_lr(tokens, batch_seqs)),
            beta1=0.9,
            beta2=min(max(_beta2(batch_seqs), MIN_BETA2), 0.9999),
            epsilon=1.85e-8 * math.sqrt(TUNED_BATCH * tokens / (batch_seqs * TUNED_TOKENS)),
            clip_norm=0.1,
            z_loss=1e-7,
        )

    def schedule(self) -> Schedule:
        """Return 10 % warmup and 20 % decay to zero."""
        return Schedule(warmup_fraction=0.1, decay_fraction=0.2, final_fraction=0.0)

    def outside_range(self, tokens: float, shape: MoeShape) -> str:
        """Return why a rung lies outside the published suite."""
        if not (512 <= shape.hidden <= 5376 and 6e8 <= tokens <= 6.3e11):
            return f"d{shape.hidden} on {tokens:.3g} tokens lies outside d512 to d5376 and 6e8 to 6.3e11 tokens"
        return ""


def _matrix_lr(tokens: float, batch: int) -> float:
    return 0.00630 * math.sqrt(batch / TUNED_BATCH) * math.pow(TUNED_TOKENS / tokens, 0.3)


def _adam_lr(tokens: float, batch: int) -> float:
    return 6.56e-4 * math.sqrt(batch * TUNED_TOKENS / (TUNED_BATCH * tokens))


def _beta2(batch: int) -> float:
    return math.pow(0.9999, batch / TUNED_BATCH)
