"""The registry: what was entered cannot be changed unnoticed; leaks and late registrations are refused."""

import contextlib
import dataclasses
import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forecasts.ledger as ledger_module
from fits.fit import fit
from fits.result import read_fit
from fits.spec import FitSpec
from forecasts.check import check
from forecasts.draft import draft
from forecasts.ledger import LineKind, enter, read_ledger
from forecasts.record import Outcome, read_check, read_forecast
from forecasts.register import register
from forecasts.registry import registry
from forecasts.verify import verify
from ladder.errors import InputError, VerificationError
from ladder.runs import RunTable, read_runs
from ladder.study import Study
from tests.reports_study import FITS, TEST, checked_study, open_study, plan, resolve, write_held_out_runs


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, str]:
    return checked_study(tmp_path_factory.mktemp("checked") / "study")


@pytest.fixture
def copy(checked: tuple[Study, str], tmp_path: Path) -> Study:
    shutil.copytree(checked[0].root, tmp_path / "study")
    return Study(tmp_path / "study")


def entered_files(study: Study) -> list[Path]:
    return [path for path in sorted(study.ledger.parent.rglob("*")) if path.is_file()]


def test_a_sound_registry_verifies(checked: tuple[Study, str]) -> None:
    report = verify(checked[0])
    assert report.lines == 2
    assert report.checks == 1
    assert report.head == read_ledger(checked[0])[-1].digest
    assert str(report.forecasts[0].evidence_level) == "local chain"


@settings(max_examples=100)
@given(data=st.data())
def test_any_changed_byte_is_caught_and_named(checked: tuple[Study, str], tmp_path_factory, data) -> None:
    study = Study(tmp_path_factory.mktemp("flip") / "study")
    shutil.copytree(checked[0].root / "forecasts", study.root / "forecasts")
    shutil.copy(checked[0].runs, study.runs)
    path = data.draw(st.sampled_from(entered_files(study)))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path.chmod(0o644)
    path.write_bytes(bytes(content))
    with pytest.raises(VerificationError) as error:
        verify(study)
    assert path.name in str(error.value)
    shutil.rmtree(study.root)


def test_deleted_reordered_and_repeated_lines_are_caught(copy: Study) -> None:
    lines = copy.ledger.read_bytes().splitlines(keepends=True)
    for changed in (
        [lines[1]],
        [lines[1], lines[0]],
        [lines[0], lines[0], lines[1]],
        [*lines, lines[1]],
        lines[:1],
        [],
    ):
        copy.ledger.write_bytes(b"".join(changed))
        with pytest.raises(VerificationError):
            verify(copy)


def test_a_line_cut_off_is_named_and_nothing_repaired(copy: Study) -> None:
    whole = copy.ledger.read_bytes()
    copy.ledger.write_bytes(whole[:-20])
    with pytest.raises(VerificationError, match="line 2 is cut off"):
        verify(copy)
    assert copy.ledger.read_bytes() == whole[:-20]


def test_removing_the_tail_with_its_files_is_not_detectable_without_outside_evidence(copy: Study) -> None:
    head = verify(copy).head
    lines = copy.ledger.read_bytes().splitlines(keepends=True)
    copy.ledger.write_bytes(lines[0])
    for path in (copy.root / "forecasts" / "checks").iterdir():
        path.unlink()
    assert verify(copy).head != head  # it verifies; only a head published elsewhere shows that something is gone


def test_files_without_a_line_are_caught(copy: Study) -> None:
    (copy.registered / "2026-01-01--backdated--00000000.json").write_text("{}")
    with pytest.raises(VerificationError, match="backdated"):
        verify(copy)


def test_round_trips_are_lossless(checked: tuple[Study, str]) -> None:
    (entry,) = registry(checked[0])
    assert read_forecast(entry.path).to_json() == entry.path.read_bytes()
    assert read_forecast(entry.path) == entry.forecast
    (resolved,) = entry.checks
    assert read_check(resolved.path).to_json() == resolved.path.read_bytes()


@pytest.mark.parametrize(("name", "read"), [("forecast", read_forecast), ("check", read_check)])
def test_golden_files_are_read_and_written_alike(name: str, read) -> None:
    path = Path(__file__).parent / "golden" / f"{name}.json"
    assert read(path).to_json() == path.read_bytes()


