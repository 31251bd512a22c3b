"""Published accelerators: peak FLOP/s, memory, interconnect, and the slices that exist, under the compiler's names.

Sources: figures of TPUs as published by Google Cloud ("TPU v4", "v5e", "v5p", "v6e", "TPU7x" system architecture),
recalled and not looked up again; `usable_gib` of TPUs is the limit that the XLA compiler of libtpu 0.0.48 enforces,
read off its refusals. H100 SXM and GB200 NVL72 (per GPU) from NVIDIA's data sheets, recalled; dense bf16 rates.
"""

import math
from dataclasses import dataclass

from ladder.errors import InputError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One kind of accelerator.

    Attributes:
        name: prefix of the compiler's topology names, such as ``"v5p"`` in ``"v5p:4x4x4"``.
        peak_flops: dense bf16 FLOP/s of a chip.
        usable_gib: memory a program may use per device.
        hbm_bytes_per_s: memory bandwidth of a chip.
        ring_bytes_per_s: both directions of one one-dimensional ring of the interconnect, per chip.
        devices: devices the compiler sees per chip.
        slices: the topologies that exist, ascending in chips; empty where only memory is planned for.
        source: evidence for the figures.
    """

    name: str
    peak_flops: float
    usable_gib: float
    hbm_bytes_per_s: float
    ring_bytes_per_s: float
    devices: int
    slices: tuple[str, ...]
    source: str

    def chips_in(self, topology: str) -> int:
        """Return the chips of a slice; raises InputError when it does not exist, naming those that do."""
        name, _, dims = topology.partition(":")
        if name != self.name or dims not in self.slices:
            raise InputError(f"slice {topology!r} does not exist; those of {self.name}: {', '.join(self.slices)}.")
        return math.prod(int(side) for side in dims.split("x"))


_TORUS_3D = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
    *("8x8x8", "8x8x16", "8x16x16"),
)
_TORUS_2D = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CLOUD = "Google Cloud TPU documentation, recalled; memory limit as the compiler enforces it"
_NVIDIA = "NVIDIA data sheet, recalled; 0.95 of the memory taken as usable, an assumption"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 30.75, 1228e9, 90e9, 1, _TORUS_3D, _CLOUD + " (megacore: a device is a chip)"),
        Chip("v5e", 197e12, 15.75, 819e9, 90e9, 1, _TORUS_2D, _CLOUD),
        Chip("v5p", 459e12, 95.73, 2765e9, 180e9, 1, (*_TORUS_3D, "16x16x16"), _CLOUD),
        Chip("v6e", 918e12, 31.24, 1640e9, 180e9, 1, _TORUS_2D, _CLOUD),
        Chip("tpu7x", 2307e12, 94.74, 7380e9, 400e9, 2, _TORUS_3D, _CLOUD + "; a third of 1200 GB/s per ring"),
        Chip("h100", 989e12, 0.95 * 80e9 / GIB, 3350e9, 900e9, 1, (), _NVIDIA),
        Chip("gb200", 2500e12, 0.95 * 186e9 / GIB, 8000e9, 1800e9, 1, (), _NVIDIA),
    )
}


def chip_named(name: str) -> Chip:
    """Return the chip called `name`; raises InputError with the known names."""
    if name not in CHIPS:
        hint = " The compiler's name of v7x is tpu7x." if name in {"v7x", "7x"} else ""
        raise InputError(f"unknown chip {name!r}; known: {', '.join(CHIPS)}.{hint}")
    return CHIPS[name]
