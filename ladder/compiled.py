"""What the TPU's compiler said of a ladder's rungs: compiled.json beside ladder.json, by the content of the rungs.

Written by `foretell train compile`, read by whoever shows or plans a ladder.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ladder.chips import GIB
from ladder.records import canonical_json, from_plain, read_json, to_plain, write_atomic

SCHEMA = "compiled-rungs/1"


@dataclass(frozen=True)
class CompiledRung:
    """One rung's step, compiled for a slice as its hardware plan lays it out, or as would fit where that does not.

    Attributes:
        topology: the slice by the compiler's name.
        expert_axis: devices the experts are spread over.
        accumulation: parts that a step's batch is taken in.
        fits: whether the program is within the memory the compiler grants.
        hbm_used, hbm_limit: bytes on a device.
        step_s: the bound on a step's seconds from below; None where there is none.
        versions: of the compiler and the libraries.
    """

    rung_id: str
    topology: str
    expert_axis: int
    accumulation: int
    fits: bool
    hbm_used: float
    hbm_limit: float
    step_s: float | None
    versions: dict[str, str]

    def described(self) -> str:
        """Return the result in a few words.

        >>> CompiledRung("x", "v5p:2x2x1", 1, 2, True, 24.0 * GIB, 95.7 * GIB, None, {}).described()
        'v5p:2x2x1 x2, 24.0 of 95.7 GiB'
        """
        parts = f" x{self.accumulation}" if self.accumulation > 1 else ""
        memory = f"{self.hbm_used / GIB:.1f} of {self.hbm_limit / GIB:.1f} GiB"
        return f"{self.topology}{parts}, {memory}" if self.fits else f"{self.topology}: does not fit, {memory}"


def compiled_path(ladder: Path) -> Path:
    """Return where the compiled rungs of the ladder at `ladder` are kept."""
    return ladder.with_name("compiled.json")


def read_compiled(path: Path) -> dict[str, CompiledRung]:
    """Return the compiled rungs by rung id; none where there is no file. Raises InputError where it is damaged."""
    if not path.exists():
        return {}
    rows = read_json(path, SCHEMA)["rungs"]
    found = [from_plain(CompiledRung, row, str(path)) for row in rows]
    return {each.rung_id: each for each in found}


def add_compiled(path: Path, rungs: Iterable[CompiledRung]) -> None:
    """Add `rungs` to the file at `path`; what it said of the same rungs before is replaced."""
    merged = read_compiled(path) | {rung.rung_id: rung for rung in rungs}
    rows = [to_plain(merged[rung_id]) for rung_id in sorted(merged)]
    write_atomic(path, canonical_json({"schema": SCHEMA, "rungs": rows}))
