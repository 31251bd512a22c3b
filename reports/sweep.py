"""What a sweep found: every variant's losses by seed, differences from the rung it surrounds, and the balance of experts.

Differences are of means over seeds. Their intervals take the noise of a seed as one for all variants and pool it, since a
few runs of one variant say little of it by themselves, and are simultaneous: Student's t with Bonferroni's correction
over the comparisons on the page. The best rate of each optimizer is chosen on validation text and compared on test text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from ladder.errors import InputError
from ladder.rung import Ladder, Rung, read_ladder
from ladder.runs import read_runs
from ladder.study import Study
from reports.charts import metrics_frame

TEST, VALIDATION = "test/loss", "validation/loss"
LEVEL = 0.95
CENTRE = "the recipe's own"
TAIL = 0.9  # of the schedule, from which on balance is averaged
HEALTH = ("max_load", "load_entropy", "drop_fraction")  # of metrics.jsonl


@dataclass(frozen=True)
class Variant:
    """One rung of a sweep with its runs.

    Attributes:
        label: what of it was set by hand.
        axis: the field that was set; "optimizer" also where its rate was set besides; empty for the centre.
        losses, validation: by seed, nats per token; runs that diverged are missing.
        diverged: how many did.
        health: tail means over runs and layers of what metrics.jsonl says of the router.
    """

    rung: Rung
    label: str
    axis: str
    losses: Mapping[int, float]
    validation: Mapping[int, float]
    diverged: int
    health: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean test loss over seeds; not a number where none ended."""
        return float(np.mean(list(self.losses.values()))) if self.losses else math.nan

    @property
    def sd(self) -> float:
        """Standard deviation over seeds; not a number for fewer than two."""
        return float(np.std(list(self.losses.values()), ddof=1)) if len(self.losses) > 1 else math.nan


@dataclass(frozen=True)
class Difference:
    """How much higher the loss of `variant` is than that of `other`, with a simultaneous interval.

    The interval is infinite where the noise of a seed is not known, the mean not a number where a side has no run.
    """

    variant: Variant
    other: Variant
    mean: float
    low: float
    high: float

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of one run's loss over seeds, pooled over all variants, with its interval by chi square."""

    sd: float
    low: float
    high: float
    freedom: int


WORDS = {"optimizer": "{}", "balancing": "balancing {}", "lr_multiple": "rates × {:g}"}  # of an override


def label_of(rung: Rung) -> tuple[str, str]:
    """Return what of a rung was set by hand, in words, and the axis it lies on."""
    fields = {item.field: item.value for item in rung.overrides if item.field != "hidden"}
    ordered = sorted(fields, key=lambda name: (*WORDS, name).index(name))
    words = [WORDS.get(name, f"{name} {{:g}}").format(fields[name]) for name in ordered]
    return ", ".join(words) or CENTRE, next(iter(ordered), "")


def read_variants(study: Study) -> tuple[Ladder, list[Variant], pd.DataFrame]:
    """Return the ladder of a sweep, its variants in order, the centre first, and the logged steps of their routers.

    Raises InputError where the ladder is no sweep or none of the centre's runs has ended.
    """
    ladder = read_ladder(study.ladder)
    if ladder.name != "sweep":
        raise InputError(f"{study.ladder} is no sweep; plan one with `foretell ladder plan --around RUNG --vary ...`.")
    frame = read_runs(study.runs).frame
    folders = {rung.run_id(seed): study.run(rung.run_id(seed)) for rung in ladder.rungs for seed in rung.seeds}
    test = frame[frame["metric"] == TEST].assign(held_out=False)
    steps = metrics_frame(folders, test, HEALTH)
    variants = [_variant(rung, frame, steps) for rung in ladder.rungs]
    if not variants[0].losses:
        raise InputError(
            f"no run of {ladder.rungs[0].name}, the sweep's centre, has ended; `foretell train run` first."
        )
    labels = {variant.rung.rung_id: variant.label for variant in variants}
    return ladder, variants, steps.assign(label=steps["rung_id"].map(labels))


def _variant(rung: Rung, frame: pd.DataFrame, steps: pd.DataFrame) -> Variant:
    own = frame[frame["rung_id"] == rung.rung_id]
    by_metric = {
        metric: {
            int(row["seed"]): float(row["loss"])
            for row in own[(own["metric"] == metric) & own["loss"].notna()].to_dict("records")
        }
        for metric in (TEST, VALIDATION)
    }
    tail = steps[(steps["rung_id"] == rung.rung_id) & (steps["step_fraction"] >= TAIL)]
    diverged = own.loc[own["status"] == "diverged", "run_id"].nunique()
    health = {} if rung.shape.dense else {key: float(tail[key].mean()) for key in HEALTH}
    return Variant(rung, *label_of(rung), by_metric[TEST], by_metric[VALIDATION], diverged, health)


def comparisons(variants: list[Variant]) -> list[tuple[Variant, Variant]]:
    """Return the pairs that a sweep is read for: each variant and the centre, and the best rates of each optimizer.

    Rates of another optimizer are not compared one by one; its best by validation loss is, with the best of the
    centre's own.
    """
    centre = variants[0]
    pairs = [(each, centre) for each in variants[1:] if each.axis not in ("optimizer", "lr_multiple")]
    rates = [centre, *(each for each in variants[1:] if each.axis == "lr_multiple")]
    pairs += [(each, centre) for each in rates[1:]]
    names = dict.fromkeys(each.rung.optimizer.name for each in variants if each.axis == "optimizer")
    for name in names:
        others = [each for each in variants if each.axis == "optimizer" and each.rung.optimizer.name == name]
        pairs.append((_best(others), _best(rates)))
    return pairs


def _best(variants: list[Variant]) -> Variant:
    """Return the variant of the lowest mean validation loss; one with a diverged run only where all have."""
    known = [each for each in variants if each.validation]
    return min(
        known or variants, key=lambda each: (each.diverged > 0, np.mean(list(each.validation.values()) or [math.inf]))
    )


def differences(variants: list[Variant]) -> list[Difference]:
    """Return every comparison with its interval, at a level that holds for all of them together."""
    pairs, noise = comparisons(variants), seed_noise(variants)
    found = []
    for variant, other in pairs:
        mean, half = variant.mean - other.mean, math.inf
        if noise is not None and variant.losses and other.losses:
            quantile = float(stats.t.ppf(1 - (1 - LEVEL) / (2 * len(pairs)), noise.freedom))
            half = quantile * noise.sd * math.sqrt(1 / len(variant.losses) + 1 / len(other.losses))
        found.append(Difference(variant, other, mean, mean - half, mean + half))
    return found


def seed_noise(variants: list[Variant]) -> SeedNoise | None:
    """Return the noise over seeds, pooled; None where no variant has two runs."""
    repeated = [each for each in variants if len(each.losses) > 1]
    freedom = sum(len(each.losses) - 1 for each in repeated)
    if not freedom:
        return None
    squares = sum((len(each.losses) - 1) * each.sd**2 for each in repeated)
    low, high = (math.sqrt(squares / stats.chi2.ppf(0.5 + sign * LEVEL / 2, freedom)) for sign in (1, -1))
    return SeedNoise(math.sqrt(squares / freedom), low, high, freedom)
