"""The files of one run's folder, for who lists, cleans and counts them; nothing here needs JAX."""

import json
from pathlib import Path

from ladder.errors import InputError

ROLLING, PERMANENT = "step", "kept"  # kinds of checkpoints: the last two, and those that stay for good


def checkpoint_path(folder: Path, step: int, *, permanent: bool) -> Path:
    """Return where the checkpoint of `step` lies in the folder of a run."""
    return folder / "checkpoints" / f"{PERMANENT if permanent else ROLLING}-{step:010d}.ckpt"


def step_of(path: Path) -> int:
    """Return the step of the checkpoint in `path`."""
    return int(path.stem.partition("-")[2])


def checkpoint_paths(folder: Path, *kinds: str) -> list[Path]:
    """Return the checkpoints of the run in `folder`, newest first: all, or those of the `kinds` named."""
    found = [path for kind in kinds or (PERMANENT, ROLLING) for path in folder.glob(f"checkpoints/{kind}-*.ckpt")]
    return sorted(found, key=lambda path: (step_of(path), path.name), reverse=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a writer that was killed left half written. Only who holds the run's lock may."""
    for place in (folder, folder / "checkpoints"):
        for path in place.glob(".*.*.*"):  # as ladder.records.write_atomic names them
            path.unlink(missing_ok=True)


def core_hours(path: Path) -> float:
    """Return the core-hours that times.jsonl in `path` accounts for, repeated steps included; 0 where there is none.

    A last line that a kill cut short is passed over; raises InputError where another one is damaged.
    """
    if not path.exists():
        return 0.0
    total, lines = 0.0, path.read_bytes().split(b"\n")
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            line = json.loads(text)
            total += line["cores"] * sum(line["seconds"].values()) / 3600
        except (ValueError, KeyError, TypeError, AttributeError):
            if number == len(lines):
                continue
            raise InputError(f"{path}: line {number} is no line of step times; remove that file.") from None
    return float(total)
