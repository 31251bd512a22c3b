"""Levanter's own training step of an MoE of its `qwen3_moe`, timed: `python -m benchmarks.levanter_step SHAPE.json`.

The step is the one that Levanter's Trainer builds and `train_lm` runs: the same loss function, Adam, mesh of one CPU.
Prints one line of JSON with the seconds of each step after the first two, which compile.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "WANDB_MODE": "disabled"}

import haliax as hax
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
from levanter.models.lm_model import LmExample
from levanter.models.qwen3_moe import Qwen3MoeConfig
from levanter.optim.config import AdamConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig


def main(path: Path) -> None:
    """Time the steps that the shape in `path` asks for."""
    asked = json.loads(path.read_text())
    model = Qwen3MoeConfig(
        max_seq_len=asked["seq_len"],
        hidden_dim=asked["hidden"],
        intermediate_dim=asked["expert_width"],
        moe_intermediate_dim=asked["expert_width"],
        num_layers=asked["layers"],
        num_heads=asked["heads"],
        num_kv_heads=asked["kv_heads"],
        head_dim=asked["head_dim"],
        num_experts=asked["experts"],
        num_experts_per_tok=asked["top_k"],
        router_aux_loss_coef=None,
        gradient_checkpointing=False,
    )
    tokens = np.random.default_rng(0).integers(
        0, asked["vocab_size"], (asked["steps"], asked["batch_seqs"], asked["seq_len"])
    )
    with tempfile.TemporaryDirectory() as folder:
        config = TrainerConfig(
            id="bench",
            tracker=NoopConfig(),
            require_accelerator=False,
            num_train_steps=asked["steps"],
            train_batch_size=asked["batch_seqs"],
            log_dir=Path(folder),
        )
        config.initialize()
        optimizer = AdamConfig(learning_rate=1e-3, weight_decay=0.0).build(asked["steps"])

        def loss(model: Any, example: LmExample, *, key: Any = None) -> Any:
            return model.compute_next_token_loss(example, key=key, logsumexp_weight=1e-4)

        with Trainer(config, optimizer, loss) as trainer:
            pos, batch = hax.Axis("position", asked["seq_len"]), hax.Axis("batch", asked["batch_seqs"])
            vocab = hax.Axis("vocab", asked["vocab_size"])
            state = trainer.initial_state(
                jrandom.PRNGKey(0), model_init=lambda: model.build(vocab, key=jrandom.PRNGKey(1))
            )
            seconds, last = [], 0.0
            for step in range(asked["steps"]):
                rows = hax.named(jnp.asarray(tokens[step], jnp.int32), (batch, pos))
                weight = hax.broadcast_axis(LmExample.causal_loss_mask(pos).astype(jnp.float32), batch)
                example = LmExample(rows, weight)
                start = time.perf_counter()
                found = trainer.train_step(state, example)
                state, last = found.state, float(found.loss)
                seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds[2:], "loss": last}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
