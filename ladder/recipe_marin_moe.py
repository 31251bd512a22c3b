"""Marin's Mixture-of-Experts recipes of 2026: `marin-moe-v16` (April, AdamH) and `marin-moe-may` (May, MuonH).

Both have the same shapes but for the number of experts; never fit their runs together. Sources: heuristic.py
@2e8ced2c and the READMEs @e13049e8, @04331363 of marin-community/marin, experiments/grug/moe; issues #4447, #5951, #6074.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.loglog import loglog
from ladder.recipe_interface import AbstractRecipe, MuonPlan, OptimizerPlan, PowerLaw, RouterPlan, Schedule
from ladder.shape import MoeShape

HEAD_DIM = 128
VOCAB_SIZE = 128_256  # Llama-3 tokenizer
SEQ_LEN = 4096
TARGET_STEPS = 2**14  # the batch is the power of two that keeps a run at or below this many steps
MIN_BATCH_SEQS = 32
MATRIX_RATIO = 13 / 3  # matrix over Adam rate
MAX_MATRIX_LR = 0.05
BETA1 = 0.9062
MUON = MuonPlan(momentum=0.95, nesterov=True, newton_schulz_steps=5, epsilon=1e-8)
FIT_BUDGETS = (3 * 10**18, 10**19, 3 * 10**19, 10**20, 3 * 10**20)
HELD_OUT_BUDGETS = (10**21, 3 * 10**21, 10**22, 3 * 10**22, 10**23)


def depth(hidden: int) -> int:
    """Return the layers of the Marin recipes at width d: round(d / (64 + 4 log2 d - 9)).

    The "layers" column of README@04331363 says 10, 14 and 18 for d768, d1536 and d2048; the logged FLOPs of its
    runs say 8, 16 and 21, as this rule does.

    >>> [depth(hidden) for hidden in (512, 768, 1536, 2048, 2560, 5120)]
    [6, 8, 16, 21, 26, 49]
    """
    return round(hidden / (64 + 4 * math.log2(hidden) - 9))


def kv_heads(heads: int) -> int:
    """Return the largest divisor of `heads` that is at most a quarter of it, at least 1."""
    return next((kv for kv in range(heads // 4, 1, -1) if heads % kv == 0), 1)


def batch_for(tokens: float, seq_len: int) -> int:
    """Return max(32, 2^ceil(log2(T / (2^14 S)))) sequences."""
    return max(MIN_BATCH_SEQS, 1 << max(0, math.ceil(math.log2(tokens / (TARGET_STEPS * seq_len)))))


def check_width(name: str, hidden: int) -> None:
    """Raise InputError, with the next width that works, unless `hidden` is a positive multiple of the head size."""
    if hidden < HEAD_DIM or hidden % HEAD_DIM:
        near = max(HEAD_DIM, math.ceil(hidden / HEAD_DIM) * HEAD_DIM)
        raise InputError(
            f"hidden={hidden} is not a positive multiple of recipe {name}'s head_dim={HEAD_DIM}; use {near}."
        )


def _shape(hidden: int, experts: int, attention: AttentionPattern) -> MoeShape:
    heads = hidden // HEAD_DIM
    return MoeShape(
        vocab_size=VOCAB_SIZE,
        seq_len=SEQ_LEN,
        layers=depth(hidden),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads(heads),
        head_dim=HEAD_DIM,
        experts=experts,
        top_k=4,
        expert_width=math.ceil(hidden / 2 / HEAD_DIM) * HEAD_DIM,
        shared_experts=1,
        shared_width=hidden,
        gated_norm_rank=128,
        embedding_norm=True,
        attention=attention,
    )


def _range_reason(
    tokens: float, shape: MoeShape, name: str, widths: tuple[int, int], range_: tuple[float, float]
) -> str:
    reasons = []
    if not widths[0] <= shape.hidden <= widths[1]:
        reasons.append(f"width {shape.hidden} lies outside {widths[0]} to {widths[1]}")
    if not range_[0] <= tokens <= range_[1]:
        reasons.append(f"{tokens:.3g} tokens lie outside {range_[0]:.2g} to {range_[1]:.2g}")
    return f"{' and '.join(reasons)}, where recipe {name} was measured" if reasons else ""


WIDTHS = (512, 640, 768, 896, 1024, *range(1280, 8192 + 1, 256))  # the published grid and its continuation


@dataclass(frozen=True)
class MarinMoeV16(AbstractRecipe):
    """64 experts, top-4 and one shared, AdamH, sequences of 4096; budgets leave the head out and ignore windows.

    Evidence: 49 IsoFLOP runs at 1e18 to 1e21 (issue #4447); rates from 186 runs, R^2 0.995 (README@04331363). Range
    measured: widths 512 to 2560, 1.8e8 to 1.6e11 tokens.
    """

    name: ClassVar[str] = "marin-moe-v16"
    flop_convention: ClassVar[FlopConvention] = FlopConvention.MATMUL_NO_HEAD
    capacity_factor: ClassVar[float] = 1.0  # of the 1e23 run (issue #4697); that of the IsoFLOP runs is not stated
    router: ClassVar[RouterPlan] = RouterPlan(
        balancing="quantile",
        estimator="topk",
        bins=0,
        weight_sum=0.0,
        z_loss=1e-4,  # "on" in the sources, which do not say how large; this is the weight of the logits' own z-loss
    )
    fit_budgets: ClassVar[tuple[int, ...]] = FIT_BUDGETS
    held_out_budgets: ClassVar[tuple[int, ...]] = HELD_OUT_BUDGETS
    conservative_optimum: ClassVar[PowerLaw] = PowerLaw(
        0.0543, 0.5, "IsoFLOP optima 1e18 to 3e20, exponent pinned (README@e13049e8); T* = 3.290 C^0.5, 60.6 tokens/N"
    )
    free_optimum: ClassVar[PowerLaw] = PowerLaw(
        1.09e-2, 0.535, "the same optima, exponent fitted (README@04331363, later text 0.546); T* = 16.0 C^0.464"
    )

    def widths(self) -> tuple[int, ...]:
        """Return the widths of the published sweep and, in steps of 256, those beyond it."""
        return WIDTHS

    def widths_at(self, budget: int) -> tuple[int, ...]:
        """Return all widths; the recipe bounds none by budget."""
        return self.widths()

    def shape(self, hidden: int) -> MoeShape:
        """Return the shape of any width that is a multiple of 128; every 4th layer sees all, the others 2048 keys."""
        check_width(self.name, hidden)
        pattern = AttentionPattern(window=2048, global_every=4, rope_theta=1e4, gate=True, exclusive=True)
        return _shape(hidden, 64, pattern)

    def expected_optimum(self, budget: int) -> float:
        """Return N* = 0.0543 C^0.5, the conservative law, which sized the published 1e23 run.

        The free law gives 1.3 times as many at 1e23. The optimum is so flat that a refit of the 49 runs
        finds exponents from 0.40 to 0.57 by what is called N (issue #4447): treat it as an interval.
        """
        return self.conservative_optimum(budget)

    def batch_seqs(self, tokens: float, shape: MoeShape) -> int:
        """Return max(32, 2^ceil(log2(T / (2^14 S)))) sequences."""
        return batch_for(tokens, shape.seq_len)

    def optimizer(self, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return AdamH with Adam rate 1.63 T^-0.2813 d^-0.3678 sqrt(B in sequences), matrices 13/3 of it, at most 0.05.

        beta2 = 0.999^(B/32) within 0.95 and 0.9999; epsilon = 1e-15 sqrt(32 T / (B 1.4e9)).
        """
        adam_lr = 1.63 * tokens**-0.2813 * shape.hidden**-0.3678 * math.sqrt(batch_seqs)
        return OptimizerPlan(
            name="adamh",
            matrix_lr=min(MATRIX_RATIO * adam_lr, MAX_MATRIX_LR),
            adam_lr=adam_lr,
            beta1=BETA1,
            beta2=min(max(0.999 ** (batch_seqs / 32), 0.95), 0.9999),
            epsilon=1e-15 * math.sqrt(32 * tokens / (batch_seqs * 1.4e9)),
            clip_norm=1.0,
            z_loss=1e-4,
        )

    def schedule(self) -> Schedule:
        """Return 10 % warmup, then linear decay to 0."""
        return Schedule(warmup_fraction=0.1, decay_fraction=0.9, final_fraction=0.0)

    def outside_range(self, tokens: float, shape: MoeShape) -> str:
        """Return why a rung lies outside the IsoFLOP runs."""
        return _range_reason(tokens, shape, self.name, (512, 2560), (1.8e8, 1.6e11))


def muonh(tokens: float, batch_tokens: int, hidden: int, z_loss: float) -> OptimizerPlan:
    """Return MuonH with Adam rate 0.06602 T^-0.395 d^-0.150 sqrt(tokens per batch), matrices and head 13/3 of it.

    Evidence: 17 cells, R^2 0.996 (heuristic.py@2e8ced2c, issue #5951). The file prints sqrt(B) for both this and a
    combined 18.31; 18.31 = 13/3 x 0.06602 x sqrt(4096) belongs to B in sequences, 0.06602 to B in tokens. beta2 =
    0.999^(batch tokens / 131072) within 0.95 and 0.9999; epsilon = 9.676e-18 sqrt(T / batch tokens). The rate is
    right at 30 tokens per parameter and 1.2 to 1.4 times too low at 300 to 600 (issue #7856).
    """
    adam_lr = 0.06602 * tokens**-0.395 * hidden**-0.150 * math.sqrt(batch_tokens)
    matrix_lr = min(MATRIX_RATIO * adam_lr, MAX_MATRIX_LR)
    return OptimizerPlan(
        name="muonh",
        matrix_lr=matrix_lr,
        adam_lr=adam_lr,
        beta1=BETA1,
        beta2=min(max(0.999 ** (batch_tokens / 131_072), 0.95), 0.9999),
        epsilon=9.676e-18 * math.sqrt(tokens / batch_tokens),
        clip_norm=0.0,
        z_loss=z_loss,
        head_lr=matrix_lr,
        muon=MUON,
    )


@dataclass(frozen=True)
class MarinMoeMay(AbstractRecipe):
    """256 experts, top-4 and one shared, MuonH, sequences of 4096; budgets leave the head out and ignore windows.

    Evidence: four baselines at 3.82e17 to 3.46e19, d512 to d1280, 1.44e9 to 1.5e10 tokens; width law from 3e18 to
    3e19 with 1e18 dropped (issue #6074, 2026-05-31). Base of the rotary frequencies not stated: v16's.
    """

    name: ClassVar[str] = "marin-moe-may"
    flop_convention: ClassVar[FlopConvention] = FlopConvention.MATMUL_NO_HEAD
    capacity_factor: ClassVar[float] = 1.0  # not stated for this recipe: v16's
    router: ClassVar[RouterPlan] = RouterPlan(
        balancing="quantile", estimator="histogram", bins=1000, weight_sum=2.5, z_loss=0.0
    )
    fit_budgets: ClassVar[tuple[int, ...]] = FIT_BUDGETS
    held_out_budgets: ClassVar[tuple[int, ...]] = HELD_OUT_BUDGETS
    optimal_width: ClassVar[PowerLaw] = PowerLaw(0.137, 0.2033, "IsoFLOP 3e18 to 3e19, issue #6074")

    def widths(self) -> tuple[int, ...]:
        """Return the widths of the v16 recipe."""
        return WIDTHS

    def widths_at(self, budget: int) -> tuple[int, ...]:
        """Return all widths; the recipe bounds none by budget."""
        return self.widths()

    def shape(self, hidden: int) -> MoeShape:
        """Return the shape of any width that is a multiple of 128; every 4th and the last layer see all keys."""
        check_width(self.name, hidden)
        pattern = AttentionPattern(
            window=2048,
            global_every=4,
            last_global=True,
            rope_theta=1e4,
            rope_fraction=0.5,
            key_offset=True,
            gate=True,
            exclusive=True,
        )
        return _shape(hidden, 256, pattern)

    def expected_optimum(self, budget: int) -> float:
        """Return the parameters at the optimal width d* = 0.137 C^0.2033, between the recipe's widths by power law."""
        sizes = [count_params(self.shape(hidden)).nonembedding_active for hidden in WIDTHS]
        return loglog(self.optimal_width(budget), WIDTHS, sizes)

    def batch_seqs(self, tokens: float, shape: MoeShape) -> int:
        """Return max(32, 2^ceil(log2(T / (2^14 S)))) sequences."""
        return batch_for(tokens, shape.seq_len)

    def optimizer(self, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return MuonH; no clipping, no z-loss in the baseline runs."""
        return muonh(tokens, batch_seqs * shape.seq_len, shape.hidden, z_loss=0.0)

    def schedule(self) -> Schedule:
        """Return 1 % warmup, then linear decay to 5 % of the peak (the README says to 0, the launcher 0.05)."""
        return Schedule(warmup_fraction=0.01, decay_fraction=0.99, final_fraction=0.05)

    def outside_range(self, tokens: float, shape: MoeShape) -> str:
        """Return why a rung lies outside the baselines; the cells of the rate sweep are not public."""
        return _range_reason(tokens, shape, self.name, (512, 1280), (1.4e9, 1.5e10))
