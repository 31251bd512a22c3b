"""One run: a rung and a seed, trained to the end or to where it diverged, resumable, never repeated.

runs/<run_id>/spec.json       what is run; its digest ties checkpoints and record to it
runs/<run_id>/metrics.jsonl   loss, norms, load by step; the same bytes whether the run was interrupted or not
runs/<run_id>/checkpoints/    last two states
runs/<run_id>/record.json     the outcome, written once, at the end
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ladder.errors import InputError
from ladder.provenance import provenance, utc_now
from ladder.records import canonical_json, read_json, sha256_bytes, to_plain, write_atomic
from ladder.rung import Rung
from ladder.runs import RunStatus
from models.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from models.data import Batches, Corpus
from models.evaluate import evaluate_all
from models.experts import capacity
from models.groups import Method
from models.record import RECORD_SCHEMA, DataUse, Progress, RunRecord, read_record
from models.support import check_trainable
from models.train import CHUNK, Hyperparams, Metrics, TrainState, full_chunk, initial_state, tail_steps, train_chunk

SPEC_SCHEMA = "run-spec/1"
LOGGED_STEPS = 200  # lines of metrics.jsonl, about
CHECKPOINT_SECONDS = 5.0  # at most this much work is lost to a kill, besides one chunk


def _start(folder: Path, rung: Rung, seed: int, corpus_sha256: str) -> tuple[str, str]:
    """Write spec.json where there is none and return the run's digest and first start; another run is refused."""
    # What decides the result, without remarks and without what only this ladder says of the rung.
    decided = {"rung_id": rung.rung_id, "seed": seed, "corpus_sha256": corpus_sha256}
    path = folder / "spec.json"
    if path.exists():
        there = read_json(path, SPEC_SCHEMA)
        found = {key: there.get("rung", {}).get(key) if key == "rung_id" else there.get(key) for key in decided}
        if found != decided:
            differs = next(key for key in decided if found[key] != decided[key])
            raise InputError(
                f"{folder} holds another run: its {differs} is {found[differs]}, asked for is {decided[differs]}. Use "
                "another study folder, or remove this one."
            )
    else:
        there = {"schema": SPEC_SCHEMA, "rung": rung.to_plain(), "seed": seed, "corpus_sha256": corpus_sha256}
        # Written before the first step and kept over kills: a forecast must precede the first start, not the last.
        there["started_at"] = utc_now()
        write_atomic(path, canonical_json(there))
    return sha256_bytes(canonical_json(decided)), str(there["started_at"])


def _append_metrics(path: Path, first: int, metrics: Metrics, done: int, every: int, last: int) -> int:
    """Append the logged ones of the `done` steps after `first` and return the file's length."""
    columns = [np.asarray(column)[:done] for column in metrics]
    lines = []
    for index in range(done):
        step = first + index + 1
        if step % every == 0 or step == last or not math.isfinite(columns[0][index]):
            values = {name: float(column[index]) for name, column in zip(Metrics._fields, columns, strict=True)}
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            lines.append(canonical_json({"step": step, **finite}) + b"\n")
    with path.open("ab") as file:
        file.write(b"".join(lines))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _resume(folder: Path, spec_sha256: str, fresh: TrainState) -> TrainState:
    """Return the state to go on from, with metrics.jsonl cut back to it."""
    metrics = folder / "metrics.jsonl"
    checkpoint = latest_checkpoint(folder / "checkpoints", spec_sha256, fresh)
    kept = checkpoint.metrics_bytes if checkpoint else 0
    data = metrics.read_bytes() if metrics.exists() else b""
    if len(data) < kept:
        raise InputError(f"{metrics} is shorter than at the last checkpoint; remove {folder} to start the run anew.")
    write_atomic(metrics, data[:kept])
    return checkpoint.state if checkpoint else fresh


