"""What a run writes of its steps: metrics.jsonl, the same bytes however often it was cut, and times.jsonl, which is not."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ladder.records import canonical_json
from models.train import Metrics

LOGGED_STEPS = 200  # lines of metrics.jsonl, about


def logged(first: int, metrics: Metrics, done: int, steps: int) -> list[dict[str, float]]:
    """Return the lines of the `done` steps after `first` of a run of `steps`: about 200 over the run, the last, bad ones.

    Values that are not finite are left out, since JSON has none.
    """
    columns = {name: np.asarray(column)[:done] for name, column in zip(Metrics._fields, metrics, strict=True)}
    every, lines = max(1, steps // LOGGED_STEPS), []
    for index in range(done):
        step = first + index + 1
        if step % every == 0 or step == steps or not math.isfinite(columns["loss"][index]):
            values = {name: float(column[index]) for name, column in columns.items()}
            lines.append({"step": step, **{name: value for name, value in values.items() if math.isfinite(value)}})
    return lines


def append_lines(path: Path, lines: list[dict[str, float]]) -> int:
    """Append `lines` to metrics.jsonl, on the disk when this returns, and return the file's length."""
    with path.open("ab") as file:
        file.write(b"".join(canonical_json(line) + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


class StepTimes:
    """Wall time of a run by part, a line of times.jsonl for every dispatch: it differs each time and decides nothing.

    Parts: "data", "compile" (the first dispatch of a process, which compiles), "step", "metrics", "checkpoint",
    "evaluate". `mfu` is the rung's FLOPs, by its own
    convention and without recomputation, over the float32 matrix-product speed measured on the same core.
    """

    def __init__(self, path: Path, cores: int) -> None:
        self._path, self._cores = path, cores
        self._seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time within towards the part `name`."""
        start = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - start

    def write(self, step: int, done: int, tokens_per_second: float | None, peak_fraction: float | None) -> None:
        """Write the parts since the last call, in which `done` steps up to `step` were made."""
        line = {
            "step": step,
            "done": done,
            "cores": self._cores,
            "seconds": self._seconds,
            "tokens_per_second": tokens_per_second,
            "mfu": peak_fraction,
        }
        with self._path.open("ab") as file:
            file.write(canonical_json(line) + b"\n")
        self._seconds = {}