def test_registered_files_are_never_overwritten(checked: tuple[Study, str], copy: Study) -> None:
    (entry,) = registry(copy)
    with pytest.raises(VerificationError, match="in the log already"):
        enter(copy, LineKind.REGISTER, entry.forecast_id, b"{}")
    again = register(copy, entry.forecast)
    assert again.index == 0
    assert len(read_ledger(copy)) == 2
    assert entry.path.read_bytes() == registry(checked[0])[0].path.read_bytes()


def _enter_many(root: Path, name: str) -> None:
    for index in range(12):
        enter(Study(root), LineKind.REGISTER, f"{name}-{index}", b'{"a":1}')


def test_two_writers_do_not_interleave(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_enter_many, args=(tmp_path, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    lines = read_ledger(Study(tmp_path))
    assert [line.index for line in lines] == list(range(24))


def test_a_writer_stopped_between_file_and_line_is_noticed_and_completed(tmp_path: Path, monkeypatch) -> None:
    study, _ = open_study(tmp_path / "study")
    (entry,) = registry(study)
    shutil.rmtree(study.ledger.parent)

    def stop(handle: int, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "_append", stop)
        with contextlib.suppress(KeyboardInterrupt):
            register(study, entry.forecast)
    with pytest.raises(VerificationError, match="then register the same draft again"):
        verify(study)
    register(study, entry.forecast)
    assert verify(study).lines == 1


def test_a_check_stopped_between_file_and_line_says_how_to_go_on(tmp_path: Path) -> None:
    study, forecast_id = checked_study(tmp_path / "study")
    study.ledger.write_bytes(study.ledger.read_bytes().splitlines(keepends=True)[0])  # as if stopped before its line
    with pytest.raises(VerificationError, match="move it away and check again") as error:
        check(study, forecast_id)
    assert study.check(forecast_id).name in str(error.value)
    study.check(forecast_id).unlink()
    assert check(study, forecast_id).outcome is Outcome.HIT


def test_an_edited_draft_is_not_registered(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    (entry,) = registry(study)
    shutil.rmtree(study.ledger.parent)
    main = entry.forecast.main
    better = dataclasses.replace(main, quantiles=tuple(q * 1.001 for q in main.quantiles))
    with pytest.raises(VerificationError, match="is not reproduced"):
        register(study, dataclasses.replace(entry.forecast, main=better))
    assert read_ledger(study) == ()


def test_edited_digests_of_inputs_are_not_registered(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    (entry,) = registry(study)
    shutil.rmtree(study.ledger.parent)
    runs, *others = entry.forecast.inputs
    inputs = (dataclasses.replace(runs, sha256="0" * 64), *others)
    with pytest.raises(VerificationError, match="list of inputs"):
        register(study, dataclasses.replace(entry.forecast, inputs=inputs))
    assert read_ledger(study) == ()


def test_changed_runs_are_not_registered(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    (entry,) = registry(study)
    shutil.rmtree(study.ledger.parent)
    frame = read_runs(study.runs).frame.copy()
    frame.loc[frame["metric"] == TEST, "loss"] *= 1.0001
    RunTable.of(frame).save(study.runs)
    with pytest.raises(VerificationError, match="not those it was made from"):
        register(study, entry.forecast)


def test_a_late_registration_is_refused(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    (entry,) = registry(study)
    shutil.rmtree(study.ledger.parent)
    rung = plan().held_out_rungs[0]
    folder = study.run(rung.run_id(1))
    folder.mkdir(parents=True)
    spec = {"schema": "run-spec/1", "rung": {"rung_id": rung.rung_id}, "started_at": "2026-01-01T00:00:00.000000Z"}
    (folder / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(VerificationError, match="its target had not started"):
        register(study, entry.forecast)


def test_a_target_that_started_before_is_caught_by_verify(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    write_held_out_runs(study, plan(), "2026-01-01T00:00:00.000000Z", "2026-01-01T01:00:00.000000Z")
    with pytest.raises(VerificationError, match="its target had not started"):
        verify(study)


def test_a_fit_that_saw_the_target_is_refused(tmp_path: Path) -> None:
    study, _ = open_study(tmp_path / "study")
    ladder = plan()
    (rung,) = ladder.held_out_rungs
    frame = read_runs(study.runs).frame.copy()
    planted = frame[frame["metric"] == TEST].iloc[[0]].copy()
    planted["run_id"], planted["compute"], planted["budget"] = "planted", float(rung.compute), float(rung.budget)
    import pandas as pd

    RunTable.of(pd.concat([frame, planted], ignore_index=True)).save(study.runs)
    spec = dataclasses.replace(FitSpec.of("chinchilla", TEST), resamples=20)
    fit(spec, read_runs(study.runs)).save(study.fit("leaky"))
    with pytest.raises(VerificationError, match="leakage"):
        draft(study, ladder, rung, TEST, main=FITS[0], comparators=["leaky"], title="t", authors=["a"])


def test_outcomes(tmp_path: Path) -> None:
    study, forecast_id = open_study(tmp_path / "study")
    with pytest.raises(InputError, match="has no run of rung"):
        check(study, forecast_id)
    with pytest.raises(InputError, match="there are: "):
        check(study, "nothing")
    resolve(study, plan())
    (entry,) = registry(study)
    assert entry.check is not None
    assert entry.check.outcome is Outcome.HIT
    low, high = entry.forecast.main.predictive.interval(0.9)
    assert low <= entry.check.observed <= high
    assert check(study, forecast_id) == entry.check  # nothing new is entered
    assert len(read_ledger(study)) == 2

    missed, missed_id = checked_study(tmp_path / "missed", shift=0.2)
    assert registry(missed)[0].check.outcome is Outcome.MISS
    assert missed_id == forecast_id


def test_missing_seed_is_ambiguous_then_resolved_beside_the_first(tmp_path: Path) -> None:
    study, forecast_id = checked_study(tmp_path / "study")
    frame = read_runs(study.runs).frame
    shutil.rmtree(study.root / "forecasts" / "checks")
    lines = study.ledger.read_bytes().splitlines(keepends=True)
    study.ledger.write_bytes(lines[0])
    RunTable.of(frame[~((frame["role"] == "held_out") & (frame["seed"] == 1))]).save(study.runs)
    first = check(study, forecast_id)
    assert first.outcome is Outcome.AMBIGUOUS
    assert "no run of seed 1 has ended" in first.deviations
    RunTable.of(frame).save(study.runs)
    second = check(study, forecast_id)
    assert second.outcome is Outcome.HIT
    (entry,) = registry(study)
    assert [found.check.outcome for found in entry.checks] == [Outcome.AMBIGUOUS, Outcome.HIT]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("tokens", 1.1, "tokens differs by"),
        ("eval_set", "other", "eval_set is 'other'"),
        ("status", "diverged", "ended as"),
    ],
)
def test_another_run_than_registered_annuls(tmp_path: Path, column: str, value, words: str) -> None:
    study, forecast_id = open_study(tmp_path / "study")
    resolve_later = plan()
    from ladder.provenance import utc_now

    write_held_out_runs(study, resolve_later, utc_now(), utc_now())
    frame = read_runs(study.runs).frame.copy()
    held = frame["role"] == "held_out"
    if column == "status":
        frame.loc[held, ["status", "excluded_reason"]] = "diverged"
        frame.loc[held, "loss"] = float("nan")
    else:
        frame.loc[held, column] = frame.loc[held, column] * value if column == "tokens" else value
    RunTable.of(frame).save(study.runs)
    found = check(study, forecast_id)
    assert found.outcome is Outcome.ANNULLED
    assert any(words in deviation for deviation in found.deviations)
    assert found.main is None
    assert verify(study).checks == 1


def test_newer_ledger_schema_asks_for_an_update(copy: Study) -> None:
    line = json.loads(copy.ledger.read_bytes().splitlines()[0])
    from ladder.records import canonical_json, sha256_bytes

    line = {**line, "schema": "ledger/2"}
    line.pop("line_sha256")
    line["line_sha256"] = sha256_bytes(canonical_json(line))
    copy.ledger.write_bytes(canonical_json(line) + b"\n")
    with pytest.raises(InputError, match="update foretell"):
        verify(copy)


def test_read_fit_of_the_study_is_the_registered_one(checked: tuple[Study, str]) -> None:
    (entry,) = registry(checked[0])
    result = read_fit(checked[0].fit(entry.forecast.main.name))
    target = entry.forecast.target
    median = result.predictive({"compute": float(target.compute), "tokens": float(target.tokens)}).median
    assert median == pytest.approx(entry.forecast.main.median, rel=1e-12)
