"""What Levanter's trackers write, as a source table: one row for every step at which an evaluation was logged.

``json_logger`` writes one JSON object a line through Python's logging, so that each may stand behind a prefix
(``INFO:levanter.json_logger:{...}``): ``event`` is hparams, log (with ``step`` and ``metrics``), summary, artifact or
finish (with ``summary``). ``json_file`` writes one ``eval_results.json`` at the end, the last value of every metric.
Both were read in levanter/tracker of marin-levanter 0.2.227 (2026-12-01).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from ladder.records import sha256_bytes
from ladder.sources import Cell, Source, flat

EVALUATION = "eval/"  # prefix of what Levanter logs at an evaluation (levanter/eval.py)
EVENTS = ("hparams", "log", "summary", "artifact", "finish")


def read_levanter(path: Path, pattern: str) -> Source:
    """Return the table of one tracker file, or of all files of a folder whose name matches `pattern`.

    Columns: ``run`` (name of the file without suffix, or of its folder for eval_results.json), ``state``
    (``finished`` where the tracker's last event was logged), ``step``, hyperparameters as ``config.a.b``, and the last
    value of every metric up to that step under its name. A run without an evaluation gives one row, of its end.

    Raises InputError naming the file when there is none, or a file holds no event of a tracker.
    """
    files = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} has no file {pattern}; name the tracker's file, or the folder that holds them.")
    records: list[dict[str, Cell]] = []
    digests = []
    for file in files:
        try:
            data = file.read_bytes()
            text = data.decode("utf-8")
        except FileNotFoundError:
            raise InputError(f"{file} does not exist; check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read as the text of a tracker: {error}.") from None
        digests.append(sha256_bytes(data))
        records += _results(file, text) if file.suffix == ".json" else _events(file, text)
    return Source.of(str(path), records, "".join(digests).encode())


def _results(path: Path, text: str) -> list[dict[str, Cell]]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{path} is not the JSON object that Levanter's json_file tracker writes; it is damaged.")
    name = path.parent.name if path.name == "eval_results.json" else path.stem
    return [{"run": name, "state": "finished", "step": values.get("_step"), **flat(values, separator="/")}]


def _events(path: Path, text: str) -> list[dict[str, Cell]]:
    config: dict[str, Cell] = {}
    steps: dict[int, dict[str, Cell]] = {}
    summary: dict[str, Cell] = {}
    finished, events = False, 0
    for number, line in enumerate(text.split("\n"), 1):
        event = _event(path, number, line)
        if event is None:
            continue
        events += 1
        match event["event"]:
            case "hparams":
                config |= flat(_mapping(path, number, event, "hparams"), "config")
            case "log":
                step = event.get("step")
                values = flat(_mapping(path, number, event, "metrics"), separator="/")
                if isinstance(step, int) and not isinstance(step, bool):
                    steps[step] = steps.get(step, {}) | values
                else:
                    summary |= values
            case "summary":
                summary |= flat(_mapping(path, number, event, "metrics"), separator="/")
            case "finish":
                finished = True
    if not events:
        raise InputError(f"{path} holds no event of Levanter's json_logger tracker; is it another log?")
    end = {"run": path.stem, "state": "finished" if finished else "unfinished", **config, **summary}
    latest: dict[str, Cell] = {}
    rows: list[dict[str, Cell]] = []
    for step in sorted(steps):
        latest |= steps[step]
        if any(name.startswith(EVALUATION) for name in steps[step]):
            rows.append({**end, "step": step, **latest})
    return rows or [{**end, "step": max(steps, default=None), **latest}]


def _event(path: Path, number: int, line: str) -> dict[str, Any] | None:
    """Return the tracker's event in a line of a log; None for lines of anything else."""
    brace = line.find('{"tracker"')
    if brace < 0:
        return None
    try:
        event = json.loads(line[brace:])
    except (ValueError, RecursionError):
        raise InputError(
            f"{path}: line {number} begins an event of a tracker and is not JSON; the file was cut off. Remove the line "
            "if the rest of the run is not needed."
        ) from None
    if event.get("event") not in EVENTS:
        raise InputError(f"{path}: line {number} has the event {event.get('event')!r}, none of {', '.join(EVENTS)}.")
    return dict(event)


def _mapping(path: Path, number: int, event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = event.get(key)
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: line {number}: {key} of the event is no object; the file is damaged.")
    return value
