"""What the TPU's own compiler says of a rung's step, on a machine without a TPU.

Each compilation is a process of its own, since the compiler may abort, and its result is kept by the content of all
that decides it. Memory is the compiler's. FLOPs, bytes and collectives are counted in the optimised program, loops by
their trips (`models.hlo_costs`); the attention kernel carries no estimate, so its FLOPs are reckoned from its blocks.
Times are a bound from below and were never measured here.
"""

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

from ladder.errors import InputError, UnusableError
from ladder.records import canonical_json, from_plain, read_json, sha256_bytes, to_plain, write_atomic
from ladder.rung import Rung
from models.corpus import cache_dir

SCHEMA = "compiled/1"
SOURCES = ("hlo", "hlo_costs", "mesh", "pod", "pod_attention", "pod_child", "pod_loss", "pod_moe", "pod_step")


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


@dataclass(frozen=True)
class Term:
    """FLOPs of one kind on one device in one step: executed, and three forward passes by the ladder's count."""

    executed: float
    analytic: float


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind over groups of one size: how many run in a step, bytes a device receives."""

    kind: str
    group: int
    runs: int
    wire_bytes: float


@dataclass(frozen=True)
class Compiled:
    """What the compiler said of one step; FLOPs, bytes and seconds are those of one device.

    Attributes:
        fits: whether the program is within the memory that the compiler grants.
        hbm_used, hbm_limit: bytes on a device, argument + output - alias + temporary, and what is granted.
        terms: by kind: head, routed, dense, gates (GatedNorm and attention gates, which no convention counts),
            attention (reckoned, not compiled).
        flops_ratio: executed over analytic FLOPs, all terms.
        bytes: read and written in memory.
        roofline_step_s: the sum of the three times that follow; nothing overlaps in the program.
        xla_s: the compiler's cycle estimates over the clock.
        kernel_s: FLOPs of kernels at 0.6 of the chip's peak, an assumption.
        wire_s: bytes received over both directions of one ring.
        message: the compiler's refusal where it does not fit.
    """

    rung_id: str
    name: str
    topology: str
    devices: int
    mesh: dict[str, int]
    backend: str
    capacity_factor: float
    accumulation: int
    fits: bool
    hbm_used: float
    hbm_limit: float
    terms: dict[str, Term]
    flops_ratio: float
    bytes: float
    collectives: list[Traffic]
    roofline_step_s: float
    xla_s: float
    kernel_s: float
    wire_s: float
    compile_s: float
    message: str
    versions: dict[str, str]


def compiler_version() -> str:
    """Return the version of the TPU compiler; raises InputError where it is not installed."""
    try:
        return version("libtpu")
    except PackageNotFoundError:
        raise InputError("the TPU compiler is not installed; run `make setup-tpu` (700 MB, needs no TPU).") from None


def request_key(request: Request) -> str:
    """Return the digest of all that decides the result: rung, slice, options, this code and the compiler's version."""
    code = [sha256_bytes((Path(__file__).parent / f"{name}.py").read_bytes()) for name in SOURCES]
    plain = {**_plain(request), "code": code, "libtpu": compiler_version(), "jax": version("jax")}
    return sha256_bytes(canonical_json(plain))


def _plain(request: Request) -> dict[str, object]:
    return {**asdict(request), "rung": request.rung.to_plain()}


def read_compiled(path: Path) -> Compiled:
    """Return the result in `path`; raises InputError where it is damaged."""
    data = read_json(path, SCHEMA)
    return from_plain(Compiled, {key: data[key] for key in data if key != "schema"}, str(path))


def known(request: Request) -> Compiled | None:
    """Return the kept result of `request`, or None where it was not compiled yet."""
    path = cache_dir() / "compiled" / f"{request_key(request)}.json"
    return read_compiled(path) if path.exists() else None


def compile_rung(request: Request, say: Callable[[str], None] = lambda text: None) -> Compiled:
    """Return what the compiler says of `request`, from the cache where it was compiled before.

    Raises InputError for a slice or mesh that cannot be, and UnusableError where the compiler died, with its last
    words; a program that does not fit is a result, not an error.
    """
    path = cache_dir() / "compiled" / f"{request_key(request)}.json"
    if path.exists():
        return read_compiled(path)
    if find_spec("levanter") is None:
        raise InputError("the routed layers of a pod are Levanter's, which is not installed; run `make setup-tpu`.")
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"compiling {request.rung.name} for {request.topology}; this takes some minutes")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(_plain(request)))
        command = [sys.executable, "-m", "models.pod_child", str(asked), str(answer)]
        root = str(Path(__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not answer.exists():
            last = [line for line in ran.stderr.splitlines() if line.strip()][-1:] or ["no message"]
            raise UnusableError(
                f"the compiler ended with status {ran.returncode} on {request.rung.name} for {request.topology}: "
                f"{last[0][:300]}"
            )
        data = json.loads(answer.read_text())
    if "refused" in data:
        raise InputError(data["refused"])
    compiled = from_plain(Compiled, data, request.rung.name)
    write_atomic(path, canonical_json({"schema": SCHEMA, **to_plain(compiled)}))
    return compiled
