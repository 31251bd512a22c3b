"""Compiles a rung's step with the TPU's own compiler, on a machine without a TPU.

Each compilation is a process of its own, since the compiler may abort. What it said is kept by the program that went into
the compiler, and which program a request makes by the request and the code: a change of code that leaves the program as
it was costs a lowering, seconds, and no compilation. What the answers mean is in `models.pod_report`.
"""

import gzip
import json
import os
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

SCHEMA = "compiled/2"


@dataclass(frozen=True)
class Request:
    """What is compiled: a rung's step on a slice.

    Attributes:
        topology: the slice by the compiler's name, such as ``v5p:4x4x4``.
        expert_axis: devices the experts of a layer are spread over.
        backend: of the routed experts (`models.pod_moe.PodOptions`).
        accumulation: parts that a step's batch is taken in.
        remat: what is made again in the backward pass (`models.pod_layers.PodOptions`).
    """

    rung: Rung
    topology: str
    expert_axis: int
    backend: str
    capacity_factor: float
    accumulation: int
    remat: str = "full"

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


def _store() -> Path:
    return cache_dir() / "compiled"


def _asked(request: Request) -> Path:
    """Return the file that names the program of `request`, by the request and all code that could change it."""
    code = [sha256_bytes(path.read_bytes()) for path in sorted(Path(__file__).parent.glob("*.py"))]
    plain = {**request.to_plain(), "code": code, "compiler": compiler_version()}
    plain |= {name: version(name) for name in ("jax", "marin-levanter")}
    return _store() / "requests" / f"{sha256_bytes(canonical_json(plain))[:16]}.json"


def known(request: Request) -> Answer | None:
    """Return the kept answer to `request`, or None where it was not compiled yet."""
    path = _asked(request)
    if not path.exists():
        return None
    home = _store() / str(read_json(path, SCHEMA)["program"])
    if not (home / "said.json").exists():
        return None
    program = home / "program.hlo.gz"
    text = gzip.decompress(program.read_bytes()).decode() if program.exists() else None
    return Answer(read_json(home / "said.json", SCHEMA), text)


def compile_rung(request: Request, say: Callable[[str], None] = lambda text: None) -> Answer:
    """Return what the compiler says of `request`, from the cache where it was compiled before.

    Raises InputError for a slice or mesh that cannot be, and UnusableError where the compiler died, with its last
    words; a program that does not fit is an answer, not an error.
    """
    if (kept := known(request)) is not None:
        return kept
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
    store = _store()
    (store / "requests").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "asked.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request.to_plain()))
        command = [sys.executable, "-m", "models.pod_child", str(asked), str(answer), str(store)]
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
    write_atomic(_asked(request), canonical_json({"schema": SCHEMA, **said}))
    found = known(request)
    if found is None:
        raise UnusableError(f"{store} lost what was just compiled for {request.rung.name}; is it being cleared?")
    return found
