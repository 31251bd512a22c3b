"""Tables from elsewhere: CSV, Parquet, JSON Lines, JSON, what Levanter's own tracker writes, a W&B project."""

import contextlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.errors import InputError
from ladder.importer import import_runs
from ladder.runmap_read import read_map
from ladder.runs import read_runs
from ladder.source_levanter import read_levanter
from ladder.source_wandb import read_wandb
from ladder.sources import read_source
from tests.wandb_server import node, serve

ROOT = Path(__file__).resolve().parent.parent


def test_one_table_in_four_formats(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "n": [1.5e18, 1 / 3], "note": ["x, y", None]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    rows = [{"name": "a", "n": 1.5e18, "note": "x, y"}, {"name": "b", "n": 1 / 3, "note": None}]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    (tmp_path / "t.json").write_text(json.dumps(rows))
    for kind in ("csv", "parquet", "jsonl", "json"):
        found = read_source(tmp_path / f"t.{kind}", kind).frame
        assert list(found.columns) == ["name", "n", "note"]
        assert [float(cell) for cell in found["n"]] == [1.5e18, 1 / 3], kind
        assert found["note"].tolist() == ["x, y", None]


def test_nested_json_has_dotted_columns(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"model": {"hidden": 512, "betas": [0.9, 0.95]}}\n')
    row = read_source(tmp_path / "t.jsonl", "jsonl").frame.iloc[0]
    assert row["model.hidden"] == 512
    assert row["model.betas"] == "[0.9, 0.95]"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a,b\n1,2\n3\n", "row 2 has 1 fields, the header 2; the file was cut off"),
        ("t.csv", "a,b\n1,2,3\n", "row 1 has 3 fields"),
        ("t.csv", "a,a\n1,2\n", "column 'a' stands twice"),
        ("t.csv", "a,b\n", "has no rows"),
        ("t.csv", b"a\n\xff\n", "is not UTF-8"),
        ("t.jsonl", '{"a": 1}\n{"a": 2', "line 2 is not JSON"),
        ("t.jsonl", "[1]\n", "line 1 is no JSON object"),
        ("t.json", '{"a": ', "is not JSON"),
        ("t.json", "[1, 2]", "entry 1 is no JSON object"),
        ("t.parquet", "PAR1", "cannot be read as Parquet"),
    ],
)
def test_damaged_files_are_named_with_the_place(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        read_source(path, path.suffix[1:])
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "json"])
@given(data=st.binary(max_size=120))
def test_garbage_is_a_clean_error_or_a_table(tmp_path_factory, kind: str, data: bytes) -> None:
    path = tmp_path_factory.mktemp("source") / f"t.{kind}"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        assert len(read_source(path, kind).frame)


def event(kind: str, **fields: object) -> str:
    """Return a line of Levanter's json_logger."""
    return json.dumps({"tracker": "json_logger", "event": kind, **fields})


HPARAMS = {"trainer": {"seed": 3, "num_train_steps": 40}, "optimizer": {"learning_rate": 0.003}}
HALF = {"throughput/total_tokens": 1000000, "throughput/total_gflops": 2000000.0}
WHOLE = {"throughput/total_tokens": 2000000, "throughput/total_gflops": 4000000.0}
EVENTS = (
    "INFO:levanter.json_logger:" + event("hparams", hparams=HPARAMS),
    "INFO:levanter.trainer:step 10 of 40",
    event("summary", metrics={"parameter_count": 291176448}),
    event("log", step=20, metrics=HALF),
    event("log", step=20, metrics={"eval/paloma/macro_loss": 4.25}),
    event("log", step=40, metrics={**WHOLE, "eval/paloma/macro_loss": 4.0, "eval": {"loss": 3.5}}),
)
FINISH = event("finish", summary={"parameter_count": 291176448})


def test_levanter_events_become_checkpoints_and_the_end(tmp_path: Path) -> None:
    (tmp_path / "d512.jsonl").write_text("\n".join([*EVENTS, FINISH]))
    (tmp_path / "d640.jsonl").write_text("\n".join(EVENTS))  # still running, or killed
    table = import_runs(str(tmp_path), read_map("levanter")).table.frame
    macro = table[table["metric"] == "paloma/macro_loss"]
    assert macro["run_id"].tolist() == ["d512", "d512", "d640", "d640"]
    assert macro["eval_step"].tolist() == [20, 40, 20, 40]
    assert macro["loss"].tolist() == [4.25, 4.0, 4.25, 4.0]
    assert macro["compute"].tolist() == [2e15, 4e15, 2e15, 4e15]
    assert macro["tokens"].tolist() == [1e6, 2e6, 1e6, 2e6]
    assert (macro["seed"] == 3).all()
    assert (macro["steps"] == 40).all()
    assert macro["excluded_reason"].fillna("").tolist() == ["", "", "unfinished", "unfinished"]
    evaluation = table[table["metric"] == "eval/loss"]
    assert evaluation["loss"].dropna().tolist() == [3.5, 3.5]


