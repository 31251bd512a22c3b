"""One run: a rung and a seed, trained to the end or to where it diverged, resumable, never repeated.

runs/<run_id>/spec.json       what is run; its digest ties checkpoints and record to it
runs/<run_id>/metrics.jsonl   loss, norms, load by step; the same bytes whether the run was interrupted or not
runs/<run_id>/times.jsonl     where the time went; what differs from one machine and interruption to the next
runs/<run_id>/checkpoints/    last two states, and the permanent ones
runs/<run_id>/record.json     the outcome, written once, at the end
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ladder.errors import InputError, StorageError
from ladder.provenance import provenance, utc_now
from ladder.records import canonical_json, read_json, to_plain, write_atomic
from ladder.rung import Rung
from ladder.runs import RunStatus
from models.branch import RunOptions, Trunk
from models.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint, trunk_checkpoint
from models.data import Batches, Corpus
from models.evaluate import evaluate_all
from models.experts import capacity
from models.groups import Method
from models.metrics_log import StepTimes, append_lines, logged
from models.record import RECORD_SCHEMA, DataUse, Progress, RunRecord, read_record, spec_digest
from models.run_files import remove_leftovers
from models.run_lock import cores_here, run_lock
from models.support import check_trainable
from models.tracker import Tracker, open_tracker
from models.train import CHUNK, Hyperparams, TrainState, full_chunk, initial_state, tail_steps, train_chunk

SPEC_SCHEMA = "run-spec/1"
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
    return spec_digest(rung.rung_id, seed, corpus_sha256), str(there["started_at"])


def _resume(folder: Path, spec_sha256: str, fresh: TrainState, trunk: Trunk | None, corpus_sha256: str) -> Checkpoint:
    """Return the checkpoint to go on from, or the trunk's, or the start, with metrics.jsonl cut back to it."""
    metrics = folder / "metrics.jsonl"
    remove_leftovers(folder)
    data = metrics.read_bytes() if metrics.exists() else b""
    checkpoint = latest_checkpoint(folder, spec_sha256, fresh, len(data))
    if checkpoint is None and trunk is not None:
        checkpoint = trunk_checkpoint(trunk, fresh, corpus_sha256)
    checkpoint = checkpoint or Checkpoint(fresh, 0)
    write_atomic(metrics, data[: checkpoint.metrics_bytes])
    return checkpoint


def train_run(
    rung: Rung,
    seed: int,
    folder: Path,
    corpus: Corpus,
    *,
    peak_flops: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    options: RunOptions | None = None,
) -> RunRecord:
    """Train `rung` with `seed` in `folder` and return the record; a run with a record is not repeated.

    Arguments:
        corpus: the text, shared by the runs of a process.
        peak_flops: measured float32 matrix-product speed of this core, FLOP/s.
        progress: called after every chunk.
        options: what is kept, where the run begins, who else is told.

    Raises InputError when the corpus does not do for the rung (`Mixture.check`), when the folder holds another run, and
    when the rung asks for what this trainer does not do; BusyError when another process trains the run; StorageError
    when something cannot be written, after which the run goes on from its last checkpoint.
    """
    if (folder / "record.json").exists():
        return read_record(folder / "record.json")
    options = options or RunOptions()
    check_trainable(rung)
    corpus.mixture.check(rung)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock(folder), open_tracker(options.tracker, folder, rung, seed) as tracker:
            return _train(rung, seed, folder, corpus, peak_flops, progress, options, tracker)
    except OSError as error:
        raise StorageError(
            f"run {rung.run_id(seed)} cannot write to {folder} ({error.strerror or error}); mend that and give the same "
            "command again: the run goes on from its last checkpoint."
        ) from error


def _train(
    rung: Rung,
    seed: int,
    folder: Path,
    corpus: Corpus,
    peak_flops: float | None,
    progress: Callable[[Progress], None] | None,
    options: RunOptions,
    tracker: Tracker,
) -> RunRecord:
    run_id, mixture = rung.run_id(seed), corpus.mixture
    spec_sha256, started_at = _start(folder, rung, seed, mixture.sha256)
    fresh = initial_state(rung.shape, jnp.int32(seed), rung.router, Method.of(rung.optimizer))
    begun = _resume(folder, spec_sha256, fresh, options.trunk, mixture.sha256)
    state, watch = begun.state, begun.watch
    batches = Batches(corpus, rung, seed)
    separator = None if mixture.separator is None else jnp.int32(mixture.separator)
    hyper, slots = Hyperparams.of(rung), capacity(rung.shape, rung.capacity_factor, rung.batch_tokens)
    permanent = options.kept_steps(rung)
    times = StepTimes(folder / "times.jsonl", cores_here())

    finite, timed_steps, timed_seconds, first_seconds, saved = True, 0, 0.0, 0.0, time.monotonic()
    while finite and (first := int(state.step)) < rung.steps:
        start = time.monotonic()
        last = min(rung.steps, first + (CHUNK if first_seconds else 8))  # a short first chunk tells compilation apart
        last = min([last, *(step for step in permanent if step > first)])
        with times.part("data"):
            rows = jnp.asarray(full_chunk(batches.at(first, last)))
        with times.part("step" if first_seconds else "compile"):
            state, metrics = train_chunk(state, rows, hyper, jnp.int32(last), slots, separator)
            done = int(state.step) - first
        seconds = time.monotonic() - start
        if first_seconds:
            timed_steps, timed_seconds = timed_steps + done, timed_seconds + seconds
        else:
            first_seconds = seconds
        speed = timed_steps * rung.batch_tokens / timed_seconds if timed_seconds else None
        achieved = speed * rung.compute / rung.tokens if speed else None
        fraction = achieved / peak_flops if achieved and peak_flops else None
        with times.part("metrics"):
            losses = np.asarray(metrics.loss)[:done]
            finite = math.isfinite(losses[-1])
            watch = watch.after(first, losses if finite else losses[:-1])
            lines = logged(first, metrics, done, rung.steps)
            written = append_lines(folder / "metrics.jsonl", lines)
            tracker.log(lines, {"tokens_per_second": speed, "mfu": fraction})
        keep = finite and last in permanent
        if keep or (finite and (time.monotonic() - saved > CHECKPOINT_SECONDS or last == rung.steps)):
            with times.part("checkpoint"):
                checkpoint = Checkpoint(state, written, watch, begun.branch)
                save_checkpoint(folder, spec_sha256, checkpoint, permanent=keep)
            saved = time.monotonic()
        times.write(int(state.step), done, speed, fraction)
        if progress:
            shown = math.nan if speed is None else speed
            progress(Progress(run_id, int(state.step), rung.steps, float(losses[-1]), shown))

    evaluations = {}
    if finite:
        with times.part("evaluate"):
            evaluations = evaluate_all(state.params, state.bias, corpus)
        times.write(int(state.step), 0, None, None)
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
        losses=watch.report(),
        branch=begun.branch,
    )
    tracker.summary(record)
    write_atomic(folder / "record.json", canonical_json({"schema": RECORD_SCHEMA, **to_plain(record)}))
    return record
