"""Commands `foretell train ...`: what would run, run it, where it stands."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.errors import UnusableError
from ladder.units import format_count, format_flops
from models.cli_compile import compile_command
from models.cli_pod import pod_command
from models.cli_tokenize import tokenize_command

app = typer.Typer(no_args_is_help=True, help="Train the rungs of a ladder.")
app.command("compile")(compile_command)
app.command("pod")(pod_command)
app.command("tokenize")(tokenize_command)

StudyOption = Annotated[Path, typer.Option("--study", help="Study folder.", metavar="DIR")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


class Which(StrEnum):
    """Which rungs to run."""

    FIT = "fit"
    HELD_OUT = "held_out"
    ALL = "all"


RoleOption = Annotated[Which, typer.Option("--role", help="Which rungs.")]


def _rungs(study: Any, which: Which) -> Any:
    from ladder.rung import read_ladder

    ladder = read_ladder(study.ladder)
    return ladder, [rung for rung in ladder.rungs if which in (Which.ALL, str(rung.role))]


@app.command()
def plan(study: StudyOption = Path("study"), role: RoleOption = Which.ALL, as_json: JsonOption = False) -> None:
    """Say what would run; nothing is started.

    Example: foretell train plan --study study --role fit
    """
    from ladder.study import Study
    from models.pool import missing_jobs

    where = Study(study)
    _, rungs = _rungs(where, role)
    jobs = missing_jobs(where, rungs)
    flops = sum(job.cost for job in jobs)
    if as_json:
        runs = [
            {
                "run_id": job.run_id,
                "rung": job.rung.name,
                "compute": float(job.rung.compute),
                "trunk": job.after or None,
            }
            for job in jobs
        ]
        typer.echo(json.dumps({"runs": runs, "compute": float(flops)}))
        return
    for job in jobs:
        tokens = format_count(job.rung.tokens)
        grown = f", from step {job.options.trunk.step} of {job.after}" if job.options.trunk else ""
        typer.echo(f"{job.run_id}  {job.rung.name}  seed {job.seed}  {tokens} tokens, {job.rung.steps} steps{grown}")
    typer.echo(f"{len(jobs)} runs would be made, {format_flops(flops)} FLOPs in all.")


class Launcher(StrEnum):
    """Where runs are made."""

    POOL = "pool"
    SLURM = "slurm"


@app.command()
def run(
    study: StudyOption = Path("study"),
    role: RoleOption = Which.FIT,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, each on a core of its own.")] = 2,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Token cache (folder or URL) or mixture (.toml, .json); default: the installed documentation."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a training text that a run may make.")] = 1,
    keep_every: Annotated[int, typer.Option(min=0, help="Keep every so many steps for good; 0: before the decay.")] = 0,
    tracker: Annotated[str, typer.Option(help="Tell wandb or tensorboard as well.")] = "",
    launcher: Annotated[Launcher, typer.Option(help="Workers of this machine, or a Slurm array.")] = Launcher.POOL,
    partition: Annotated[str, typer.Option(help="Slurm partition.")] = "",
    account: Annotated[str, typer.Option(help="Slurm account.")] = "",
    minutes: Annotated[int, typer.Option("--time", min=1, help="Minutes a Slurm job may take.")] = 60,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the runs that are missing and write the run table; interrupted runs go on from their checkpoints.

    Runs that share their first steps train them once. With --launcher slurm the runs are submitted and the command
    ends; given again later, it submits what is missing then, or writes the table.

    Example: foretell train run --study study --role fit
    Example: foretell train run --launcher slurm --partition cpu --time 240
    """
    from ladder.study import Study
    from models.corpus import build_corpus
    from models.launch import ArrayPlan, submit
    from models.mixture import read_mixture
    from models.pool import WorkerPool, missing_jobs
    from models.progress import TrainingDisplay
    from models.run_lock import read_alive
    from models.table import collect_runs
    from models.tracker import check_tracker

    where = Study(study)
    ladder, rungs = _rungs(where, role)
    check_tracker(tracker)
    jobs = missing_jobs(where, rungs, keep_every=keep_every, tracker=tracker)
    if jobs and launcher is Launcher.SLURM:
        idle = [job for job in jobs if not read_alive(job.folder)]
        mixture = read_mixture(corpus or str(build_corpus()), epochs)
        for job in idle:
            mixture.check(job.rung)
        submitted = submit(where, idle, mixture, ArrayPlan("slurm", partition, account, minutes))
        arrays = sorted({str(job.job_id).partition("_")[0] for job in submitted})
        if as_json:
            typer.echo(json.dumps({"submitted": [job.run_id for job in idle], "arrays": arrays}))
        else:
            typer.echo(f"Submitted {len(idle)} runs as {', '.join(arrays) or 'nothing'}; see `foretell train status`.")
        return
    if jobs:
        with WorkerPool(min(workers, len(jobs))) as pool:
            pool.start()
            mixture = read_mixture(corpus or str(build_corpus()), epochs)
            for job in jobs:
                mixture.check(job.rung)
            with TrainingDisplay(jobs, f"training {role} rungs", quiet=quiet) as display:
                pool.run(jobs, mixture, display.report)
    frame = collect_runs(where, ladder).frame
    ids = {rung.run_id(seed) for rung in rungs for seed in rung.seeds}
    diverged = sorted(set(frame.loc[frame["status"] == "diverged", "run_id"]) & ids)
    spiky = sorted(set(frame.loc[frame["loss_spikes"].fillna(0) > 0, "run_id"]) & ids)
    if as_json:
        answer = {"made": len(jobs), "runs": int(frame["run_id"].nunique()), "diverged": diverged, "spikes": spiky}
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"Made {len(jobs)} runs; {where.runs} holds {frame['run_id'].nunique()}.")
        if spiky:
            typer.echo(f"The loss of {len(spiky)} runs spiked ({', '.join(spiky)}); see `foretell train status`.")
    if diverged:
        raise UnusableError(
            f"{len(diverged)} runs diverged ({', '.join(diverged)}); they stay in {where.runs} with that reason and "
            "enter no fit."
        )


