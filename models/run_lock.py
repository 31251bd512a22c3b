"""Who trains a run: one process at a time, and a sign of life for whoever asks.

runs/<run_id>/lock        locked by the kernel while a process trains the run, and freed when it dies, however it dies
runs/<run_id>/alive.json  process, host and time, renewed every ten seconds; a clean end removes it

File systems shared by hosts do not always share locks, so a sign of life of another host counts as well, for two
minutes.
"""

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ladder.errors import BusyError, InputError
from ladder.records import canonical_json, from_plain, read_json, to_plain, write_atomic

SCHEMA = "alive/1"
BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0  # twelve beats: longer than a busy file system holds a write up


@dataclass(frozen=True)
class Alive:
    """A sign of life: who trains a run, since when, and when it last said so (seconds since 1970)."""

    pid: int
    host: str
    since: float
    beat: float


def read_alive(folder: Path) -> Alive | None:
    """Return the sign of life of the process that trains the run in `folder`, or None where none is there or fresh."""
    path = folder / "alive.json"
    try:
        data = read_json(path, SCHEMA)
        alive = from_plain(Alive, {key: data[key] for key in data if key != "schema"}, str(path))
    except InputError:
        return None
    if alive.host == socket.gethostname() and not _exists(alive.pid):
        return None
    return alive if time.time() - alive.beat < STALE_SECONDS else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def _busy(folder: Path, alive: Alive | None) -> BusyError:
    who = f"process {alive.pid} on {alive.host}" if alive else "another process"
    return BusyError(
        f"{folder.name} is being trained by {who}; wait for it or end it. If it is gone, the run is free "
        f"{STALE_SECONDS:.0f} s after its last sign of life."
    )


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the run in `folder` for this process, with a sign of life; raises BusyError where another holds it."""
    with (folder / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(folder, read_alive(folder)) from None
        there = read_alive(folder)
        if there and there.host != socket.gethostname():
            raise _busy(folder, there)
        stop, since = threading.Event(), time.time()

        def beat() -> None:
            with contextlib.suppress(OSError):  # a full disk ends the run where it matters, not here
                alive = Alive(os.getpid(), socket.gethostname(), since, time.time())
                write_atomic(folder / "alive.json", canonical_json({"schema": SCHEMA, **to_plain(alive)}))

        def keep_beating() -> None:
            while not stop.wait(BEAT_SECONDS):
                beat()

        beat()
        beating = threading.Thread(target=keep_beating, daemon=True)
        beating.start()
        try:
            yield
        finally:
            stop.set()
            beating.join()
            (folder / "alive.json").unlink(missing_ok=True)


def cores_here() -> int:
    """Return how many cores this process may use, by which its time counts."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
