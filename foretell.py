"""The front door: the console command `foretell`, and `foretell demo`, the shortest readable account of the whole flow.

ladder.json -> runs.parquet -> fit.json -> forecast.json (+ log line) -> check.json -> report
"""

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import typer
import typer.core

# Command group, module, attribute, one line of help. A group's module is imported only when it is used.
GROUPS = (
    ("ladder", "ladder.cli", "app", "Plan ladders of compute-matched configurations; nothing is spent."),
    ("runs", "ladder.cli", "runs_app", "Run tables: check them, convert them."),
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
    """A demo ladder on the recipe tiny-cpu: budgets in FLOPs, sizes per budget, seeds."""

    budgets: tuple[int, ...]
    sizes: int
    replicates: dict[int, int]
    held_out: tuple[int, ...]
    held_out_seeds: int


PRESETS = {
    "smoke": Preset((10**10, 2 * 10**10, 4 * 10**10), 3, {2 * 10**10: 1}, (15 * 10**10,), 1),
    "default": Preset((3 * 10**10, 65 * 10**9, 14 * 10**10, 3 * 10**11), 4, {65 * 10**9: 2}, (3 * 10**12,), 2),
    "full": Preset(
        (3 * 10**10, 65 * 10**9, 14 * 10**10, 3 * 10**11, 65 * 10**10),
        5,
        {65 * 10**9: 2, 3 * 10**11: 2},
        (3 * 10**12, 6 * 10**12),
        2,
    ),
}


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