@app.command()
def branch(
    trunk: Annotated[str, typer.Argument(help="Run to branch from, as `foretell train status` names it.")],
    at: Annotated[list[int], typer.Option("--at", min=1, help="Step to leave it at; may be repeated.")],
    decay: Annotated[
        float | None, typer.Option(help="Share of its steps over which a branch decays; by default the trunk's.")
    ] = None,
    study: StudyOption = Path("study"),
    as_json: JsonOption = False,
) -> None:
    """Add runs of other token counts to the ladder that go on from a run's permanent checkpoints and decay there.

    `foretell train run` makes them. A branch ends bit for bit as if it had been trained from its first step.

    Example: foretell train branch 1a2b3c4d-s0 --at 2000 --at 4000 --decay 0.2
    """
    from ladder.study import Study
    from models.branch import add_branches

    added = add_branches(Study(study), trunk, at, decay)
    if as_json:
        typer.echo(json.dumps({"branches": [rung.run_id(rung.seeds[0]) for rung in added]}))
        return
    for rung in added:
        tokens = format_count(rung.tokens)
        typer.echo(f"{rung.run_id(rung.seeds[0])}  {rung.name}  {tokens} tokens, {rung.steps} steps, branch of {trunk}")


@app.command()
def status(study: StudyOption = Path("study"), as_json: JsonOption = False) -> None:
    """Say where each run of the ladder stands and what was spent.

    Example: foretell train status --study study
    """
    from dataclasses import asdict

    from ladder.study import Study
    from models.status import STATES, run_states

    where = Study(study)
    _, rungs = _rungs(where, Which.ALL)
    rows = run_states(where, rungs)
    counts = {state: sum(row.state == state for row in rows) for state in STATES}
    hours = sum(row.core_hours for row in rows)
    spent, planned = sum(row.spent_flops for row in rows), sum(row.planned_flops for row in rows)
    if as_json:
        cost = {"core_hours": hours, "spent_flops": spent, "planned_flops": planned}
        typer.echo(json.dumps({"runs": [asdict(row) for row in rows], "states": counts, "cost": cost}))
        return
    for row in rows:
        line = f"{row.run_id}  {row.rung:<12} seed {row.seed}  {row.role:<8}  {row.state:<8} {row.step}/{row.steps}"
        typer.echo(f"{line}  {row.note}".rstrip())
    typer.echo(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    typer.echo(f"{format_flops(int(spent))} of {format_flops(int(planned))} FLOPs done in {hours:.2f} core-hours.")
