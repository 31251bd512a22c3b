"""Runs: resumed bit for bit after a kill at any step, never repeated, never silently wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ladder.errors import InputError
from ladder.generate import make_rung
from ladder.recipe import recipe_named
from ladder.runs import RunStatus
from ladder.study import Study
from models.data import EVAL_TOKENS, eval_windows, read_corpus
from models.pool import missing_jobs
from models.record import read_record
from models.run import train_run
from models.support import check_trainable
from models.table import collect_runs
from tests.models_small import SHAPE, small_rung, write_corpus

STEPS = 120
CHILD = """
import sys, time
from pathlib import Path
import models.run
models.run.CHECKPOINT_SECONDS = 0.0
models.run.CHUNK = 7
from models.data import read_corpus
from tests.models_small import small_rung
corpus = read_corpus(Path(sys.argv[1]))
slow = float(sys.argv[3])
def show(progress):
    print(progress.step, flush=True)
    time.sleep(slow)
models.run.train_run(small_rung({steps}), 0, Path(sys.argv[2]), corpus, progress=show)
""".replace("{steps}", str(STEPS))


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


def run(folder: Path, corpus_folder: Path, rung=None, seed: int = 0):
    corpus = read_corpus(corpus_folder)
    return train_run(rung or small_rung(STEPS), seed, folder, corpus)


@pytest.fixture(scope="module")
def whole(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, corpus_folder)
    return folder


def last_state(folder: Path) -> bytes:
    newest = sorted((folder / "checkpoints").glob("step-*.ckpt"))[-1]
    return newest.read_bytes().partition(b"\n")[2]


def child(corpus_folder: Path, folder: Path, slow: float) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parent.parent
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(corpus_folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    environment = {**os.environ, **cache, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CHILD, str(corpus_folder), str(folder), str(slow)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)


def test_a_run_learns_and_records_what_it_did(whole: Path) -> None:
    record = read_record(whole / "record.json")
    assert record.status is RunStatus.FINISHED
    assert record.steps_done == STEPS
    assert record.evaluations["test"].nats_per_token < 3.0 < np.log(256)
    assert record.evaluations["test"].bits_per_byte == pytest.approx(
        record.evaluations["test"].nats_per_token / np.log(2)
    )
    assert 0 <= record.drop_fraction < 0.2
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    tail = [line["loss"] for line in lines[-12:]]
    assert record.train_loss == pytest.approx(np.mean(tail), rel=1e-5)


TEN = (9, 19, 28, 40, 51, 60, 72, 85, 97, 108)


@pytest.mark.parametrize("kills", [(23,), (5, 64, 111), pytest.param(TEN, marks=pytest.mark.slow)])
def test_killed_and_resumed_is_bit_identical(corpus_folder: Path, whole: Path, tmp_path: Path, kills) -> None:
    folder = tmp_path / "run"
    for kill_at in kills:
        process = child(corpus_folder, folder, slow=0.05)
        for line in process.stdout:
            if int(line) >= kill_at:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert not (folder / "record.json").exists()
    process = child(corpus_folder, folder, slow=0)
    steps = [int(line) for line in process.stdout]
    process.stdout.close()
    assert process.wait() == 0
    assert steps[0] > kills[-1] - 14  # went on, did not start over
    assert last_state(folder) == last_state(whole)
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    mine, theirs = read_record(folder / "record.json"), read_record(whole / "record.json")
    assert mine.evaluations == theirs.evaluations
    assert (mine.train_loss, mine.drop_fraction) == (theirs.train_loss, theirs.drop_fraction)


def test_a_finished_run_is_not_repeated(corpus_folder: Path, whole: Path) -> None:
    before = (whole / "record.json").read_bytes()
    start = time.monotonic()
    run(whole, corpus_folder)
    assert time.monotonic() - start < 1
    assert (whole / "record.json").read_bytes() == before


def test_damaged_newest_checkpoint_falls_back(corpus_folder: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = child(corpus_folder, folder, slow=0.05)
    for line in process.stdout:
        if int(line) >= 40:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    newest = sorted((folder / "checkpoints").glob("step-*.ckpt"))[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    run(folder, corpus_folder)
    assert last_state(folder) == last_state(whole)
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()

    (folder / "record.json").unlink()
    for path in (folder / "checkpoints").glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"every checkpoint in .* is damaged"):
        run(folder, corpus_folder)


def test_another_runs_folder_is_refused(corpus_folder: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "spec.json").write_bytes((whole / "spec.json").read_bytes())
    with pytest.raises(InputError, match="holds another run: its rung_id"):
        run(folder, corpus_folder, small_rung(STEPS + 1))
    with pytest.raises(InputError, match="holds another run: its seed"):
        run(folder, corpus_folder, seed=3)


def test_diverged_run_ends_stays_in_the_table_and_others_go_on(corpus_folder: Path, tmp_path: Path) -> None:
    from ladder.provenance import provenance
    from ladder.rung import Ladder

    good = small_rung(12)
    wild = replace(good, optimizer=replace(good.optimizer, adam_lr=1e30))
    study = Study(tmp_path)
    for rung in (wild, good):
        run(study.run(rung.run_id(0)), corpus_folder, rung)
    record = read_record(study.run(wild.run_id(0)) / "record.json")
    assert record.status is RunStatus.DIVERGED
    assert record.steps_done < 12
    assert record.evaluations == {}
    table = collect_runs(study, Ladder("two", (wild, good), provenance()))
    rows = table.frame[table.frame["run_id"] == wild.run_id(0)]
    assert list(rows["excluded_reason"]) == ["diverged"] * 2
    assert rows["loss"].isna().all()
    assert set(table.included().frame["run_id"]) == {good.run_id(0)}


def test_run_longer_than_the_corpus_is_refused(corpus_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs 64000 training tokens but the corpus has 59984"):
        run(tmp_path / "run", corpus_folder, small_rung(1000))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"optimizer": replace(small_rung().optimizer, name="lion")}, "optimizer 'lion'"),
        ({"optimizer": replace(small_rung().optimizer, name="muonh")}, "muonh with muon=None"),
        ({"optimizer": replace(small_rung().optimizer, weight_decay=0.1)}, "weight_decay=0.1 with optimizer adamh"),
        ({"router": replace(small_rung().router, balancing="luck")}, "balancing 'luck'"),
    ],
    ids=["lion", "muonh", "decay", "luck"],
)
def test_a_rung_this_trainer_would_train_as_another_model_is_refused(tmp_path: Path, changes, asked: str) -> None:
    rung = small_rung(**changes)
    with pytest.raises(InputError, match=asked):
        check_trainable(rung)
    with pytest.raises(InputError, match=asked):
        missing_jobs(Study(tmp_path), [small_rung(), rung])
    check_trainable(make_rung(recipe_named("tiny-cpu"), 3 * 10**10, 16))


def test_damaged_corpus_is_refused(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    data = bytearray((folder / "test.bin").read_bytes())
    data[100] ^= 1
    (folder / "test.bin").write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"test\.bin is damaged"):
        read_corpus(folder)


def test_evaluation_windows_are_spread_over_the_whole_text() -> None:
    limit = EVAL_TOKENS["test"]
    text = np.arange(5 * limit, dtype=np.uint32).astype(np.uint8)
    windows = eval_windows(text, SHAPE.seq_len, limit)
    assert windows.shape == (limit // SHAPE.seq_len, SHAPE.seq_len + 1)
    short = eval_windows(text[:100], SHAPE.seq_len, limit)
    assert short.shape == (6, 17)
    np.testing.assert_array_equal(short[1:, 0], short[:-1, -1])
