"""Weights & Biases and TensorBoard beside metrics.jsonl, through Levanter's trackers.

metrics.jsonl stays the record of truth: a tracker gets the same lines, after they are on the disk, and one that fails
is warned of once and told nothing more. Levanter is imported only where a tracker is asked for.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from ladder.records import to_plain
from ladder.rung import Rung
from models.record import RunRecord

TRACKERS = ("wandb", "tensorboard")


class Tracker:
    """Tells `backend`, a tracker of Levanter or None for nobody, what a run logs; it never raises."""

    def __init__(self, name: str, backend: Any) -> None:
        self._name, self._backend = name, backend

    def log(self, lines: Sequence[Mapping[str, float]], more: Mapping[str, float | None]) -> None:
        """Tell the `lines` of metrics.jsonl, and with the last of them what differs from one time to the next."""
        extra = {f"throughput/{name}": value for name, value in more.items() if value is not None}
        with self._warned():
            for line in lines if self._backend is not None else ():
                values = {f"train/{name}": value for name, value in line.items() if name != "step"}
                last = line is lines[-1]
                self._backend.log(values | extra if last else values, step=int(line["step"]))

    def summary(self, record: RunRecord) -> None:
        """Tell the outcome."""
        values: dict[str, Any] = {"status": str(record.status)}
        values |= {f"eval/{text}/loss": found.nats_per_token for text, found in record.evaluations.items()}
        values |= {f"eval/{text}/bits_per_byte": found.bits_per_byte for text, found in record.evaluations.items()}
        if record.losses:
            values["train/loss_spikes"] = record.losses.spikes
        with self._warned():
            if self._backend is not None:
                self._backend.log_summary(values)

    def finish(self) -> None:
        """Let go of the tracker."""
        with self._warned():
            if self._backend is not None:
                self._backend.finish()

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._backend = None
            print(
                f"foretell: tracker {self._name} failed ({type(error).__name__}: {error}); the run goes on without it, "
                "metrics.jsonl has everything.",
                file=sys.stderr,
            )


def check_tracker(name: str) -> None:
    """Raise InputError where the tracker `name` is unknown or something that it needs is not installed."""
    if name not in ("", *TRACKERS):
        raise InputError(f"unknown tracker {name!r}; use {' or '.join(TRACKERS)}.")
    try:
        if name:
            _classes(name)
    except ImportError as error:
        raise InputError(
            f"tracker {name} needs the package {error.name}, which is not installed; install it (extra `levanter` has "
            "Levanter and W&B, tensorboardX is on its own), or train without --tracker."
        ) from None


def _classes(name: str) -> Any:
    if name == "wandb":
        from levanter.tracker.wandb import WandbTracker

        return WandbTracker
    import_module("tensorboardX")  # what TensorboardConfig.init imports later
    from levanter.tracker.tensorboard import TensorboardConfig

    return TensorboardConfig


def _backend(name: str, folder: Path, rung: Rung, seed: int) -> Any:
    run_id = rung.run_id(seed)
    if name == "tensorboard":
        return _classes(name)(logdir=str(folder.parent.parent / "tensorboard")).init(run_id)
    import wandb

    # One W&B run for one run, over interruptions; WANDB_MODE, WANDB_ENTITY and the like are W&B's own.
    return _classes(name)(
        wandb.init(
            id=run_id,
            name=f"{rung.name} seed {seed}",
            project=os.environ.get("WANDB_PROJECT", "foretell"),
            group=rung.rung_id,
            dir=str(folder),
            resume="allow",
            config=to_plain(rung) | {"seed": seed, "compute": float(rung.compute), "tokens": rung.tokens},
            settings=wandb.Settings(silent=True),
        )
    )


@contextlib.contextmanager
def open_tracker(name: str, folder: Path, rung: Rung, seed: int) -> Iterator[Tracker]:
    """Yield the tracker `name` for a run, "" for one that tells nobody; raises InputError as `check_tracker` does."""
    check_tracker(name)
    tracker = Tracker(name, None)
    if name:
        with tracker._warned():
            tracker = Tracker(name, _backend(name, folder, rung, seed))
    try:
        yield tracker
    finally:
        tracker.finish()
