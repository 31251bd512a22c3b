"""The shape of the house: imports run one way, files stay short, nothing of this machine is tracked."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "ladder": set(),
    "models": {"ladder"},
    "fits": {"ladder"},
    "forecasts": {"ladder", "fits"},
    "reports": {"ladder", "fits", "forecasts"},
    "foretell": {"ladder", "models", "fits", "forecasts", "reports"},
}
MODULES = [*sorted(path for package in MAY_IMPORT for path in (ROOT / package).glob("*.py")), ROOT / "foretell.py"]


def imported_packages(path: Path) -> set[str]:
    """Return the top-level names a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_run_one_way(path: Path) -> None:
    package = path.parent.name if path.parent != ROOT else "foretell"
    reverse = imported_packages(path) & set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    assert not reverse, f"{package} may not import {reverse}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400, "split the file, or shorten it"


def test_no_junk_drawers_and_no_star_imports() -> None:
    assert not [path for path in MODULES if path.stem in {"utils", "common", "helpers", "misc"}]
    assert not [path for path in MODULES if "import *" in path.read_text()]


def test_base_packages_import_no_training_stack() -> None:
    banned = {"optax", "orbax", "tokenizers", "levanter", "haliax"}
    for path in MODULES:
        if path.parent.name in {"ladder", "fits", "forecasts", "reports"}:
            assert not imported_packages(path) & banned, path


def test_tracked_files_name_no_registry_and_no_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    marks = ["/simple" + "/", "files.pythonhosted" + ".org", "--index" + "-url", "/root" + "/", "file:" + "//"]
    for name in filter(None, listed.stdout.split("\0")):
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        assert not [mark for mark in marks if mark in text], name
