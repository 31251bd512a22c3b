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

from ladder.errors import StorageError
from ladder.records import write_atomic
from ladder.rung import Rung
from models.branch import RunOptions, Trunk
from models.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint, trunk_checkpoint
from models.data import Batches, Corpus
from models.evaluate import evaluate_all
from models.experts import capacity
from models.groups import Method
from models.metrics_log import StepTimes, append_lines, logged
from models.outcome import Outcome, record_of, start_run, write_record
from models.record import Progress, RunRecord, read_record
from models.run_files import remove_leftovers
from models.run_lock import cores_here, run_lock
from models.support import check_trainable
from models.tracker import Tracker, open_tracker
from models.train import CHUNK, Hyperparams, TrainState, full_chunk, initial_state, train_chunk

CHECKPOINT_SECONDS = 5.0  # at most this much work is lost to a kill, besides one chunk


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
    spec_sha256, started_at = start_run(folder, rung, seed, mixture.sha256)
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
    record = record_of(
        rung,
        seed,
        corpus,
        Outcome(
            state=state,
            evaluations=evaluations,
            started_at=started_at,
            spec_sha256=spec_sha256,
            tokens_per_second=timed_steps * rung.batch_tokens / timed_seconds if timed_seconds else None,
            first_seconds=first_seconds,
            device=jax.devices()[0].device_kind,
            peak_flops=peak_flops,
            watch=watch,
            branch=begun.branch,
        ),
    )
    tracker.summary(record)
    write_record(folder, record)
    return record
