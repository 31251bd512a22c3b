"""The page of a sweep: comparisons, intervals and noise against SciPy, and a page whose every number is of its runs."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from ladder.errors import InputError
from ladder.recipe import recipe_named
from ladder.records import write_atomic
from ladder.runs import RunTable
from ladder.sizing import make_rung
from ladder.study import Study
from ladder.sweep import plan_around
from reports.cli import app
from reports.sweep import comparisons, differences, read_variants, seed_noise
from reports.sweep_page import build_sweep
from tests.reports_study import plan, run_rows

SEEDS = 3
WORSE = {"auxiliary": 0.0, "none": 0.1}  # ln loss over the centre's
ADAMW = {0.5: -0.05, 1.0: 0.05}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Eight rungs of a real sweep with losses that are known but for seed noise."""
    where = Study(tmp_path_factory.mktemp("sweep"))
    recipe = recipe_named("tiny-cpu")
    axes = {"balancing": ["auxiliary", "none"], "optimizer": ["adamw"], "lr": [0.5, 1, 2]}
    ladder = plan_around(recipe, make_rung(recipe, 2 * 10**10, 16), axes, SEEDS)
    write_atomic(where.ladder, ladder.to_json())
    rows = []
    for rung in ladder.rungs:
        fields = {item.field: item.value for item in rung.overrides}
        rate = float(fields.get("lr_multiple", 1.0))
        shift = WORSE.get(str(fields.get("balancing")), 0.0)
        shift += ADAMW.get(rate, 0.1) if "optimizer" in fields else 0.1 * abs(math.log2(rate))
        for seed in rung.seeds:
            made = run_rows(rung, seed, "2026-12-01T00:00:00Z", "2026-12-01T00:10:00Z", shift)
            noise = np.random.default_rng([seed, int(rung.rung_id, 16)]).normal()
            rows += [{**row, "loss": row["loss"] * math.exp(0.004 * noise)} for row in made]
            lines = [
                {"step": step, "loss": 2.0, "max_load": 1.5, "load_entropy": 2.0, "drop_fraction": 0.01}
                for step in (1, rung.steps)
            ]
            write_atomic(where.run(rung.run_id(seed)) / "metrics.jsonl", "\n".join(map(json.dumps, lines)).encode())
    RunTable.of(pd.DataFrame(rows), "rows").save(where.runs)
    return where


def test_what_is_compared_with_what(study: Study) -> None:
    _, variants, _ = read_variants(study)
    pairs = {(one.label, other.label) for one, other in comparisons(variants)}
    assert pairs == {
        ("balancing auxiliary", "the recipe's own"),
        ("balancing none", "the recipe's own"),
        ("rates × 0.5", "the recipe's own"),
        ("rates × 2", "the recipe's own"),
        ("adamw, rates × 0.5", "the recipe's own"),  # the best of both sides by validation loss
    }


def test_intervals_and_noise_are_scipys(study: Study) -> None:
    _, variants, _ = read_variants(study)
    noise = seed_noise(variants)
    groups = [list(each.losses.values()) for each in variants]
    freedom = sum(len(group) - 1 for group in groups)
    pooled = math.sqrt(sum(np.var(group, ddof=1) * (len(group) - 1) for group in groups) / freedom)
    assert noise is not None
    assert (noise.sd, noise.freedom) == (pytest.approx(pooled), freedom)
    assert noise.low == pytest.approx(pooled * math.sqrt(freedom / stats.chi2(freedom).ppf(0.975)))
    assert noise.low < noise.sd < noise.high
    found = differences(variants)
    half = stats.t(freedom).isf(0.025 / len(found)) * pooled * math.sqrt(2 / SEEDS)
    for each in found:
        expected = np.mean(list(each.variant.losses.values())) - np.mean(list(each.other.losses.values()))
        assert (each.mean, each.high - each.mean) == (pytest.approx(expected), pytest.approx(half))
    told = {each.variant.label: each.told_apart for each in found}
    assert told["balancing none"]
    assert told["adamw, rates × 0.5"]
    assert not told["balancing auxiliary"]


def test_the_page_says_it_and_is_the_same_every_time(study: Study, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["sweep", "--study", str(study.root)])
    assert ran.exit_code == 0, ran.output
    folder = study.report("sweep")
    text = (folder / "report.md").read_text()
    assert "**balancing none** against **the recipe's own**: +" in text
    assert "worse." in text
    assert "not told apart." in text
    page = (folder / "index.html").read_text()
    assert "<h2>What it shows</h2>" in page
    assert len(pd.read_csv(folder / "figures" / "losses.csv")) == 8 * SEEDS
    assert len(pd.read_csv(folder / "figures" / "router_health.csv")) == 3 * SEEDS * 2  # those that differ in balancing
    again = build_sweep(study, tmp_path / "again")
    for name in ("index.html", "report.md", "manifest.json"):
        assert (again.parent / name).read_bytes() == (folder / name).read_bytes()


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    write_atomic(tmp_path / "ladder.json", plan().to_json())
    with pytest.raises(InputError, match="is no sweep"):
        build_sweep(Study(tmp_path))
