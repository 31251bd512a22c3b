"""The whole flow on real runs: the smoke demo, killed in the middle and gone on with, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forecasts.registry import registry
from forecasts.verify import verify
from ladder.rung import read_ladder
from ladder.runs import read_runs
from ladder.study import Study
from models.corpus import build_corpus

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "foretell"]


def foretell(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, env=environment, timeout=900, check=False
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, dict[Path, tuple[int, bytes]], str]:
    """A smoke study whose first process was killed once two runs had ended; those runs' records; and what it said."""
    root = tmp_path_factory.mktemp("demo") / "study"
    arguments = [*COMMAND, "demo", "--preset", "smoke", "--out", str(root)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    first = subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 600
    while len(list(root.glob("runs/*/record.json"))) < 2 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    early = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.glob("runs/*/record.json")}
    assert len(early) >= 2
    again = foretell("demo", "--preset", "smoke", "--out", str(root))
    assert again.returncode == 0, again.stderr
    return Study(root), early, again.stdout + again.stderr


def test_a_killed_demo_goes_on_without_repeating_runs(demo) -> None:
    _, early, said = demo
    for path, (time_ns, content) in early.items():
        assert (path.stat().st_mtime_ns, path.read_bytes()) == (time_ns, content)
    assert f"Training {10 - len(early)} runs of 9 fit rungs" in said
    assert "Report:" in said


def test_the_study_is_laid_out_as_promised(demo) -> None:
    study, _, _ = demo
    (entry,) = registry(study)
    for path in (study.ladder, study.runs, study.fit("floor-integrated"), study.ledger, study.check(entry.forecast_id)):
        assert path.is_file(), path
    report = study.report(entry.forecast_id)
    for name in ("index.html", "report.md", "manifest.json"):
        assert (report / name).is_file()
    assert {path.suffix for path in (report / "figures").iterdir()} == {".svg", ".csv"}


def test_every_run_is_compute_matched_sparse_and_better_than_unigrams(demo) -> None:
    study, _, _ = demo
    ladder = read_ladder(study.ladder)
    frame = read_runs(study.runs).frame
    assert frame["run_id"].nunique() == sum(len(rung.seeds) for rung in ladder.rungs)
    assert (frame["active_params"] < frame["total_params"]).all()
    assert ((frame["compute"] / frame["budget"] - 1).abs() < 0.02).all()
    text = np.fromfile(build_corpus() / "validation.bin", np.uint8)
    share = np.bincount(text, minlength=256) / len(text)
    unigram = -float((share[share > 0] * np.log(share[share > 0])).sum())
    assert (frame.loc[frame["metric"] == "validation/loss", "loss"] < unigram).all()
    assert frame["drop_fraction"].between(0, 0.05).all()


def test_optima_fall_with_the_budget(demo) -> None:
    study, _, _ = demo
    frame = read_runs(study.runs).frame
    fit = frame[(frame["metric"] == "test/loss") & (frame["role"] == "fit")]
    best = fit.groupby("budget")["loss"].min()
    assert best.is_monotonic_decreasing
    assert frame.loc[(frame["metric"] == "test/loss") & (frame["role"] == "held_out"), "loss"].max() < best.min()


def test_the_forecast_precedes_the_held_out_run_and_verifies(demo) -> None:
    study, _, _ = demo
    (entry,) = registry(study)
    frame = read_runs(study.runs).frame
    assert entry.line.time < frame.loc[frame["role"] == "held_out", "started_at"].min()
    assert verify(study).lines == 2
    done = foretell("forecast", "verify", "--study", str(study.root))
    assert done.returncode == 0, done.stderr


def test_a_changed_byte_ends_with_exit_code_3_and_the_name_of_the_file(demo) -> None:
    study, _, _ = demo
    (entry,) = registry(study)
    for path in (entry.path, study.ledger):
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 3] ^= 1
        path.chmod(0o644)
        path.write_bytes(bytes(changed))
        done = foretell("forecast", "verify", "--study", str(study.root))
        path.write_bytes(whole)
        assert done.returncode == 3, done.stderr
        assert path.name in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ladder", "plan", "--recipe", "nothing", "--budget", "1e11"], "unknown recipe"),
        (["ladder", "plan", "--recipe", "tiny-cpu", "--budget", "1000"], "too small"),
        (["ladder", "plan", "--budget", "many"], "is not a number"),
        (["ladder", "show", "missing.json"], "does not exist"),
        (["runs", "check", "missing.csv"], "does not exist"),
        (["train", "run", "--study", "missing"], "does not exist"),
        (["fit", "run", "--study", "missing", "--law", "power-law"], "does not exist"),
        (["forecast", "verify", "--study", "missing"], "is no folder"),
        (["report", "build", "x", "--study", "missing"], "missing"),
        (["demo", "--preset", "huge"], "unknown preset"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_bad_input_is_one_paragraph_and_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = foretell(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "something was half-written"


def test_damaged_ladder_and_runs_name_file_row_and_column(demo, tmp_path: Path) -> None:
    study, _, _ = demo
    data = study.ladder.read_bytes()
    (tmp_path / "ladder.json").write_bytes(data[: len(data) // 2])
    done = foretell("train", "plan", "--study", str(tmp_path))
    assert done.returncode == 2
    assert "ladder.json is not valid JSON at line 1" in done.stderr

    frame = read_runs(study.runs).frame.astype(object)
    frame.loc[3, "loss"] = "much"
    frame.to_csv(tmp_path / "runs.csv", index=False)
    done = foretell("runs", "check", str(tmp_path / "runs.csv"))
    assert done.returncode == 2
    assert "runs.csv: row 4, column loss: 'much' is not a number" in done.stdout

    newer = json.loads(data)
    newer["schema"] = "ladder/9"
    (tmp_path / "ladder.json").write_text(json.dumps(newer))
    done = foretell("ladder", "show", str(tmp_path / "ladder.json"))
    assert done.returncode == 2
    assert "update foretell" in done.stderr


def test_demo_refuses_a_study_of_another_ladder(demo) -> None:
    study, _, _ = demo
    done = foretell("demo", "--preset", "default", "--out", str(study.root))
    assert done.returncode == 2
    assert "another ladder" in done.stderr
