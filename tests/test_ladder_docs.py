"""The worked example of docs/importing-runs.md does and says what it claims."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ladder.cli_runs import runs_app
from ladder.importer import WHY
from ladder.runs import read_runs

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "importing-runs.md"


def test_worked_example_says_what_it_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text()
    (table,) = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    (column_map,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("width.csv").write_text(table)
    Path("width.toml").write_text(column_map)
    result = CliRunner().invoke(runs_app, ["import", "width.csv", "--map", "width.toml", "-o", "runs.parquet"])
    assert result.exception is None
    assert result.output == printed
    frame = read_runs("runs.parquet").frame
    assert frame["excluded_reason"].fillna("").tolist() == ["manual", "", "manual", "unfinished", "bad_value"]
    assert frame["compute"][1] == 6 * 1.7e6 * 2000 * 64 * 1024
    assert frame["loss"][1] == pytest.approx(5.02 * 0.6931471805599453)
    assert "unstable" in frame[WHY][0]
    assert frame["extra_width"].tolist() == [64, 128, 256, 256, 512]
