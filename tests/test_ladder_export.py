"""Cost, tables and Levanter configs of a ladder, as the commands give them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from ladder.chips import CHIPS
from ladder.cli import app
from ladder.cost import cost_of
from ladder.errors import InputError
from ladder.export import levanter_config, save_levanter, save_table
from ladder.generate import plan_isoflop
from ladder.hardware import layout_on
from ladder.recipe import recipe_named
from ladder.rung import Ladder


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    recipe = recipe_named("marin-moe-v16")
    return plan_isoflop(recipe, recipe.fit_budgets, held_out=recipe.held_out_budgets)


def test_costs_add_up(ladder: Ladder, tmp_path: Path) -> None:
    path = tmp_path / "L.json"
    ladder.save(path)
    result = CliRunner().invoke(app, ["cost", str(path), "--price", "2", "--slices", "4", "--json"])
    printed = json.loads(result.output)
    assert len(printed["rungs"]) == 31
    assert sum(row["cost"] for row in printed["rungs"]) == pytest.approx(printed["cost"], abs=1)
    assert printed["cost"] == pytest.approx(2 * printed["chip_hours"], abs=0.02)
    assert "nothing measured" in CliRunner().invoke(app, ["cost", str(path)]).output
    found = cost_of(ladder, CHIPS["v5p"])
    longest = max(placement.hours for _, placement in found.rungs)
    assert found.wall_hours(31) == pytest.approx(longest)
    assert found.wall_hours(1) == pytest.approx(sum(placement.hours for _, placement in found.rungs))
    with pytest.raises(InputError, match="memory only"):
        cost_of(ladder, CHIPS["h100"])


def test_the_slice_at_hand_is_used_or_refused(ladder: Ladder, tmp_path: Path) -> None:
    path = tmp_path / "L.json"
    small = Ladder("small", ladder.rungs[:3], ladder.provenance)
    small.save(path)

    def cost(topology: str) -> Any:
        return CliRunner().invoke(app, ["cost", str(path), "--slice", topology, "--json"])

    rows = json.loads(cost("v5p:2x2x4").output)["rungs"]
    assert {(row["slice"], row["chips"]) for row in rows} == {("v5p:2x2x4", 16)}
    assert "slice 'v5p:3x3x3' does not exist; those of v5p" in str(cost("v5p:3x3x3").exception)
    assert "does not divide over 512 devices of v5p" in str(cost("v5p:8x8x8").exception)
    big = Ladder("big", ladder.rungs[-1:], ladder.provenance)
    with pytest.raises(InputError, match="1e23-d5376 does not fit on v5p:2x2x1"):
        cost_of(big, CHIPS["v5p"], topology="v5p:2x2x1")


@pytest.mark.parametrize("name", ["h100", "gb200"])
def test_gpus_have_a_memory_table(ladder: Ladder, tmp_path: Path, name: str) -> None:
    path, chip = tmp_path / "L.json", CHIPS[name]
    ladder.save(path)
    printed = json.loads(CliRunner().invoke(app, ["cost", str(path), "--chip", name, "--json"]).output)
    assert printed["source"] == chip.source
    assert len(printed["rungs"]) == 31
    parts = ("parameters", "optimizer", "gradients", "activations", "weights", "logits")
    for row, rung in zip(printed["rungs"], ladder.rungs, strict=True):
        assert sum(row[part] for part in parts) == pytest.approx(row["gib_per_device"], abs=0.04)
        assert row["gib_per_device"] <= chip.usable_gib
        assert rung.batch_seqs % row["devices"] == 0
        if row["devices"] > 1:  # half as many do not hold it
            assert layout_on(rung, chip, row["devices"] // 2) is None
    text = CliRunner().invoke(app, ["cost", str(path), "--chip", name]).output
    assert "NVIDIA data sheet" in text
    assert "GiB usable per device" in CliRunner().invoke(app, ["cost", str(path)]).output


def test_tables_keep_every_digit(ladder: Ladder, tmp_path: Path) -> None:
    for suffix in (".csv", ".parquet", ".json"):
        save_table(ladder, tmp_path / f"t{suffix}")
    csv = pd.read_csv(tmp_path / "t.csv", dtype=str)
    parquet = pd.read_parquet(tmp_path / "t.parquet")
    rows = json.loads((tmp_path / "t.json").read_text())
    for index, rung in enumerate(ladder.rungs):
        for found in (csv.loc[index], parquet.loc[index], rows[index]):
            assert int(found["compute"]) == rung.compute
            assert int(found["counts.total"]) == rung.counts.total
    with pytest.raises(InputError, match="exists"):
        save_table(ladder, tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"use \.csv"):
        save_table(ladder, tmp_path / "t.xlsx")


@pytest.mark.slow
def test_levanter_reads_the_dense_rungs(ladder: Ladder, tmp_path: Path) -> None:
    draccus = pytest.importorskip("draccus")
    train_lm = pytest.importorskip("levanter.main.train_lm")
    dense = plan_isoflop(recipe_named("delphi-v2"), [3 * 10**18], sizes=2)
    for path, rung in zip(save_levanter(dense, tmp_path), dense.rungs, strict=True):
        config = draccus.parse(train_lm.TrainLmConfig, path, args=[])
        assert type(config.model).__name__ == "Qwen3Config"
        assert config.model.flops_per_token(
            rung.shape.vocab_size, rung.shape.seq_len
        ) * 3 * rung.tokens == pytest.approx(rung.compute, rel=1e-9)
        assert config.trainer.train_batch_size == rung.batch_seqs
        assert config.trainer.num_train_steps == rung.steps
        assert config.optimizer.learning_rate == rung.optimizer.matrix_lr
        assert config.optimizer.adam_lr == rung.optimizer.adam_lr
        assert config.model.rope.theta == rung.shape.attention.rope_theta
    with pytest.raises(InputError, match="dense"):
        levanter_config(ladder.rungs[0], 0)
