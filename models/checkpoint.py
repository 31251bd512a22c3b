"""Checkpoints of one run: whole or absent, tied to their configuration, and the newest sound one is found.

A file holds one line of JSON (configuration, step, length of the metrics at that time, digest) and the leaves of the
state. The last two are kept, so that a damaged newest one costs a few seconds and not the run.
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx

from ladder.errors import InputError
from ladder.records import canonical_json, sha256_bytes, write_atomic
from models.train import TrainState

SCHEMA = "checkpoint/2"
KEPT = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state and how many bytes metrics.jsonl had when it was taken."""

    state: TrainState
    metrics_bytes: int


def save_checkpoint(folder: Path, spec_sha256: str, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run atomically and remove all but the last two."""
    body = io.BytesIO()
    eqx.tree_serialise_leaves(body, checkpoint.state)
    data = body.getvalue()
    step = int(checkpoint.state.step)
    head = {
        "schema": SCHEMA,
        "spec_sha256": spec_sha256,
        "step": step,
        "metrics_bytes": checkpoint.metrics_bytes,
        "sha256": sha256_bytes(data),
    }
    write_atomic(folder / f"step-{step:010d}.ckpt", canonical_json(head) + b"\n" + data)
    for old in sorted(folder.glob("step-*.ckpt"))[:-KEPT]:
        old.unlink()


def _read(path: Path, spec_sha256: str, like: TrainState) -> Checkpoint | None:
    """Return the checkpoint in `path`, or None where it is damaged."""
    line, _, data = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        sound = head["schema"] == SCHEMA and head["sha256"] == sha256_bytes(data)
        found, metrics_bytes = head["spec_sha256"], int(head["metrics_bytes"])
    except (ValueError, KeyError, TypeError):
        return None
    if not sound:
        return None
    if found != spec_sha256:
        raise InputError(
            f"{path} belongs to another configuration (spec {str(found)[:8]}, this run has {spec_sha256[:8]}); "
            "give the run another folder, or remove this one to start it anew."
        )
    return Checkpoint(eqx.tree_deserialise_leaves(io.BytesIO(data), like), metrics_bytes)


def latest_checkpoint(folder: Path, spec_sha256: str, like: TrainState) -> Checkpoint | None:
    """Return the newest sound checkpoint in `folder`, or None where there is none.

    Arguments:
        spec_sha256: digest of the run's specification; a checkpoint of another one raises InputError.
        like: a state of the same shape, whose leaves are replaced.

    Raises InputError where checkpoints exist and all are damaged: a run never starts over in silence.
    """
    paths = sorted(folder.glob("step-*.ckpt"), reverse=True)
    for path in paths:
        if checkpoint := _read(path, spec_sha256, like):
            return checkpoint
    if paths:
        raise InputError(
            f"every checkpoint in {folder} is damaged; remove that folder to start the run anew, or restore it."
        )
    return None
