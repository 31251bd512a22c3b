"""Checkpoints of a state that is spread over many devices, by Orbax: each process writes the shards it holds.

A checkpoint is a folder, `step-N` or, for good, `kept-N`, that Orbax commits as a whole, and a seal, written last: the
digest of the run's specification and that of every file. A folder without a seal, or whose files are not those of the
seal, is damaged, and the one before is taken. Runs on one host have one small file instead (`models.checkpoint`): saving
a tiny state with Orbax takes some thirty times as long.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from ladder.errors import InputError, StorageError
from ladder.records import canonical_json, sha256_bytes, sha256_file, write_atomic
from models.run_files import PERMANENT, ROLLING, step_of
from models.train import TrainState

SCHEMA = "pod-checkpoint/1"
SEAL = "seal.json"
KEPT = 2


def _leaves(state: Any) -> dict[str, Any]:
    """Return the leaves by a name that does not depend on how the tree is flattened."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _paths(folder: Path, *kinds: str) -> list[Path]:
    found = [path for kind in kinds or (PERMANENT, ROLLING) for path in folder.glob(f"{kind}-*") if path.is_dir()]
    named = [path for path in found if path.name.partition("-")[2].isdigit()]  # Orbax's unfinished ones are not
    return sorted(named, key=lambda path: (step_of(path), path.name), reverse=True)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def save_pod(folder: Path, spec_sha256: str, state: TrainState, *, permanent: bool = False) -> Path:
    """Write the checkpoint of a run and return its folder; of those that are not permanent the last two stay.

    Every process of the pod calls this; the first one seals. Digesting reads what was written once more, at the speed
    of the file system. Raises StorageError where it cannot be written; those that were there are there still.
    """
    step = int(state.step)
    target = (folder / f"{PERMANENT if permanent else ROLLING}-{step:010d}").absolute()
    first = jax.process_index() == 0
    try:
        if first:
            unsealed = [path for path in _paths(folder) if not (path / SEAL).exists()]
            # Of writers that were killed; threads of a failed one may still write, then the next save removes the rest.
            for left in (*unsealed, *folder.glob("*.orbax-checkpoint-tmp*")):
                shutil.rmtree(left, ignore_errors=True)
        with ocp.StandardCheckpointer() as writer:
            writer.save(target, _leaves(state), force=True)
            writer.wait_until_finished()
        if first:
            seal: dict[str, Any] = {"schema": SCHEMA, "spec_sha256": spec_sha256, "step": step}
            seal["files"] = _digests(target)
            write_atomic(target / SEAL, canonical_json(seal | {"sha256": sha256_bytes(canonical_json(seal))}))
            for old in _paths(folder, ROLLING)[KEPT:]:
                shutil.rmtree(old)
    except (OSError, ValueError, RuntimeError) as error:  # TensorStore reports a full disk as any of them
        raise StorageError(
            f"the checkpoint of step {step} cannot be written to {folder} ({str(error).splitlines()[0]:.200}); mend that "
            "and start again: the run goes on from its last checkpoint."
        ) from error
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"sealed {target.name}")
    return target


def _sealed(path: Path) -> Mapping[str, Any] | None:
    """Return the seal of the checkpoint in `path`, or None where it is damaged."""
    try:
        seal = json.loads((path / SEAL).read_bytes())
        said = seal.pop("sha256")
        sound = seal["schema"] == SCHEMA and said == sha256_bytes(canonical_json(seal))
        return seal if sound and seal["files"] == _digests(path) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        return None


def _newest_sound(folder: Path, spec_sha256: str) -> Path | None:
    paths = _paths(folder)
    for path in paths:
        seal = _sealed(path)
        if seal is None:
            continue
        if seal["spec_sha256"] != spec_sha256:
            raise InputError(
                f"{path} belongs to another configuration (spec {str(seal['spec_sha256'])[:8]}, this run has "
                f"{spec_sha256[:8]}); give the run another folder, or remove this one to start it anew."
            )
        return path
    if paths:
        raise InputError(f"every checkpoint in {folder} is damaged; restore one, or remove them to start the run anew.")
    return None


def restore_pod(folder: Path, spec_sha256: str, like: TrainState) -> TrainState | None:
    """Return the newest sound checkpoint in `folder`, placed as `like` is, or None where there is none.

    Arguments:
        spec_sha256: digest of the run's specification; a checkpoint of another one raises InputError.
        like: arrays, or their shapes with shardings, on any mesh: it need not be the one that was saved from.

    Every process of the pod calls this; the first one chooses. Raises InputError where checkpoints exist and all are
    damaged, and where the chosen one holds other arrays.
    """
    several = jax.process_count() > 1
    path = _newest_sound(folder, spec_sha256) if jax.process_index() == 0 or not several else None
    if several:
        chosen = np.array([step_of(path), path.name.startswith(PERMANENT)] if path else [-1, 0])
        step, kind = (int(value) for value in multihost_utils.broadcast_one_to_all(chosen))
        path = folder / f"{PERMANENT if kind else ROLLING}-{step:010d}" if step >= 0 else None
    if path is None:
        return None
    wanted = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in _leaves(like).items()
    }
    with ocp.StandardCheckpointer() as reader:
        there = reader.metadata(path.absolute()).item_metadata
        if {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in there.items()} != {
            name: (tuple(leaf.shape), leaf.dtype) for name, leaf in wanted.items()
        }:
            raise InputError(
                f"{path} is sound, but holds other arrays than this version of the trainer keeps; go on with the version "
                "that wrote it, or remove the checkpoints to start the run anew."
            )
        found = reader.restore(path.absolute(), wanted)
    state: TrainState = jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in _leaves(like)])
    return state
