"""Column maps: what is said is done, what is wrong is named with its place, and nothing bad passes silently."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.errors import InputError
from ladder.importer import NOTE, WHY, import_runs
from ladder.runmap import UNITS
from ladder.runmap_read import parse_map, read_map, shipped_maps
from ladder.runs import COLUMN_NAMES, ExcludedReason, read_runs

MAP = """
schema = "runmap/1"
title = "a test"
source = "nowhere"

[constants]
recipe = "r"
metric = "m"
loss_unit = "nats_per_token"
status = "finished"

[columns]
run_id = "name"
active_params = { column = "size", unit = "millions" }
total_params = { product = ["runs.active_params", 2] }
tokens = { product = ["steps", "batch"] }
compute = { six_nd = "SIX_ND_ACTIVE" }
loss = "loss"

[[table]]
file = "t.csv"
"""
CSV = "name,size,steps,batch,loss,color\na,10,100,4,3.5,red\nb,20,100,8,3.25,blue\n"


def importing(folder: Path, csv: str = CSV, text: str = MAP, recipe: str | None = None) -> Any:
    """Return what came of importing `csv` by the map `text`."""
    (folder / "t.csv").write_text(csv)
    (folder / "map.toml").write_text(text)
    return import_runs(str(folder / "t.csv"), read_map(folder / "map.toml"), recipe)


def test_units_products_and_six_nd(tmp_path: Path) -> None:
    frame = importing(tmp_path).table.frame
    assert frame["active_params"].tolist() == [1e7, 2e7]
    assert frame["total_params"].tolist() == [2e7, 4e7]
    assert frame["tokens"].tolist() == [400, 800]
    assert frame["compute"].tolist() == [6 * 1e7 * 400, 6 * 2e7 * 800]
    assert set(frame["flop_convention"]) == {"SIX_ND_ACTIVE"}
    assert frame["tokens_per_param"].tolist() == [4e-5, 4e-5]
    assert frame["source"].tolist() == ["nowhere"] * 2
    assert frame["extra_color"].tolist() == ["red", "blue"]
    assert frame["extra_batch"].tolist() == [4, 8]
    assert frame["excluded_reason"].isna().all()


@pytest.mark.parametrize(
    ("unit", "cell", "value"),
    [
        ("thousands", "2", 2e3),
        ("billions", "2.5", 2.5e9),
        ("trillions", "1.5", 1.5e12),
        ("gflops", "3", 3e9),
        ("zettaflops", "84", 8.4e22),
        ("percent", "20", 0.2),
        ("bits", "1", math.log(2)),
        ("log10", "3", 1000),
        ("ln", "1", math.e),
        ("perplexity", "20.085536923187668", 3),
        ("quantity", "2.8B", 2.8e9),
        ("quantity", "125m", 1.25e8),
        ("millions", "7", 7e6),
    ],
)
def test_units(tmp_path: Path, unit: str, cell: str, value: float) -> None:
    assert unit in UNITS
    text = MAP.replace('"millions"', f'"{unit}"')
    found = importing(tmp_path, CSV.replace("a,10,", f"a,{cell},").replace("b,20,", f"b,{cell},"), text)
    assert found.table.frame["active_params"].tolist() == pytest.approx([value] * 2, rel=1e-15)


def test_templates_values_metrics_rules_and_joins(tmp_path: Path) -> None:
    text = MAP.replace('run_id = "name"', 'run_id = { template = "{name}/{row}" }').replace('loss = "loss"\n', "")
    text = text.replace('metric = "m"\n', "")
    text += """
[table.columns]
role = { column = "color", values = { red = "fit", blue = "held_out" } }
experts = "experts"
embedding_params = { product = ["size"], over = [2], plus = [3, "steps"], minus = ["batch"] }

[[table.join]]
file = "shapes.csv"
on = ["size"]

[[table.metric]]
columns = { loss = "loss", loss_se = { interval95 = ["lo", "hi"] } }
constants = { metric = "a" }

