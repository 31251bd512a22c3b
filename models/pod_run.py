"""One run of a rung on the devices of a pod: sharded state, one dispatch a step, checkpoints of Orbax.

Every process of the pod calls this with the same arguments; the first one keeps the records. The folder is that of any
run (`models.run`), but for checkpoints that hold the shards of all processes. Runs go on from the newest sound one, on
any number of devices.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from ladder.chips import Chip
from ladder.errors import InputError
from ladder.records import write_atomic
from ladder.rung import Rung
from models.data import EVAL_TOKENS, Batches, Corpus
from models.evaluate import with_macro_means
from models.groups import Method
from models.loss_watch import LossWatch
from models.mesh import check_mesh, place_rows, shardings
from models.metrics_log import append_lines, logged
from models.mixture import Documents
from models.outcome import Outcome, record_of, start_run, write_record
from models.pod_checkpoint import restore_pod, save_pod
from models.pod_evaluate import evaluate_on_pod
from models.pod_layers import PodOptions
from models.pod_step import jitted_step
from models.record import Evaluation, Progress, RunRecord, read_record
from models.run_lock import run_lock
from models.support import check_trainable
from models.train import Hyperparams, Metrics, TrainState, initial_state

SAVE_SECONDS = 900.0  # between checkpoints: at most this much of a pod's time is lost
LOGGED_TOGETHER = 16  # steps whose metrics are fetched at once, so that dispatches overlap


@dataclass(frozen=True)
class PodRun:
    """How a run is made on a pod.

    Attributes:
        mesh: of all devices of all processes.
        options: how the step is computed.
        chip: whose peak gives the utilisation; None where it is not known.
        save_seconds: between checkpoints.
        stop_at: step at which this call ends early, with a checkpoint; None for the end of the run.
    """

    mesh: Mesh
    options: PodOptions
    chip: Chip | None = None
    save_seconds: float = SAVE_SECONDS
    stop_at: int | None = None


def sharded_state(rung: Rung, seed: int, mesh: Mesh) -> TrainState:
    """Return the state before the first step, each device having drawn its own shards."""
    method = Method.of(rung.optimizer)

    def fresh() -> TrainState:
        state: TrainState = initial_state(rung.shape, jnp.int32(seed), rung.router, method)
        return state

    # Drawn under a mesh whose axes the compiler propagates, from the shards backwards; explicit axes would have every
    # device draw all of it.
    automatic = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    places: Any = shardings(jax.eval_shape(fresh), mesh)
    drawn = jax.jit(fresh, out_shardings=jax.tree.map(lambda place: NamedSharding(automatic, place.spec), places))()
    state: TrainState = jax.tree.map(jax.device_put, drawn, places)
    return state


def train_on_pod(
    rung: Rung,
    seed: int,
    folder: Path,
    corpus: Corpus,
    how: PodRun,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> RunRecord | None:
    """Train `rung` with `seed` in `folder` and return the record, or None where `how.stop_at` ended it before.

    Raises InputError when the corpus does not do for the rung, when its mixture keeps documents apart, which a pod does
    not, when the mesh does not divide the rung, and when the folder holds another run; BusyError when another process
    trains the run; StorageError when a checkpoint cannot be written.
    """
    if (folder / "record.json").exists():
        return read_record(folder / "record.json")
    check_trainable(rung)
    corpus.mixture.check(rung)
    if corpus.mixture.documents is Documents.SEPARATE:
        raise InputError("a pod attends across documents; give a mixture whose documents are packed.")
    check_mesh(rung.shape, how.mesh, rung.batch_seqs // how.options.accumulation)
    first = jax.process_index() == 0
    folder.mkdir(parents=True, exist_ok=True)
    with run_lock(folder) if first else nullcontext():
        return _train(rung, seed, folder, corpus, how, first, progress)


def _train(
    rung: Rung,
    seed: int,
    folder: Path,
    corpus: Corpus,
    how: PodRun,
    first: bool,
    progress: Callable[[Progress], None] | None,
) -> RunRecord | None:
    spec_sha256, started_at = start_run(folder, rung, seed, corpus.mixture.sha256)
    with jax.set_mesh(how.mesh):
        state = sharded_state(rung, seed, how.mesh)
        state = restore_pod(folder / "checkpoints", spec_sha256, state) or state
        watch = _cut_metrics(folder / "metrics.jsonl", int(state.step)) if first else LossWatch()
        ran = _steps(rung, seed, folder, corpus, how, _Ran(state, watch), spec_sha256, progress)
        if ran.finite and int(ran.state.step) < rung.steps:
            return None
        evaluations = _evaluations(ran.state, corpus, how) if ran.finite else {}
    outcome = Outcome(
        state=ran.state,
        evaluations=evaluations,
        started_at=started_at,
        spec_sha256=spec_sha256,
        tokens_per_second=ran.speed,
        first_seconds=ran.first_seconds,
        device=f"{how.mesh.size} x {how.mesh.devices.flat[0].device_kind}",
        peak_flops=how.chip.peak_flops / how.chip.devices * how.mesh.size if how.chip else None,
        watch=ran.watch,
    )
    record = record_of(rung, seed, corpus, outcome)
    if first:
        write_record(folder, record)
    return record


@dataclass(frozen=True)
class _Ran:
    """Where the steps have come to: state, losses watched, tokens per second, the first step's seconds."""

    state: TrainState
    watch: LossWatch
    speed: float | None = None
    first_seconds: float = 0.0
    finite: bool = True


