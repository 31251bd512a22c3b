"""Commands `foretell train ...`: what would run, run it, where it stands."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ladder.errors import UnusableError
from ladder.units import format_count, format_flops
from models.cli_compile import compile_command
from models.cli_tokenize import tokenize_command

app = typer.Typer(no_args_is_help=True, help="Train the rungs of a ladder.")
app.command("compile")(compile_command)
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
    flops = sum(job.rung.compute for job in jobs)
    if as_json:
        runs = [{"run_id": job.run_id, "rung": job.rung.name, "compute": float(job.rung.compute)} for job in jobs]
        typer.echo(json.dumps({"runs": runs, "compute": float(flops)}))
        return
    for job in jobs:
        tokens = format_count(job.rung.tokens)
        typer.echo(f"{job.run_id}  {job.rung.name}  seed {job.seed}  {tokens} tokens, {job.rung.steps} steps")
    typer.echo(f"{len(jobs)} runs would be made, {format_flops(flops)} FLOPs in all.")


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
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the runs that are missing and write the run table; interrupted runs go on from their checkpoints.

    Example: foretell train run --study study --role fit
    """
    from ladder.study import Study
    from models.corpus import build_corpus
    from models.mixture import read_mixture
    from models.pool import WorkerPool, missing_jobs
    from models.progress import TrainingDisplay
    from models.table import collect_runs

    where = Study(study)
    ladder, rungs = _rungs(where, role)
    jobs = missing_jobs(where, rungs)
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
    if as_json:
        typer.echo(json.dumps({"made": len(jobs), "runs": int(frame["run_id"].nunique()), "diverged": diverged}))
    else:
        typer.echo(f"Made {len(jobs)} runs; {where.runs} holds {frame['run_id'].nunique()}.")
    if diverged:
        raise UnusableError(
            f"{len(diverged)} runs diverged ({', '.join(diverged)}); they stay in {where.runs} with that reason and "
            "enter no fit."
        )


@app.command()
def status(study: StudyOption = Path("study"), as_json: JsonOption = False) -> None:
    """Say where each run of the ladder stands.

    Example: foretell train status --study study
    """
    from ladder.study import Study
    from models.record import read_record

    where = Study(study)
    _, rungs = _rungs(where, Which.ALL)
    rows = []
    for rung in rungs:
        for seed in rung.seeds:
            folder = where.run(rung.run_id(seed))
            if (folder / "record.json").exists():
                record = read_record(folder / "record.json")
                state, step = str(record.status), record.steps_done
            else:
                checkpoints = sorted((folder / "checkpoints").glob("step-*.ckpt"))
                step = int(checkpoints[-1].stem.removeprefix("step-")) if checkpoints else 0
                state = "started" if (folder / "spec.json").exists() else "missing"
            rows.append({"run_id": rung.run_id(seed), "rung": rung.name, "seed": seed, "state": state})
            rows[-1] |= {"step": step, "steps": rung.steps, "role": str(rung.role)}
    if as_json:
        typer.echo(json.dumps({"runs": rows}))
        return
    for row in rows:
        typer.echo("{run_id}  {rung:<12} seed {seed}  {role:<8}  {state:<9} {step}/{steps}".format(**row))
    states = [row["state"] for row in rows]
    typer.echo(", ".join(f"{states.count(state)} {state}" for state in sorted(set(states))))
