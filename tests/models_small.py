"""A small model, corpus and rung that the tests of models/ share."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from ladder.flops import FlopConvention
from ladder.recipe import OptimizerPlan, RouterPlan, Schedule
from ladder.rung import Role, Rung
from ladder.shape import MoeShape
from models.cache_writer import CacheWriter
from models.transformer import Transformer

SHAPE = MoeShape(
    vocab_size=256,
    seq_len=16,
    layers=2,
    hidden=12,
    heads=4,
    kv_heads=2,
    head_dim=4,
    experts=6,
    top_k=2,
    expert_width=10,
    shared_experts=1,
    shared_width=14,
)


def small_model(seed: int = 0, shape: MoeShape = SHAPE) -> Transformer:
    """A model with fresh weights."""
    return Transformer.init(shape, key=jax.random.key(seed))


def small_rung(steps: int = 40, **changes: object) -> Rung:
    """A rung that trains in seconds; `changes` replace fields."""
    optimizer = OptimizerPlan("adamh", 0.02, 0.05, 0.9, 0.95, 1e-8, 1.0, 1e-4)
    rung = Rung(
        recipe="tiny-cpu",
        role=Role.FIT,
        budget=10**8,
        flop_convention=FlopConvention.MATMUL_FULL,
        shape=SHAPE,
        batch_seqs=4,
        steps=steps,
        optimizer=optimizer,
        schedule=Schedule(0.1, 0.3, 0.0),
        capacity_factor=1.5,
        seeds=(0,),
        router=RouterPlan("quantile", "topk", 0, 2.0, 0.0),
    )
    return replace(rung, **changes)


def write_corpus(folder: Path, train_bytes: int = 60_000) -> Path:
    """Write a corpus of English-like text, the same at each call, and return its folder."""
    rng = np.random.default_rng(7)
    words = [bytes(rng.integers(97, 123, size=rng.integers(2, 8)).astype(np.uint8)) for _ in range(200)]
    with CacheWriter(folder) as writer:
        for name, size in (("train", train_bytes), ("validation", 9_000), ("test", 9_000)):
            data = b""
            while len(data) < size:
                data += words[int(rng.zipf(1.4)) % len(words)] + b" "
            writer.add(name, np.frombuffer(data[: size - 1], np.uint8), size - 1)
        writer.finish({"words": "1"})
    return folder


WORDS = ["der", "Äther", "naïve", "你好", "tensor", "<|endoftext|>", "🙂", "x = 1\n", "    return", "zero\0byte", "ﬁ"]


def random_documents(seed: int, count: int) -> list[str]:
    """Return texts that try a tokenizer, all different."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(20, 60))) for _ in range(count)]
