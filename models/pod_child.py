"""The process that compiles one step for a TPU: `python -m models.pod_child REQUEST ANSWER PROGRAM`."""

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
from ladder.rung import Rung
from models.mesh import make_mesh
from models.pod_layers import PodOptions
from models.pod_step import lower_step

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _devices(topology: str) -> Any:
    from jax.experimental import topologies

    chip = chip_named(topology.partition(":")[0])
    chip.chips_in(topology)
    options = {"chip_config_name": "megacore"} if chip.name == "v4" else {}  # else the compiler's devices are cores
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices


def compile_step(asked: dict[str, Any], program: Path) -> dict[str, Any]:
    """Compile what is asked, write the optimised program, compressed, and return the memory it needs in bytes.

    Where it does not fit, there is no program, and the answer holds what it needed, what there is, and the refusal.
    """
    rung = Rung.from_plain(asked["rung"], "the request")
    devices = _devices(asked["topology"])
    mesh = make_mesh(devices, expert=asked["expert_axis"])
    options = PodOptions(asked["backend"], asked["capacity_factor"], accumulation=asked["accumulation"])
    start = time.monotonic()
    lowered = lower_step(rung, mesh, options)
    said: dict[str, Any] = {
        "devices": len(devices),
        "versions": {name: version(name) for name in ("jax", "libtpu", "marin-levanter")},
        "message": "",
    }
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or not found:
            raise
        used, granted = (float(found.group(at)) * UNITS[found.group(at + 1)] for at in (1, 3))
        said |= {"hbm_used": used, "hbm_limit": granted, "message": str(error)[:500]}
        return said | {"compile_s": time.monotonic() - start}
    seconds = time.monotonic() - start
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes
    used += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    program.write_bytes(gzip.compress(compiled.as_text().encode()))
    return said | {"hbm_used": float(used), "compile_s": seconds}


def main(asked: Path, answer: Path, program: Path) -> None:
    """Answer the request in `asked`; what cannot be compiled at all is answered with the reason."""
    try:
        said = compile_step(json.loads(asked.read_text()), program)
    except InputError as error:
        said = {"refused": str(error)}
    answer.write_text(json.dumps(said))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
