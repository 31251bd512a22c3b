"""FLOPs by named term, and the conventions under which a budget is stated.

A multiply-add counts as two FLOPs; a training step as three forward passes. The embedding lookup, norms, gates and
convolutions count as nothing, as in Levanter's ``lm_flops_per_token`` and the Marin recipes. No convention takes off
the causal half of the attention map: a kernel that skips it does less than is counted. MATMUL_NO_HEAD and MATMUL_FULL
count all S keys per query, windows ignored; MATMUL_FULL_WINDOWED counts min(S, window) keys on local layers.

How the conventions differ: 6ND knows no attention map and no difference between a looked-up embedding and a
multiplied head, so it is too small for long sequences, too large for large vocabularies, and wrong by different
factors at each rung; mixing conventions in one fit bends the exponent.
"""

from dataclasses import dataclass, fields
from enum import StrEnum

from ladder.counts import count_params
from ladder.shape import MoeShape


class FlopConvention(StrEnum):
    """How training FLOPs are counted; never mixed within one fit."""

    SIX_ND = "SIX_ND"  # 6 x total parameters x tokens
    SIX_ND_ACTIVE = "SIX_ND_ACTIVE"  # 6 x active parameters (embedding and head included) x tokens
    MATMUL_NO_HEAD = "MATMUL_NO_HEAD"  # 3 x forward terms without the head (Marin's MoE recipes)
    MATMUL_FULL = "MATMUL_FULL"  # 3 x all forward terms (Levanter)
    MATMUL_FULL_WINDOWED = "MATMUL_FULL_WINDOWED"  # the same, attention windows honoured (Marin's hero recipe)


TRAINING_PASSES = 3  # one forward and a backward of twice its cost (Kaplan et al. 2020, section 2.1)


@dataclass(frozen=True)
class ForwardFlops:
    """Forward FLOPs per token by term, summed over layers.

    `attention_map` is QK^T and AV over all keys; `attention_softmax` is the 3 per key and head that Levanter and
    Marin add for the softmax; all other terms are matrix products. `routed_experts` holds the projections into and
    out of a latent.
    """

    attention_projections: int
    attention_map: int
    attention_softmax: int
    router: int
    routed_experts: int
    shared_experts: int
    head: int

    @property
    def total(self) -> int:
        """All terms."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def matmuls(self) -> int:
        """All terms but the softmax: what a count over dot products finds."""
        return self.total - self.attention_softmax


def forward_flops_per_token(shape: MoeShape, *, windowed: bool = False) -> ForwardFlops:
    """Return the forward FLOPs per token of `shape` by term, attention windows honoured where `windowed`.

    Keys and values count at each layer's own number of heads, also where more are stored.

    >>> from ladder.shape import MoeShape
    >>> forward_flops_per_token(MoeShape(256, 64, 2, 16, 1, 1, 16, 8, 2, 16, 1, 16)).matmuls  # L(26d^2+4Sd+16d)+2dV
    30208
    """
    d, layers = shape.hidden, shape.layers
    keys = shape.keys_in_window if windowed else layers * shape.seq_len
    expert = 6 * shape.expert_input * shape.expert_width
    return ForwardFlops(
        attention_projections=4 * d * shape.head_dim * (layers * shape.heads + shape.kv_heads_in_use),
        attention_map=4 * keys * shape.heads * shape.head_dim,
        attention_softmax=3 * keys * shape.heads,
        router=layers * 2 * d * shape.experts,
        routed_experts=layers * (expert * shape.top_k + 4 * d * shape.latent_width),
        shared_experts=layers * 6 * d * shape.shared_width * shape.shared_experts,
        head=2 * d * shape.vocab_size,
    )


def training_flops_per_token(shape: MoeShape, convention: FlopConvention) -> int:
    """Return the training FLOPs per token of `shape` under `convention`, as an exact integer."""
    match convention:
        case FlopConvention.SIX_ND:
            return 6 * count_params(shape).total
        case FlopConvention.SIX_ND_ACTIVE:
            return 6 * count_params(shape).active
        case FlopConvention.MATMUL_NO_HEAD:
            forward = forward_flops_per_token(shape)
            return TRAINING_PASSES * (forward.total - forward.head)
        case FlopConvention.MATMUL_FULL:
            return TRAINING_PASSES * forward_flops_per_token(shape).total
        case FlopConvention.MATMUL_FULL_WINDOWED:
            return TRAINING_PASSES * forward_flops_per_token(shape, windowed=True).total
