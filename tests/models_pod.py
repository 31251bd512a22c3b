"""Shapes that turn on every part of the model, for tests of a pod's step."""

from dataclasses import replace

from ladder.attention import AttentionPattern
from ladder.recipe_interface import RouterPlan
from ladder.shape import MoeShape

MOE = MoeShape(
    vocab_size=256,
    seq_len=32,
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    experts=8,
    top_k=2,
    expert_width=16,
    shared_experts=1,
    shared_width=32,
    gated_norm_rank=4,
    embedding_norm=True,
    attention=AttentionPattern(window=12, global_every=2, gate=True, exclusive=True),
)
HERO = replace(
    MOE,
    shared_experts=2,
    shared_width=16,
    latent_width=16,
    short_conv=3,
    attention=AttentionPattern(
        window=12,
        last_global=True,
        global_kv_heads=1,
        rope_fraction=0.5,
        global_rope=False,
        key_offset=True,
        gate=True,
        exclusive=True,
    ),
)
DENSE = replace(MOE, experts=0, top_k=0, expert_width=0, attention=AttentionPattern(qk_gains=True))
ROUTERS = {
    "topk": RouterPlan("quantile", "topk", 0, 2.5, 1e-3),
    "histogram": RouterPlan("quantile", "histogram", 500, 0.0, 0.0),
    "auxiliary": RouterPlan("auxiliary", "", 0, 0.0, 1e-3, "softmax", 0.01),
}
