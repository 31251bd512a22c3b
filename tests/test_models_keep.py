"""Runs are kept over preemptions, full disks and damaged files; branches end as if trained alone; spikes are marked."""

import errno
import io
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import models.run
from ladder.errors import BusyError, InputError, StorageError
from ladder.provenance import provenance
from ladder.rung import Ladder, Rung, read_ladder
from ladder.study import Study
from models.branch import RunOptions, _shares, add_branches, branch_step, make_branch, shares_trunk, trunks
from models.checkpoint import latest_checkpoint, read_checkpoint
from models.data import read_corpus
from models.loss_watch import WINDOW, LossWatch
from models.pool import Job, missing_jobs
from models.record import RunRecord, read_record
from models.run import train_run
from models.run_files import PERMANENT, checkpoint_paths, core_hours, step_of
from models.run_lock import read_alive, run_lock
from models.schedule import ScheduleValues, rate_fraction
from models.status import run_states
from models.table import collect_runs
from models.train import initial_state
from tests.models_small import SHAPE, small_rung, write_corpus

STEPS = 120


class PreemptedError(Exception):
    """Stands for what ends a process in the middle of a run."""


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.run, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(models.run, "CHUNK", 7)


def run(folder: Path, corpus_folder: Path, rung: Rung | None = None, **options) -> RunRecord:
    corpus = read_corpus(corpus_folder)
    return train_run(rung or small_rung(STEPS), 0, folder, corpus, **options)


@pytest.fixture(scope="module")
def whole(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, corpus_folder)
    return folder


def last_state(folder: Path) -> bytes:
    return checkpoint_paths(folder)[0].read_bytes().partition(b"\n")[2]


def assert_same(folder: Path, whole: Path) -> None:
    assert last_state(folder) == last_state(whole)
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    mine, theirs = read_record(folder / "record.json"), read_record(whole / "record.json")
    for name in ("evaluations", "train_loss", "drop_fraction", "losses", "spec_sha256", "branch"):
        assert getattr(mine, name) == getattr(theirs, name)
    assert not list(folder.rglob(".*"))


def test_ten_preemptions_change_nothing(corpus_folder: Path, whole: Path, tmp_path: Path) -> None:
    rng, folder = random.Random(3), tmp_path / "run"
    at = sorted(rng.sample(range(8, STEPS), 10))
    for stop in at:

        def preempt(progress, stop=stop) -> None:
            if progress.step >= stop:
                raise PreemptedError

        with pytest.raises(PreemptedError):
            run(folder, corpus_folder, progress=preempt)
    run(folder, corpus_folder)
    assert_same(folder, whole)
    assert [step_of(path) for path in checkpoint_paths(folder, PERMANENT)] == [84]  # before the decay
    assert core_hours(folder / "times.jsonl") > 0


