"""Exact parameter counts by group. Which group is called N is decided by the law, not here."""

from dataclasses import dataclass, replace

from ladder.shape import MoeShape


@dataclass(frozen=True)
class ParamCounts:
    """Parameters of one model by group, as exact integers; the groups are disjoint and add up to `total`.

    `routed_experts` counts all E experts of every layer and `routed_experts_active` the K that a token uses; both
    hold the projections into and out of a latent, which every token uses. `norms` are gains of norms, those of
    queries and keys included; `gates` are attention gates, GatedNorms and short convolutions.
    """

    embedding: int
    head: int
    attention: int
    router: int
    routed_experts: int
    routed_experts_active: int
    shared_experts: int
    norms: int
    gates: int = 0

    @property
    def gates_and_norms(self) -> int:
        """The small tensors, which many published figures leave out."""
        return self.gates + self.norms

    def without_gates_and_norms(self) -> "ParamCounts":
        """Return the counts as published figures have them that leave the small tensors out."""
        return replace(self, norms=0, gates=0)

    @property
    def total(self) -> int:
        """All parameters."""
        return (
            self.embedding
            + self.head
            + self.attention
            + self.router
            + self.routed_experts
            + self.shared_experts
            + self.norms
            + self.gates
        )

    @property
    def active(self) -> int:
        """Parameters used for one token, embedding and head included."""
        return self.total - self.routed_experts + self.routed_experts_active

    @property
    def nonembedding_total(self) -> int:
        """All parameters but embedding and head."""
        return self.total - self.embedding - self.head

    @property
    def nonembedding_active(self) -> int:
        """Parameters used for one token, embedding and head excluded."""
        return self.active - self.embedding - self.head


def count_params(shape: MoeShape) -> ParamCounts:
    """Return the parameters of `shape` by group.

    Attention holds q, k, v and o without biases, k and v at the larger number of heads where layers differ; an
    expert is a SwiGLU of three matrices; a norm has a gain per channel, a GatedNorm two thin matrices besides (gate
    sigmoid(silu(x D) U)); a latent has a norm of its own. The bias that balances experts is state, not a parameter.
    With it the hero recipe's 535,477,106,688 (marin issue #9277) comes out exactly; tests hold us to that.

    >>> from ladder.shape import MoeShape
    >>> counts = count_params(MoeShape(256, 64, 2, 16, 1, 1, 16, 8, 2, 16, 1, 16))
    >>> counts.nonembedding_active, counts.nonembedding_total, counts.total
    (6992, 16208, 24400)
    """
    d, layers, head_dim = shape.hidden, shape.layers, shape.head_dim
    expert = 3 * shape.expert_input * shape.expert_width
    latent = 2 * d * shape.latent_width
    stored_kv = shape.stored_kv_heads
    conv_channels = stored_kv * head_dim + 2 * d
    return ParamCounts(
        embedding=shape.vocab_size * d,
        head=d * shape.vocab_size,
        attention=layers * 2 * d * head_dim * (shape.heads + stored_kv),
        router=layers * d * shape.experts,
        routed_experts=layers * (shape.experts * expert + latent),
        routed_experts_active=layers * (shape.top_k * expert + latent),
        shared_experts=layers * shape.shared_experts * 3 * d * shape.shared_width,
        norms=shape.norms * d + layers * (shape.latent_width + 2 * head_dim * shape.attention.qk_gains),
        gates=layers * (d * shape.heads * shape.attention.gate + shape.short_conv * conv_channels)
        + shape.norms * 2 * d * shape.gated_norm_rank,
    )