def test_levanters_own_tracker_is_read(tmp_path: Path) -> None:
    """The events written by the installed Levanter, not by our idea of them."""
    tracker_module = pytest.importorskip("levanter.tracker.json_logger", reason="the extra levanter is not installed")
    logger = logging.getLogger("tests.levanter")
    handler = logging.FileHandler(tmp_path / "run.jsonl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        tracker = tracker_module.JsonLoggerTracker(logger)
        tracker.log_hyperparameters({"trainer": {"seed": 5}})
        tracker.log_summary({"parameter_count": 1000})
        tracker.log({"throughput/total_tokens": 1000, "throughput/total_gflops": 2.0}, step=1)
        tracker.log({"eval": {"loss": float("nan")}}, step=1)
        tracker.finish()
    finally:
        logger.removeHandler(handler)
        handler.close()
    table = import_runs(str(tmp_path / "run.jsonl"), read_map("levanter")).table.frame
    assert len(table) == 1
    row = table.iloc[0]
    assert (row["run_id"], row["seed"], row["total_params"], row["compute"]) == ("run", 5, 1000, 2e9)
    assert (row["status"], row["excluded_reason"]) == ("diverged", "diverged")
    assert pd.isna(row["loss"])


def test_levanter_result_files(tmp_path: Path) -> None:
    (tmp_path / "d512").mkdir()
    (tmp_path / "d512" / "eval_results.json").write_text('{"eval/loss": 3.5, "parameter_count": 7}')
    found = read_levanter(tmp_path, "*.json").frame
    assert found.iloc[0].to_dict() == {
        "run": "d512",
        "state": "finished",
        "step": None,
        "eval/loss": 3.5,
        "parameter_count": 7,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing of a tracker", "holds no event"),
        ('{"tracker": "json_logger", "event": "log", "step": 1, "metr', "line 1 begins an event"),
        ('{"tracker": "json_logger", "event": "new"}', "line 1 has the event 'new'"),
        ('{"tracker": "json_logger", "event": "log", "step": 1}', "line 1: metrics of the event is no object"),
    ],
)
def test_damaged_tracker_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        read_levanter(tmp_path / "run.jsonl", "*.jsonl")


SUMMARY = {
    "throughput/total_gflops": 2.506e9,
    "throughput/total_tokens": 3822845952,
    "parameter_count": 291176448,
    "eval/paloma/macro_loss": 3.5396740436553955,
    "eval/paloma/c4_en/bpb": 1.074018120765686,
    "_step": 29165,
    "_runtime": 7200.5,
    "_wandb": {"runtime": 7200},
}
CONFIG = {
    "trainer": {"seed": 0, "train_batch_size": 32, "num_train_steps": 29166},
    "optimizer": {"learning_rate": 0.003},
    "recipe": "v16",
}


def runs_of_a_project() -> list[dict[str, object]]:
    """Return three runs in two pages: one finished, one diverged, one crashed."""
    return [
        node("isoflop-d512", "finished", CONFIG, SUMMARY, "a1"),
        node("isoflop-d640", "finished", CONFIG, SUMMARY | {"eval/paloma/macro_loss": float("nan")}, "a2"),
        node("isoflop-d768", "crashed", CONFIG, SUMMARY | {"parameter_count": 675545088}, "a3"),
    ]


def imported(address: str, home: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, the official client talking to `address`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    environment |= {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "HOME": str(home), "WANDB_DIR": str(home)}
    command = [sys.executable, "foretell.py", "runs", "import", "wandb:lab/ladder", "--map", "wandb", "-o", str(out)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_wandb_project_through_the_official_client(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra levanter is not installed")
    out = tmp_path / "runs.parquet"
    with serve(runs_of_a_project()) as address:
        done = imported(address, tmp_path, out)
    assert done.returncode == 0, done.stderr
    table = read_runs(out).frame
    macro = table[table["metric"] == "paloma/macro_loss"].set_index("run_id")
    assert list(macro.index) == ["isoflop-d512", "isoflop-d640", "isoflop-d768"]
    first = macro.loc["isoflop-d512"]
    assert first["loss"] == 3.5396740436553955
    assert first["compute"] == 2.506e18
    assert (first["recipe"], first["seed"], first["batch_seqs"], first["eval_step"]) == ("v16", 0, 32, 29165)
    assert first["started_at"] == "2026-03-04T04:17:22Z"
    assert macro["excluded_reason"].fillna("").tolist() == ["", "diverged", "unfinished"]
    assert "eval/loss" not in set(table["metric"])


def test_wandb_project_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra levanter is not installed")
    with serve(None) as address:
        done = imported(address, tmp_path, tmp_path / "runs.parquet")
    assert done.returncode == 2
    assert "wandb:lab/ladder cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["wandb:", "wandb:lab", "wandb:a/b/c", "wandb:/b"])
def test_wandb_addresses_are_checked(address: str) -> None:
    with pytest.raises(InputError, match="write wandb:entity/project"):
        read_wandb(address)


def test_wandb_export_and_api_share_a_map(tmp_path: Path) -> None:
    """A CSV export has the columns that `read_wandb` makes."""
    header = ["Name", "State", "Created", "recipe", "trainer.seed", *[k for k in SUMMARY if not k.startswith("_")]]
    cells = [
        "d512",
        "finished",
        "2026-03-04",
        "v16",
        "0",
        *[str(v) for k, v in SUMMARY.items() if not k.startswith("_")],
    ]
    (tmp_path / "export.csv").write_text(",".join(header) + "\n" + ",".join(cells) + "\n")
    table = import_runs(str(tmp_path / "export.csv"), read_map("wandb")).table.frame
    assert table["metric"].tolist() == ["paloma/macro_loss", "paloma/c4_en/bpb"]
    assert table["loss"].tolist() == [3.5396740436553955, 1.074018120765686]
    assert table["loss_unit"].tolist() == ["nats_per_token", "bits_per_byte"]
