"""Exact parameter counts by group. Which group is called N is decided by the law, not here."""

from dataclasses import dataclass

from ladder.shape import MoeShape


@dataclass(frozen=True)
class ParamCounts:
    """Parameters of one model by group, as exact integers; the groups are disjoint and add up to `total`.

    `routed_experts` counts all E experts of every layer and `routed_experts_active` the K that a token uses.
    """

    embedding: int
    head: int
    attention: int
    router: int
    routed_experts: int
    routed_experts_active: int
    shared_experts: int
    norms: int

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

    Attention holds q, k, v and o without biases (QK norm has no gain); an expert is a SwiGLU of three matrices;
    each layer has two RMSNorm gains and the model one more before the head.

    >>> from ladder.shape import MoeShape
    >>> counts = count_params(MoeShape(256, 64, 2, 16, 1, 1, 16, 8, 2, 16, 1, 16))
    >>> counts.nonembedding_active, counts.nonembedding_total, counts.total
    (6992, 16208, 24400)
    """
    d, layers = shape.hidden, shape.layers
    expert = 3 * d * shape.expert_width
    return ParamCounts(
        embedding=shape.vocab_size * d,
        head=d * shape.vocab_size,
        attention=layers * 2 * d * shape.head_dim * (shape.heads + shape.kv_heads),
        router=layers * d * shape.experts,
        routed_experts=layers * shape.experts * expert,
        routed_experts_active=layers * shape.top_k * expert,
        shared_experts=layers * shape.shared_experts * 3 * d * shape.shared_width,
        norms=(2 * layers + 1) * d,
    )
