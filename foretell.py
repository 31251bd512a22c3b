"""The front door: the console command `foretell`, and `foretell demo`, the shortest readable account of the whole flow.

ladder.json -> runs.parquet -> fit.json -> forecast.json (+ log line) -> check.json -> report
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from models.pool import WorkerPool

# Command group, module, attribute, one line of help. A group's module is imported only when it is used.
GROUPS = (
    ("ladder", "ladder.cli", "app", "Plan ladders of compute-matched configurations; nothing is spent."),
    ("runs", "ladder.cli_runs", "runs_app", "Run tables: import them, check them, convert them."),
    ("train", "models.cli", "app", "Train the rungs of a ladder."),
    ("fit", "fits.cli", "app", "Fit scaling laws to runs."),
    ("forecast", "forecasts.cli", "app", "Register forecasts, verify the registry, check outcomes."),
    ("report", "reports.cli", "app", "Publish."),
)


class LazyGroup(typer.core.TyperGroup):
    """Shows every command group by name and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the called command, imported if it is a group of a package."""
        for name, module, attribute, _ in GROUPS:
            if args and args[0] == name:
                return name, typer.main.get_command(getattr(importlib.import_module(module), attribute)), args[1:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would take half a second to show this one page
    help="Plan a ladder, train it, fit it, forecast the largest run, and check whether the forecast held.",
)
for _name, _module, _attribute, _help in GROUPS:
    app.add_typer(typer.Typer(callback=lambda: None), name=_name, help=_help)


@dataclass(frozen=True)
class Preset:
    """A demo ladder of recipe tiny-cpu: fit budgets in FLOPs, sizes at each, further seeds, held-out budgets, resamples."""

    budgets: tuple[int, ...]
    sizes: int
    replicates: dict[int, int]
    held_out: tuple[int, ...]
    held_out_seeds: int
    resamples: int = 500


PRESETS = {
    "smoke": Preset((10**10, 2 * 10**10, 4 * 10**10), 3, {2 * 10**10: 1}, (8 * 10**10,), 1, resamples=100),
    # Seeds at two rungs: a noise measured at one has two degrees of freedom, and the top budget weighs most.
    "default": Preset(
        (2 * 10**10, 43 * 10**9, 93 * 10**9, 2 * 10**11), 4, {43 * 10**9: 2, 2 * 10**11: 2}, (2 * 10**12,), 2
    ),
    "full": Preset(
        (2 * 10**10, 43 * 10**9, 93 * 10**9, 2 * 10**11, 43 * 10**10),
        5,
        {43 * 10**9: 2, 2 * 10**11: 2},
        (2 * 10**12, 43 * 10**11),
        3,
    ),
}
METRIC = "test/loss"  # of the text that no choice was made on; validation/loss is for tuning


def run_demo(
    out: Path, preset: Preset, pool: WorkerPool, say: Callable[[str], None], *, quiet: bool = False
) -> list[Path]:
    """Do the whole flow in the study `out` with the workers of `pool` and return a report for each held-out rung.

    What is done already is not repeated, so an interrupted demo goes on where it stopped.
    """
    # Imported here, as in all commands, so that `foretell --help` waits for none of it.
    from fits.fit import fit
    from fits.spec import FitSpec
    from forecasts.check import check
    from forecasts.draft import draft, save_draft
    from forecasts.register import register
    from forecasts.registry import registry
    from forecasts.verify import verify
    from ladder import InputError, Study, plan_isoflop, read_ladder, recipe_named
    from models.corpus import build_corpus
    from models.pool import missing_jobs
    from models.progress import TrainingDisplay
    from models.table import collect_runs
    from reports.build import build_report

    study = Study(out)

    # 1. Plan: compute-matched rungs, some marked held out.
    plan = plan_isoflop(
        recipe_named("tiny-cpu"),
        preset.budgets,
        sizes=preset.sizes,
        replicates=preset.replicates,
        held_out=preset.held_out,
        held_out_seeds=preset.held_out_seeds,
        name="demo",
    )
    if not study.ladder.exists():
        plan.save(study.ladder)
    ladder = read_ladder(study.ladder)
    if [rung.rung_id for rung in ladder.rungs] != [rung.rung_id for rung in plan.rungs]:
        raise InputError(f"{study.ladder} holds another ladder than this preset plans; give another folder with --out.")

    # 2. Train what laws may be fitted on.
    corpus = build_corpus()

    def train(rungs: Sequence[Any], label: str) -> Any:
        jobs = missing_jobs(study, rungs)
        with TrainingDisplay(jobs, label, quiet=quiet) as display:
            pool.run(jobs, corpus, display.report)
        return collect_runs(study, ladder)

    say(f"Training {len(missing_jobs(study, ladder.fit_rungs))} runs of {len(ladder.fit_rungs)} fit rungs.")
    runs = train(ladder.fit_rungs, "fit rungs")

    # 3. Fit: the forecasting policy, and laws to compare it with.
    # The default policy and a free floor need four budgets; the smoke preset has three.
    enough = len(preset.budgets) > 3
    laws = ["stacked", "power-law-floor"] if enough else ["floor-integrated"]
    laws += ["power-law", "chinchilla"]
    registered = {entry.forecast.target.rung_id: entry.forecast_id for entry in registry(study)}
    if not registered:
        for law in laws:
            fit(replace(FitSpec.of(law, METRIC), resamples=preset.resamples), runs).save(study.fit(law))

    # 4. Register a forecast for each held-out rung, before it starts.
    for rung in ladder.held_out_rungs:
        if rung.rung_id not in registered:
            title = f"Test loss of rung {rung.name} of the demo ladder"
            forecast = draft(
                study, ladder, rung, METRIC, main=laws[0], comparators=laws[1:], title=title, authors=("foretell demo",)
            )
            entry = register(study, save_draft(study, forecast, rung.name))
            registered[rung.rung_id] = entry.forecast_id
            low, high = forecast.main.predictive.interval(forecast.rule.level)
            say(f"Registered {entry.forecast_id}: {forecast.main.median:.4f}, 90 % interval {low:.4f} to {high:.4f}.")

    # 5. Train the held-out rungs, check the forecasts, report.
    say(f"Training {len(missing_jobs(study, ladder.held_out_rungs))} held-out runs.")
    train(ladder.held_out_rungs, "held-out rungs")
    verify(study)
    pages = []
    for forecast_id in registered.values():
        outcome = check(study, forecast_id)
        if outcome.main is not None and outcome.observed is not None:
            error = f"{100 * outcome.main.relative_error:+.2f} %"
            say(f"{forecast_id}: observed {outcome.observed:.4f}, forecast off by {error}: {outcome.outcome}.")
        else:
            say(f"{forecast_id}: {outcome.outcome}.")
        pages.append(build_report(study, forecast_id))
    return pages


@app.command()
def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Study folder.", metavar="DIR")] = Path("demo"),
    preset: Annotated[str, typer.Option(help="smoke (a minute), default (five) or full (half an hour).")] = "default",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Do the whole flow on two CPU cores: plan, train, fit, register a forecast, train its run, check, report.

    Example: foretell demo --preset smoke --out demo
    """
    from ladder.errors import InputError
    from models.pool import WorkerPool

    if preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}; use {', '.join(PRESETS)}.")
    start = time.monotonic()

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    with WorkerPool(workers=2) as pool:
        pool.start()  # they import JAX while the ladder is planned and the corpus built
        pages = run_demo(out, PRESETS[preset], pool, say, quiet=quiet)
    typer.echo(f"Done in {time.monotonic() - start:.0f} s. Report:")
    for page in pages:
        typer.echo(f"  {page}")


def main() -> None:
    """Run the command line; a known error is one paragraph on stderr and its exit code."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("foretell: interrupted; run the same command again to go on where it stopped.", err=True)
        sys.exit(130)
    except Exception as error:
        from ladder.errors import ForetellError  # here, so that --help need not import a package

        if debug or not isinstance(error, ForetellError):
            raise
        typer.echo(f"foretell: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
