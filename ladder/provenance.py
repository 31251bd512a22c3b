"""The one provenance block, the same in every file: what code, which packages, which inputs, when."""

import datetime
import functools
import importlib.metadata
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ladder.records import sha256_file

RECORDED_PACKAGES = ("foretell", "numpy", "scipy", "pandas", "jax", "jaxlib", "equinox", "optax", "statsmodels")


@dataclass(frozen=True)
class Resource:
    """An input by content: its name within the study, the digest of its bytes and its media type."""

    name: str
    sha256: str
    media_type: str

    @staticmethod
    def of(path: Path, root: Path | None = None) -> "Resource":
        """Return the resource for a file, named relative to `root` where it lies below it."""
        name = path.relative_to(root).as_posix() if root and path.is_relative_to(root) else path.name
        kinds = {".json": "application/json", ".parquet": "application/vnd.apache.parquet", ".csv": "text/csv"}
        return Resource(name, sha256_file(path), kinds.get(path.suffix, "application/octet-stream"))


@dataclass(frozen=True)
class Provenance:
    """How a file came to be.

    Attributes:
        created_at: UTC, ISO 8601 with a trailing Z.
        code_sha: git commit of the checkout, or None outside one.
        code_dirty: whether tracked files differed from that commit; None outside a checkout.
        python: version of the interpreter.
        platform: operating system and processor, without host names.
        packages: versions of the packages that decide numbers.
        command: command line, first word reduced to its file name.
        seed: seed of all random numbers, or None where none are drawn.
        inputs: the files that went in.
    """

    created_at: str
    code_sha: str | None
    code_dirty: bool | None
    python: str
    platform: str
    packages: dict[str, str]
    command: str
    seed: int | None = None
    inputs: tuple[Resource, ...] = field(default_factory=tuple)


def utc_now() -> str:
    """Return the time now in UTC as ISO 8601 with microseconds and a trailing Z; sorts as text."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@functools.cache
def _git_state() -> tuple[str | None, bool | None]:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    try:
        sha = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return sha.stdout.strip(), bool(changed.stdout.strip())


@functools.cache
def _package_versions() -> dict[str, str]:
    versions = {}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def provenance(seed: int | None = None, inputs: tuple[Resource, ...] = ()) -> Provenance:
    """Return the provenance block of a file that is being written now."""
    sha, dirty = _git_state()
    return Provenance(
        created_at=utc_now(),
        code_sha=sha,
        code_dirty=dirty,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        packages=_package_versions(),
        command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        seed=seed,
        inputs=inputs,
    )
