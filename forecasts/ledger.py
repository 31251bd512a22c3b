"""The ledger: an append-only log, forecasts/log.jsonl, whose lines are chained by digests.

Each line is one canonical JSON object ``{file, index, kind, line_sha256, prev, schema, sha256, time}``: `sha256` is
the digest of the file it enters, `prev` the digest of the line before (64 zeros for the first), `line_sha256` the
digest of the line without that field, which protects the last line too.

What this shows by itself: every edit, insertion, reordering or removal that leaves later lines or entered files as
they were, and a line that was cut off. What it cannot show: that the last lines were removed *together with* their
files, or that everything was written anew with other times; who controls the folder can do both. Only evidence kept
elsewhere (a published digest of the last line, a time stamp by a third party) rules that out.
"""

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ladder.errors import InputError, VerificationError
from ladder.provenance import utc_now
from ladder.records import canonical_json, from_plain, sha256_bytes, to_plain
from ladder.study import Study

SCHEMA = "ledger/1"
GENESIS = "0" * 64  # `prev` of the first line
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
DIGEST = re.compile(r"[0-9a-f]{64}")
FILE = re.compile(r"(registered|checks)/[A-Za-z0-9][A-Za-z0-9._-]*\.json")


class LineKind(StrEnum):
    """What a line enters."""

    REGISTER = "register"  # a forecast
    AMEND = "amend"  # a forecast that supersedes an earlier one
    CHECK = "check"  # a resolution
    ANNUL = "annul"  # a resolution that annuls

    @property
    def folder(self) -> str:
        """Folder of the entered file, below forecasts/."""
        return "registered" if self in (LineKind.REGISTER, LineKind.AMEND) else "checks"


@dataclass(frozen=True)
class LedgerLine:
    """One line.

    Attributes:
        index: position, from 0.
        time: when it was written, UTC by the writer's clock; never before the line above.
        kind: what it enters.
        file: the entered file, relative to forecasts/.
        sha256: digest of that file's bytes.
        prev: digest of the bytes of the line above, newline excluded.
    """

    index: int
    time: str
    kind: LineKind
    file: str
    sha256: str
    prev: str

    def to_bytes(self) -> bytes:
        """Return the line's canonical bytes without newline."""
        content = {"schema": SCHEMA, **to_plain(self)}
        return canonical_json({**content, "line_sha256": sha256_bytes(canonical_json(content))})

    @property
    def digest(self) -> str:
        """Digest of the bytes: the `prev` of the next line. Published, it vouches for this and all lines above."""
        return sha256_bytes(self.to_bytes())


def read_ledger(study: Study) -> tuple[LedgerLine, ...]:
    """Return the lines of the study's ledger, the chain verified; no lines where there is no ledger.

    Raises VerificationError naming the line that does not hold, InputError for a ledger of a newer schema.
    """
    try:
        return _parse(study.ledger.read_bytes(), study.ledger)
    except FileNotFoundError:
        return ()


def _parse(data: bytes, where: Path) -> tuple[LedgerLine, ...]:
    if data and not data.endswith(b"\n"):
        rest = data.rpartition(b"\n")[2]
        raise VerificationError(
            f"{where}: line {data.count(b'\n') + 1} is cut off after {len(rest)} bytes: a writer was stopped in the "
            "middle of it, or the log was edited. Nothing was repaired; compare with a copy of the log, then remove the "
            "part line by hand or restore the log."
        )
    lines: list[LedgerLine] = []
    for index, raw in enumerate(data.split(b"\n")[:-1]):
        lines.append(_line(raw, index, lines[-1] if lines else None, f"{where}: line {index + 1}"))
    return tuple(lines)


