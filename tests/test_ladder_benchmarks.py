"""The scripts under benchmarks/ that speak for ladders: README's table is current, conventions bend exponents."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import convention_sensitivity, readme_tables
from fits.fit import fit
from fits.spec import FitSpec
from ladder.errors import InputError
from ladder.generate import plan_isoflop
from ladder.hardware import memory_per_device
from ladder.optima import nearest_optima, optima_named
from ladder.plan_optima import plan_at_optima
from ladder.recipe import recipe_named
from ladder.recipe_marin_moe import FIT_BUDGETS, HELD_OUT_BUDGETS
from ladder.runs import RunTable

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"


def test_the_table_of_the_readme_is_current() -> None:
    command = [sys.executable, "benchmarks/readme_tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run python benchmarks/readme_tables.py"
    assert json.loads(done.stdout) == {"stale": [], "written": False}


def test_a_stale_table_is_noticed_and_only_the_table_is_replaced() -> None:
    text = readme_tables.README.read_text()
    edited = text.replace("| 1e21 | held out |", "| 1e21 | fit |")
    assert edited != text
    tables = readme_tables.pages()[readme_tables.README]
    assert readme_tables.with_tables(edited, tables, readme_tables.README) == text
    assert readme_tables.with_tables(text + "more\n", tables, readme_tables.README) == text + "more\n"
    with pytest.raises(InputError, match="needs the lines"):
        readme_tables.with_tables("no marks", tables, readme_tables.README)


def test_what_was_compiled_is_as_the_ladder_plans_it() -> None:
    """Memory within a tenth, every product accounted for, and of the ten budgets all fit."""
    document = json.loads(readme_tables.COMPILED.read_text())
    ladder = plan_isoflop(recipe_named("marin-moe-v16"), FIT_BUDGETS, held_out=HELD_OUT_BUDGETS)
    optima = {rung.rung_id: rung for rung in nearest_optima(ladder)}
    assert [row["rung_id"] for row in document["optima"]] == list(optima)
    for row in document["optima"]:
        assert row["fits"], row["name"]
        rung, devices = optima[row["rung_id"]], row["devices"]
        seqs = rung.batch_seqs // devices // row["accumulation"]
        planned = memory_per_device(rung, devices, seqs, expert_axis=row["mesh"]["expert"])
        assert planned.total == pytest.approx(row["hbm_used"], rel=0.1), row["name"]
        for kind in ("head", "routed", "dense"):
            term = row["terms"][kind]
            assert term["executed"] == pytest.approx(term["analytic"] * term["factor"], rel=0.05), (row["name"], kind)


@pytest.mark.skipif(not (DATA / "marin_moe").is_dir(), reason="the public data are not beside the checkout")
def test_conventions_bend_the_exponents() -> None:
    frame = convention_sensitivity.runs(DATA)
    found = {name: reading.row() for name, reading in convention_sensitivity.readings(frame).items()}
    exponents = {name: row["loss_exponent"] for name, row in found.items()}
    # the published fit of six vertices: 95.18 C^-0.0941 above 1.6
    assert exponents["no_head"] == pytest.approx(0.0941, abs=0.002)
    assert exponents["no_head_interpolated"] == pytest.approx(exponents["no_head"], abs=0.001)
    assert exponents["relabelled"] == pytest.approx(exponents["full"], abs=0.001)
    assert exponents["no_head"] < exponents["full"] < exponents["mixed"]
    assert frame["full"].gt(frame["no_head"]).all()


@pytest.mark.skipif(not (DATA / "marin_moe").is_dir(), reason="the public data are not beside the checkout")
def test_a_fit_of_the_published_sweep_plans_the_published_sizes(tmp_path: Path) -> None:
    frame = convention_sensitivity.runs(DATA)
    rows = frame.assign(
        run_id=[f"r{index}" for index in range(len(frame))],
        recipe="marin-moe-v16",
        status="finished",
        compute=frame["no_head"],
        flop_convention="MATMUL_NO_HEAD",
        nonembedding_active_params=frame["size"],
        metric="paloma/macro",
        loss_unit="nats_per_token",
    )
    table = RunTable.of(rows.drop(columns=["hidden", "size", "no_head", "full"]))
    v16 = recipe_named("marin-moe-v16")
    for law in ("power-law", "chinchilla"):
        result = fit(replace(FitSpec.of(law, "paloma/macro"), resamples=0), table)
        assert result.usable, result.message
        result.save(tmp_path / f"{law}.json")
        optima = optima_named(str(tmp_path / f"{law}.json"), v16)
        plan = plan_at_optima(v16, [10**20], optima, held_out=[10**21])
        best, far = plan.rungs
        assert best.shape.hidden in (
            1536,
            1792,
        )  # published: d1536 had the smallest loss, d1792 and d2048 within 0.75 %
        assert far.shape.hidden in (2304, 2560, 2816)  # published: d2560
        assert "fitted" in plan.remarks[-1]
