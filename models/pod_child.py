"""The process that compiles one step for a TPU: `python -m models.pod_child REQUEST ANSWER STORE`."""

import gzip
import json
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from ladder.chips import chip_named
from ladder.errors import InputError
from ladder.records import canonical_json, sha256_bytes, write_atomic
from ladder.rung import Rung
from models.mesh import make_mesh
from models.pod_compile import SCHEMA
from models.pod_layers import PodOptions
from models.pod_step import lower_step

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def tpu_devices(topology: str) -> Any:
    """Return the devices of a slice by the compiler's name; raises InputError when it does not exist."""
    from jax.experimental import topologies

    chip = chip_named(topology.partition(":")[0])
    chip.chips_in(topology)
    options = {"chip_config_name": "megacore"} if chip.name == "v4" else {}  # else the compiler's devices are cores
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices


def compile_step(asked: dict[str, Any], store: Path) -> str:
    """Compile what is asked, unless its program was before, and return the name of its folder in `store`.

    The folder holds said.json, the memory it needs in bytes, and the optimised program, compressed. Where it does not
    fit, there is no program, and said.json holds what it needed, what there is, and the refusal.
    """
    rung = Rung.from_plain(asked["rung"], "the request")
    devices = tpu_devices(asked["topology"])
    mesh = make_mesh(devices, expert=asked["expert_axis"])
    options = PodOptions(
        asked["backend"], asked["capacity_factor"], accumulation=asked["accumulation"], remat=asked["remat"]
    )
    lowered = lower_step(rung, mesh, options)
    versions = {name: version(name) for name in ("jax", "libtpu", "marin-levanter")}
    # The devices are in no text, but their number and names are the topology's.
    program = canonical_json(
        {"text": sha256_bytes(lowered.as_text().encode()), "topology": asked["topology"], **versions}
    )
    home = store / sha256_bytes(program)[:16]
    if not (home / "said.json").exists():
        said = {"devices": len(devices), "versions": versions, **_compiled(lowered, home)}
        # Written last: an answer without its program would count as one that does not fit.
        write_atomic(home / "said.json", canonical_json({"schema": SCHEMA, **said}))
    return home.name


def _compiled(lowered: Any, home: Path) -> dict[str, Any]:
    start = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or not found:
            raise
        used, granted = (float(found.group(at)) * UNITS[found.group(at + 1)] for at in (1, 3))
        seconds = time.monotonic() - start
        return {"hbm_used": used, "hbm_limit": granted, "message": str(error)[:500], "compile_s": seconds}
    seconds = time.monotonic() - start
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes
    used += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    write_atomic(home / "program.hlo.gz", gzip.compress(compiled.as_text().encode()))
    return {"hbm_used": float(used), "message": "", "compile_s": seconds}


def main(asked: Path, answer: Path, store: Path) -> None:
    """Answer the request in `asked`; what cannot be compiled at all is answered with the reason."""
    try:
        said = {"program": compile_step(json.loads(asked.read_text()), store)}
    except InputError as error:
        said = {"refused": str(error)}
    answer.write_text(json.dumps(said))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
