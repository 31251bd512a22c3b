"""The run table: complaints name file, row and column; nothing is dropped."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.errors import InputError
from ladder.runs import COLUMN_NAMES, RunTable, read_runs


def rows(**changes: object) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "run_id": ["a", "b", "c"],
            "status": "finished",
            "compute": [1e18, 2e18, 3e18],
            "flop_convention": "MATMUL_FULL",
            "metric": "test/loss",
            "loss_unit": "nats_per_token",
            "loss": [3.0, 2.9, 2.8],
            "color": ["red", "green", "blue"],
        }
    )
    for name, value in changes.items():
        frame[name] = value
    return frame


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    table = RunTable.of(rows(loss=[3.1234567890123456, 2.9, 1 / 3]))
    path = tmp_path / f"runs{suffix}"
    table.save(path)
    pd.testing.assert_frame_equal(read_runs(path).frame, table.frame, check_dtype=False, rtol=1e-14)
    assert list(table.frame.columns[: len(COLUMN_NAMES)]) == list(COLUMN_NAMES)
    assert list(table.frame["extra_color"]) == ["red", "green", "blue"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": [3.0, None, 2.8]}, "row 2, column loss"),
        ({"loss": [3.0, "x", 2.8]}, "row 2, column loss: 'x' is not a number"),
        ({"loss": [3.0, 2.9, float("inf")]}, "row 3, column loss"),
        ({"loss": [-1.0, 2.9, 2.8]}, "row 1, column loss: -1 must be positive"),
        ({"compute": [1e18, 0, 3e18]}, "row 2, column compute"),
        ({"run_id": ["a", "b", "a"]}, "row 3, column run_id: 'a' stands twice"),
        ({"status": ["finished", "lost", "finished"]}, "row 2, column status: 'lost' is none of"),
        ({"flop_convention": ["MATMUL_FULL", "6ND", "MATMUL_FULL"]}, "row 2, column flop_convention"),
        ({"run_id": ["a", " ", "c"]}, "row 2, column run_id: no value"),
    ],
)
def test_bad_values_are_refused_naming_the_row(changes, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        RunTable.of(rows(**changes), "runs.csv")
    assert str(error.value).startswith("runs.csv")


def test_missing_required_column_is_named() -> None:
    with pytest.raises(InputError, match="column compute"):
        RunTable.of(rows().drop(columns="compute"))


def test_diverged_rows_stay_but_enter_no_fit() -> None:
    frame = rows(loss=[3.0, None, 2.8], status=["finished", "diverged", "finished"])
    frame["excluded_reason"] = [None, "diverged", None]
    frame["role"] = ["fit", "fit", "held_out"]
    table = RunTable.of(frame)
    assert len(table.frame) == 3
    assert list(table.included().frame["run_id"]) == ["a"]


def test_unknown_metric_names_the_known() -> None:
    with pytest.raises(InputError, match="it has test/loss"):
        RunTable.of(rows()).select("train/loss")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@given(data=st.binary(max_size=200))
def test_garbage_files_are_refused(tmp_path_factory, suffix: str, data: bytes) -> None:
    path = tmp_path_factory.mktemp("runs") / f"runs{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_runs(path)


def test_missing_file_and_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_runs(tmp_path / "runs.parquet")
    (tmp_path / "runs.xlsx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"use \.parquet"):
        read_runs(tmp_path / "runs.xlsx")
