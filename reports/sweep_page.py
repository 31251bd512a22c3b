"""The page of a sweep: conclusion, figures with their data, tables; HTML, Markdown and CSV from one context."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fits.plots import CURVE, GRID, HELD_OUT
from ladder.records import canonical_json, sha256_bytes, sha256_file
from ladder.study import Study
from ladder.units import format_count, format_flops, format_loss, format_percent
from reports.build import MANIFEST_SCHEMA, replace_folder
from reports.charts import smoothed
from reports.figures import WIDTH, Figure, csv_bytes
from reports.render import render_sweep
from reports.svg import canvas, to_svg
from reports.sweep import CENTRE, HEALTH, LEVEL, Difference, SeedNoise, Variant, differences, read_variants, seed_noise
from reports.tables import Field, Table, table_of
from reports.wording import count_of, format_level

COLOURS = (CURVE, HELD_OUT, "#2e8b57", "#8f5fbf", "#8a929b", "#b08d00")
SHOWN = 5  # variants whose routers are drawn: more lines are not told apart


@dataclass(frozen=True)
class SweepContext:
    """Everything the page shows, every number formatted."""

    title: str
    subject: str
    conclusions: tuple[str, ...]
    noise: str
    variants: Table
    differences: Table | None
    figures: dict[str, Figure]
    remarks: tuple[str, ...]


def build_sweep(study: Study, out: Path | None = None) -> Path:
    """Write the page of the sweep in `study` and return its path, ``index.html``; the same records give the same bytes.

    Raises what `reports.sweep.read_variants` raises.
    """
    ladder, variants, steps = read_variants(study)
    found, noise = differences(variants), seed_noise(variants)
    centre = variants[0].rung
    context = SweepContext(
        title=f"A sweep around {centre.name}",
        subject=(
            f"Recipe {centre.recipe}, {format_flops(centre.compute)} FLOPs, {format_count(centre.tokens)} tokens, "
            f"{format_count(centre.counts.nonembedding_active)} active parameters without embedding and head. All "
            f"{len(variants)} variants have this compute, to {_spread(variants)}. Losses are nats per token on test text, "
            "evaluated without drops."
        ),
        conclusions=tuple(sentence(each) for each in found),
        noise=_noise(noise, variants),
        variants=_variants(variants),
        differences=_differences(found),
        figures={figure.key: figure for figure in (_losses(variants), _health(variants, steps)) if figure},
        remarks=ladder.remarks,
    )
    html, markdown = render_sweep(context)
    files = {"index.html": html, "report.md": markdown}
    for figure in context.figures.values():
        files[f"figures/{figure.key}.svg"] = b'<?xml version="1.0" encoding="utf-8"?>\n' + figure.svg.encode()
        files[f"figures/{figure.key}.csv"] = figure.csv
    inputs = [{"name": path.name, "sha256": sha256_file(path)} for path in (study.ladder, study.runs)]
    outputs = [{"name": name, "sha256": sha256_bytes(data)} for name, data in sorted(files.items())]
    files["manifest.json"] = canonical_json({"schema": MANIFEST_SCHEMA, "inputs": inputs, "outputs": outputs})
    target = out or study.report("sweep")
    replace_folder(target, files)
    return target / "index.html"


def sentence(found: Difference) -> str:
    """Return a difference in words."""
    names = f"**{found.variant.label}** against **{found.other.label}**"
    if math.isnan(found.mean):
        return f"{names}: no run of one of them ended, so nothing can be said."
    share = format_percent(found.mean / found.other.mean)
    if math.isinf(found.high):
        return f"{names}: {found.mean:+.4f} nats ({share}); without a second seed of any variant there is no interval."
    interval = f"[{found.low:+.4f}, {found.high:+.4f}]"
    if not found.told_apart:
        return f"{names}: {found.mean:+.4f} nats ({share}), {interval}: not told apart."
    return f"{names}: {found.mean:+.4f} nats ({share}), {interval}: {'worse' if found.mean > 0 else 'better'}."


def _spread(variants: list[Variant]) -> str:
    centre = variants[0].rung.compute
    worst = max(abs(each.rung.compute / centre - 1) for each in variants)
    return format_percent(worst, signed=False) if worst else "the last FLOP"


def _noise(noise: SeedNoise | None, variants: list[Variant]) -> str:
    if noise is None:
        return "Every variant has one run, so the noise of a seed is not known and no difference has an interval."
    mean = variants[0].mean
    return (
        f"One run's loss varies between seeds by {noise.sd:.4f} nats ({format_percent(noise.sd / mean, signed=False)}), "
        f"{format_level(LEVEL)} interval {noise.low:.4f} to {noise.high:.4f}, pooled over variants with "
        f"{count_of(noise.freedom, 'degree')} of freedom; of the centre alone it is {variants[0].sd:.4f}."
    )


def _variants(variants: list[Variant]) -> Table:
    rows = []
    for each in variants:
        spread = each.sd / math.sqrt(len(each.losses)) if each.losses else math.nan
        rows.append(
            {
                "label": each.label,
                "rate": each.rung.optimizer.matrix_lr,
                "runs": f"{len(each.losses)}" + (f", {each.diverged} diverged" if each.diverged else ""),
                "mean": each.mean,
                "se": spread,
                "validation": float(np.mean(list(each.validation.values()))) if each.validation else math.nan,
                **{key: each.health.get(key, math.nan) for key in HEALTH},
            }
        )
    fields = [
        Field("label", "variant", number=False),
        Field("rate", "matrix rate", lambda value: f"{value:.3g}"),
        Field("runs", "runs", number=False),
        Field("mean", "test loss", format_loss, "nats"),
        Field("se", "s.e.", lambda value: f"{value:.4f}"),
        Field("validation", "validation", format_loss, "nats"),
        Field("max_load", "largest load", lambda value: f"{value:.2f}", "of mean"),
        Field("load_entropy", "load entropy", lambda value: f"{value:.3f}", "nats"),
        Field("drop_fraction", "dropped", lambda value: format_percent(value, signed=False), "in training"),
    ]
    marks = ["main" if each.label == CENTRE else "" for each in variants]
    notes = ("Loads and drops are of training, means over the last tenth of the steps and over layers and seeds.",)
    return table_of(pd.DataFrame(rows), fields, caption="Every variant, at equal compute.", notes=notes, marks=marks)


def _differences(found: list[Difference]) -> Table | None:
    if not found:
        return None
    frame = pd.DataFrame(
        {
            "variant": [each.variant.label for each in found],
            "other": [each.other.label for each in found],
            "mean": [each.mean for each in found],
            "interval": [f"{each.low:+.4f} – {each.high:+.4f}" if math.isfinite(each.high) else None for each in found],
            "runs": [f"{len(each.variant.losses)}, {len(each.other.losses)}" for each in found],
            "verdict": ["told apart" if each.told_apart else "not told apart" for each in found],
        }
    )
    fields = [
        Field("variant", "variant", number=False),
        Field("other", "against", number=False),
        Field("mean", "difference", lambda value: f"{value:+.4f}", "nats"),
        Field("interval", "interval", unit="nats"),
        Field("runs", "runs"),
        Field("verdict", "", number=False),
    ]
    caption = (
        f"Differences of means over seeds. The intervals hold for all {count_of(len(found), 'comparison')} together at "
        f"{format_level(LEVEL)} (pooled noise, Student's t, Bonferroni)."
    )
    notes = ("The best rate of an optimizer is the one with the lowest mean validation loss.",)
    return table_of(frame, fields, caption=caption, notes=notes, wrap=True)


def _losses(variants: list[Variant]) -> Figure:
    frame = pd.DataFrame(
        [
            {"variant": each.label, "seed": seed, "test_loss": loss, "mean": each.mean}
            for each in variants
            for seed, loss in each.losses.items()
        ]
    )
    low, high = frame["test_loss"].min(), frame["test_loss"].max()
    alt = (
        f"Test losses of {len(frame)} runs of {len(variants)} variants, from {format_loss(low)} to {format_loss(high)}."
    )
    with canvas(WIDTH, 0.8 + 0.28 * len(variants)) as figure:
        ax = figure.add_subplot()
        for row, each in enumerate(variants):
            colour = CURVE if each.label == CENTRE else "#57606a"
            ax.plot(list(each.losses.values()), [row] * len(each.losses), "o", ms=4, mfc="none", mec=colour, mew=1.0)
            ax.plot([each.mean], [row], "|", ms=13, color=colour, mew=1.8)
        ax.axvline(variants[0].mean, color=CURVE, lw=0.7, ls=":")
        ax.set_yticks(range(len(variants)), [each.label for each in variants])
        ax.set_ylim(len(variants) - 0.5, -0.5)
        ax.set_xlabel("test loss (nats per token)")
        _plain(ax)
        svg = to_svg(figure, "losses", alt)
    caption = "**Losses.** A circle is a run, a bar the mean of a variant; the dotted line is the mean of the centre."
    return Figure("losses", "Losses", svg, csv_bytes(frame), alt, caption)


def _health(variants: list[Variant], steps: pd.DataFrame) -> Figure | None:
    """Return load and drops over the schedule of the variants that differ in balancing, or else of the first few."""
    balanced = [each for each in variants if each.axis == "balancing"]
    shown = [variants[0], *(balanced or variants[1:])][:SHOWN]
    own = steps[steps["rung_id"].isin([each.rung.rung_id for each in shown])]
    if own.empty or variants[0].rung.shape.dense:
        return None
    frame = smoothed(smoothed(own, "max_load"), "drop_fraction")
    parts = (("max_load_mean", "largest load / mean", 1.0), ("drop_fraction_mean", "dropped (%)", 100.0))
    alt = f"Load of the fullest expert and dropped choices over the schedule, for {len(shown)} variants."
    with canvas(WIDTH, 2.7) as figure:
        axes = figure.subplots(1, len(parts))
        for ax, (key, label, scale) in zip(axes, parts, strict=True):
            for each, colour in zip(shown, COLOURS, strict=False):
                runs = frame[frame["rung_id"] == each.rung.rung_id]
                line = runs.groupby("step_fraction")[key].mean() * scale
                ax.plot(line.index, line.values, color=colour, lw=1.1, label=each.label)
            ax.set_xlabel("fraction of the schedule")
            ax.set_ylabel(label)
            _plain(ax)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        svg = to_svg(figure, "router_health", alt)
    caption = "**Balance of the experts in training**, means over seeds, running means over a twentieth of the steps."
    return Figure(
        "router_health", "Balance of the experts", svg, csv_bytes(frame.drop(columns="held_out")), alt, caption
    )


def _plain(ax: Axes) -> None:
    ax.grid(color=GRID, lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
