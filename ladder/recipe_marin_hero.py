"""Marin's hero recipe of August 2026: 384 experts in a latent, MuonH, 791 tokens per active parameter.

Sources: launch_scaling_ladder.py @0b22469a and launch_h100_scaling_ladder.py @5408381e of marin-community/marin,
experiments/grug/moe_hero_ep; issues #8435, #8679, #9126, #9277.
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import FlopConvention, training_flops_per_token
from ladder.loglog import loglog
from ladder.recipe_interface import AbstractRecipe, OptimizerPlan, RouterPlan, Schedule
from ladder.recipe_marin_moe import HEAD_DIM, SEQ_LEN, VOCAB_SIZE, check_width, muonh
from ladder.shape import MoeShape

TOKENS_PER_PARAM = 791  # of active parameters without embedding, head, gates and norms; about 12 times the optimum
# Layers by width: the fixed table of the launcher, not the rule of v16 (which gives 11, 13, 21 and 57 at d1024,
# d1280, d2048 and d6144).
DEPTH = {512: 6, 768: 8, 1024: 12, 1280: 14, 1536: 16, 2048: 22, 6144: 48}
# Racks of GB200 by width, each 1024 sequences a batch; widths that ran on no rack have the 1024 of the H100 ladder.
RACKS = {768: 1, 1024: 2, 1536: 6, 2048: 11, 6144: 11}
SEQS_PER_RACK = 1024


@cache
def _ladder() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return compute at 791 tokens per parameter, and active parameters, of the widths in ascending order."""
    recipe = MarinHero()
    shapes = [recipe.shape(hidden) for hidden in DEPTH]
    compute = [training_flops_per_token(shape, recipe.flop_convention) * recipe.tokens(shape) for shape in shapes]
    return tuple(compute), tuple(float(count_params(shape).nonembedding_active) for shape in shapes)


@dataclass(frozen=True)
class MarinHero(AbstractRecipe):
    """384 experts, top-8, in a latent of d/2, two shared experts of d/2, local and global attention, MuonH.

    Evidence: the ladder's shapes, steps and FLOPs as launched; rates are the May recipe's, carried far outside its
    17 cells (closed PR #8037 had refitted them). From step 58,000 the hero run itself has weight decay on attention
    gates and routers, 0.02 falling to 0 (#8833), which is an intervention and no part of the recipe.
    """

    name: ClassVar[str] = "marin-hero"
    flop_convention: ClassVar[FlopConvention] = FlopConvention.MATMUL_FULL_WINDOWED
    capacity_factor: ClassVar[float] = 1.15  # sender and receiver, pooled-wave transport (issue #8549)
    router: ClassVar[RouterPlan] = RouterPlan(
        balancing="quantile", estimator="histogram", bins=10_000, weight_sum=2.5, z_loss=0.0
    )
    # FLOPs of the rungs as printed by the launcher
    fit_budgets: ClassVar[tuple[int, ...]] = (55 * 10**18, 27 * 10**19, 18 * 10**20, 92 * 10**20)
    held_out_budgets: ClassVar[tuple[int, ...]] = (27 * 10**23,)

    def widths(self) -> tuple[int, ...]:
        """Return the widths of the depth table."""
        return tuple(DEPTH)

    def widths_at(self, budget: int) -> tuple[int, ...]:
        """Return all widths; the recipe bounds none by budget."""
        return self.widths()

    def shape(self, hidden: int) -> MoeShape:
        """Return the shape of a width in the depth table."""
        check_width(self.name, hidden)
        if hidden not in DEPTH:
            raise InputError(
                f"recipe {self.name} has a fixed table of depths and no width {hidden}; use one of "
                f"{', '.join(map(str, DEPTH))}, or override layers on one of them."
            )
        heads = hidden // HEAD_DIM
        return MoeShape(
            vocab_size=VOCAB_SIZE,
            seq_len=SEQ_LEN,
            layers=DEPTH[hidden],
            hidden=hidden,
            heads=heads,
            kv_heads=max(1, heads // 4),
            head_dim=HEAD_DIM,
            experts=384,
            top_k=8,
            expert_width=hidden // 2,
            shared_experts=2,
            shared_width=hidden // 2,
            latent_width=hidden // 2,
            gated_norm_rank=128,
            embedding_norm=True,
            short_conv=4,
            attention=AttentionPattern(
                window=2048,
                global_every=4,
                last_global=True,
                global_kv_heads=max(1, heads // 8),
                rope_theta=1e4,
                rope_fraction=0.5,
                global_rope=False,
                gate=True,
                exclusive=True,
            ),
        )

    def tokens(self, shape: MoeShape) -> int:
        """Return the tokens of a rung: 791 per active parameter, small tensors, embedding and head left out."""
        return TOKENS_PER_PARAM * count_params(shape).without_gates_and_norms().nonembedding_active

    def expected_optimum(self, budget: int) -> float:
        """Return the active parameters that `budget` trains on 791 tokens each: a choice, far from compute-optimal."""
        compute, sizes = _ladder()
        return loglog(budget, compute, sizes)

    def batch_seqs(self, tokens: float, shape: MoeShape) -> int:
        """Return 1024 sequences for each rack that the width ran on, whatever the tokens."""
        return SEQS_PER_RACK * RACKS.get(shape.hidden, 1)

    def optimizer(self, tokens: float, batch_seqs: int, shape: MoeShape) -> OptimizerPlan:
        """Return MuonH with the May recipe's constants."""
        return muonh(tokens, batch_seqs * shape.seq_len, shape.hidden, z_loss=1e-4)

    def schedule(self) -> Schedule:
        """Return 1 % warmup, then linear decay to 5 % of the peak, as in the May recipe."""
        return Schedule(warmup_fraction=0.01, decay_fraction=0.99, final_fraction=0.05)

    def outside_range(self, tokens: float, shape: MoeShape) -> str:
        """Return why the May recipe's rates do not reach this rung; they reach none of the ladder's."""
        ratio = tokens / count_params(shape).without_gates_and_norms().nonembedding_active
        return (
            f"rates were fitted near 30 tokens per parameter, d512 to d1280; at {ratio:.0f} tokens per parameter and "
            f"d{shape.hidden} they are extrapolated, and were 1.2 to 1.4 times too low at 300 to 600 (#7856)"
        )
