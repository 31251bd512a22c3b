"""From sources and a tokenizer to a token cache, built once."""

import contextlib
import fcntl
import glob
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from ladder.errors import InputError
from ladder.records import canonical_json, read_json, sha256_bytes, to_plain
from models.cache import BYTES, FILES, SCHEMA, SPLITS, Manifest, check_digests, read_manifest
from models.cache_writer import PROGRESS, SEEN, CacheWriter
from models.documents import Document
from models.fetch import read_bytes, why
from models.tokenize_reader import BPE, Progress, Reader, Request
from models.tokenizer import AbstractTokenizer, ByteTokenizer, read_tokenizer, train_bpe

DOCUMENTS_AT_ONCE = 256  # that the tokenizer's threads share
KEEP_SECONDS = 30.0  # at most this much work is lost to a kill, besides one source


def _tokenizer(request: Request, partial: Path, progress: Progress) -> AbstractTokenizer:
    if request.tokenizer == BYTES:
        return ByteTokenizer()
    if request.vocab_size is None:
        return read_tokenizer(read_bytes(request.tokenizer, "tokenizer"), request.tokenizer, request.separator)
    if (trained := partial / "tokenizer.json").exists():
        return read_tokenizer(trained.read_bytes(), str(trained))
    reader = Reader(request, "training the tokenizer", progress)
    documents = itertools.chain.from_iterable(reader.sources())
    texts = (document for part, document, _ in documents if part == "train" and isinstance(document, str))
    return train_bpe(texts, request.vocab_size)


def _numbered(
    tokenizer: AbstractTokenizer, batch: tuple[tuple[str, Document, str], ...]
) -> Iterator[tuple[str, Integer[np.ndarray, " _"], int]]:
    """Yield part, tokens and bytes of each document of a batch, without its separator."""
    texts = iter(tokenizer.encode([(text, where) for _, text, where in batch if isinstance(text, str)]))
    for part, document, where in batch:
        if isinstance(document, str):
            yield part, *next(texts)
            continue
        tokens = document[:-1] if document[-1] == tokenizer.separator else document
        if document.min() < 0 or document.max() >= tokenizer.vocab_size:
            raise InputError(
                f"{where} has tokens from {document.min()} to {document.max()}, but the tokenizer has "
                f"{tokenizer.vocab_size}; give the tokenizer.json that the cache was made with."
            )
        yield part, tokens, int(tokenizer.token_bytes[tokens].sum())


def tokenize(
    request: Request, home: Path, progress: Progress = lambda label, done, total: None
) -> tuple[Manifest, bool]:
    """Return the manifest of the token cache in `home`, and whether it was built now.

    One that is there already is kept where the same was asked for, and is built anew where it is damaged. A build that
    was stopped goes on from the last source that was kept. Documents that are empty or were seen before are left out.
    Raises InputError where `home` holds something else, where a source cannot be read, and where a part would be empty.
    """
    asked = sha256_bytes(canonical_json({**to_plain(request), "tokenizer": _tokenizer_identity(request)}))
    if home.exists() and (whole := _there_already(home, asked)):
        return whole, False
    try:
        with _partial_build(home, asked) as partial:
            return _write(request, home, partial, asked, progress), True
    except OSError as error:
        raise InputError(
            f"{home} cannot be written: {why(error)}. What was done is kept; run the same command again to go on."
        ) from None


@contextlib.contextmanager
def _partial_build(home: Path, asked: str) -> Iterator[Path]:
    """Yield the folder in which this process alone builds `home`; it stays when the build is stopped."""
    home.parent.mkdir(parents=True, exist_ok=True)
    mine = home.parent / f".{home.name}-{asked[:16]}.partial"
    for other in home.parent.glob(f".{glob.escape(home.name)}-*.partial"):
        if other != mine:  # of sources that have changed since
            with _locked(other) as free:
                if free:
                    shutil.rmtree(other)
    mine.mkdir(exist_ok=True)
    with _locked(mine) as free:
        if not free:
            raise InputError(f"another process is building {home}; wait for it.")
        try:
            yield mine
        except InputError:
            if not (mine / PROGRESS).exists():  # nothing to go on from once the source is mended or there again
                shutil.rmtree(mine)
            raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder; yields whether it was free. It goes with the process that holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        free = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(handle)


def _write(request: Request, home: Path, partial: Path, asked: str, progress: Progress) -> Manifest:
    tokenizer = _tokenizer(request, partial, progress)
    reader = Reader(request, "tokenizing", progress)
    known = (tokenizer.vocab_size, tokenizer.separator, tokenizer.json, tokenizer.token_bytes)
    with CacheWriter(home, *known, partial=partial) as writer:
        reader.restore(partial / SEEN, writer.note)
        kept = time.monotonic()
        for source in reader.sources():
            for batch in itertools.batched(source, DOCUMENTS_AT_ONCE):
                for part, tokens, text_bytes in _numbered(tokenizer, batch):
                    writer.add(part, tokens, text_bytes)
            if time.monotonic() - kept > KEEP_SECONDS:
                writer.keep(reader.keep(partial / SEEN))
                kept = time.monotonic()
        if empty := next((part for part in SPLITS if not writer.documents(part)), None):
            raise InputError(
                f"no document of {', '.join(source.url for source in request.sources)} is for {empty}; give more "
                "documents, or held-out files with --validation and --test."
            )
        return writer.finish(reader.digests, left_out=reader.left_out, request=asked, replace=home.exists())


def _tokenizer_identity(request: Request) -> str:
    if request.tokenizer in (BYTES, BPE):
        return request.tokenizer
    return sha256_bytes(read_bytes(request.tokenizer, "tokenizer"))


def _there_already(home: Path, asked: str) -> Manifest | None:
    """Return the cache in `home`, or None where it is damaged; raises InputError where it is not the one asked for."""
    if not home.is_dir() or not {path.name for path in home.iterdir()} <= FILES:
        raise InputError(f"{home} holds something else than a token cache; use another folder.")
    try:
        request = read_json(home / "manifest.json", SCHEMA).get("request")
    except InputError:
        return None
    if request != asked:
        raise InputError(
            f"{home} holds a token cache made from other sources (names, sizes), field or tokenizer; use another folder, "
            "or remove it."
        )
    try:
        manifest = read_manifest(home)
        check_digests(home, manifest)
    except InputError:
        return None
    return manifest