@pytest.mark.parametrize("room", [0, 100, 1000, 12_000])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    corpus_folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    folder, real, writes = tmp_path / "run", os.fdopen, iter(range(10**6))

    class Full(io.FileIO):
        def write(self, data) -> int:
            super().write(bytes(data)[:room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # From the 16th file on (sign of life, spec, metrics, some checkpoints) nothing but its first bytes has room.
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "fdopen", lambda handle, mode: Full(handle, mode) if next(writes) >= 15 else real(handle, mode)
        )
        with pytest.raises(StorageError, match=r"cannot write to .*No space left on device.*goes on from its last"):
            run(folder, corpus_folder)
    assert not (folder / "record.json").exists()
    assert checkpoint_paths(folder)
    run(folder, corpus_folder)
    assert_same(folder, whole)


def test_a_checkpoint_cut_or_changed_anywhere_is_found_out(whole: Path, tmp_path: Path) -> None:
    newest = checkpoint_paths(whole)[0]
    data, digest = newest.read_bytes(), read_record(whole / "record.json").spec_sha256
    like, path, rng = initial_state(SHAPE, jnp.int32(0)), tmp_path / newest.name, random.Random(0)
    head = data.index(b"\n")
    for cut in [
        *range(0, head + 2, 5),
        head,
        head + 1,
        *(rng.randrange(head, len(data)) for _ in range(100)),
        len(data) - 1,
    ]:
        path.write_bytes(data[:cut])
        assert read_checkpoint(path, digest, like) is None
    for at in [*range(0, head, 7), *(rng.randrange(len(data)) for _ in range(100))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        assert read_checkpoint(path, digest, like) is None
    path.write_bytes(data)
    assert int(read_checkpoint(path, digest, like).state.step) == STEPS
    with pytest.raises(InputError, match="belongs to another configuration"):
        read_checkpoint(path, "0" * 64, like)
    with pytest.raises(InputError, match="holds other arrays"):
        read_checkpoint(path, digest, eqx.tree_at(lambda state: state.bias, like, jnp.zeros((3, 6))))


def test_metrics_that_were_lost_cost_the_checkpoints_that_count_on_them(
    corpus_folder: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def preempt(progress) -> None:
        if progress.step >= 100:
            raise PreemptedError

    with pytest.raises(PreemptedError):
        run(folder, corpus_folder, progress=preempt)
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-3])
    run(folder, corpus_folder)
    assert_same(folder, whole)


def test_a_branch_ends_bit_for_bit_as_if_trained_alone(corpus_folder: Path, whole: Path, tmp_path: Path) -> None:
    trunk, study = small_rung(STEPS), Study(tmp_path)
    Ladder("trunk", (trunk,), provenance()).save(study.ladder)
    (short, long) = added = add_branches(study, trunk.run_id(0), [40, 60], 0.25)
    assert read_ladder(study.ladder).rungs == (trunk, *added)
    add_branches(study, trunk.run_id(0), [40], 0.25)
    assert len(read_ladder(study.ladder).rungs) == 3
    jobs = missing_jobs(study, [trunk, *added])
    assert [(job.run_id, job.after) for job in jobs] == [
        (trunk.run_id(0), ""),
        (long.run_id(0), trunk.run_id(0)),
        (short.run_id(0), trunk.run_id(0)),
    ]
    for job in jobs:
        run(job.folder, corpus_folder, job.rung, options=job.options)
    assert last_state(jobs[0].folder) == last_state(whole)  # that it kept more states changed nothing
    for job, begins in zip(jobs[1:], (60, 40), strict=True):
        alone = tmp_path / f"alone-{begins}"
        run(alone, corpus_folder, job.rung)
        assert last_state(job.folder) == last_state(alone)
        mine, theirs = read_record(job.folder / "record.json"), read_record(alone / "record.json")
        assert (mine.evaluations, mine.train_loss, mine.losses) == (
            theirs.evaluations,
            theirs.train_loss,
            theirs.losses,
        )
        assert (mine.branch.run_id, mine.branch.step, theirs.branch) == (trunk.run_id(0), begins, None)
        mine_lines, lines = ((f / "metrics.jsonl").read_text().splitlines() for f in (job.folder, alone))
        assert mine_lines == lines[begins:]
    table = collect_runs(study, read_ladder(study.ladder)).frame
    assert set(table["trunk_id"]) == {trunk.run_id(0)}
    assert set(table["compute"]) == {float(rung.compute) for rung in (trunk, *added)}
    states = run_states(study, (trunk, *added))
    each = trunk.compute / STEPS
    assert [row.spent_flops for row in states] == pytest.approx(
        [STEPS * each, (short.steps - 40) * each, (long.steps - 60) * each]
    )

    with pytest.raises(InputError, match=r"keeps no permanent checkpoint at step 50; the nearest is at step (40|60)"):
        add_branches(study, trunk.run_id(0), [50], None)
    with pytest.raises(InputError, match="can be left at steps 1 to 84"):
        add_branches(study, trunk.run_id(0), [90], None)
    with pytest.raises(InputError, match="has no run nobody"):
        add_branches(study, "nobody", [40], None)


def test_only_rungs_with_the_very_same_start_share_a_trunk() -> None:
    trunk = small_rung(STEPS)
    branch = make_branch(trunk, 0, 50, 0.2)
    assert shares_trunk(branch, trunk)
    assert branch_step(branch) >= 50
    others = [
        replace(branch, optimizer=replace(branch.optimizer, matrix_lr=0.021)),
        replace(branch, batch_seqs=8),
        replace(branch, schedule=replace(branch.schedule, warmup_fraction=0.5)),
    ]
    assert trunks([trunk, branch, *others]) == {branch.rung_id: trunk}
    values = ScheduleValues.of(trunk.schedule)
    by_step = [float(rate_fraction(jnp.int32(step), jnp.int32(STEPS), values)) for step in range(84)]
    np.testing.assert_allclose(_shares(trunk, 84), by_step, rtol=1e-6)


def test_states_of_runs(corpus_folder: Path, whole: Path, tmp_path: Path) -> None:
    study = Study(tmp_path)
    done, lost, missing = (small_rung(steps) for steps in (STEPS, 60, 61))
    wild = replace(small_rung(30), optimizer=replace(done.optimizer, adam_lr=1e30))

    def preempt(progress) -> None:
        rows = {row.run_id: row for row in run_states(study, [lost])}
        assert rows[lost.run_id(0)].state == "running"
        with pytest.raises(BusyError, match=f"being trained by process {os.getpid()}"):
            run(study.run(lost.run_id(0)), corpus_folder, lost)
        if progress.step >= 20:
            raise PreemptedError

    run(study.run(done.run_id(0)), corpus_folder, done)
    run(study.run(wild.run_id(0)), corpus_folder, wild)
    with pytest.raises(PreemptedError):
        run(study.run(lost.run_id(0)), corpus_folder, lost, progress=preempt)
    rows = run_states(study, [done, wild, lost, missing])
    assert [row.state for row in rows] == ["done", "diverged", "lost", "missing"]
    assert [row.step for row in rows] == [STEPS, rows[1].step, 22, 0]
    assert rows[1].losses.last_finite > 0
    assert {job.run_id for job in missing_jobs(study, [done, wild, lost, missing])} == {
        lost.run_id(0),
        missing.run_id(0),
    }
    assert all(row.core_hours > 0 for row in rows[:2])


def test_a_lock_dies_with_its_process_and_a_sign_of_life_of_another_host_counts(tmp_path: Path) -> None:
    held = "import sys, time; from pathlib import Path; from models.run_lock import run_lock\nwith run_lock(Path(sys.argv[1])):\n print(1, flush=True); time.sleep(60)"
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", held, str(tmp_path)], stdout=subprocess.PIPE, cwd=root, env={**os.environ}
    )
    assert process.stdout.readline() == b"1\n"
    with pytest.raises(BusyError, match=f"process {process.pid} on"), run_lock(tmp_path):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    assert read_alive(tmp_path) is None
    with run_lock(tmp_path):
        there = (tmp_path / "alive.json").read_text()
    (tmp_path / "alive.json").write_text(there.replace('"host":"', '"host":"not-'))
    with pytest.raises(BusyError, match="on not-"), run_lock(tmp_path):
        pass
    aged = there.replace('"host":"', '"host":"not-').replace('"beat":1', '"beat":0')
    (tmp_path / "alive.json").write_text(aged)
    with run_lock(tmp_path):
        pass


