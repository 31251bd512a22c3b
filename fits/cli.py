"""Commands `foretell fit ...`: fit laws to the runs of a study, compare fits."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fits.cli_diagnose import diagnose
from ladder.errors import InputError, UnusableError
from ladder.units import format_flops, format_loss, parse_quantity

app = typer.Typer(no_args_is_help=True, help="Fit scaling laws to runs.")

StudyOption = Annotated[Path, typer.Option("--study", help="Study folder.", metavar="DIR")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def _loss(law_loss: Any, name: str | None, delta: float) -> Any:
    from fits.objective import LossKind, LossSpec

    if name is None:
        return law_loss
    if name not in tuple(LossKind):
        raise InputError(f"--loss {name!r} is none of {', '.join(LossKind)}.")
    return LossSpec.mse() if name == LossKind.MSE else LossSpec(LossKind(name), delta)


@app.command()
def run(
    law: Annotated[
        str,
        typer.Option(
            help="stacked, floor-integrated, power-law-floor, chinchilla, ...; `foretell fit laws` lists laws."
        ),
    ],
    metric: Annotated[str, typer.Option(help="Which losses of the run table.")] = "test/loss",
    size: Annotated[str, typer.Option(help="Column that is called N.")] = "nonembedding_active_params",
    loss: Annotated[
        str | None, typer.Option(help="huber, mse or student_t on ln L; by default what suits the law.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Of huber, or the scale of student_t, in ln L.")] = 1e-3,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples; 0 for no intervals.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    cluster: Annotated[str, typer.Option(help="Runs resampled together share this column.")] = "rung_id",
    wild: Annotated[bool, typer.Option("--wild", help="Resample signs of residuals instead of clusters.")] = False,
    max_compute: Annotated[
        str | None, typer.Option("--max-compute", help="Leave out runs above it.", metavar="FLOPS")
    ] = None,
    pin_floor: Annotated[
        float | None, typer.Option("--pin-floor", help="Hold the irreducible loss at this value.")
    ] = None,
    use_minimum: Annotated[
        bool, typer.Option("--use-minimum", help="Use the smallest loss of a budget whose parabola cannot be used.")
    ] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where to write; by default fits/LAW.json.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the summary as HTML too.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write figures into this folder.", metavar="DIR")] = None,
    study: StudyOption = Path("study"),
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing fit.")] = False,
) -> None:
    """Fit one law to the runs of a study that may enter it, and write fit.json.

    The exit code is 4 when the fit did not converge; the file is written all the same and says why.

    Example: foretell fit run --study study --law stacked --metric test/loss
    """
    from dataclasses import replace

    from fits.fit import fit
    from fits.spec import BootstrapKind, FitSpec
    from ladder.provenance import Resource
    from ladder.runs import read_runs
    from ladder.study import Study

    place = Study(study)
    path = out or place.fit(law)
    if path.exists() and not force:
        raise InputError(f"{path} exists; name another file with --out, or replace it with --force.")
    plain = FitSpec.of(law, metric)
    spec = replace(
        plain,
        size_column=size,
        loss=_loss(plain.loss, loss, delta),
        resamples=resamples,
        seed=seed,
        cluster_column=cluster,
        max_compute=None if max_compute is None else float(parse_quantity(max_compute, "--max-compute", "FLOPs")),
        pinned_floor=pin_floor,
        use_minimum=use_minimum,
        bootstrap=BootstrapKind.WILD if wild else BootstrapKind.CLUSTER,
    )
    runs = read_runs(place.runs)

    def report(done: int, total: int) -> None:
        if not quiet:
            typer.echo(f"bootstrap {done} of {total}", err=True)

    result = fit(spec, runs, progress=report, inputs=(Resource.of(place.runs, place.root),))
    result.save(path)
    if html is not None:
        from ladder.records import write_atomic

        write_atomic(html, result.summary().page().encode())
    if figures is not None:
        from fits.gallery import save_figures

        for file in save_figures(result, runs, figures):
            if not quiet:
                typer.echo(f"wrote {file}", err=True)
    if as_json:
        document = {
            "path": str(path),
            "law": result.law,
            "status": str(result.status),
            "message": result.message,
            "theta": result.theta,
            "n_runs": result.n_runs,
            "n_points": len(result.points),
            "fit_range": result.fit_range,
            "excluded": result.excluded,
        }
        typer.echo(json.dumps(document))
    else:
        typer.echo(str(result.summary()))
        typer.echo(f"\nwrote {path}")
    if not result.usable:
        raise UnusableError(f"the fit did not converge ({result.status}). {result.message}")


@app.command()
def compare(
    fits: Annotated[list[Path], typer.Argument(help="Fits, by file.", metavar="FIT...")],
    at: Annotated[str, typer.Option(help="Compute of the prediction.", metavar="FLOPS")],
    level: Annotated[float, typer.Option(min=0.01, max=0.999, help="Of the interval.")] = 0.9,
    as_json: JsonOption = False,
) -> None:
    """Show fits side by side: parameters, and what each predicts for the next run at a compute.

    Example: foretell fit compare study/fits/floor-integrated.json study/fits/power-law-floor.json --at 3e12
    """
    from fits.compare import comparison
    from fits.result import read_fit

    compute = float(parse_quantity(at, "--at", "FLOPs"))
    names = [path.stem for path in fits]
    if len(set(names)) != len(names):
        raise InputError(f"two fits have one file name: {', '.join(names)}; rename one.")
    frame = comparison(dict(zip(names, map(read_fit, fits), strict=True)), compute, level)
    if as_json:
        typer.echo(frame.reset_index().to_json(orient="records", double_precision=15))
        return
    if frame["metric"].nunique() > 1:
        typer.echo("note: these fits are of different metrics; their losses are not comparable.", err=True)
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, caption=f"Next run at {format_flops(compute)} FLOPs; interval of {100 * level:g} %.")
    for heading in ("fit", "status", "median", "interval", "beyond fit", "parameters"):
        left = heading in {"fit", "status", "parameters"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "parameters")
    fixed = {"law", "metric", "status", "median", "lo", "hi", "extrapolation_factor"}
    for name, row in frame.iterrows():
        params = ", ".join(
            f"{key} {row[key]:.4g}" for key in frame.columns if key not in fixed and row[key] == row[key]
        )
        interval = f"{format_loss(row['lo'])} to {format_loss(row['hi'])}"
        factor = f"{row['extrapolation_factor']:.3g}x"
        table.add_row(str(name), row["status"], format_loss(row["median"]), interval, factor, params)
    Console().print(table)


@app.command()
def backtest(
    table: Annotated[Path, typer.Argument(help="Run table (.parquet or .csv).", metavar="RUNS")],
    law: Annotated[list[str], typer.Option(help="Law or policy; repeat for several.")],
    metric: Annotated[str, typer.Option(help="Which losses of the run table.")] = "test/loss",
    size: Annotated[str, typer.Option(help="Column that is called N.")] = "nonembedding_active_params",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the figure here (.png or .svg).")] = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing figure.")] = False,
) -> None:
    """Hide the top budgets in turn, predict them from the rest, and show errors, coverage, scores and skill.

    Example: foretell fit backtest study/runs.parquet --law stacked --law chinchilla -o backtest.png
    """
    from dataclasses import replace

    from fits.backtest import backtest as look
    from fits.spec import FitSpec
    from ladder.runs import read_runs

    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists; name another file with --out, or replace it with --force.")
    specs = [replace(FitSpec.of(name, metric), size_column=size) for name in dict.fromkeys(law)]
    found = look(read_runs(table), specs, progress=None if quiet else lambda text: typer.echo(text, err=True))
    summary = found.summary()
    if out is not None:
        from fits.gallery import save_backtest

        save_backtest(found, out)
    if as_json:
        document = {
            "summary": json.loads(summary.to_json(orient="records", double_precision=15)),
            "forecasts": json.loads(found.frame.to_json(orient="records", double_precision=15)),
            "leaks_left_out": found.leaks,
        }
        typer.echo(json.dumps(document))
        return
    shown = summary.assign(
        **{name: 100 * summary[name] for name in ("mean_abs_error", "median_abs_error", "bias", "crps", "wis")}
    )
    typer.echo(shown.to_string(index=False, float_format="{:.3g}".format))
    typer.echo("\nErrors, bias, CRPS and WIS in per cent of the loss; skill is 1 - CRPS / CRPS of the baseline.")
    if found.leaks:
        typer.echo(f"{found.leaks} runs of a target's rung or trunk were left out of fits.", err=True)
    for _, row in found.frame[found.frame["median"].isna()].drop_duplicates("law").iterrows():
        typer.echo(f"{row['law']} has no forecast at some cuts: {row['status']}", err=True)


@app.command()
def forecast(
    table: Annotated[Path, typer.Argument(help="Run table (.parquet or .csv).", metavar="RUNS")],
    at: Annotated[str, typer.Option(help="Compute of the target.", metavar="FLOPS")],
    params: Annotated[str | None, typer.Option(help="N of the target, by --size; else compute-optimal.")] = None,
    tokens: Annotated[str | None, typer.Option(help="D of the target.")] = None,
    metric: Annotated[str, typer.Option(help="Which losses of the run table.")] = "test/loss",
    size: Annotated[str, typer.Option(help="Column that is called N.")] = "nonembedding_active_params",
    level: Annotated[float, typer.Option(min=0.01, max=0.999, help="Of the interval.")] = 0.9,
    before: Annotated[
        Path | None, typer.Option(help="An earlier fit: say why the forecast moved.", metavar="FIT")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast one run from a run table with the default policy: interval, what it rests on, where each law alone lands.

    Runs at or above the target's compute are left out. Nothing is registered: `foretell forecast draft` does that for a
    rung of a ladder. The exit code is 4 when the runs do not support a forecast.

    Example: foretell fit forecast study/runs.parquet --at 1e23 --metric test/loss
    """
    from dataclasses import replace

    from fits.fit import fit
    from fits.result import read_fit
    from fits.spec import STACKED, FitSpec
    from fits.why import alternatives, why_moved
    from ladder.runs import read_runs

    if (params is None) != (tokens is None):
        raise InputError("--params and --tokens belong together; give both, or neither for the compute-optimal run.")
    compute = float(parse_quantity(at, "--at", "FLOPs"))
    target = {"compute": compute}
    if params is not None and tokens is not None:
        target |= {
            size: float(parse_quantity(params, "--params", "parameters")),
            "tokens": float(parse_quantity(tokens, "--tokens", "tokens")),
        }
    runs = read_runs(table)
    below = 0.98 * compute  # runs within 2 % count as the target's own compute, as in forecasts/statement.py
    result = fit(replace(FitSpec.of(STACKED, metric), size_column=size, max_compute=below), runs)
    predictive, split = result.predictive(target), result.variance_split(target)
    frame = alternatives(result, target, level)
    moved = None if before is None else why_moved(read_fit(before), result, runs, target)
    low, high = predictive.interval(level)
    if as_json:
        document = {
            "target": target,
            "median": predictive.median,
            "interval": [low, high],
            "level": level,
            "extrapolation_factor": compute / result.fit_range["compute"][1],
            "predictive": vars(predictive),
            "variance": vars(split),
            "alternatives": json.loads(frame.to_json(orient="records", double_precision=15)),
            "moved": None if moved is None else json.loads(moved.to_json(orient="records", double_precision=15)),
            "status": str(result.status),
            "message": result.message,
        }
        typer.echo(json.dumps(document))
    else:
        factor = compute / result.fit_range["compute"][1]
        typer.echo(
            f"{format_loss(predictive.median)}, {100 * level:g} % interval {format_loss(low)} to {format_loss(high)}, "
            f"{factor:.3g}x beyond {result.n_runs} runs."
        )
        parts = ", ".join(f"{name} {100 * part / split.total:.0f} %" for name, part in vars(split).items())
        typer.echo(f"Variance: {parts}.\n{result.message}\n")
        typer.echo(frame.to_string(index=False, float_format="{:.4f}".format, na_rep=""))
        if moved is not None:
            typer.echo("\n" + moved.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    if not result.usable:
        raise UnusableError(f"the runs do not support a forecast. {result.message}")


@app.command()
def laws(as_json: JsonOption = False) -> None:
    """List the laws: formula, what each reads, and where its published values come from.

    Example: foretell fit laws
    """
    from fits.laws import LAWS

    rows = [
        {"law": law.name, "formula": law.formula, "inputs": list(law.inputs), "published": list(law.published)}
        for law in LAWS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for law in LAWS.values():
        sources = ", ".join(f"{key} [{law.sources[key].evidence}]" for key in law.published) or "none"
        typer.echo(f"{law.name}\n  {law.formula}\n  reads {', '.join(law.inputs)}; published values: {sources}")


@app.command()
def check(
    fitted: Annotated[Path, typer.Argument(help="Fit, by file.", metavar="FIT")],
    level: Annotated[float, typer.Option(min=0.01, max=0.999, help="Of the profile intervals.")] = 0.95,
    study: StudyOption = Path("study"),
    as_json: JsonOption = False,
) -> None:
    """Show what the runs of a fit identify: profile intervals, conditioning, other losses, the bias of IsoFLOP vertices.

    Example: foretell fit check study/fits/chinchilla.json --study study
    """
    from fits.check import check as look
    from fits.result import read_fit
    from ladder.runs import read_runs
    from ladder.study import Study

    found = look(read_fit(fitted), read_runs(Study(study).runs), level)
    if as_json:
        typer.echo(json.dumps(found.plain()))
        return
    typer.echo(f"{found.identifiability}\n")
    typer.echo(f"parameter   estimate    {100 * level:g} % profile interval    sandwich se")
    for interval in found.profiles:
        lo, hi = (f"{end:.5g}" if end is not None else "not reached" for end in (interval.lo, interval.hi))
        se = found.sandwich_se.get(interval.name)
        shown = "" if se is None else f"{se:.2g}"
        typer.echo(f"{interval.name:<10}  {interval.estimate:<10.5g}  {lo + ' to ' + hi:<24}  {shown}")
    typer.echo(f"\nother losses\n{found.sweep.to_string(index=False, float_format='{:.5g}'.format)}")
    if found.isoflop is not None:
        typer.echo(
            f"\nIsoFLOP vertices against this surface\n{found.isoflop.to_string(index=False, float_format='{:.4g}'.format)}"
        )


app.command()(diagnose)
