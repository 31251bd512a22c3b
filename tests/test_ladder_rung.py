"""Ladders: compute-matched, lossless on disk, refused when a number was tampered with."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.errors import InputError
from ladder.generate import make_rung, plan_isoflop, widths_near_optimum
from ladder.recipe import recipe_named
from ladder.records import canonical_json
from ladder.rung import Ladder, Role, read_ladder

BUDGETS = [3 * 10**10, 65 * 10**9, 14 * 10**10, 3 * 10**11]
GOLDEN = Path(__file__).parent / "golden" / "ladder.json"


def small_ladder() -> Ladder:
    recipe = recipe_named("tiny-cpu")
    return plan_isoflop(recipe, BUDGETS, sizes=4, held_out=[3 * 10**12], held_out_seeds=2, replicates={65 * 10**9: 2})


def test_ladder_is_compute_matched_within_half_a_step() -> None:
    for rung in small_ladder().rungs:
        step = rung.compute // rung.steps
        assert abs(rung.compute - rung.budget) * 2 <= step
        assert abs(rung.compute_error) < 0.005


def test_ladder_has_the_planned_rungs() -> None:
    ladder = small_ladder()
    assert len(ladder.fit_rungs) == 16
    assert [rung.role for rung in ladder.held_out_rungs] == [Role.HELD_OUT]
    assert ladder.held_out_rungs[0].seeds == (0, 1)
    assert sorted(len(rung.seeds) for rung in ladder.fit_rungs) == [1] * 15 + [3]


@given(st.integers(min_value=10**10, max_value=10**13), st.sampled_from(recipe_named("tiny-cpu").widths()))
def test_any_budget_is_met_or_refused(budget: int, hidden: int) -> None:
    with contextlib.suppress(InputError):
        rung = make_rung(recipe_named("tiny-cpu"), budget, hidden)
        assert abs(rung.compute_error) <= 0.02
        assert rung.tokens == rung.steps * rung.batch_seqs * rung.shape.seq_len


def test_round_trip_is_lossless(tmp_path: Path) -> None:
    ladder = small_ladder()
    ladder.save(tmp_path / "ladder.json")
    again = read_ladder(tmp_path / "ladder.json")
    assert again == ladder
    assert again.to_json() == ladder.to_json()


def test_big_integers_survive_the_file() -> None:
    assert canonical_json({"flops": 10**23 + 1}) == b'{"flops":"100000000000000000000001"}'


def test_golden_file_is_read_and_written_alike() -> None:
    ladder = read_ladder(GOLDEN)
    assert ladder.to_json() == GOLDEN.read_bytes()
    assert [rung.rung_id for rung in ladder.rungs] == [rung.rung_id for rung in small_ladder().rungs]


def test_identity_ignores_role_and_seeds() -> None:
    recipe = recipe_named("tiny-cpu")
    one = make_rung(recipe, 3 * 10**10, 16)
    other = make_rung(recipe, 3 * 10**10, 16, role=Role.HELD_OUT, seeds=(1, 2))
    assert one.rung_id == other.rung_id
    assert one.rung_id != make_rung(recipe, 3 * 10**10, 24).rung_id


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("steps",), 1, "rungs.2: field rung_id"),
        (("counts", "total"), 7, "rungs.2: field counts"),
        (("compute",), 5, "rungs.2: field compute"),
        (("shape", "top_k"), 99, "top_k=99 is larger"),
        (("shape", "layers"), "two", "field shape.layers"),
        (("color",), "red", "unknown field color"),
    ],
)
def test_edited_ladder_is_refused_naming_the_place(tmp_path: Path, path, value, message: str) -> None:
    data = json.loads(small_ladder().to_json())
    place = data["rungs"][2]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "ladder.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=message) as error:
        read_ladder(file)
    assert str(file) in str(error.value) or "top_k" in message


def test_truncated_newer_or_foreign_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ladder.json"
    whole = small_ladder().to_json()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not valid JSON"):
        read_ladder(file)
    file.write_bytes(whole.replace(b'"ladder/1"', b'"ladder/2"'))
    with pytest.raises(InputError, match="update foretell"):
        read_ladder(file)
    file.write_bytes(whole.replace(b'"ladder/1"', b'"cake/1"'))
    with pytest.raises(InputError, match="no ladder file"):
        read_ladder(file)
    with pytest.raises(InputError, match="does not exist"):
        read_ladder(tmp_path / "nothing.json")


@settings(max_examples=40)
@given(st.integers(min_value=0, max_value=20_000), st.integers(min_value=0, max_value=255))
def test_any_changed_byte_is_read_the_same_or_refused(tmp_path_factory, position: int, byte: int) -> None:
    whole = bytearray(GOLDEN.read_bytes())
    whole[position % len(whole)] = byte
    file = tmp_path_factory.mktemp("ladder") / "ladder.json"
    file.write_bytes(bytes(whole))
    with contextlib.suppress(InputError):
        read_ladder(file)


def test_sizes_are_nearest_the_expected_optimum() -> None:
    recipe = recipe_named("tiny-cpu")
    assert 24 in widths_near_optimum(recipe, 65 * 10**9, 1) + widths_near_optimum(recipe, 65 * 10**9, 4)
    with pytest.raises(InputError, match="fewer than the 99"):
        widths_near_optimum(recipe, 10**11, 99)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"budgets": []}, "at least one"),
        ({"budgets": [10**11, 10**11]}, "given twice"),
        ({"budgets": [10**11], "held_out": [10**10]}, "not above the largest fit budget"),
        ({"budgets": [1000]}, "too small for width"),
        ({"budgets": [10**11], "replicates": {5: 1}}, "no fit budget"),
    ],
)
def test_impossible_plans_are_refused(kwargs, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_isoflop(recipe_named("tiny-cpu"), sizes=2, **kwargs)


def test_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="tiny-cpu"):
        recipe_named("huge-gpu")
