"""The scripts under benchmarks/ that speak for ladders: README's table is current, conventions bend exponents."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import convention_sensitivity, readme_tables
from ladder.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"


def test_the_table_of_the_readme_is_current() -> None:
    command = [sys.executable, "benchmarks/readme_tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run python benchmarks/readme_tables.py"
    assert json.loads(done.stdout) == {"stale": False, "written": False}


def test_a_stale_table_is_noticed_and_only_the_table_is_replaced() -> None:
    text = readme_tables.README.read_text()
    edited = text.replace("| 1e21 | held out |", "| 1e21 | fit |")
    assert edited != text
    assert readme_tables.with_tables(edited) == text
    assert readme_tables.with_tables(text + "more\n") == text + "more\n"
    with pytest.raises(InputError, match="needs the lines"):
        readme_tables.with_tables("no marks")


@pytest.mark.skipif(not (DATA / "marin_moe").is_dir(), reason="the public data are not beside the checkout")
def test_conventions_bend_the_exponents() -> None:
    frame = convention_sensitivity.runs(DATA)
    found = {name: reading.row() for name, reading in convention_sensitivity.readings(frame).items()}
    exponents = {name: row["loss_exponent"] for name, row in found.items()}
    # the published fit of six vertices: 95.18 C^-0.0941 above 1.6
    assert exponents["no_head"] == pytest.approx(0.0941, abs=0.002)
    assert exponents["no_head_interpolated"] == pytest.approx(exponents["no_head"], abs=0.001)
    assert exponents["relabelled"] == pytest.approx(exponents["full"], abs=0.001)
    assert exponents["no_head"] < exponents["full"] < exponents["mixed"]
    assert frame["full"].gt(frame["no_head"]).all()
