"""Many runs on one machine: worker processes, one pinned to each core, that keep their compiled steps.

Two one-core processes do 11 to 15 % more than one on two cores at these sizes, and share nothing but the corpus on
disk. The longest runs go first, and a worker prefers a shape that it has compiled already. Workers stay from one
round of runs to the next.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from ladder.errors import ForetellError, UnusableError
from ladder.rung import Rung
from ladder.study import Study
from models.branch import RunOptions, Trunk, branch_step, trunks
from models.mixture import Mixture
from models.record import Progress
from models.support import check_trainable
from models.worker_setup import measured_peak, worker_environment


@dataclass(frozen=True)
class Job:
    """One run to make."""

    rung: Rung
    seed: int
    folder: Path
    options: RunOptions = field(default_factory=RunOptions)

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return self.rung.run_id(self.seed)

    @property
    def cost(self) -> int:
        """FLOPs that the run costs, the steps of a trunk not counted."""
        begun = self.options.trunk.step if self.options.trunk else 0
        return self.rung.compute * (self.rung.steps - begun) // self.rung.steps

    @property
    def compiled_as(self) -> tuple[object, ...]:
        """What a compiled step is good for."""
        plan = self.rung.optimizer
        return self.rung.shape, self.rung.batch_seqs, self.rung.router, plan.name, plan.muon

    @property
    def after(self) -> str:
        """Identity of the run that must have ended before, the trunk; empty for none."""
        return self.options.trunk.run_id if self.options.trunk else ""


@dataclass(frozen=True)
class Failure:
    """Why a run could not be made, as the worker saw it."""

    run_id: str
    message: str
    exit_code: int


def missing_jobs(study: Study, rungs: Sequence[Rung], *, keep_every: int = 0, tracker: str = "") -> list[Job]:
    """Return the runs of `rungs` that have no record yet, the most expensive first.

    Runs that share their first steps are one trunk and its branches (`models.branch`). `keep_every` and `tracker` are
    as in `RunOptions`. Raises InputError when one of them cannot be trained.
    """
    trunk_of = trunks(rungs)
    leaves: dict[str, set[int]] = {}
    for rung in rungs:
        if rung.rung_id in trunk_of:
            leaves.setdefault(trunk_of[rung.rung_id].rung_id, set()).add(branch_step(rung))
    jobs = []
    for rung in rungs:
        keep = tuple(sorted(leaves.get(rung.rung_id, ())))
        for seed in rung.seeds:
            trunk = None
            if (of := trunk_of.get(rung.rung_id)) and seed in of.seeds:
                trunk = Trunk(of.rung_id, seed, branch_step(rung), study.run(of.run_id(seed)))
            options = RunOptions(keep, keep_every, trunk, tracker)
            jobs.append(Job(rung, seed, study.run(rung.run_id(seed)), options))
    missing = [job for job in jobs if not (job.folder / "record.json").exists()]
    for job in missing:
        check_trainable(job.rung)
    return sorted(missing, key=lambda job: -job.rung.compute)


def _work(connection: Connection, core: int | None) -> None:
    """Make the runs that come through `connection` until None does; report progress, records and failures."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    # Imported here, in the worker, after the environment has been set for it.
    from models.data import read_corpus
    from models.run import train_run

    loaded: dict[Path | Mixture, Any] = {}
    try:
        while (order := connection.recv()) is not None:
            job, source = order
            try:
                if source not in loaded:
                    loaded = {source: (read_corpus(source), measured_peak())}
                corpus, peak = loaded[source]
                told, kept = connection.send, job.options
                connection.send(
                    train_run(job.rung, job.seed, job.folder, corpus, peak_flops=peak, progress=told, options=kept)
                )
            except ForetellError as error:
                connection.send(Failure(job.run_id, str(error), error.exit_code))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent is gone or going; what was checkpointed stays


def _cores(workers: int) -> list[int | None]:
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [available[index] if index < len(available) else None for index in range(workers)]


class WorkerPool:
    """Worker processes that train runs; use as a context, at whose end they are stopped.

    They start with `start`, or with the first runs: starting early has them import JAX while a corpus is built.
    """

    def __init__(self, workers: int) -> None:
        self._wanted = workers
        self._processes: dict[Connection, BaseProcess] = {}
        self._compiled: dict[Connection, set[object]] = {}

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection, process in self._processes.items():
            if kind is None:
                with contextlib.suppress(BrokenPipeError):
                    connection.send(None)
            else:
                process.terminate()
        for process in self._processes.values():
            process.join(timeout=10)

    def start(self) -> None:
        """Start the workers, unless they run already."""
        if self._processes:
            return
        spawn = multiprocessing.get_context("spawn")
        with worker_environment():
            for core in _cores(self._wanted):
                ours, theirs = spawn.Pipe()
                process: BaseProcess = spawn.Process(target=_work, args=(theirs, core), daemon=True)
                process.start()
                theirs.close()
                self._processes[ours], self._compiled[ours] = process, set()

    def _next(self, connection: Connection, pending: Sequence[Job]) -> Job:
        """Return the job for a free worker: longest first within compiled here, nowhere, by another worker."""
        own = self._compiled[connection]
        others = set().union(*(shapes for other, shapes in self._compiled.items() if other is not connection))
        return min(pending, key=lambda job: 0 if job.compiled_as in own else 2 if job.compiled_as in others else 1)

    def run(
        self, jobs: Sequence[Job], corpus: Path | Mixture, report: Callable[[Any], None] = lambda message: None
    ) -> None:
        """Make all `jobs` on `corpus`; `report` gets every Progress, RunRecord and Failure as it comes.

        Raises UnusableError naming the first run that could not be made, after the others have ended, and when a
        worker is killed; what was checkpointed stays, and the same call goes on from there. Diverged runs are
        records, not failures.
        """
        pending, busy, failures = list(jobs), dict[Connection, Job](), list[Failure]()
        if pending:
            self.start()

        def assign(connection: Connection) -> None:
            going = {job.run_id for job in (*pending, *busy.values())}
            if not (ready := [job for job in pending if job.after not in going]):
                return
            job = self._next(connection, ready)
            pending.remove(job)
            self._compiled[connection].add(job.compiled_as)
            busy[connection] = job
            connection.send((job, corpus))

        for connection in self._processes:
            assign(connection)
        while busy:
            for connection in [each for each in wait(list(busy)) if isinstance(each, Connection)]:
                try:
                    message = connection.recv()
                except EOFError:
                    raise UnusableError(
                        f"the worker that trained run {busy[connection].run_id} was killed (out of memory?); run the "
                        "same command again to go on from its last checkpoint."
                    ) from None
                report(message)
                if isinstance(message, Failure):
                    failures.append(message)
                if not isinstance(message, Progress):
                    del busy[connection]
                    for free in [each for each in self._processes if each not in busy]:
                        assign(free)
        if failures:
            raise UnusableError(f"run {failures[0].run_id} could not be made: {failures[0].message}")
