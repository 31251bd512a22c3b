"""Checkpoints of one run: whole or absent, tied to their configuration, and the newest sound one is found.

A file holds one line of JSON (configuration, step, length of the metrics at that time, what the losses amount to,
digest) and the leaves of the state. The last two are kept, `step-N.ckpt`, so that a damaged newest one costs a few
seconds and not the run; permanent ones, `kept-N.ckpt`, stay for good, and other runs may branch from them.
"""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ladder.errors import InputError
from ladder.records import canonical_json, from_plain, sha256_bytes, to_plain, write_atomic
from models.branch import Trunk
from models.loss_watch import LossWatch
from models.record import Branch, spec_digest
from models.run_files import PERMANENT, ROLLING, checkpoint_path, checkpoint_paths, step_of
from models.train import TrainState

SCHEMA = "checkpoint/3"
KEPT = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state, how many bytes metrics.jsonl had when it was taken, what the losses up to it amount to, the trunk."""

    state: TrainState
    metrics_bytes: int
    watch: LossWatch = field(default_factory=LossWatch)
    branch: Branch | None = None


def save_checkpoint(folder: Path, spec_sha256: str, checkpoint: Checkpoint, *, permanent: bool = False) -> None:
    """Write the checkpoint of the run in `folder` atomically; of those that are not permanent the last two stay.

    Raises OSError where it cannot be written; those that were there are there still.
    """
    body = io.BytesIO()
    eqx.tree_serialise_leaves(body, checkpoint.state)
    data = body.getvalue()
    step = int(checkpoint.state.step)
    head = {
        "schema": SCHEMA,
        "spec_sha256": spec_sha256,
        "step": step,
        "metrics_bytes": checkpoint.metrics_bytes,
        "watch": to_plain(checkpoint.watch),
        "branch": to_plain(checkpoint.branch),
        "sha256": sha256_bytes(data),
    }
    head["head_sha256"] = sha256_bytes(canonical_json(head))
    write_atomic(checkpoint_path(folder, step, permanent=permanent), canonical_json(head) + b"\n" + data)
    for old in checkpoint_paths(folder, ROLLING)[KEPT:]:
        old.unlink()


def _read_sound(path: Path) -> tuple[dict[str, Any], bytes] | None:
    line, _, data = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        whole = canonical_json(head)
        said = head.pop("head_sha256")
        # The bytes as well: a digit can change without changing the number that is read.
        sound = line == whole and head["schema"] == SCHEMA and said == sha256_bytes(canonical_json(head))
    except (ValueError, KeyError, TypeError, AttributeError, InputError):
        return None
    return (head, data) if sound and head["sha256"] == sha256_bytes(data) else None


def read_checkpoint(path: Path, spec_sha256: str, like: TrainState) -> Checkpoint | None:
    """Return the checkpoint in `path`, or None where it is damaged.

    Raises InputError where it is sound but belongs to another configuration or another version of the trainer.
    """
    found = _read_sound(path)
    if found is None:
        return None
    head, data = found
    if head["spec_sha256"] != spec_sha256:
        raise InputError(
            f"{path} belongs to another configuration (spec {head['spec_sha256'][:8]}, this run has "
            f"{spec_sha256[:8]}); give the run another folder, or remove this one to start it anew."
        )
    try:
        state = eqx.tree_deserialise_leaves(io.BytesIO(data), like)
    except (RuntimeError, ValueError, EOFError):
        raise InputError(
            f"{path} is sound, but holds other arrays than this version of the trainer keeps; go on with the version "
            "that wrote it, or remove the run's folder to start it anew."
        ) from None
    watch = from_plain(LossWatch, head["watch"], str(path))
    branch = from_plain(Branch, head["branch"], str(path)) if head["branch"] else None
    return Checkpoint(state, int(head["metrics_bytes"]), watch, branch)


def latest_checkpoint(folder: Path, spec_sha256: str, like: TrainState, metrics_bytes: int) -> Checkpoint | None:
    """Return the newest sound checkpoint of the run in `folder`, or None where there is none.

    Arguments:
        spec_sha256: digest of the run's specification; a checkpoint of another one raises InputError.
        like: a state of the same shape, whose leaves are replaced.
        metrics_bytes: length of metrics.jsonl; a checkpoint that counts on more of it is passed over.

    Raises InputError where checkpoints exist and none can be used: a run never starts over in silence.
    """
    paths = checkpoint_paths(folder)
    for path in paths:
        checkpoint = read_checkpoint(path, spec_sha256, like)
        if checkpoint and checkpoint.metrics_bytes <= metrics_bytes:
            return checkpoint
    if paths:
        raise InputError(
            f"every checkpoint in {folder / 'checkpoints'} is damaged, or counts on lines that metrics.jsonl has lost; restore them, or "
            "remove the run's folder to start it anew."
        )
    return None


def trunk_checkpoint(trunk: Trunk, fresh: TrainState, corpus_sha256: str) -> Checkpoint | None:
    """Return what a branch of `trunk` begins with, or None where the trunk has kept nothing up to that step.

    Sums over the tail of the trunk are cleared, and its metrics are not counted: they are in its own file. Raises
    InputError where the trunk was trained on another corpus.
    """
    digest = spec_digest(trunk.rung_id, trunk.seed, corpus_sha256)
    for path in checkpoint_paths(trunk.folder, PERMANENT):
        if step_of(path) <= trunk.step and (found := read_checkpoint(path, digest, fresh)):
            tail = (found.state.tail_loss, found.state.tail_drops)
            state = eqx.tree_at(lambda s: (s.tail_loss, s.tail_drops), found.state, tuple(map(jnp.zeros_like, tail)))
            return Checkpoint(state, 0, found.watch, Branch(trunk.run_id, step_of(path)))
    return None
