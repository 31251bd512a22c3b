"""The shape of a decoder-only transformer, dense or Mixture-of-Experts: all that decides counts and FLOPs."""

from dataclasses import dataclass

from ladder.attention import PLAIN_ATTENTION, AttentionPattern
from ladder.errors import InputError


@dataclass(frozen=True)
class MoeShape:
    """Dimensions of one model. All layers are alike; embedding and head are untied; there are no biases.

    A dense model has no routed experts (`experts`, `top_k` and `expert_width` 0): its MLP is the one shared expert.

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
        latent_width: width of the latent in which routed experts live, reached by one projection down and one up per
            layer (LatentMoE); 0 when they read the residual stream itself.
        gated_norm_rank: rank of the gate that follows each norm of the residual stream (GatedNorm); 0 for none.
        embedding_norm: whether the embedding is normalised.
        short_conv: length of the causal depthwise convolutions on keys, attention output and MLP output; 0 for none.
        attention: windows, positions and gates of attention.

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
    latent_width: int = 0
    gated_norm_rank: int = 0
    embedding_norm: bool = False
    short_conv: int = 0
    attention: AttentionPattern = PLAIN_ATTENTION

    def __post_init__(self) -> None:
        for name in ("vocab_size", "seq_len", "layers", "hidden", "heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("experts", "top_k", "expert_width", "latent_width", "gated_norm_rank", "short_conv"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must not be negative.")
        self._check_experts()
        for name, kv_heads in (("kv_heads", self.kv_heads), ("global_kv_heads", self.attention.global_kv_heads)):
            if kv_heads and self.heads % kv_heads:
                raise InputError(f"{name}={kv_heads} does not divide heads={self.heads}; use a divisor of it.")
        if self.head_dim % 2:
            raise InputError(f"head_dim={self.head_dim} is odd, but RoPE rotates pairs; use {self.head_dim + 1}.")

    def _check_experts(self) -> None:
        if self.top_k > self.experts:
            raise InputError(f"top_k={self.top_k} is larger than experts={self.experts}; use at most {self.experts}.")
        if (self.experts > 0) != (self.top_k > 0) or (self.experts > 0) != (self.expert_width > 0):
            raise InputError(
                f"experts={self.experts}, top_k={self.top_k} and expert_width={self.expert_width} do not fit together; "
                "all are positive, or all 0 for a dense model."
            )
        if self.shared_experts < 0 or (self.shared_experts > 0) != (self.shared_width > 0):
            raise InputError(
                f"shared_experts={self.shared_experts} and shared_width={self.shared_width} do not fit together; "
                "shared_width is 0 exactly when there is no shared expert."
            )
        if not self.experts and (self.latent_width or not self.shared_experts):
            raise InputError(
                "a dense model (experts=0) has its MLP as shared expert and no latent; set shared_experts=1 and "
                "shared_width to the width of the MLP, and latent_width=0."
            )

    @property
    def dense(self) -> bool:
        """Whether there are no routed experts."""
        return self.experts == 0

    @property
    def expert_input(self) -> int:
        """Width that routed experts read and write: the latent's, or that of the residual stream."""
        return self.latent_width or self.hidden

    @property
    def stored_kv_heads(self) -> int:
        """Key and value heads held per layer: the larger of the local and the global number."""
        return max(self.kv_heads, self.attention.global_kv_heads)

    @property
    def kv_heads_in_use(self) -> int:
        """Key and value heads in use, summed over layers."""
        if not self.attention.global_kv_heads:
            return self.layers * self.kv_heads
        on_global = self.attention.global_layers(self.layers)
        return (self.layers - on_global) * self.kv_heads + on_global * self.attention.global_kv_heads

    @property
    def keys_in_window(self) -> int:
        """Keys a query sees where windows are honoured, summed over layers; the causal half is not taken off."""
        on_global = self.attention.global_layers(self.layers)
        window = min(self.seq_len, self.attention.window)
        return on_global * self.seq_len + (self.layers - on_global) * window

    @property
    def norms(self) -> int:
        """Norms of the residual stream: two per layer, one before the head and, where there is one, the embedding's."""
        return 2 * self.layers + 1 + self.embedding_norm

    @property
    def sparsity(self) -> float:
        """Share of routed experts that a token does not use, 1 - K/E; 0 for a dense model."""
        return 1 - self.top_k / self.experts if self.experts else 0.0