def train_run(
    rung: Rung,
    seed: int,
    folder: Path,
    corpus: Corpus,
    *,
    peak_flops: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> RunRecord:
    """Train `rung` with `seed` in `folder` and return the record; a run with a record is not repeated.

    Arguments:
        corpus: the text, shared by the runs of a process.
        peak_flops: measured float32 matrix-product speed of this core, FLOP/s.
        progress: called after every chunk.

    Raises InputError when the corpus does not do for the rung (`Mixture.check`), when the folder holds another run, and
    when the rung asks for what this trainer does not do.
    """
    run_id = rung.run_id(seed)
    if (folder / "record.json").exists():
        return read_record(folder / "record.json")
    check_trainable(rung)
    mixture = corpus.mixture
    mixture.check(rung)
    folder.mkdir(parents=True, exist_ok=True)
    spec_sha256, started_at = _start(folder, rung, seed, mixture.sha256)
    state = _resume(
        folder, spec_sha256, initial_state(rung.shape, jnp.int32(seed), rung.router, Method.of(rung.optimizer))
    )
    batches = Batches(corpus, rung, seed)
    separator = None if mixture.separator is None else jnp.int32(mixture.separator)
    hyper, slots = Hyperparams.of(rung), capacity(rung.shape, rung.capacity_factor, rung.batch_tokens)
    every = max(1, rung.steps // LOGGED_STEPS)

    finite, timed_steps, timed_seconds, first_seconds, saved = True, 0, 0.0, 0.0, time.monotonic()
    loss = math.nan
    while finite and (first := int(state.step)) < rung.steps:
        start = time.monotonic()
        last = min(rung.steps, first + (CHUNK if first_seconds else 8))  # a short first chunk tells compilation apart
        rows = jnp.asarray(full_chunk(batches.at(first, last)))
        state, metrics = train_chunk(state, rows, hyper, jnp.int32(last), slots, separator)
        done = int(state.step) - first
        seconds = time.monotonic() - start
        if first_seconds:
            timed_steps, timed_seconds = timed_steps + done, timed_seconds + seconds
        else:
            first_seconds = seconds
        loss = float(metrics.loss[done - 1])
        finite = math.isfinite(loss)
        written = _append_metrics(folder / "metrics.jsonl", first, metrics, done, every, rung.steps)
        if finite and (time.monotonic() - saved > CHECKPOINT_SECONDS or last == rung.steps):
            save_checkpoint(folder / "checkpoints", spec_sha256, Checkpoint(state, written))
            saved = time.monotonic()
        if progress:
            speed = timed_steps * rung.batch_tokens / timed_seconds if timed_seconds else math.nan
            progress(Progress(run_id, int(state.step), rung.steps, loss, speed))

    evaluations = {}
    if finite:
        evaluations = evaluate_all(state.params, state.bias, corpus)
        finite = all(math.isfinite(evaluation.nats_per_token) for evaluation in evaluations.values())
    tail = int(tail_steps(jnp.int32(rung.steps)))
    measured = timed_steps * rung.batch_tokens / timed_seconds if timed_seconds else None
    achieved = measured * rung.compute / rung.tokens if measured else None
    record = RunRecord(
        run_id=run_id,
        rung_id=rung.rung_id,
        seed=seed,
        status=RunStatus.FINISHED if finite else RunStatus.DIVERGED,
        steps_done=int(state.step),
        started_at=started_at,
        finished_at=utc_now(),
        evaluations=evaluations if finite else {},
        train_loss=float(state.tail_loss) / tail if finite else None,
        drop_fraction=float(state.tail_drops) / tail if finite else None,
        tokens_per_second=measured,
        flops_per_second=achieved,
        peak_fraction=achieved / peak_flops if achieved and peak_flops else None,
        first_chunk_seconds=first_seconds,
        device=jax.devices()[0].device_kind,
        corpus_sha256=mixture.sha256,
        data=DataUse(
            mixture.tokenizer, mixture.unique_tokens(rung), mixture.epochs_of(rung), mixture.documents, corpus.eval_sets
        ),
        spec_sha256=spec_sha256,
        provenance=provenance(seed),
    )
    write_atomic(folder / "record.json", canonical_json({"schema": RECORD_SCHEMA, **to_plain(record)}))
    return record
