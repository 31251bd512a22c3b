"""How values become files: canonical JSON with a schema tag, written atomically, read with an error that names the place.

Every file of a study that holds a value is one JSON object in the canonical form of RFC 8785 (so that its digest
can be recomputed by anyone), with a ``schema`` field such as ``"ladder/1"``. Integers beyond 2**53, which that form
cannot hold, are written as decimal strings and read back as exact integers.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

import rfc8785

from ladder.errors import InputError

MAX_JSON_INTEGER = 2**53 - 1  # RFC 8785 section 3.2.2.3: beyond it a double no longer holds every integer


def _without_big_integers(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_JSON_INTEGER else str(value)
    if isinstance(value, dict):
        return {key: _without_big_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_big_integers(item) for item in value]
    return value


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a JSON-like `value`; integers beyond 2**53 become decimal strings.

    >>> canonical_json({"b": 10**23, "a": 1.5})
    b'{"a":1.5,"b":"100000000000000000000000"}'

    Raises InputError when the value holds NaN or an infinity, which JSON cannot.
    """
    try:
        return rfc8785.dumps(_without_big_integers(value))
    except rfc8785.CanonicalizationError as error:
        raise InputError(f"A value cannot be written as JSON: {error}. Non-finite numbers must be left out.") from None


def sha256_bytes(data: bytes) -> str:
    """Return the hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_hash(value: Any) -> str:
    """Return the first eight hex digits of the SHA-256 of a value's canonical JSON; the identity of a configuration."""
    return sha256_bytes(canonical_json(value))[:8]


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader finds the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_plain(value: Any, *, omit_defaults: bool = False) -> Any:
    """Return a frozen dataclass as JSON-like plain data (enums as their values, tuples as lists, keys as strings).

    `omit_defaults` leaves out every field that has its default, at all depths, so that a hash of the rest does not
    change when a field is added whose default means what went without saying before.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = (
            field
            for field in dataclasses.fields(value)
            if not (omit_defaults and _has_default(field, getattr(value, field.name)))
        )
        return {field.name: to_plain(getattr(value, field.name), omit_defaults=omit_defaults) for field in kept}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_plain(item, omit_defaults=omit_defaults) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, omit_defaults=omit_defaults) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no plain form; use numbers, text, enums, tuples and dataclasses.")


def _has_default(field: Any, value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    return field.default_factory is not dataclasses.MISSING and bool(value == field.default_factory())


def from_plain[T](kind: type[T], data: Any, where: str) -> T:
    """Return the frozen dataclass `kind` read from plain `data`; `where` names the file in the error.

    Raises InputError naming the file, the field and what is wrong with it.
    """
    from pydantic import TypeAdapter, ValidationError  # here, for planning reads nothing and has no 0.25 s to spare

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "top level"
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        shown = "" if first["type"] == "missing" else f", found {first['input']!r:.80}"
        raise InputError(f"{where}: field {place}: {first['msg']}{shown}{more}.") from None


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """Return the JSON object in `path`, whose ``schema`` must be `schema` (``"ladder/1"``).

    Raises InputError when the file is missing, is not JSON, or has another schema or version; the message says
    which, and what to do.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path, or make it first.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, expected a file.") from None
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        at = f"line {error.lineno} column {error.colno}" if isinstance(error, json.JSONDecodeError) else "its text"
        raise InputError(
            f"{path} is not valid JSON at {at} ({len(text)} bytes); it is damaged or cut off. Restore it or make it anew."
        ) from None
    kind, _, version = schema.partition("/")
    found = data.get("schema") if isinstance(data, dict) else None
    if isinstance(data, dict) and found == schema:
        return data
    found_kind, _, found_version = str(found).partition("/")
    if found_kind == kind and found_version.isdigit() and int(found_version) > int(version):
        raise InputError(
            f"{path} has schema {found}, newer than this foretell reads ({schema}); update foretell to open this study."
        )
    raise InputError(f"{path} is no {kind} file: its schema is {found!r}, expected {schema!r}.")
