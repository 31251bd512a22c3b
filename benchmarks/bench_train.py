"""Time the CPU trainer's step: against Levanter's MoE path, and against this machine's matrix products.

    python -m benchmarks.bench_train

Levanter's side is the step of its Trainer on its `qwen3_moe` (benchmarks/levanter_step.py); ours is `train_chunk` of
models/train.py on a model of the same width, layers, heads, experts, top-k, expert width, vocabulary, sequence and batch,
without a shared expert, by Adam in float32 on both sides. Both have one process and all cores, and compilation is left
out. Rounds alternate. What differs: theirs is dropless and learns gains of its query and key norms; ours has 1.25 slots
per mean load. Prints one line of JSON:

    levanter_ratio   our tokens per second over theirs, median of the rounds
    peak_fraction    by width, on one core as the worker pool runs: model FLOPs by MATMUL_FULL (three forward passes, full
                     attention, head included) per second over float32 products of 1024 measured beside them
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ladder.flops import FlopConvention, training_flops_per_token
from ladder.recipe_interface import OptimizerPlan, RouterPlan, Schedule
from ladder.rung import Role, Rung
from ladder.shape import MoeShape

BATCH, STEPS, WARM = 8, 8, 2  # sequences; steps timed; steps before
ROUNDS = 3
BESIDE = MoeShape(1024, 256, 4, 128, 4, 4, 32, 8, 2, 128, 0, 0)
# As in the study that reached 33 and 45 % of peak: 16 experts of width d, one shared expert of width d.
WIDTHS = {d: MoeShape(1024, 256, 4, d, 4, 4, d // 4, 16, 2, d, 1, d) for d in (128, 256)}
OPTIMIZER = OptimizerPlan("adam", 1e-3, 1e-3, 0.9, 0.95, 1e-8, 1.0, 1e-4)


def rung_of(shape: MoeShape) -> Rung:
    """Return a rung of `shape` as both sides train it: softmax routing rescaled to 1, balanced by nothing."""
    return Rung(
        recipe="bench",
        role=Role.FIT,
        budget=STEPS * BATCH * shape.seq_len * training_flops_per_token(shape, FlopConvention.MATMUL_FULL),
        flop_convention=FlopConvention.MATMUL_FULL,
        shape=shape,
        batch_seqs=BATCH,
        steps=STEPS,
        optimizer=OPTIMIZER,
        schedule=Schedule(0.1, 0.3, 0.0),
        capacity_factor=1.25,
        seeds=(0,),
        router=RouterPlan("none", "", 0, 1.0, 0.0, "softmax"),
    )


def own_seconds(shape: MoeShape) -> dict[str, float]:
    """Return the seconds of a step in this process, and the FLOP/s of its matrix products."""
    import jax.numpy as jnp
    import numpy as np

    from models.experts import capacity
    from models.groups import Method
    from models.train import Hyperparams, full_chunk, initial_state, train_chunk
    from models.worker_setup import measured_peak

    rung = rung_of(shape)
    rows = np.random.default_rng(0).integers(0, shape.vocab_size, (STEPS + WARM, BATCH, shape.seq_len + 1))
    state = initial_state(shape, jnp.int32(0), rung.router, Method.of(rung.optimizer))
    hyper = Hyperparams.of(rung)._replace(steps=jnp.int32(STEPS + WARM))
    slots = capacity(shape, rung.capacity_factor, rung.batch_tokens)
    batches = jnp.asarray(full_chunk(rows.astype(np.uint16)))
    state, _ = train_chunk(state, batches, hyper, jnp.int32(WARM), slots)
    peak = measured_peak()
    start = time.perf_counter()
    state, metrics = train_chunk(state, batches, hyper, jnp.int32(WARM + STEPS), slots)
    loss = float(metrics.loss[STEPS - 1])
    return {"seconds": (time.perf_counter() - start) / STEPS, "peak": peak, "loss": loss}


def _child(arguments: list[str], one_core: bool) -> dict[str, Any]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if one_core:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    command = [sys.executable, "-m", *arguments]
    if one_core and hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0))
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {core})
        )
    else:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(arguments)} failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    """Run the rounds and print the document."""
    parser = argparse.ArgumentParser(description="Time the CPU trainer's step.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="not needed; there for uniformity")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--own", default="", help="time our step of this shape in this process: beside, 128 or 256")
    arguments = parser.parse_args()
    if arguments.own:
        shape = BESIDE if arguments.own == "beside" else WIDTHS[int(arguments.own)]
        print(json.dumps(own_seconds(shape)))
        return
    if find_spec("levanter") is None:
        raise SystemExit("Levanter is not installed, so there is nothing to compare with; run `make setup-tpu`.")
    tokens = BATCH * BESIDE.seq_len
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shape.json")
        names = (
            "vocab_size",
            "seq_len",
            "layers",
            "hidden",
            "heads",
            "kv_heads",
            "head_dim",
            "experts",
            "top_k",
            "expert_width",
        )
        asked = {name: getattr(BESIDE, name) for name in names}
        path.write_text(json.dumps({**asked, "batch_seqs": BATCH, "steps": STEPS + WARM}))
        for _ in range(arguments.rounds):
            theirs.append(tokens / statistics.median(_child(["benchmarks.levanter_step", str(path)], False)["seconds"]))
            ours.append(tokens / _child(["benchmarks.bench_train", "--own", "beside"], False)["seconds"])
    fractions: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(arguments.rounds):
        for width, shape in WIDTHS.items():
            found = _child(["benchmarks.bench_train", "--own", str(width)], True)
            flops = BATCH * shape.seq_len * training_flops_per_token(shape, FlopConvention.MATMUL_FULL)
            fractions[width].append(flops / found["seconds"] / found["peak"])
    document = {
        "levanter_ratio": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 2),
        "peak_fraction": {str(width): round(statistics.median(each), 3) for width, each in fractions.items()},
        "tokens_per_second": [round(each) for each in ours],
        "levanter_tokens_per_second": [round(each) for each in theirs],
        "peak_fractions": {str(width): [round(one, 3) for one in each] for width, each in fractions.items()},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
