"""The shape of a decoder-only Mixture-of-Experts transformer: every dimension that decides counts and FLOPs."""

from dataclasses import dataclass

from ladder.errors import InputError


@dataclass(frozen=True)
class MoeShape:
    """Dimensions of one model. All layers are MoE layers; embedding and head are untied; there are no biases.

    Attributes:
        vocab_size: V, entries of the tokenizer.
        seq_len: S, tokens per training sequence.
        layers: L.
        hidden: d, width of the residual stream.
        heads: query heads; `heads * head_dim` may differ from `hidden`.
        kv_heads: key and value heads of grouped-query attention; divides `heads`.
        head_dim: width of one head, even (RoPE rotates pairs).
        experts: E, routed experts per layer.
        top_k: K, routed experts per token.
        expert_width: width of one routed SwiGLU expert.
        shared_experts: always-on experts per layer.
        shared_width: width of one shared expert.

    Raises InputError, naming the value and a remedy, when the dimensions do not fit together.
    """

    vocab_size: int
    seq_len: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    expert_width: int
    shared_experts: int
    shared_width: int

    def __post_init__(self) -> None:
        for name in ("vocab_size", "seq_len", "layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "top_k"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.expert_width < 1 or self.shared_experts < 0 or (self.shared_experts > 0) != (self.shared_width > 0):
            raise InputError(
                f"expert_width={self.expert_width}, shared_experts={self.shared_experts} and "
                f"shared_width={self.shared_width} do not fit together; widths must be positive and "
                "shared_width is 0 exactly when there is no shared expert."
            )
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}; use a divisor of it.")
        if self.head_dim % 2:
            raise InputError(f"head_dim={self.head_dim} is odd, but RoPE rotates pairs; use {self.head_dim + 1}.")
        if self.top_k > self.experts:
            raise InputError(f"top_k={self.top_k} is larger than experts={self.experts}; use at most {self.experts}.")

    @property
    def sparsity(self) -> float:
        """Share of routed experts that a token does not use, 1 - K/E."""
        return 1 - self.top_k / self.experts
