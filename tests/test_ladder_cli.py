"""The ladder commands as a user meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ladder.cli import app
from ladder.errors import InputError
from ladder.rung import read_ladder

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> str:
    """Return what a command printed; its known errors are raised."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_default_plan_needs_no_arguments(tmp_path: Path) -> None:
    out = tmp_path / "L.json"
    printed = json.loads(run("plan", "--recipe", "marin-moe-v16", "-o", str(out), "--json"))
    assert set(printed) == {"out", "rungs", "held_out", "max_compute_error", "seconds", "remarks"}
    assert (printed["rungs"], printed["held_out"]) == (31, 5)
    assert printed["max_compute_error"] < 1e-4
    ladder = read_ladder(out)
    assert sorted({rung.budget for rung in ladder.held_out_rungs}) == [k * 10**e for e in (21, 22) for k in (1, 3)] + [
        10**23
    ]
    assert json.loads(run("check", str(out), "--json"))["derived_again"] == 31
    with pytest.raises(InputError, match="exists"):
        run("plan", "-o", str(out))


def test_overrides_and_epochs_show_in_the_table(tmp_path: Path) -> None:
    out = str(tmp_path / "L.json")
    text = run("plan", "-o", out, "--override", "1e23:hidden=5120,layers=48,batch_seqs=2048", "--corpus", "500B")
    assert "layers is 48 by hand; the recipe's rule gives 49" in text
    assert "epochs of a corpus of 500B" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("1e2")) <= 200
    assert "48 by hand" in run("show", out)
    assert "alike" in run("check", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "positive"),
        (["--budget=-3e18"], "positive"),
        (["--budget", "3e18 tokens"], "given in 'tokens', expected FLOPs"),
        (["--budget", "3e18", "--corpus", "3e18"], "is that number in FLOPs"),
        (["--budget", "3e18", "--corpus", "3e12 FLOPs"], "given in 'FLOPs', expected tokens"),
        (["--budget", "3e18", "--override", "layers=48"], "BUDGET:FIELD=VALUE"),
        (
            ["--held-out", "1e23", "--override", "1e23:hidden=5000"],
            "not a positive multiple of .* head_dim=128; use 5120",
        ),
        (["--held-out", "1e23", "--override", "1e23:top_k=65"], "top_k=65 is larger than experts=64; use at most 64"),
        (["--held-out", "1e23", "--override", "1e23:batch_seqs=0"], "must be positive"),
        (["--held-out", "1e23", "--override", "1e23:tokens=3e18"], "more than 2 % off the budget"),
        (["--recipe", "marin-moe-v17"], "unknown recipe 'marin-moe-v17'; known: .*marin-moe-v16"),
        (["--budget", "1e21", "--held-out", "1e20"], "not above the largest fit budget"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run("plan", "-o", str(tmp_path / "L.json"), *arguments)
    assert not list(tmp_path.iterdir())


def test_planning_imports_no_heavy_package(tmp_path: Path) -> None:
    probe = (
        "import sys, ladder\nfrom ladder.generate import plan_isoflop\nfrom ladder.recipe import recipe_named\n"
        "r = recipe_named('marin-moe-v16')\nplan_isoflop(r, r.fit_budgets).to_json()\n"
        "print(sorted({'jax', 'numpy', 'pandas', 'pydantic', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