def _line(raw: bytes, index: int, above: LedgerLine | None, where: str) -> LedgerLine:
    """Return the line in `raw`, which must be the one after `above`."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise VerificationError(f"{where} is not JSON: the log was edited or damaged. Restore it.") from None
    if not isinstance(content, dict) or _canonical(content) != raw:
        raise VerificationError(f"{where} is not in canonical form: the log was edited. Restore it.")
    claimed = content.pop("line_sha256", None)
    if claimed != sha256_bytes(canonical_json(content)):
        raise VerificationError(f"{where} does not have the digest it states: the log was edited. Restore it.")
    schema = str(content.pop("schema", None))
    if schema != SCHEMA:
        raise InputError(
            f"{where} has schema {schema!r}, this foretell reads {SCHEMA}; update foretell to open this study."
        )
    try:
        line = from_plain(LedgerLine, content, where)
    except InputError as error:
        raise VerificationError(str(error)) from None
    if line.to_bytes() != raw:  # fields of other types or beyond the schema, which reading forgives
        raise VerificationError(
            f"{where} holds more or other fields than {SCHEMA} has; it was not written by foretell."
        )
    if not (TIME.fullmatch(line.time) and DIGEST.fullmatch(line.sha256) and FILE.fullmatch(line.file)):
        raise VerificationError(f"{where} has a malformed time, sha256 or file; it was not written by foretell.")
    if not line.file.startswith(line.kind.folder + "/"):
        raise VerificationError(f"{where} enters {line.file} as {line.kind}, which belongs in {line.kind.folder}/.")
    if line.index != index or line.prev != (above.digest if above else GENESIS):
        raise VerificationError(
            f"{where} does not follow from the line above it: lines were removed, inserted, reordered or rewritten. "
            "Restore the log."
        )
    if above and line.time < above.time:
        raise VerificationError(f"{where} states {line.time}, before the line above ({above.time}).")
    return line


def _canonical(content: object) -> bytes | None:
    try:
        return canonical_json(content)
    except InputError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the log open for appending, alone; other writers wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def enter(study: Study, kind: LineKind, name: str, data: bytes) -> LedgerLine:
    """Write `data` to ``<kind's folder>/<name>.json``, never over another file, append its line and return it.

    The file comes first, so a writer stopped in between leaves a file without a line, which `verify` names; entering
    the same bytes again then completes it. Two writers wait for each other.

    Raises VerificationError when the ledger does not verify, when the file is entered already, or when another file
    has its name.
    """
    file = f"{kind.folder}/{name}.json"
    path = study.ledger.parent / file
    with _locked(study.ledger) as handle:
        lines = read_ledger(study)
        if any(line.file == file for line in lines):
            raise VerificationError(f"{path} is in the log already; what is entered is never changed.")
        now = utc_now()
        if lines and now < lines[-1].time:
            raise VerificationError(
                f"the clock of this machine ({now}) is behind the last line of {study.ledger} ({lines[-1].time}); "
                "set the clock, then try again."
            )
        _create(path, data)
        prev = lines[-1].digest if lines else GENESIS
        line = LedgerLine(len(lines), now, kind, file, sha256_bytes(data), prev)
        _append(handle, line.to_bytes() + b"\n")
    return line


def _create(path: Path, data: bytes) -> None:
    """Make `path` with `data`, whole or not at all, read-only; an equal file left by a stopped writer is accepted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".entering-", dir=path.parent.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o444)
        os.link(temporary, path)
    except FileExistsError:
        if path.read_bytes() != data:
            raise VerificationError(
                f"{path} exists with other content and is not in the log; find out where it came from and move it away."
            ) from None
    finally:
        os.unlink(temporary)


def _append(handle: int, data: bytes) -> None:
    """Append `data` or, on an error such as a full disk, nothing."""
    size = os.fstat(handle).st_size
    try:
        written = os.write(handle, data)
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes were written")
        os.fsync(handle)
    except OSError as error:
        os.ftruncate(handle, size)
        raise InputError(
            f"the ledger could not be appended to ({error}); nothing was entered. Free space, try again."
        ) from None
