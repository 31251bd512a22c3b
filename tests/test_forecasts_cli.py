"""Commands `foretell forecast ...` as a user calls them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forecasts.cli import app
from ladder.errors import InputError, UnusableError, VerificationError
from ladder.study import Study
from tests.reports_study import FITS, open_study, plan, resolve


def call(study: Study, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--study", str(study.root)])


@pytest.fixture
def opened(tmp_path: Path) -> tuple[Study, str]:
    return open_study(tmp_path / "study")


def test_the_commands_do_the_whole_of_it(opened: tuple[Study, str]) -> None:
    study, first = opened
    (rung,) = plan().held_out_rungs
    words = ["--rung", rung.rung_id, "--fit", FITS[0], "--comparator", FITS[2], "--title", "Again", "--author", "me"]
    drafted = call(study, "draft", *words, "--name", "again")
    assert drafted.exit_code == 0, drafted.output
    draft = study.draft("again")
    assert f"foretell forecast register {draft}" in drafted.stdout
    refused = call(study, "draft", *words, "--name", "again")
    assert isinstance(refused.exception, InputError)
    assert "--force" in str(refused.exception)
    assert call(study, "draft", *words, "--name", "again", "--force").exit_code == 0

    registered = call(study, "register", str(draft), "--json")
    assert registered.exit_code == 0, registered.output
    row = json.loads(registered.stdout)
    assert row["index"] == 1
    assert Path(row["path"]).is_file()

    listed = call(study, "list", "--json")
    assert [item["forecast_id"] for item in json.loads(listed.stdout)["forecasts"]] == [first, row["forecast_id"]]
    assert "open" in call(study, "list").stdout
    assert json.loads(call(study, "verify", "--json").stdout)["lines"] == 2


def test_check_states_the_outcome(opened: tuple[Study, str], tmp_path: Path) -> None:
    study, forecast_id = opened
    early = call(study, "check", forecast_id)
    assert isinstance(early.exception, InputError)
    resolve(study, plan(), shift=0.2)
    done = call(study, "check", forecast_id[:12])
    assert done.exit_code == 0, done.output  # a miss is a result
    assert "miss" in done.stdout
    document = json.loads(call(study, "check", forecast_id, "--json").stdout)
    assert document["outcome"] == "miss"
    assert isinstance(call(study, "check", forecast_id, "--strict").exception, UnusableError)
    assert "miss" in call(study, "list").stdout


def test_verify_names_the_file_that_was_changed(opened: tuple[Study, str]) -> None:
    study, forecast_id = opened
    assert call(study, "verify").exit_code == 0
    path = study.registered / f"{forecast_id}.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"synthetic", b"synthetik"))
    changed = call(study, "verify").exception
    assert isinstance(changed, VerificationError)
    assert changed.exit_code == 3
    assert path.name in str(changed)


def test_a_study_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = call(Study(tmp_path / "nothing"), "verify").exception
    assert isinstance(missing, InputError)
    assert "nothing" in str(missing)
