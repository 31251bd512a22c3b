"""Foreign tables as they are: every cell text, number or None, rows in the order of the file, nothing interpreted."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ladder.errors import InputError
from ladder.records import sha256_bytes

type Cell = str | int | float | None


@dataclass(frozen=True)
class Source:
    """One source table.

    Attributes:
        name: how complaints name it, a path or ``wandb:entity/project``.
        frame: cells of dtype object; an absent cell is None.
        sha256: digest of the bytes it was read from.
    """

    name: str
    frame: pd.DataFrame
    sha256: str

    @staticmethod
    def of(name: str, records: Iterable[Mapping[str, Cell]], data: bytes) -> "Source":
        """Return the table of records, whose columns are all keys in the order of their first appearance."""
        rows = list(records)
        columns = list(dict.fromkeys(key for row in rows for key in row))
        cells = {column: pd.Series([row.get(column) for row in rows], dtype=object) for column in columns}
        return Source(name, pd.DataFrame(cells, index=range(len(rows))), sha256_bytes(data))


def read_source(path: Path, kind: str) -> Source:
    """Return the table in a file of `kind` csv, parquet, jsonl or json; nested objects of JSON get dotted columns.

    Raises InputError naming the file, the line or row, and what to do, when it is missing, damaged or cut off.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path and the map's file names.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    match kind:
        case "csv":
            records = _csv(path, data)
        case "parquet":
            records = _parquet(path, data)
        case "jsonl":
            records = [flat(value) for value in json_lines(path, _text(path, data))]
        case "json":
            records = _json(path, data)
        case other:
            raise InputError(f"{path}: tables of format {other!r} are not read from a file.")
    if not records:
        raise InputError(f"{path} has no rows; it is empty or was cut off.")
    return Source.of(str(path), records, data)


def flat(value: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Cell]:
    """Return a nested object as one level; lists become their JSON text."""
    cells: dict[str, Cell] = {}
    for key, item in value.items():
        name = f"{prefix}{separator}{key}" if prefix else str(key)
        if isinstance(item, Mapping):
            cells |= flat(item, name, separator)
        elif item is None or isinstance(item, str | int | float):
            cells[name] = item
        else:
            cells[name] = json.dumps(item)
    return cells


def json_lines(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines text; blank lines are skipped."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(
                f"{path}: line {number} is not JSON ({line.strip()[:40]!r}); the file is damaged or was cut off."
            ) from None
        if not isinstance(value, dict):
            raise InputError(f"{path}: line {number} is no JSON object; every line holds one run or record.")
        found.append(value)
    return found


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None


def _csv(path: Path, data: bytes) -> list[dict[str, Cell]]:
    reader = csv.reader(io.StringIO(_text(path, data), newline=""))
    try:
        header = next(reader, [])
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} is not CSV: {error}; the file is damaged.") from None
    names = [name.strip() for name in header]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: column {twice!r} stands twice in the header; rename one.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise InputError(
                f"{path}: row {number} has {len(row)} fields, the header {len(names)}; the file was cut off, or a "
                "comma is not quoted."
            )
    return [{name: cell or None for name, cell in zip(names, row, strict=True)} for row in rows]


def _parquet(path: Path, data: bytes) -> list[dict[str, Cell]]:
    try:
        frame = pd.read_parquet(io.BytesIO(data))
    except (ValueError, OSError, KeyError, NotImplementedError) as error:  # pyarrow's errors are subclasses of these
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read as Parquet: {reason}. It is damaged or was cut off.") from None
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(key): _plain(value) for key, value in row.items()} for row in records]


def _plain(value: Any) -> Cell:
    if value is None or isinstance(value, str | int | float):
        return value
    return value.item() if isinstance(value, np.generic) else str(value)


def _json(path: Path, data: bytes) -> list[dict[str, Cell]]:
    try:
        value = json.loads(_text(path, data))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}; it is damaged or was cut off.") from None
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}: entry {number} is no JSON object; expected a list of objects, one a run.")
    return [flat(row) for row in rows]
