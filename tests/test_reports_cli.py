"""Commands, the index of forecasts and the local server."""

import json
import threading
import urllib.request
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

from forecasts.registry import registry
from ladder.errors import InputError
from ladder.study import Study
from reports.cli import app
from reports.serve import server_for
from reports.site import build_site, calibration_of
from tests.reports_study import checked_study
from tests.test_reports_build import Page


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, str]:
    """Return a checked study without reports, and its forecast's id."""
    return checked_study(tmp_path_factory.mktemp("cli") / "study")


def test_build_command_prints_the_page(study: tuple[Study, str], tmp_path: Path) -> None:
    out = tmp_path / "report"
    arguments = ["build", study[1][:12], "--study", str(study[0].root), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out / 'index.html'}\n"
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(again.stdout) == {"page": str(out / "index.html")}


def test_site_lists_every_forecast_with_its_outcome(study: tuple[Study, str]) -> None:
    page = Page(build_site(study[0]).read_text())
    assert page.links == [f"{study[1]}/index.html"]
    assert (study[0].report(study[1]) / "index.html").is_file()
    (entry,) = registry(study[0])
    assert entry.forecast.title in page.text
    assert "Hit" in page.text
    assert page.loads == []
    calibration = calibration_of((entry, entry))  # two forecasts of one target count once
    assert calibration.inside == "1"
    assert calibration.targets == "1 independent target"
    assert calibration.low == f"{100 * stats.beta(1.5, 0.5).ppf(0.05):.2f} %"
    assert "One target cannot show calibration." in page.text


def test_site_of_a_study_without_forecasts_says_so(tmp_path: Path) -> None:
    page = Page(build_site(Study(tmp_path)).read_text())
    assert "Nothing is registered yet." in page.text
    assert "No forecast of this study has been resolved" in page.text


def test_server_shows_the_folder_on_this_machine_only(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    with server_for(tmp_path, 0) as server:
        host, port = str(server.server_address[0]), server.server_address[1]
        assert host == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://{host}:{port}/index.html") as answer:
            assert answer.read() == b"hello"
        with pytest.raises(InputError, match="--port"):
            server_for(tmp_path, port)
        server.shutdown()
    with pytest.raises(InputError, match="build a report first"):
        server_for(tmp_path / "nowhere", 0)
