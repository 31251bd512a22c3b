"""One entry point for one run, wherever it is made: `python -m models.launch ORDER...`, and Slurm arrays of it.

An order is a file that names all a run needs: study/orders/<run_id>.json. It may be carried out any number of times, by
any scheduler: a run that has ended is not repeated, one that was cut goes on from its last checkpoint, one that another
process trains is left to it. Slurm arrays are submitted through submitit, which puts a job that is preempted or out of
time back into the queue.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.errors import ForetellError, InputError
from ladder.records import canonical_json, from_plain, read_json, write_atomic
from ladder.rung import Rung
from ladder.study import Study
from models.branch import RunOptions, Trunk
from models.mixture import Mixture
from models.pool import Job
from models.record import RunRecord
from models.worker_setup import measured_peak, worker_environment

SCHEMA = "run-order/1"
REQUEUES = 1000  # times a job out of time goes back into the queue; each goes on where the last one stopped


def write_order(study: Study, job: Job, corpus: Mixture) -> Path:
    """Write the order for `job` on `corpus` and return its path; the same job has the same bytes."""
    trunk, options = job.options.trunk, job.options
    order = {
        "schema": SCHEMA,
        "rung": job.rung.to_plain(),
        "seed": job.seed,
        "folder": str(job.folder.resolve()),
        "corpus": {
            "domains": [{**vars(domain), "cache": str(domain.cache.resolve())} for domain in corpus.domains],
            "epochs": corpus.epochs,
            "documents": str(corpus.documents),
        },
        "keep_at": list(options.keep_at),
        "keep_every": options.keep_every,
        "tracker": options.tracker,
        "trunk": trunk and {**vars(trunk), "folder": str(trunk.folder.resolve())},
    }
    path = study.root / "orders" / f"{job.run_id}.json"
    write_atomic(path, canonical_json(order))
    return path


def read_order(path: Path) -> tuple[Job, Mixture]:
    """Return the job in an order and its corpus; raises InputError naming the field that is wrong."""
    data = read_json(path, SCHEMA)
    rung = Rung.from_plain(data.get("rung"), f"{path}: rung")

    @dataclass(frozen=True)
    class Rest:
        seed: int
        folder: Path
        corpus: Mixture
        keep_at: tuple[int, ...]
        keep_every: int
        tracker: str
        trunk: Trunk | None

    rest = from_plain(Rest, {key: value for key, value in data.items() if key not in ("schema", "rung")}, str(path))
    options = RunOptions(rest.keep_at, rest.keep_every, rest.trunk, rest.tracker)
    return Job(rung, rest.seed, rest.folder, options), rest.corpus


def carry_out(order: Path) -> RunRecord:
    """Make the run that `order` names, or what is left of it, and return its record.

    It computes as a worker of the pool does, so that a run ends the same wherever it was made. Raises what
    `models.run.train_run` raises.
    """
    job, mixture = read_order(order)
    with worker_environment():
        from models.data import read_corpus
        from models.run import train_run

        corpus, peak = read_corpus(mixture), measured_peak()
        return train_run(job.rung, job.seed, job.folder, corpus, peak_flops=peak, options=job.options)


class ArrayTask:
    """What each job of an array calls with its order; submitit calls `checkpoint` before a job is put back."""

    def __call__(self, order: str) -> str:
        """Make the run and return how it ended."""
        return str(carry_out(Path(order)).status)

    def checkpoint(self, order: str) -> Any:
        """Return what goes back into the queue: the same order, for the run has its own checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, order)


@dataclass(frozen=True)
class ArrayPlan:
    """Where an array runs: `cluster` "slurm", or "local" for processes of this machine; Slurm's partition and account,
    minutes a job may take, and how many jobs run at once."""

    cluster: str
    partition: str = ""
    account: str = ""
    minutes: int = 60
    at_once: int = 100


def submit(study: Study, jobs: Sequence[Job], corpus: Mixture, plan: ArrayPlan) -> list[Any]:
    """Submit `jobs` as arrays, branches after their trunks, and return submitit's jobs, in the order submitted.

    Raises InputError where Slurm is not there.
    """
    import submitit

    if not jobs:
        return []
    waiting = {job.run_id for job in jobs}
    first = [job for job in jobs if job.after not in waiting]
    second = [job for job in jobs if job.after in waiting]
    try:
        executor = submitit.AutoExecutor(
            folder=study.root / "orders" / "logs", cluster=plan.cluster, slurm_max_num_timeout=REQUEUES
        )
    except RuntimeError:
        raise InputError(
            "Slurm is not there: no `srun` on the path. Submit from a login node, or train here with --launcher pool."
        ) from None
    executor.update_parameters(
        name="foretell", timeout_min=plan.minutes, cpus_per_task=1, slurm_array_parallelism=plan.at_once
    )
    more: dict[str, Any] = {"requeue": True}  # by Slurm itself, where a node fails or another job takes it
    executor.update_parameters(slurm_additional_parameters=more)
    for name in ("partition", "account"):
        if value := getattr(plan, name):
            executor.update_parameters(**{f"slurm_{name}": value})
    submitted: list[Any] = []
    for wave in (first, second):
        if wave is second and second:
            ids = {job.job_id.partition("_")[0] for job in submitted}
            # afterany: a branch whose trunk failed begins at its first step, and ends the same.
            after = {"dependency": "afterany:" + ":".join(sorted(ids))}
            executor.update_parameters(slurm_additional_parameters=more | after)
            if plan.cluster == "local":
                for job in submitted:
                    job.wait()
        orders = [str(write_order(study, job, corpus)) for job in wave]
        submitted += executor.map_array(ArrayTask(), orders) if orders else []
    return submitted


def main(orders: Sequence[str]) -> int:
    """Carry out `orders` one after the other; return 0, or the exit code of the first that could not be."""
    code = 0
    for order in orders:
        try:
            record = carry_out(Path(order))
            print(f"{record.run_id}: {record.status} at step {record.steps_done}")
        except ForetellError as error:
            print(f"foretell: {error}", file=sys.stderr)
            code = code or error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
