"""The benchmark of training counts what the ladder counts, and its own side runs the trainer's step."""

import pytest

from benchmarks.bench_train import BATCH, BESIDE, WIDTHS, own_seconds, rung_of
from ladder.flops import FlopConvention, training_flops_per_token
from ladder.shape import MoeShape
from models.support import check_trainable


@pytest.mark.parametrize("shape", [BESIDE, *WIDTHS.values()], ids=lambda shape: str(shape.hidden))
def test_the_flops_of_a_token_are_those_of_its_products(shape: MoeShape) -> None:
    """By hand: 6 per weight in use, 12 S d per layer for the map and 9 S H for its softmax."""
    d, layers, seq = shape.hidden, shape.layers, shape.seq_len
    expert = 3 * d * shape.expert_width
    weights = layers * (4 * d * d + d * shape.experts + (shape.top_k + shape.shared_experts) * expert)
    flops = 6 * (weights + d * shape.vocab_size) + layers * seq * (12 * d + 9 * shape.heads)
    assert training_flops_per_token(shape, FlopConvention.MATMUL_FULL) == flops
    rung = rung_of(shape)
    assert rung.batch_seqs == BATCH
    check_trainable(rung)


def test_its_own_side_trains() -> None:
    found = own_seconds(MoeShape(64, 8, 1, 8, 2, 2, 4, 4, 2, 8, 0, 0))
    assert found["seconds"] > 0
    assert found["peak"] > 1e8
    assert 1 < found["loss"] < 6  # random tokens of 64
