"""Commands `foretell runs ...`: run tables in from anywhere, checked, and out again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ladder.errors import InputError

runs_app = typer.Typer(no_args_is_help=True, help="Run tables: import them, check them, convert them.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
RunsArgument = Annotated[Path, typer.Argument(help="A run table.", metavar="RUNS")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
SHOWN = 20  # complaints shown; --json has them all


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise InputError(f"{path} exists; name another file with --out, or replace it with --force.")


@runs_app.command("import")
def runs_import(
    source: Annotated[str, typer.Argument(help="A file, a folder, or wandb:entity/project.", metavar="SOURCE")],
    by: Annotated[str, typer.Option("--map", help="Column map: a name of `runs maps`, or path/to/map.toml.")],
    recipe: Annotated[
        str | None, typer.Option(help="Only this recipe may enter a fit; rows of others stay and are marked.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .parquet, .csv or .jsonl.")] = Path(
        "study/runs.parquet"
    ),
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no complaints about cells.")] = False,
) -> None:
    """Import a foreign table by a column map; no row is dropped, and one that cannot be used says why.

    Reads CSV (W&B exports too), Parquet, JSON Lines, JSON, Levanter tracker files, and W&B projects.

    Example: foretell runs import ../shared/data/chinchilla_epoch --map chinchilla_epoch -o study/runs.parquet
    """
    from ladder.importer import import_runs
    from ladder.runmap_read import read_map

    _refuse_existing(out, force)
    found = import_runs(source, read_map(by), recipe)
    found.table.save(out)
    frame = found.table.frame
    excluded = {str(key): int(n) for key, n in frame["excluded_reason"].value_counts().sort_index().items()}
    held_out = int(frame["role"].eq("held_out").sum())
    metrics = {str(key): int(n) for key, n in frame["metric"].value_counts().sort_index().items()}
    if as_json:
        document = {
            "path": str(out),
            "source_rows": found.source_rows,
            "rows": len(frame),
            "runs": int(frame["run_id"].nunique()),
            "metrics": metrics,
            "held_out": held_out,
            "excluded": excluded,
            "notes": found.notes,
            "remarks": found.remarks,
        }
        typer.echo(json.dumps(document))
        return
    if not quiet:
        _show(found.notes)
    for remark in found.remarks:
        typer.echo(f"warning: {remark}", err=True)
    for file, rows in found.source_rows.items():
        typer.echo(f"{file}: {rows} rows")
    typer.echo(
        f"{out}: {len(frame)} rows of {frame['run_id'].nunique()} runs; {held_out} held out; excluded: "
        + (", ".join(f"{count} {reason}" for reason, count in excluded.items()) or "none")
    )
    for metric, rows in metrics.items():
        units = ", ".join(sorted(frame.loc[frame["metric"] == metric, "loss_unit"].unique()))
        typer.echo(f"  {metric} ({units}): {rows} rows")


def _show(lines: tuple[str, ...]) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"note: {line}", err=True)
    if len(lines) > SHOWN:
        typer.echo(f"note: {len(lines) - SHOWN} more; see extra_import_note in the table, or --json.", err=True)


@runs_app.command("maps")
def runs_maps(
    name: Annotated[str | None, typer.Argument(help="Show one map, as it stands.", metavar="MAP")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the column maps that come with foretell, or show one; they are models for your own.

    Example: foretell runs maps wandb
    """
    from ladder.runmap_read import MAPS, read_map, shipped_maps

    if name is not None:
        read_map(name)
        typer.echo((Path(name) if name.endswith(".toml") else MAPS / f"{name}.toml").read_text(), nl=False)
        return
    maps = [read_map(each) for each in shipped_maps()]
    if as_json:
        rows = [{"map": m.name, "title": m.title, "tables": [t.file for t in m.tables]} for m in maps]
        typer.echo(json.dumps(rows))
        return
    width = max(len(m.name) for m in maps)
    for each in maps:
        typer.echo(f"{each.name:<{width}}  {each.title}: {', '.join(dict.fromkeys(t.file for t in each.tables))}")


@runs_app.command("check")
def runs_check(runs: RunsArgument, as_json: JsonOption = False) -> None:
    """Check a run table and say what it holds, and what a fit of it would refuse.

    Example: foretell runs check study/runs.parquet
    """
    from ladder.runs import RunTable, read_frame
    from ladder.runs_check import all_complaints, mixtures

    raw = read_frame(runs)
    wrong = [str(complaint) for complaint in all_complaints(raw, str(runs))]
    if wrong:
        if as_json:
            typer.echo(json.dumps({"rows": len(raw), "complaints": wrong}))
        else:
            for line in wrong[:SHOWN]:
                typer.echo(line)
            if len(wrong) > SHOWN:
                typer.echo(f"{len(wrong) - SHOWN} more; --json shows all.")
        raise InputError(f"{runs} is no run table as it stands: {len(wrong)} cells cannot be used, see above.")
    frame = RunTable.of(raw, str(runs)).frame
    remarks = mixtures(frame)
    excluded = frame["excluded_reason"].value_counts().to_dict()
    rows, runs_count, metrics = len(frame), int(frame["run_id"].nunique()), sorted(frame["metric"].unique())
    if as_json:
        document = {"rows": rows, "runs": runs_count, "metrics": metrics, "excluded": excluded, "remarks": remarks}
        typer.echo(json.dumps(document))
        return
    held = ", ".join(f"{count} {reason}" for reason, count in excluded.items()) or "none"
    typer.echo(f"{runs}: {rows} rows of {runs_count} runs, {', '.join(metrics)}; excluded: {held}.")
    for remark in remarks:
        typer.echo(f"warning: {remark}")


@runs_app.command("export")
def runs_export(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .csv, .parquet or .jsonl.")],
    force: ForceOption = False,
) -> None:
    """Write a run table in another format.

    Example: foretell runs export study/runs.parquet -o runs.csv
    """
    from ladder.runs import read_runs

    _refuse_existing(out, force)
    read_runs(runs).save(out)
    typer.echo(f"Wrote {out}.")
