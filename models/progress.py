"""What a person sees while a ladder trains: bars with time left on a terminal, a line per tenth elsewhere. On stderr."""

import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ladder.units import format_count, format_duration
from models.pool import Failure, Job
from models.record import Progress as RunProgress
from models.record import RunRecord


class TrainingDisplay:
    """Shows the progress of some jobs; use as a context and hand `report` to `WorkerPool.run`.

    Work is counted in FLOPs, so that the time left is right although rungs differ by orders of magnitude.
    """

    def __init__(self, jobs: Sequence[Job], label: str, *, quiet: bool = False) -> None:
        self._flops = {job.run_id: job.rung.compute for job in jobs}
        self._names = {job.run_id: f"{job.rung.name} seed {job.seed}" for job in jobs}
        self._share = dict.fromkeys(self._flops, 0.0)
        self._total = max(1, sum(self._flops.values()))
        self._label, self._quiet, self._tenth, self._start = label, quiet, 0, time.monotonic()
        console = Console(stderr=True)
        self._bars: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bars = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
            self._all = self._bars.add_task(label, total=self._total, note="")
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "TrainingDisplay":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def report(self, message: RunProgress | RunRecord | Failure) -> None:
        """Take a message of `WorkerPool.run`."""
        match message:
            case RunProgress(run_id, step, steps, loss, speed):
                self._share[run_id] = step / steps
                rate = f"{format_count(speed)} tok/s" if math.isfinite(speed) else "compiling"
                self._show(run_id, f"loss {loss:.3f}, {rate}")
            case RunRecord():
                self._share[message.run_id] = 1.0
                test = message.evaluations.get("test")
                note = f"test loss {test.nats_per_token:.4f}" if test else f"{message.status}"
                self._finish(message.run_id, note)
            case Failure():
                self._finish(message.run_id, message.message)

    def _done(self) -> float:
        return sum(self._flops[run_id] * share for run_id, share in self._share.items())

    def _show(self, run_id: str, note: str) -> None:
        if self._bars:
            if run_id not in self._tasks:
                self._tasks[run_id] = self._bars.add_task(f"  {self._names[run_id]}", total=1.0, note="")
            self._bars.update(self._tasks[run_id], completed=self._share[run_id], note=note)
            self._bars.update(self._all, completed=self._done())
        self._line()

    def _finish(self, run_id: str, note: str) -> None:
        if self._bars:
            if run_id in self._tasks:
                self._bars.remove_task(self._tasks.pop(run_id))
            self._bars.console.print(f"  {self._names.get(run_id, run_id)}: {note}", highlight=False)
            self._bars.update(self._all, completed=self._done())
        self._line()

    def _line(self) -> None:
        share = self._done() / self._total
        if self._bars or self._quiet or int(10 * share) <= self._tenth:
            return
        self._tenth = int(10 * share)
        spent = time.monotonic() - self._start
        left = format_duration(spent / share * (1 - share))
        print(f"{self._label}: {10 * self._tenth} %, {format_duration(spent)} so far, {left} left", file=sys.stderr)
