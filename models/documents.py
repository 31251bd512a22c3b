"""Documents from files and URLs: JSON Lines with one document a line, or a text file that is one document.

Paths are local or whatever fsspec opens (gs, s3, hf, http, memory ...); names with ``*`` stand for all files that
match. Names that end in .gz are unpacked while read. A Levanter token cache is a source too, see `levanter_source`.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
from jaxtyping import Integer

from ladder.errors import InputError
from models.fetch import why
from models.levanter_source import LEDGER, levanter_documents

LINES = (".jsonl", ".ndjson")
TEXTS = (".txt", ".md")
Document = str | Integer[np.ndarray, " _"]  # text, or the tokens of a document that is numbered already


@dataclass(frozen=True)
class Source:
    """A file of documents, or a folder that holds a Levanter cache; `size` in bytes as it lies there."""

    url: str
    size: int
    levanter: bool = False


def find_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """Return the files that `names` stand for, in the order given, matches of a pattern by name.

    Raises InputError naming what does not exist, matches nothing, or is no kind of file that is read.
    """
    found: list[Source] = []
    for name in names:
        try:
            found += _found(name)
        except InputError:
            raise
        except Exception as error:  # each kind of store raises its own
            raise InputError(f"{name} cannot be opened: {why(error)}.") from None
    return tuple(found)


def _found(name: str) -> list[Source]:
    system, path = fsspec.core.url_to_fs(name)
    paths = sorted(system.glob(path)) if "*" in path else [path]
    if not paths or not system.exists(paths[0]):
        raise InputError(f"{name} does not exist; give JSON Lines or text files, or a Levanter cache.")
    urls = [
        str(system.unstrip_protocol(each)) if "://" in name else str(each) if "*" in path else name for each in paths
    ]
    return [_source(system, each, url) for each, url in zip(paths, urls, strict=True)]


def _source(system: Any, path: str, url: str) -> Source:
    if system.isdir(path):
        ledger = f"{path.rstrip('/')}/{LEDGER}"
        if not system.exists(ledger):
            raise InputError(f"{url} is a folder and no Levanter cache (it has no {LEDGER}); give files or a pattern.")
        return Source(url, int(system.size(ledger) or 0), levanter=True)
    if not url.removesuffix(".gz").endswith((*LINES, *TEXTS)):
        raise InputError(f"{url} is no kind of text that is read; use {', '.join((*LINES, *TEXTS))}, plain or .gz.")
    return Source(url, int(system.size(path) or 0))


def documents_of(
    source: Source, field: str, take: Callable[[bytes], None], progress: Callable[[int], None]
) -> Iterator[tuple[Document, str]]:
    """Yield (document, where it stands) of a source, while `take` gets all that it is made of, unpacked.

    `progress` gets the bytes of the source that were read so far. Raises InputError naming file and line where the
    text is not UTF-8, a line is no JSON object or has no text in `field`, or a packed file is damaged.
    """
    if source.levanter:
        yield from levanter_documents(source.url, take)
        return
    system, path = fsspec.core.url_to_fs(source.url)
    try:
        with system.open(path, "rb") as raw:
            file: Any = gzip.GzipFile(fileobj=raw) if source.url.endswith(".gz") else raw
            if source.url.removesuffix(".gz").endswith(TEXTS):
                data = file.read()
                take(data)
                yield _decoded(data, source.url), source.url
            else:
                for number, line in enumerate(file, start=1):
                    take(line)
                    progress(raw.tell())
                    if line.strip():
                        where = f"{source.url} line {number}"
                        yield _text_field(_decoded(line, where), field, where), where
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source.url} is damaged or cut off: {error}; fetch it anew.") from None
    except OSError as error:
        raise InputError(f"{source.url} cannot be read: {why(error)}.") from None
    progress(source.size)


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 at byte {error.start + 1}; convert the file.") from None


def _text_field(line: str, field: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
        raise InputError(f"{where} is not valid JSON ({reason}); each line is one object.") from None
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        known = ", ".join(sorted(record)[:8]) if isinstance(record, dict) and record else "nothing"
        raise InputError(f"{where} has no text in the field {field!r} (it has {known}); name another with --field.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} is not UTF-8: its text holds half of a surrogate pair; mend the line.") from None
    return text