def slow_watch(losses: np.ndarray) -> tuple[int, int]:
    """Spikes and the first one's step, by the rule as it is told, one step at a time."""
    high = []
    for at in range(WINDOW, len(losses)):
        before = sorted(losses[at - WINDOW : at])
        median = (before[WINDOW // 2 - 1] + before[WINDOW // 2]) / 2
        off = sorted(abs(loss - median) for loss in before)
        deviation = 1.4826 * (off[WINDOW // 2 - 1] + off[WINDOW // 2]) / 2
        if losses[at] - median > max(8 * deviation, 0.02 * median):
            high.append(at + 1)
    began = [step for step in high if step - 1 not in high and step + 1 in high]
    return len(began), began[0] if began else 0


def test_spikes_are_counted_as_told_whatever_the_pieces() -> None:
    rng = np.random.default_rng(1)
    losses = 3 + 2 * np.exp(-np.arange(1500) / 200) + 0.02 * rng.standard_normal(1500)
    assert LossWatch().after(0, losses).spikes == slow_watch(losses)[0] == 0
    losses[700:706] += [0.5, 1.5, 1.0, 0.6, 0.4, 0.3]
    losses[900] += 2  # one step alone
    losses[1200:1202] += 1
    watch = LossWatch().after(0, losses)
    assert (watch.spikes, watch.first_spike) == slow_watch(losses) == (2, 701)
    assert watch.worst_spike == 702
    assert watch.worst_rise == pytest.approx(0.49, abs=0.03)
    assert not watch.unrecovered
    pieces, done = LossWatch(), 0
    while done < 1500:
        size = int(rng.integers(1, 80))
        pieces = pieces.after(done, losses[done : done + size])
        done = min(1500, done + size)
    assert pieces == watch
    assert watch.after(1500, losses[-300:] + 1).unrecovered


def test_a_run_that_spikes_is_marked_and_stays_in_the_table(
    corpus_folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = models.run.train_chunk

    def shaken(state, *rest):
        first = int(state.step)
        after, metrics = real(state, *rest)
        at = jnp.arange(len(metrics.loss)) + first + 1
        return after, metrics._replace(loss=metrics.loss + 30.0 * ((at == 90) | (at == 91)))

    monkeypatch.setattr(models.run, "train_chunk", shaken)
    rung, study = small_rung(STEPS), Study(tmp_path)
    losses = run(study.run(rung.run_id(0)), corpus_folder).losses
    assert (losses.spikes, losses.first_spike) == (1, 90)
    assert losses.worst_spike in (90, 91)
    assert losses.last_finite == read_record(whole / "record.json").losses.last_finite
    table = collect_runs(study, Ladder("one", (rung,), provenance()))
    assert list(table.included().frame["loss_spikes"]) == [1, 1]
    assert "1 loss spikes" in run_states(study, [rung])[0].note


def test_latest_checkpoint_of_an_empty_folder_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path, "0" * 64, initial_state(SHAPE, jnp.int32(0)), 0) is None
    assert RunOptions(keep_every=50).kept_steps(small_rung(STEPS)) == {50, 84, 100}
    assert Job(small_rung(STEPS), 0, tmp_path).after == ""
