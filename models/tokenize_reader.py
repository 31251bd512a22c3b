"""What a token cache is to be made of, and its documents one by one: repeats left out, each for its part."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from models.cache import BYTES
from models.corpus import split_of
from models.documents import Document, Source, documents_of

BPE = "bpe"  # the tokenizer that is trained on the training text
SEEN_BYTES = 16  # of a document's digest: two of 10^12 documents agree with probability 10^-15


@dataclass(frozen=True)
class Request:
    """What a token cache is to be made of.

    Attributes:
        sources: texts to train on; where there are no held-out ones each document goes by its hash to one part.
        validation, test: held-out texts; both or none.
        tokenizer: "bytes", "bpe" to train one, or path or URL of a tokenizer.json.
        vocab_size: of the one to train.
        separator: token that ends documents in a tokenizer.json; by default the usual ones are tried.
        field: of JSON Lines, that holds the text.
    """

    sources: tuple[Source, ...]
    validation: tuple[Source, ...] = ()
    test: tuple[Source, ...] = ()
    tokenizer: str = BYTES
    vocab_size: int | None = None
    separator: str | None = None
    field: str = "text"

    def __post_init__(self) -> None:
        urls = [source.url for source in self.all_sources]
        if twice := next((url for url in urls if urls.count(url) > 1), None):
            raise InputError(f"{twice} is given twice; repeated text changes the law.")
        if bool(self.validation) != bool(self.test):
            raise InputError("give both --validation and --test, or neither.")
        if (self.tokenizer == BPE) != (self.vocab_size is not None):
            raise InputError("--vocab-size belongs to --tokenizer bpe, which needs it.")
        if self.separator is not None and self.tokenizer in (BYTES, BPE):
            raise InputError("--separator belongs to a tokenizer.json; bytes and bpe have their own.")
        if self.tokenizer in (BYTES, BPE) and any(source.levanter for source in self.all_sources):
            raise InputError("a Levanter cache is numbered already; give its tokenizer.json with --tokenizer.")

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """All sources, held-out ones first, so that training loses what stands in both."""
        return (*self.test, *self.validation, *self.sources)


Progress = Callable[[str, int, int], None]  # what is being done, bytes of the sources read, and in all


class Reader:
    """Goes through the documents of a request, each once, and knows which part each belongs to.

    Attributes:
        digests: of the sources that have been read to their end.
        left_out: documents that were empty or repeats.
    """

    def __init__(self, request: Request, label: str, progress: Progress) -> None:
        self._request, self._label, self._progress = request, label, progress
        self._seen, self._fresh = set[bytes](), list[bytes]()
        self.digests: dict[str, str] = {}
        self.left_out = 0

    def sources(self) -> Iterator[Iterator[tuple[str, Document, str]]]:
        """Yield, for each source that has not been read, its (part, document, where it stands)."""
        done, total = 0, sum(source.size for source in self._request.all_sources)
        for source in self._request.all_sources:
            if source.url not in self.digests:
                yield self._documents(source, functools.partial(self._report, done, total))
            done += source.size
            self._progress(self._label, done, total)

    def _report(self, done: int, total: int, read: int) -> None:
        self._progress(self._label, done + read, total)

    def _documents(self, source: Source, report: Callable[[int], None]) -> Iterator[tuple[str, Document, str]]:
        request, digest = self._request, hashlib.sha256()
        part = "test" if source in request.test else "validation" if source in request.validation else "train"
        for document, where in documents_of(source, request.field, digest.update, report):
            key = document.encode() if isinstance(document, str) else document.astype("<i8").tobytes()
            short = hashlib.blake2b(key, digest_size=SEEN_BYTES).digest()
            if not key or short in self._seen:
                self.left_out += 1
                continue
            self._seen.add(short)
            self._fresh.append(short)
            yield part if request.test else split_of(key), document, where
        self.digests[source.url] = digest.hexdigest()

    def keep(self, path: Path) -> dict[str, Any]:
        """Append what was seen since the last time to a file and return what else `restore` needs."""
        with path.open("ab") as file:
            file.write(b"".join(self._fresh))
            file.flush()
            os.fsync(file.fileno())
        self._fresh.clear()
        return {"digests": self.digests, "left_out": self.left_out, "seen": len(self._seen)}

    def restore(self, path: Path, note: dict[str, Any]) -> None:
        """Go on from where `keep` was called last; with an empty note, from the start."""
        data = path.read_bytes()[: note["seen"] * SEEN_BYTES] if note else b""
        path.write_bytes(data)
        if note:
            self.digests, self.left_out = dict(note["digests"]), note["left_out"]
            self._seen = {data[at : at + SEEN_BYTES] for at in range(0, len(data), SEEN_BYTES)}
