"""Runs are launched by order, locally through submitit and by hand; trackers are told and may fail."""

import json
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ladder.errors import InputError
from ladder.provenance import provenance
from ladder.rung import Ladder, read_ladder
from ladder.runs import RunStatus
from ladder.study import Study
from models.branch import make_branch
from models.cli import app
from models.launch import ArrayPlan, ArrayTask, main, read_order, submit, write_order
from models.mixture import Mixture, read_mixture
from models.pool import missing_jobs
from models.record import DataUse, RunRecord, read_record
from models.tracker import Tracker, check_tracker, open_tracker
from tests.models_small import small_rung, write_corpus

STEPS = 60


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = Study(tmp_path_factory.mktemp("launch"))
    trunk = small_rung(STEPS)
    Ladder("launch", (trunk, make_branch(trunk, 0, 30, 0.25)), provenance()).save(study.ladder)
    write_corpus(study.root / "corpus")
    return study


def mixture(study: Study) -> Mixture:
    return read_mixture(str(study.root / "corpus"))


def test_an_order_says_all_of_a_job(study: Study) -> None:
    jobs = missing_jobs(study, read_ladder(study.ladder).rungs, keep_every=7)
    for job in jobs:
        found, corpus = read_order(write_order(study, job, mixture(study)))
        assert found == job
        assert corpus == mixture(study)
    path = study.root / "orders" / f"{jobs[0].run_id}.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"seed": "one"}))
    with pytest.raises(InputError, match=r"field seed: .*valid integer.*'one'"):
        read_order(path)
    assert main([str(path)]) == 2


def test_an_array_makes_what_is_missing_and_the_same_order_again_is_idle(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(study.root / "cache"))
    rungs = read_ladder(study.ladder).rungs
    jobs = missing_jobs(study, rungs)
    submitted = submit(study, jobs, mixture(study), ArrayPlan("local", minutes=5))
    assert [job.result() for job in submitted] == ["finished", "finished"]
    trunk, branch = (read_record(job.folder / "record.json") for job in jobs)
    assert trunk.branch is None
    assert (branch.branch.run_id, branch.branch.step) == (trunk.run_id, 30)
    assert missing_jobs(study, rungs) == []
    assert submit(study, [], mixture(study), ArrayPlan("local")) == []
    before = (jobs[0].folder / "record.json").read_bytes()
    order = str(write_order(study, jobs[0], mixture(study)))
    assert main([order]) == 0
    assert (jobs[0].folder / "record.json").read_bytes() == before
    again = ArrayTask().checkpoint(order)  # what submitit puts back into the queue after a preemption
    assert again.args == (order,)
    assert again.function(*again.args) == "finished"


def test_slurm_that_is_not_there_is_one_sentence(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    jobs = missing_jobs(study, [small_rung(STEPS + 1)])
    with pytest.raises(InputError, match="Slurm is not there"):
        submit(study, jobs, mixture(study), ArrayPlan("slurm", partition="cpu"))


def test_slurm_is_asked_for_arrays_with_branches_after_their_trunks(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("srun", "sbatch"):  # a Slurm that takes every script and numbers it
        tool = tmp_path / name
        tool.write_text(
            f'#!/bin/sh\ncp "$1" {tmp_path}/script.$$\necho Submitted batch job 7$(ls {tmp_path} | grep -c script)\n'
        )
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    trunk = small_rung(STEPS + 2)
    wanted = Study(tmp_path / "study")
    jobs = missing_jobs(
        wanted, [trunk, make_branch(trunk, 0, 30, 0.25), make_branch(trunk, 0, 40, 0.25), small_rung(9)]
    )
    plan = ArrayPlan("slurm", "cpu-long", "lab", minutes=90, at_once=20)
    submitted = submit(wanted, jobs, mixture(study), plan)
    assert [job.job_id for job in submitted] == ["71_0", "71_1", "72_0", "72_1"]
    scripts = sorted((path.read_text() for path in tmp_path.glob("script.*")), key=lambda text: "--dependency" in text)
    options = ("partition=cpu-long", "account=lab", "time=90", "array=0-1%2", "cpus-per-task=1", "requeue")
    for script in scripts:
        assert not [option for option in options if f"#SBATCH --{option}\n" not in script]
    assert "--dependency" not in scripts[0]
    assert "#SBATCH --dependency=afterany:71" in scripts[1]


def test_the_commands_say_where_runs_stand(study: Study) -> None:
    root = ["--study", str(study.root)]
    rung = small_rung(STEPS)
    planned = CliRunner().invoke(app, ["plan", *root, "--json"])
    assert planned.exit_code == 0
    told = json.loads(CliRunner().invoke(app, ["status", *root, "--json"]).stdout)
    assert {row["run_id"] for row in told["runs"]} == {each.run_id(0) for each in read_ladder(study.ladder).rungs}
    assert told["cost"]["planned_flops"] >= rung.compute
    assert sum(told["states"].values()) == len(told["runs"])
    assert "FLOPs done in" in CliRunner().invoke(app, ["status", *root]).stdout


class Writer:
    def __init__(self, folder, **_) -> None:
        self.told, self.folder = [], folder
        Writer.last = self

    def add_scalar(self, name, value, global_step=None) -> None:
        self.told.append((name, value, global_step))

    def add_text(self, name, value, global_step=None) -> None:
        self.told.append((name, value, global_step))

    def close(self) -> None:
        self.told.append("closed")


def a_record() -> RunRecord:
    """A record of nothing in particular."""
    return RunRecord(
        "r-s0",
        "r",
        0,
        RunStatus.FINISHED,
        1,
        "",
        "",
        {},
        1.0,
        0.0,
        None,
        None,
        None,
        0.0,
        "cpu",
        "c",
        DataUse("bytes", 1, {}, "packed", {}),
        "s",
        provenance(),
    )


def test_tensorboard_gets_the_lines_through_levanter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("levanter")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboardX", None)
        with pytest.raises(InputError, match="needs the package tensorboardX, which is not installed"):
            check_tracker("tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Writer))
    with open_tracker("tensorboard", tmp_path / "runs" / "r", small_rung(), 0) as tracker:
        tracker.log([{"step": 5, "loss": 2.5}, {"step": 6, "loss": 2.25}], {"mfu": 0.5, "tokens_per_second": None})
        tracker.summary(a_record())
    assert Writer.last.told[:3] == [("train/loss", 2.5, 5), ("train/loss", 2.25, 6), ("throughput/mfu", 0.5, 6)]
    assert ("status", "finished", None) in Writer.last.told
    assert Writer.last.told[-1] == "closed"


def test_wandb_offline_gets_the_lines_through_levanter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("levanter")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    with open_tracker("wandb", folder, small_rung(), 0) as tracker:
        tracker.log([{"step": 5, "loss": 2.5}], {"mfu": 0.5})
        tracker.summary(a_record())
        assert tracker._backend is not None
    (written,) = folder.rglob("*.wandb")
    assert small_rung().run_id(0).encode() in written.read_bytes()
    assert b"train/loss" in written.read_bytes()


def test_a_tracker_that_fails_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def log(self, values, step) -> None:
            raise ConnectionError("no network")

    tracker = Tracker("wandb", Broken())
    for step in (1, 2, 3):
        tracker.log([{"step": step, "loss": 1.0}], {})
    tracker.summary(a_record())
    tracker.finish()
    said = capsys.readouterr().err
    assert said.count("tracker wandb failed (ConnectionError: no network)") == 1
    with pytest.raises(InputError, match="unknown tracker 'mlflow'; use wandb or tensorboard"):
        check_tracker("mlflow")