def _steps(
    rung: Rung,
    seed: int,
    folder: Path,
    corpus: Corpus,
    how: PodRun,
    ran: _Ran,
    spec_sha256: str,
    progress: Callable[[Progress], None] | None,
) -> _Ran:
    """Make the steps up to the end, or to one whose loss is not finite."""
    batches, hyper, parts = Batches(corpus, rung, seed), Hyperparams.of(rung), how.options.accumulation
    step = jitted_step(rung, how.mesh, how.options)
    end = min(rung.steps, how.stop_at or rung.steps)
    done, pending, timed = int(ran.state.step), list[Metrics](), 0
    begun = saved = time.monotonic()
    while ran.finite and done < end:
        rows = batches.at(done, done + 1)[0].astype(np.int32).reshape(parts, rung.batch_seqs // parts, -1)
        state, metrics = step(ran.state, place_rows(rows, how.mesh, parts=True), hyper)
        ran, done = replace(ran, state=state), done + 1
        pending.append(metrics)
        if ran.first_seconds and len(pending) < LOGGED_TOGETHER and done < end:
            continue
        columns = [[float(value) for value in column] for column in zip(*pending, strict=True)]
        if ran.first_seconds:
            timed += len(pending)
            ran = replace(ran, speed=timed * rung.batch_tokens / (time.monotonic() - begun))
        else:
            ran, begun = replace(ran, first_seconds=time.monotonic() - begun), time.monotonic()
        together = Metrics(*(jnp.asarray(column) for column in columns))
        losses = np.array(columns[0])
        finite = bool(np.isfinite(losses).all())
        before = done - len(pending)
        ran = replace(ran, finite=finite, watch=ran.watch.after(before, losses[np.isfinite(losses)]))
        if jax.process_index() == 0:
            append_lines(folder / "metrics.jsonl", logged(before, together, len(pending), 0))  # every step
        pending = []
        if finite and (done == end or time.monotonic() - saved > how.save_seconds):
            save_pod(folder / "checkpoints", spec_sha256, ran.state)
            saved = time.monotonic()
        if progress:
            progress(Progress(rung.run_id(seed), done, rung.steps, float(losses[-1]), ran.speed or math.nan))
    return ran


def _evaluations(state: TrainState, corpus: Corpus, how: PodRun) -> dict[str, Evaluation]:
    found = {
        text.name: evaluate_on_pod(
            state.params, state.bias, text.tokens, EVAL_TOKENS[text.split], corpus.token_bytes, how.mesh, how.options
        )
        for text in corpus.held_out
    }
    return with_macro_means(found, corpus)


def _cut_metrics(path: Path, step: int) -> LossWatch:
    """Leave out of metrics.jsonl what was logged after `step`, and return what the losses before amount to."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    kept, losses = [], []
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:  # a kill cut the last line short
            break
        if said["step"] > step:
            break
        kept.append(line + b"\n")
        losses.append(said["loss"])
    if len(losses) < step:
        raise InputError(
            f"{path} has lost lines up to step {step} of the checkpoint; restore it, or start the run anew."
        )
    write_atomic(path, b"".join(kept))
    return LossWatch().after(0, np.array(losses))