[[table.metric]]
columns = { loss = { column = "loss", scale = 2 } }
constants = { metric = "b" }

[[table.rule]]
column = "batch"
above = 6
excluded_reason = "manual"
why = "too large a batch"
"""
    (tmp_path / "shapes.csv").write_text("size,experts,lo,hi\n10.0,8,3,3.392\n30,9,1,2\n")
    frame = importing(tmp_path, CSV, text).table.frame
    assert frame["run_id"].tolist() == ["a/1", "b/2", "a/1", "b/2"]
    assert frame["metric"].tolist() == ["a", "a", "b", "b"]
    assert frame["loss"].tolist() == [3.5, 3.25, 7, 6.5]
    assert frame["role"].tolist() == ["fit", "held_out"] * 2
    assert frame["embedding_params"].tolist()[:2] == [5 + 300 - 4, 10 + 300 - 8]
    assert frame["loss_se"][0] == pytest.approx(0.1, rel=1e-4)
    assert frame["experts"].tolist()[0] == 8
    assert math.isnan(frame["experts"].tolist()[1])
    assert frame["excluded_reason"].fillna("").tolist() == ["", "manual"] * 2
    assert frame[WHY].fillna("").tolist() == ["", "too large a batch"] * 2


@pytest.mark.parametrize(
    ("condition", "marked"),
    [
        ("equals = 4", [True, False, False]),
        ("not_equals = 4", [False, True, True]),
        ("one_of = [4, 8]", [True, True, False]),
        ("none_of = [4]", [False, True, True]),
        ("above = 4", [False, True, False]),
        ("below = 8", [True, False, False]),
        ("empty = true", [False, False, True]),
        ("empty = false", [True, True, False]),
    ],
)
def test_conditions_of_rules(tmp_path: Path, condition: str, marked: list[bool]) -> None:
    text = MAP.replace('["steps", "batch"]', '["steps", 4]')
    text += f'[[table.rule]]\ncolumn = "batch"\n{condition}\nexcluded_reason = "manual"\nwhy = "w"\n'
    frame = importing(tmp_path, CSV + "c,30,100,,3.0,red\n", text).table.frame
    assert frame["excluded_reason"].eq("manual").fillna(False).tolist() == marked


def test_other_recipes_are_marked(tmp_path: Path) -> None:
    text = MAP.replace('recipe = "r"\n', "") + '[table.columns]\nrecipe = "color"\n'
    found = importing(tmp_path, text=text, recipe="red")
    assert found.table.frame["excluded_reason"].fillna("").tolist() == ["", "other_recipe"]
    assert found.remarks == ()
    both = importing(tmp_path, text=text)
    assert "m mixes recipe: red (1 rows), blue (1 rows)" in both.remarks[0].replace("blue (1 rows), red (1 rows)", "red (1 rows), blue (1 rows)")  # fmt: skip
    with pytest.raises(InputError, match="the recipes are blue, red"):
        importing(tmp_path, text=text, recipe="green")


@pytest.mark.parametrize(
    ("old", "new", "reason", "note"),
    [
        ("3.5", "abc", "bad_value", "t.csv: row 1, column loss: 'abc' is not a number; left empty."),
        ("3.5", "-1", "bad_value", "row 1, column loss: -1 must be positive"),
        ("3.5", "0", "bad_value", "row 1, column loss: 0 must be positive"),
        ("3.5", "NaN", "diverged", ""),
        ("3.5", "inf", "diverged", ""),
        ("3.5", "", "no_loss", ""),
        ("a,10,", "a,1_0,", "bad_value", "row 1, column size (for active_params): '1_0' is not a number"),
        ("a,10,", "a,-10,", "bad_value", "row 1, column size (for active_params): -1e+07 must be positive"),
        ("a,10,", "a,nan,", "bad_value", "row 1, column size (for active_params): is not finite"),
        ("a,10,", "a,,", "no_compute", ""),
        ("a,10,", ",10,", "bad_value", "row 1, column name (for run_id): no value"),
        ("a,10,100,4,", "a,10,100,four,", "bad_value", "row 1, column tokens: batch: 'four' is not a number"),
        ("a,10,100,4,", "a,10,inf,4,", "bad_value", "row 1, column tokens: steps: is not finite"),
        ("a,10,100,4,", "a,10,-100,4,", "bad_value", "row 1, column tokens: -400 must be positive"),
        ("a,10,100,4,", "b,20,100,8,", "", ""),
    ],
)
def test_bad_cells_are_annotated_and_no_row_is_dropped(
    tmp_path: Path, old: str, new: str, reason: str, note: str
) -> None:
    found = importing(tmp_path, CSV.replace(old, new))
    frame = found.table.frame
    assert len(frame) == 2
    second = "duplicate" if not reason else ""
    assert frame["excluded_reason"].fillna("").tolist() == [reason, second]
    assert [note in line for line in found.notes] == [True] * bool(note)
    assert (note == "") == frame[NOTE].isna().all()
    if reason == "diverged":
        assert frame["status"][0] == "diverged"


def test_runs_that_repeat_another_in_every_number(tmp_path: Path) -> None:
    frame = importing(tmp_path, CSV + "c,10,100,4,3.5,green\n").table.frame
    assert frame["excluded_reason"].fillna("").tolist() == ["", "", "duplicate"]


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        (CSV.replace("size", "sizes"), r"t.csv: column 'size', .*active_params.* is missing; did you mean 'sizes'"),
        (CSV.replace(",10,", ",x,").replace(",20,", ",y,"), "row 1, column size .*: 'x' is not a number, nor is any"),
    ],
)
def test_a_map_for_another_file_is_refused(tmp_path: Path, csv: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        importing(tmp_path, csv)


def test_circles_and_unknown_values_are_named(tmp_path: Path) -> None:
    circle = MAP.replace('tokens = { product = ["steps", "batch"] }', 'tokens = { product = ["runs.compute"] }')
    with pytest.raises(InputError, match="compute from tokens from compute"):
        importing(tmp_path, text=circle)
    values = MAP + '[table.columns]\nrole = { column = "color", values = { red = "fit" } }\n'
    with pytest.raises(InputError, match="row 2, column color: 'blue' has no counterpart"):
        importing(tmp_path, text=values)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('schema = "runmap/1"', 'schema = "runmap/2"', "is no column map: schema is 'runmap/2'"),
        ('title = "a test"', 'titel = "a test"', "'titel' is unknown; did you mean 'title'"),
        ("tokens = {", "token = {", "columns: 'token' is unknown; did you mean 'tokens'"),
        ('unit = "millions"', 'unit = "millons"', "columns.active_params: unit 'millons' is unknown; did you mean"),
        ('unit = "millions"', "scale = 0", "columns.active_params: scale 0 is not a positive number"),
        ('unit = "millions"', 'template = "x"', "give exactly one of"),
        ('unit = "millions"', "over = [2]", "over, plus and minus belong to product"),
        ('"steps", "batch"', "", "product is a list of columns and numbers"),
        ('"runs.active_params", 2', '"runs.active_param", 2', "runs.active_param is no numeric run-table column"),
        ('"runs.active_params", 2', '"runs.experts", 2', "runs.experts is read, but experts is not mapped"),
        ('"SIX_ND_ACTIVE"', '"6ND"', "six_nd makes compute, under SIX_ND or SIX_ND_ACTIVE"),
        ('loss = "loss"\n', "", "loss .* is not mapped; add it to columns or constants \\(or say why"),
        ('run_id = "name"', "run_id = 7", "7 is neither a source column nor a table"),
        ('run_id = "name"', 'run_id = { product = ["size"] }', "run_id is text; product makes a number"),
        ('status = "finished"', 'status = "done"', "constants.status: 'done' is none of"),
        ('status = "finished"', "seq_len = -1", "constants.seq_len: -1 must be positive"),
        ('recipe = "r"', 'loss = 1.0\nrecipe = "r"', "loss is both a column and a constant"),
        ('recipe = "r"', 'recipe = "r"\nflop_convention = "MATMUL_FULL"', "compute is counted under SIX_ND_ACTIVE"),
        ("[[table]]", "[table]", "table is a list of tables"),
        ('file = "t.csv"', 'file = "t.xlsx"', "format 'xlsx' is none of"),
        ('file = "t.csv"', 'file = "t.csv"\nno_loss = "none"', "there is both a loss and no_loss"),
        ('file = "t.csv"', 'file = "t.csv"\n[[table.rule]]\ncolumn = "x"', "exactly one of equals"),
        (
            'file = "t.csv"',
            'file = "t.csv"\n[[table.rule]]\ncolumn = "x"\nabove = "y"\nwhy = "w"',
            "has the wrong type",
        ),
        (
            'file = "t.csv"',
            'file = "t.csv"\n[[table.rule]]\ncolumn = "x"\nequals = 1\nexcluded_reason = "off"\nwhy = "w"',
            "excluded_reason 'off' is none of",
        ),
        (
            'file = "t.csv"',
            'file = "t.csv"\n[[table.rule]]\ncolumn = "x"\nequals = 1\nexcluded_reason = "manual"',
            "say why",
        ),
        ('file = "t.csv"', 'file = "t.csv"\n[[table.join]]\nfile = "s.csv"', "a join has a file and a list"),
        ("[columns]", "[columns", "is not a readable TOML file"),
    ],
)
def test_bad_maps_are_refused_with_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MAP
    with pytest.raises(InputError, match=message) as error:
        importing(tmp_path, text=MAP.replace(old, new, 1))
    assert "map.toml" in str(error.value)


def test_unknown_map_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'chinchilla_epoch'"):
        read_map("chinchila_epoch")
    with pytest.raises(InputError, match="does not exist"):
        read_map("nowhere/map.toml")


@pytest.mark.parametrize("name", shipped_maps())
def test_shipped_maps_parse_and_say_where_numbers_come_from(name: str) -> None:
    found = read_map(name)
    assert found.title
    assert found.source


NAMES = st.sampled_from(["schema", "table", "columns", "constants", "file", "metric", "rule", "loss", "run_id", "x"])
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), NAMES)
TREES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(NAMES, TREES, max_size=5))
def test_any_parsed_toml_is_a_map_or_a_clean_error(data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"map\.toml"):
        parse_map({"schema": "runmap/1"} | data, "map", "map.toml")


CELLS = st.one_of(
    st.sampled_from(["", "nan", "inf", "-inf", "0", "-3", "1e400", "x", "1,5", "finished", '"', "3.5", "NA", " 7 "]),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.floats(min_value=1e-3, max_value=1e12).map(repr),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8),
)


@settings(max_examples=20)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=6))
def test_any_cells_give_annotated_rows_or_a_clean_error(tmp_path_factory, rows: list[tuple[str, ...]]) -> None:
    """Every source row arrives; what may enter a fit has everything that fits read; and the file reads back."""
    folder = tmp_path_factory.mktemp("cells")
    frame = pd.DataFrame(rows, columns=["name", "size", "steps", "batch", "loss"])
    try:
        found = importing(folder, frame.to_csv(index=False), MAP)
    except InputError as error:
        assert str(folder) in str(error)  # noqa: PT017 - either outcome is right, and both are checked
        return
    table = found.table.frame
    assert len(table) == len(rows)
    usable = table[table["excluded_reason"].isna()]
    for column in ("loss", "compute", "active_params", "tokens"):
        assert (usable[column] > 0).all()
        assert (usable[column] < math.inf).all()
    assert set(table["excluded_reason"].dropna()) <= {str(reason) for reason in ExcludedReason}
    assert not usable.duplicated(["run_id", "metric", "eval_step"]).any()
    assert list(table.columns[: len(COLUMN_NAMES)]) == list(COLUMN_NAMES)
    found.table.save(folder / "runs.parquet")
    pd.testing.assert_frame_equal(read_runs(folder / "runs.parquet").frame, table, check_dtype=False)
