"""Compiles a rung's step with the TPU's own compiler, on a machine without a TPU.

Each compilation is a process of its own, since the compiler may abort; its program and its memory are kept by the
content of all that decides them. What they mean is in `models.pod_report`.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ladder.errors import InputError, UnusableError
from ladder.records import canonical_json, read_json, sha256_bytes, write_atomic
from ladder.rung import Rung
from models.corpus import cache_dir

SCHEMA = "compiled/1"
SOURCES = ("layers", "mesh", "pod", "pod_attention", "pod_loss", "pod_moe", "pod_step", "schedule")


@dataclass(frozen=True)
class Request:
    """What is compiled: a rung's step on a slice.

    Attributes:
        topology: the slice by the compiler's name, such as ``v5p:4x4x4``.
        expert_axis: devices the experts of a layer are spread over.
        backend: of the routed experts (`models.pod_moe.PodOptions`).
        accumulation: parts that a step's batch is taken in.
    """

    rung: Rung
    topology: str
    expert_axis: int
    backend: str
    capacity_factor: float
    accumulation: int

    def to_plain(self) -> dict[str, Any]:
        """Return the request as plain data."""
        return {**asdict(self), "rung": self.rung.to_plain()}


@dataclass(frozen=True)
class Answer:
    """What the compiler said: `said` as `models.pod_child` writes it, and the program where there is one."""

    said: dict[str, Any]
    program: str | None


def compiler_version() -> str:
    """Return the version of the TPU compiler; raises InputError where it is not installed."""
    try:
        return version("libtpu")
    except PackageNotFoundError:
        raise InputError("the TPU compiler is not installed; run `make setup-tpu` (700 MB, needs no TPU).") from None


def _home(request: Request) -> Path:
    code = [sha256_bytes((Path(__file__).parent / f"{name}.py").read_bytes()) for name in SOURCES]
    plain = {**request.to_plain(), "code": code}
    plain |= {name: version(name) for name in ("jax", "marin-levanter")} | {"libtpu": compiler_version()}
    return cache_dir() / "compiled" / sha256_bytes(canonical_json(plain))[:16]


def _read(home: Path) -> Answer:
    said = read_json(home / "said.json", SCHEMA)
    program = home / "program.hlo.gz"
    return Answer(said, gzip.decompress(program.read_bytes()).decode() if program.exists() else None)


def known(request: Request) -> Answer | None:
    """Return the kept answer to `request`, or None where it was not compiled yet."""
    home = _home(request)
    return _read(home) if (home / "said.json").exists() else None


def compile_rung(request: Request, say: Callable[[str], None] = lambda text: None) -> Answer:
    """Return what the compiler says of `request`, from the cache where it was compiled before.

    Raises InputError for a slice or mesh that cannot be, and UnusableError where the compiler died, with its last
    words; a program that does not fit is an answer, not an error.
    """
    if (kept := known(request)) is not None:
        return kept
    home = _home(request)
    if find_spec("levanter") is None:
        raise InputError("the routed layers of a pod are Levanter's, which is not installed; run `make setup-tpu`.")
    say(f"compiling {request.rung.name} for {request.topology}; this takes some minutes")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    root = str(Path(__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        asked, answer, program = (Path(folder, name) for name in ("asked.json", "answer.json", "program.hlo.gz"))
        asked.write_text(json.dumps(request.to_plain()))
        command = [sys.executable, "-m", "models.pod_child", str(asked), str(answer), str(program)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not answer.exists():
            last = [line for line in ran.stderr.splitlines() if line.strip()][-1:] or ["no message"]
            raise UnusableError(
                f"the compiler ended with status {ran.returncode} on {request.rung.name} for {request.topology}: "
                f"{last[0][:300]}"
            )
        said = json.loads(answer.read_text())
        if "refused" in said:
            raise InputError(said["refused"])
        home.mkdir(exist_ok=True)
        if program.exists():
            shutil.move(program, home / "program.hlo.gz")
        # Written last: an answer without its program would count as one that does not fit.
        write_atomic(home / "said.json", canonical_json({"schema": SCHEMA, **said}))
    return _read(home)
