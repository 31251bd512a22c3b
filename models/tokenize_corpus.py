"""From sources and a tokenizer to a token cache, built once."""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import numpy as np
from jaxtyping import Integer

from ladder.errors import InputError
from ladder.records import canonical_json, read_json, sha256_bytes, to_plain
from models.cache import BYTES, FILES, SCHEMA, SPLITS, Manifest, check_digests, read_manifest
from models.cache_writer import CacheWriter
from models.corpus import split_of
from models.documents import Document, Source, documents_of
from models.fetch import why
from models.tokenizer import AbstractTokenizer, ByteTokenizer, read_tokenizer, train_bpe

BPE = "bpe"  # the tokenizer that is trained on the training text
DOCUMENTS_AT_ONCE = 256  # that the tokenizer's threads share


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


class _Reader:
    """Goes through the documents of a request, each once, and knows which part each belongs to."""

    def __init__(self, request: Request, label: str, progress: Progress) -> None:
        self._request, self._label, self._progress = request, label, progress
        self.digests: dict[str, str] = {}
        self.left_out = 0

    def __iter__(self) -> Iterator[tuple[str, Document, str]]:
        """Yield (part, document, where it stands)."""
        request, seen, before = self._request, set[bytes](), 0
        total = sum(source.size for source in request.all_sources)
        for source in request.all_sources:
            part = "test" if source in request.test else "validation" if source in request.validation else "train"
            digest = hashlib.sha256()

            def report(read: int, before: int = before) -> None:
                self._progress(self._label, before + read, total)

            for document, where in documents_of(source, request.field, digest.update, report):
                key = document.encode() if isinstance(document, str) else document.astype("<i8").tobytes()
                short = hashlib.blake2b(key, digest_size=16).digest()
                if not key or short in seen:
                    self.left_out += 1
                    continue
                seen.add(short)
                yield part if request.test else split_of(key), document, where
            before += source.size
            report(0, before)
            self.digests[source.url] = digest.hexdigest()


def _tokenizer(request: Request, progress: Progress) -> AbstractTokenizer:
    if request.tokenizer == BYTES:
        return ByteTokenizer()
    if request.vocab_size is not None:
        reader = _Reader(request, "training the tokenizer", progress)
        texts = (document for part, document, _ in reader if part == "train" and isinstance(document, str))
        return train_bpe(texts, request.vocab_size)
    return read_tokenizer(_tokenizer_json(request.tokenizer), request.tokenizer, request.separator)


def _tokenizer_json(where: str) -> bytes:
    try:
        with fsspec.open(where, "rb") as file:
            data: bytes = file.read()
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            f"tokenizer {where} cannot be read: {why(error)}; use bytes, bpe or a tokenizer.json."
        ) from None
    return data


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

    One that is there already is kept where the same was asked for, and is built anew where it is damaged. Documents
    that are empty or were seen before are left out. Raises InputError where `home` holds something else, where a
    source cannot be read, and where a part would be empty.
    """
    asked = sha256_bytes(canonical_json({**to_plain(request), "tokenizer": _tokenizer_identity(request)}))
    if home.exists() and (whole := _there_already(home, asked)):
        return whole, False
    tokenizer = _tokenizer(request, progress)
    try:
        return _write(request, tokenizer, home, asked, progress), True
    except OSError as error:
        raise InputError(f"{home} cannot be written: {why(error)}; nothing of it was kept.") from None


def _write(request: Request, tokenizer: AbstractTokenizer, home: Path, asked: str, progress: Progress) -> Manifest:
    reader = _Reader(request, "tokenizing", progress)
    documents = dict.fromkeys(SPLITS, 0)
    known = (tokenizer.vocab_size, tokenizer.separator, tokenizer.json, tokenizer.token_bytes)
    with CacheWriter(home, *known) as writer:
        for batch in itertools.batched(reader, DOCUMENTS_AT_ONCE):
            for part, tokens, text_bytes in _numbered(tokenizer, batch):
                writer.add(part, tokens, text_bytes)
                documents[part] += 1
        if empty := next((part for part in SPLITS if not documents[part]), None):
            raise InputError(
                f"no document of {', '.join(source.url for source in request.sources)} is for {empty}; give more "
                "documents, or held-out files with --validation and --test."
            )
        return writer.finish(reader.digests, left_out=reader.left_out, request=asked, replace=home.exists())


def _tokenizer_identity(request: Request) -> str:
    if request.tokenizer in (BYTES, BPE):
        return request.tokenizer
    return sha256_bytes(_tokenizer_json(request.tokenizer))


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
