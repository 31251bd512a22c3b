"""Commands `foretell fit ...` as a user calls them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fits.cli import app
from fits.result import read_fit
from ladder.errors import InputError, UnusableError
from tests.fits_tables import ladder_rows, noisy_isoflop, table

METRIC = ["--metric", "loss"]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Return a study with a run table."""
    table(noisy_isoflop()).save(tmp_path / "runs.parquet")
    return tmp_path


def test_run_writes_the_fit_and_prints_its_summary(study: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--study", str(study), "--law", "floor-integrated", *METRIC])
    assert done.exit_code == 0, done.output
    path = study / "fits" / "floor-integrated.json"
    assert "Fit of floor-integrated" in done.stdout
    result = read_fit(path)
    assert result.provenance.inputs[0].name == "runs.parquet"
    again = CliRunner().invoke(app, ["run", "--study", str(study), "--law", "floor-integrated", *METRIC])
    assert isinstance(again.exception, InputError)
    assert "--force" in str(again.exception)


def test_run_takes_its_options_into_the_specification(study: Path) -> None:
    out = study / "mine.json"
    options = ["--loss", "mse", "--resamples", "20", "--seed", "7", "--size", "active_params", "--max-compute", "5e19"]
    command = [
        "run",
        "--study",
        str(study),
        "--law",
        "chinchilla",
        *METRIC,
        *options,
        "-o",
        str(out),
        "--json",
        "--quiet",
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["status"] == "converged"
    assert done.stderr == ""
    spec = read_fit(out).spec
    assert (spec.loss.delta, spec.resamples, spec.seed, spec.size_column) == (None, 20, 7, "active_params")
    assert spec.max_compute == 5e19


def test_fit_that_does_not_converge_is_written_and_exits_with_four(tmp_path: Path) -> None:
    budgets = [1e18, 3e18, 1e19, 3e19, 1e20]
    table(ladder_rows(budgets, [3.5, 3.4, 3.2, 2.9, 2.5])).save(tmp_path / "runs.parquet")
    done = CliRunner().invoke(app, ["run", "--study", str(tmp_path), "--law", "power-law-floor", *METRIC, "--quiet"])
    assert isinstance(done.exception, UnusableError)
    assert done.exception.exit_code == 4
    assert not read_fit(tmp_path / "fits" / "power-law-floor.json").usable


def test_compare_shows_fits_side_by_side(study: Path) -> None:
    for law in ("floor-integrated", "power-law"):
        CliRunner().invoke(app, ["run", "--study", str(study), "--law", law, *METRIC, "--quiet", "--resamples", "20"])
    files = [str(study / "fits" / f"{law}.json") for law in ("floor-integrated", "power-law")]
    shown = CliRunner().invoke(app, ["compare", *files, "--at", "1e21"])
    assert shown.exit_code == 0, shown.output
    assert "floor-integrated" in shown.stdout
    rows = json.loads(CliRunner().invoke(app, ["compare", *files, "--at", "1e21", "--json"]).stdout)
    assert [row["fit"] for row in rows] == ["floor-integrated", "power-law"]
    assert rows[0]["median"] > rows[1]["median"]


def test_unknown_words_are_refused(study: Path) -> None:
    for extra in (
        ["--law", "no-such-law"],
        ["--law", "chinchilla", "--loss", "l1"],
        ["--law", "chinchilla", "--size", "N"],
    ):
        done = CliRunner().invoke(app, ["run", "--study", str(study), *METRIC, *extra])
        assert isinstance(done.exception, InputError), extra


def test_run_writes_page_and_figures(study: Path, tmp_path: Path) -> None:
    page, folder = tmp_path / "fit.html", tmp_path / "figures"
    command = ["run", "--study", str(study), "--law", "chinchilla", *METRIC, "--resamples", "30", "--quiet"]
    done = CliRunner().invoke(app, [*command, "--html", str(page), "--figures", str(folder), "--wild"])
    assert done.exit_code == 0, done.output
    assert "residual signs" in done.stdout
    assert "<table>" in page.read_text()
    assert {path.stem for path in folder.glob("*.png")} == {"fit", "path", "residuals", "isoflop", "profile"}
    done = CliRunner().invoke(
        app,
        [
            "run",
            "--study",
            str(study),
            "--law",
            "power-law-floor",
            *METRIC,
            "--quiet",
            "--resamples",
            "20",
            "--figures",
            str(folder / "b"),
        ],
    )
    assert {path.stem for path in (folder / "b").glob("*.png")} == {"fit", "residuals", "isoflop", "profile"}


def test_check_shows_what_the_runs_identify(study: Path) -> None:
    CliRunner().invoke(
        app, ["run", "--study", str(study), "--law", "chinchilla", *METRIC, "--quiet", "--resamples", "0"]
    )
    command = ["check", str(study / "fits" / "chinchilla.json"), "--study", str(study)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    for words in ("condition", "weakest direction", "profile interval", "half squared", "IsoFLOP vertices"):
        assert words in shown.stdout
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert len(document["profiles"]) == 5
    assert len(document["sweep"]) == 3
    assert len(document["isoflop"]) == 5
    alpha = document["profiles"][3]
    assert alpha["lo"] < alpha["estimate"] < alpha["hi"]


def test_check_refuses_the_policy(study: Path) -> None:
    CliRunner().invoke(app, ["run", "--study", str(study), "--law", "floor-integrated", *METRIC, "--quiet"])
    done = CliRunner().invoke(app, ["check", str(study / "fits" / "floor-integrated.json"), "--study", str(study)])
    assert isinstance(done.exception, InputError)


def test_laws_are_listed_with_the_evidence_of_their_values() -> None:
    shown = CliRunner().invoke(app, ["laws"]).stdout
    assert "ludziejewski2025 [P]" in shown
    rows = json.loads(CliRunner().invoke(app, ["laws", "--json"]).stdout)
    assert len(rows) == 13
