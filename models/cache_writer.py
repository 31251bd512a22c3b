"""Building a token cache: in a folder beside its own, put in place whole."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt16

from ladder.records import canonical_json, sha256_bytes, sha256_file, to_plain, write_atomic
from models.cache import (
    BYTES,
    ONE_EACH,
    SCHEMA,
    SPLITS,
    Manifest,
    Split,
    cache_identity,
    token_dtype,
)

PROGRESS, SEEN = "progress.json", "seen.bin"  # of a build that can be gone on with; no part of the cache


class _Part:
    """The growing files of one split."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[np.unsignedinteger], done: dict[str, int]) -> None:
        self.documents, self.tokens, self.bytes = (done.get(each, 0) for each in ("documents", "tokens", "bytes"))
        self._dtype, self._paths = dtype, (folder / f"{name}.bin", folder / f"{name}.documents.bin")
        self._files = [path.open("r+b" if done else "w+b") for path in self._paths]
        # What was written after the last `keep` is written again.
        for file, size in zip(self._files, (self.tokens * dtype.itemsize, self.documents * 8), strict=True):
            file.truncate(size)
            file.seek(size)

    def add(self, tokens: Integer[np.ndarray, " n"], text_bytes: int) -> None:
        self._files[0].write(tokens.astype(self._dtype).tobytes())
        self._files[1].write(self.tokens.to_bytes(8, "little"))
        self.documents, self.tokens, self.bytes = self.documents + 1, self.tokens + len(tokens), self.bytes + text_bytes

    def keep(self) -> dict[str, int]:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        return {"documents": self.documents, "tokens": self.tokens, "bytes": self.bytes}

    def finish(self) -> Split:
        self._files[1].write(self.tokens.to_bytes(8, "little"))
        self.keep()
        self.close()
        return Split(self.documents, self.tokens, self.bytes, *(sha256_file(path) for path in self._paths))

    def close(self) -> None:
        for file in self._files:
            file.close()


class CacheWriter:
    """Writes a token cache; use as a context, and `finish` puts it in place. Left earlier, it leaves nothing.

    `tokenizer_json` says which tokenizer numbered the tokens, and `token_bytes` how many bytes of text each stands for;
    without them bytes are the tokens. With `partial`, a folder, what was written up to the last `keep` stays there when
    it is left early, and a writer of the same folder goes on from it.
    """

    def __init__(
        self,
        home: Path,
        vocab_size: int = 256,
        separator: int = 0,
        tokenizer_json: bytes | None = None,
        token_bytes: UInt16[np.ndarray, " V"] = ONE_EACH,
        *,
        partial: Path | None = None,
    ) -> None:
        self._home, self._vocab_size, self._separator = home, vocab_size, separator
        home.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = partial is None
        self._folder = partial or Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
        path = self._folder / PROGRESS
        kept = json.loads(path.read_bytes()) if path.exists() else {"parts": {}, "note": {}}
        self.note: dict[str, Any] = kept["note"]
        self._parts = {
            name: _Part(self._folder, name, token_dtype(vocab_size), kept["parts"].get(name, {})) for name in SPLITS
        }
        self._tokenizer, self._table = BYTES, ""
        if tokenizer_json is not None:
            table = token_bytes.astype("<u2").tobytes()
            write_atomic(self._folder / "tokenizer.json", tokenizer_json)
            write_atomic(self._folder / "token_bytes.bin", table)
            self._tokenizer, self._table = sha256_bytes(tokenizer_json), sha256_bytes(table)

    def __enter__(self) -> "CacheWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._parts.values():
            with contextlib.suppress(OSError):  # of a full disk, which was told of where it was met
                part.close()
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, split: str, tokens: Integer[np.ndarray, " n"], text_bytes: int) -> None:
        """Append a document, without its separator, that stands for `text_bytes` bytes of text."""
        self._parts[split].add(np.append(tokens, self._separator), text_bytes + (self._tokenizer == BYTES))

    def documents(self, split: str) -> int:
        """Return how many documents of a part have been written."""
        return self._parts[split].documents

    def keep(self, note: dict[str, Any]) -> None:
        """Make what was written last through a kill, with a `note` that the next writer of the folder finds."""
        parts = {name: part.keep() for name, part in self._parts.items()}
        write_atomic(self._folder / PROGRESS, canonical_json({"parts": parts, "note": note}))

    def finish(
        self, sources: dict[str, str], *, left_out: int = 0, request: str = "", replace: bool = False
    ) -> Manifest:
        """Put the cache in place and return its manifest.

        Where another process was faster its cache stays, unless `replace` says that what is there is damaged.
        """
        splits = {name: part.finish() for name, part in self._parts.items()}
        manifest = Manifest(
            tokenizer=self._tokenizer,
            vocab_size=self._vocab_size,
            separator=self._separator,
            sources=sources,
            splits=splits,
            sha256=cache_identity(self._tokenizer, {name: split.sha256 for name, split in splits.items()}),
            token_bytes_sha256=self._table,
            left_out=left_out,
            request=request,
        )
        write_atomic(self._folder / "manifest.json", canonical_json({"schema": SCHEMA, **to_plain(manifest)}))
        for name in (PROGRESS, SEEN):
            (self._folder / name).unlink(missing_ok=True)
        self._folder.chmod(0o755)  # as others may read what is no secret
        put_in_place(self._folder, self._home, replace=replace)
        return manifest


def put_in_place(folder: Path, home: Path, *, replace: bool = False) -> None:
    """Make the finished cache in `folder` the one at `home`; one that is there already stays unless `replace`."""
    if replace and home.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent)) / "old"
        home.rename(old)
        folder.rename(home)
        shutil.rmtree(old.parent)
        return
    try:
        folder.rename(home)
    except OSError:  # another process made it meanwhile
        if not (home / "manifest.json").exists():
            raise
