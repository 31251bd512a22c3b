"""What differs between rungs and ladders, and what is said loudly because no law carries over it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ladder.cli import app
from ladder.diff import diff_ladders, diff_rungs, read_side
from ladder.errors import InputError, UnusableError
from ladder.flops import FlopConvention
from ladder.generate import plan_isoflop
from ladder.recipe import recipe_named
from ladder.rung import Ladder, Rung
from ladder.sizing import make_rung

V16, TINY = recipe_named("marin-moe-v16"), recipe_named("tiny-cpu")
RUNG = make_rung(V16, 3 * 10**20, 2048)


def loud(first: Rung, second: Rung) -> set[str]:
    return {item.field for item in diff_rungs(first, second) if item.loud}


def test_a_larger_rung_of_the_same_recipe_is_of_one_family() -> None:
    target = make_rung(V16, 10**23, 5120, overrides={"layers": 48, "batch_seqs": 2048})
    assert loud(RUNG, target) == set()
    fields = {item.field: (item.first, item.second) for item in diff_rungs(RUNG, target)}
    assert fields["shape.layers"] == (21, 48)
    assert fields["budget"] == (3 * 10**20, 10**23)
    assert fields["compute"] == (RUNG.compute, target.compute)  # exact, also beyond 2^53
    assert diff_rungs(RUNG, RUNG) == ()


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        (replace(RUNG, router=replace(RUNG.router, balancing="none")), {"router.balancing"}),
        (
            replace(RUNG, router=replace(RUNG.router, estimator="histogram", bins=9)),
            {"router.estimator", "router.bins"},
        ),
        (replace(RUNG, optimizer=replace(RUNG.optimizer, name="muonh")), {"optimizer.name"}),
        (replace(RUNG, shape=replace(RUNG.shape, experts=128)), {"shape.experts"}),
        (replace(RUNG, schedule=replace(RUNG.schedule, decay_fraction=0.2)), {"schedule.decay_fraction"}),
        (replace(RUNG, flop_convention=FlopConvention.MATMUL_FULL), {"flop_convention"}),
        (replace(RUNG, shape=replace(RUNG.shape, latent_width=1024)), {"shape.latent_width"}),
        (replace(RUNG, optimizer=replace(RUNG.optimizer, matrix_lr=0.5)), set()),
        (replace(RUNG, batch_seqs=512), set()),
    ],
)
def test_what_no_law_carries_over_is_loud(changed: Rung, fields: set[str]) -> None:
    assert loud(RUNG, changed) == fields
    assert loud(changed, RUNG) == fields


def test_ladders_are_matched_by_budget_and_width() -> None:
    first = plan_isoflop(TINY, [10**10, 2 * 10**10], sizes=3, held_out=[10**11])
    by_hand = {10**11: {"layers": 3}}
    second = plan_isoflop(TINY, [2 * 10**10], sizes=4, held_out=[10**11], held_out_seeds=2, overrides=by_hand)
    found = diff_ladders(first, second)
    assert found.families == ()
    assert found.alike == 3
    assert [name.partition("-")[0] for name in found.only_first] == ["1e10"] * 3
    assert len(found.only_second) == 1
    (pair,) = found.matched
    assert {"shape.layers", "seeds"} <= {item.field for item in pair.differences}
    same = diff_ladders(first, first)
    assert (same.alike, same.matched, same.only_first, same.only_second) == (len(first.rungs), (), (), ())


def test_a_role_or_seed_changed_on_the_same_rung_is_a_change() -> None:
    first = plan_isoflop(TINY, [10**10], sizes=3)
    second = Ladder(first.name, (replace(first.rungs[0], seeds=(7,)), *first.rungs[1:]), first.provenance)
    found = diff_ladders(first, second)
    assert found.alike == 2
    assert [(item.field, item.first, item.second) for item in found.matched[0].differences] == [("seeds", [0], [7])]


def test_the_command_ends_with_4_where_a_law_does_not_carry_over(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    plan_isoflop(V16, [10**20], sizes=5, held_out=[10**21]).save(a)
    plan_isoflop(recipe_named("marin-moe-may"), [10**20], sizes=5).save(b)
    quiet = CliRunner().invoke(app, ["diff", f"{a}:1e20-d1536", f"{a}:1e21-d2560", "--json"])
    assert quiet.exit_code == 0
    assert json.loads(quiet.stdout)["loud"] == []
    result = CliRunner().invoke(app, ["diff", str(a), str(b), "--json"])
    assert isinstance(result.exception, UnusableError)
    assert result.exception.exit_code == 4
    assert {"router.estimator", "optimizer.name", "shape.experts"} <= set(json.loads(result.stdout)["loud"])
    mixed = CliRunner().invoke(app, ["diff", f"{a}:1e20-d1536", str(b)])
    assert "not of one family" in str(mixed.exception)
    assert "optimizer.name" in mixed.stdout


def test_unknown_rungs_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    ladder = plan_isoflop(TINY, [10**10], sizes=2)
    ladder.save(path)
    assert read_side(f"{path}:{ladder.rungs[1].rung_id}")[1] == ladder.rungs[1]
    assert read_side(str(path))[1] is None
    with pytest.raises(InputError, match=r"holds 0 rungs called '1e10-d999'.*1e10-d"):
        read_side(f"{path}:1e10-d999")
    with pytest.raises(InputError, match="does not exist"):
        read_side(f"{tmp_path}/none.json")
