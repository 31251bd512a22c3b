"""The worked example of docs/adding-a-law.md runs and prints what it says."""

import re
from pathlib import Path

import pytest

from fits.laws import LAWS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "adding-a-law.md"


def test_worked_example_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 36
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), space)
    assert capsys.readouterr().out == printed
    assert "sparse-chinchilla" not in LAWS
