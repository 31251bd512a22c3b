"""Counts and FLOPs against independent formulas and published numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import FlopConvention, forward_flops_per_token, training_flops_per_token
from ladder.shape import MoeShape


def v16(hidden: int, layers: int, kv_heads: int, expert_width: int) -> MoeShape:
    """A shape of the Marin v16 recipe: 64 experts, top-4, one shared expert of width d, Llama-3 vocabulary."""
    return MoeShape(128256, 4096, layers, hidden, hidden // 128, kv_heads, 128, 64, 4, expert_width, 1, hidden)


def test_counts_equal_the_published_1e23_run() -> None:
    counts = count_params(v16(5120, 48, 10, 2560))
    # marin_moe (a): 129.05B total and 15.80B active, printed without norms
    assert round((counts.total - counts.norms) / 1e9, 2) == 129.05
    assert round((counts.active - counts.norms) / 1e9, 2) == 15.80


def test_flops_equal_the_marin_formula() -> None:
    shape = v16(1024, 11, 2, 512)
    d, h, kv, m, E, K, S, V = 1024, 8, 2, 512, 64, 4, 4096, 128256
    body = 11 * (6 * d * m * K + 6 * d * d + 2 * d * E + 2 * d * (h + 2 * kv) * 128 + 2 * d * d)
    expected = body + 11 * S * (4 * d + 3 * h) + 2 * d * V
    assert forward_flops_per_token(shape).total == expected
    assert training_flops_per_token(shape, FlopConvention.MATMUL_FULL) == 3 * expected
    assert training_flops_per_token(shape, FlopConvention.MATMUL_NO_HEAD) == 3 * (expected - 2 * d * V)


@given(
    layers=st.integers(1, 6),
    hidden=st.integers(1, 64),
    kv=st.integers(1, 4),
    group=st.integers(1, 4),
    half_head=st.integers(1, 16),
    experts=st.integers(1, 16),
    width=st.integers(1, 64),
    shared=st.integers(0, 3),
    data=st.data(),
)
def test_parts_add_up_for_any_shape(layers, hidden, kv, group, half_head, experts, width, shared, data) -> None:
    top_k = data.draw(st.integers(1, experts))
    shape = MoeShape(
        256, 32, layers, hidden, kv * group, kv, 2 * half_head, experts, top_k, width, shared, width if shared else 0
    )
    counts = count_params(shape)
    matrices = 4 * hidden * half_head * kv * (group + 1) + hidden * experts + 3 * hidden * width * (experts + shared)
    assert counts.total == layers * matrices + 2 * 256 * hidden + (2 * layers + 1) * hidden
    assert counts.active == counts.total - layers * (experts - top_k) * 3 * hidden * width
    # every matrix but the embedding multiplies once per token: 2 FLOPs a parameter in use
    flops = forward_flops_per_token(shape)
    used = counts.active - counts.embedding - counts.norms
    assert flops.matmuls - flops.attention_map == 2 * used


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 9}, "top_k=9 is larger than experts=8"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
        ({"hidden": 0}, "hidden=0 must be at least 1"),
        ({"shared_width": 0}, "shared_width is 0 exactly when"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    good = {
        "vocab_size": 256,
        "seq_len": 64,
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "experts": 8,
        "top_k": 2,
        "expert_width": 64,
        "shared_experts": 1,
        "shared_width": 64,
    }
    MoeShape(**good)
    with pytest.raises(InputError, match=message):
        MoeShape(**{**good, **change})
