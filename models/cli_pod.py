"""Command `foretell train pod`: one run of a rung on the accelerators of this machine, or of all hosts of a slice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from ladder.errors import InputError
from ladder.units import format_count


def pod_command(
    rung: Annotated[str, typer.Option(help="Rung, by id or name.")],
    study: Annotated[Path, typer.Option("--study", help="Study folder, the same for all hosts.", metavar="DIR")] = Path(
        "study"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed, one of the rung's.")] = 0,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Token cache (folder or URL) or mixture (.toml, .json); default: the installed documentation."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a training text that a run may make.")] = 1,
    chip: Annotated[str, typer.Option(help="Chip, for the plan and for the utilisation.")] = "v5p",
    backend: Annotated[
        str, typer.Option(help="How experts are run: fsdp, ring, fixed, ragged; default: the plan's.")
    ] = "",
    expert_axis: Annotated[int, typer.Option(min=0, help="Devices the experts are spread over; 0: the plan's.")] = 0,
    parts: Annotated[int, typer.Option(min=0, help="Parts a step's batch is taken in; 0: the plan's.")] = 0,
    keep_hidden: Annotated[
        bool, typer.Option("--keep-hidden", help="Keep the experts' hidden activations instead of making them again.")
    ] = False,
    hosts: Annotated[bool, typer.Option("--hosts", help="Join the other hosts of the slice first.")] = False,
    save_every: Annotated[float, typer.Option(min=1, help="Seconds between checkpoints.")] = 900.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a line.")] = False,
) -> None:
    """Train one rung on all devices, sharded as the ladder's hardware plan says; goes on from the last checkpoint.

    On a slice of several hosts, give the same command with --hosts on each of them. Example:
    foretell train pod --study gs-mount/study --rung 3e18-d896 --corpus caches/mixture.toml --hosts
    """
    from ladder.chips import chip_named
    from ladder.hardware import layout_on
    from ladder.rung import read_ladder
    from ladder.study import Study

    where, kind = Study(study), chip_named(chip)
    ladder = read_ladder(where.ladder)
    found = [each for each in ladder.rungs if rung in (each.rung_id, each.name)]
    if not found:
        raise InputError(f"{where.ladder} has no rung {rung!r}; `foretell ladder show` lists them.")
    if seed not in found[0].seeds:
        raise InputError(f"rung {found[0].name} has the seeds {', '.join(map(str, found[0].seeds))}, not {seed}.")

    import jax

    from models.compile_plan import BACKENDS
    from models.corpus import build_corpus
    from models.data import read_corpus
    from models.mesh import make_mesh
    from models.mixture import read_mixture
    from models.pod_layers import PodOptions
    from models.pod_run import PodRun, train_on_pod
    from models.record import Progress
    from models.table import collect_runs

    if backend and backend not in BACKENDS:
        raise InputError(f"unknown way to run experts {backend!r}; use {', '.join(BACKENDS)}.")
    if hosts:
        jax.distributed.initialize()
    devices = jax.devices()
    layout = None if expert_axis and parts else layout_on(found[0], kind, len(devices))
    if layout is None and not (expert_axis and parts):
        raise InputError(f"{found[0].name} does not fit on {len(devices)} {chip} by the plan; use a larger slice.")
    axis = expert_axis or (layout.expert_axis if layout else 1)
    on_tpu = devices[0].platform == "tpu"
    options = PodOptions(
        BACKENDS[backend or ("fsdp" if axis == 1 else "ring")],
        found[0].capacity_factor,
        dtype="bfloat16" if on_tpu else "float32",
        splash=on_tpu,
        remat="hidden" if keep_hidden else "full",
        accumulation=parts or (layout.accumulation if layout else 1),
    )

    said = -1

    def say(progress: Progress) -> None:
        nonlocal said
        percent = 100 * progress.step // progress.steps
        if jax.process_index() == 0 and percent > said:
            said = percent
            known = math.isfinite(progress.tokens_per_second)
            speed = f", {format_count(round(progress.tokens_per_second))} tokens/s" if known else ""
            typer.echo(f"step {progress.step} of {progress.steps}, loss {progress.loss:.4f}{speed}", err=True)

    text = read_corpus(read_mixture(corpus or str(build_corpus()), epochs))
    how = PodRun(make_mesh(devices, expert=axis), options, kind if on_tpu else None, save_every)
    record = train_on_pod(found[0], seed, where.run(found[0].run_id(seed)), text, how, progress=say)
    if record is None or jax.process_index():
        return
    collect_runs(where, ladder)
    test = record.evaluations.get("test")
    if as_json:
        loss = test.nats_per_token if test else None
        typer.echo(json.dumps({"run_id": record.run_id, "status": str(record.status), "test_loss": loss}))
    else:
        typer.echo(f"{record.run_id}: {record.status}" + (f", test loss {test.nats_per_token:.4f}" if test else ""))
