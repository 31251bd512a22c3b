"""Token caches on disk: the texts of one domain as arrays of token numbers, ready to be mapped into memory.

    train.bin, validation.bin, test.bin    token numbers, little-endian, one document after the other
    train.documents.bin, ...               where each document starts, and the end: uint64
    tokenizer.json, token_bytes.bin        the tokenizer, and the bytes of text each token stands for (uint16);
                                           absent where bytes are the tokens
    manifest.json                          what all this is made of, with digests; written last

Every document ends with the separator. `models.cache_writer` puts a cache in place whole, so that a reader finds all of
it or nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt, UInt16, UInt64

from ladder.errors import InputError
from ladder.records import canonical_json, from_plain, read_json, sha256_bytes, sha256_file

SCHEMA = "corpus/2"
SPLITS = ("train", "validation", "test")
FILES = frozenset(("manifest.json", "tokenizer.json", "token_bytes.bin")) | {
    f"{split}{suffix}" for split in SPLITS for suffix in (".bin", ".documents.bin")
}
BYTES = "bytes"  # the tokenizer whose tokens are bytes; a zero byte, which is no text, ends each document
ONE_EACH = np.ones(256, np.uint16)  # the bytes that bytes stand for, the zero byte between documents included


@dataclass(frozen=True)
class Split:
    """One part of a cache.

    Attributes:
        documents: how many.
        tokens: with a separator for each document.
        bytes: of the text its tokens stand for.
        sha256, documents_sha256: digests of the two files.
    """

    documents: int
    tokens: int
    bytes: int
    sha256: str
    documents_sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a cache is made of.

    Attributes:
        tokenizer: "bytes", or the digest of tokenizer.json.
        vocab_size: entries of the tokenizer; every token number is below it.
        separator: the token that ends each document.
        sources: version or digest of everything the texts come from.
        splits: its parts by name.
        sha256: digest over the digests of the parts and the tokenizer; the identity of the cache.
        token_bytes_sha256: digest of token_bytes.bin; empty where bytes are the tokens.
        left_out: documents that are not in it, since they are empty or stand in it already.
        request: digest of what was asked for when it was built.
    """

    tokenizer: str
    vocab_size: int
    separator: int
    sources: dict[str, str]
    splits: dict[str, Split]
    sha256: str
    token_bytes_sha256: str = ""
    left_out: int = 0
    request: str = ""


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest unsigned integer type that holds every token number below `vocab_size`, little-endian."""
    return np.dtype("u1" if vocab_size <= 2**8 else "<u2" if vocab_size <= 2**16 else "<u4")


def cache_identity(tokenizer: str, digests: dict[str, str]) -> str:
    """Return the identity of a cache from its tokenizer and the digests of its parts by name.

    Bytes need no naming: they are what the parts consist of.
    """
    return sha256_bytes(canonical_json(digests if tokenizer == BYTES else {**digests, "tokenizer": tokenizer}))


def files_of(manifest: Manifest) -> dict[str, str]:
    """Return the digest of every file of a cache besides its manifest, by name."""
    files = {f"{name}.bin": split.sha256 for name, split in manifest.splits.items()}
    files |= {f"{name}.documents.bin": split.documents_sha256 for name, split in manifest.splits.items()}
    if manifest.tokenizer != BYTES:
        files |= {"tokenizer.json": manifest.tokenizer, "token_bytes.bin": manifest.token_bytes_sha256}
    return files


def parse_manifest(path: Path) -> Manifest:
    """Return the manifest in a file; raises InputError where it is missing or damaged, or a part is missing or empty."""
    data = read_json(path, SCHEMA)
    manifest = from_plain(Manifest, {key: data[key] for key in data if key != "schema"}, str(path))
    if manifest.splits.keys() != set(SPLITS):
        raise InputError(f"{path} names the parts {', '.join(manifest.splits)}; a token cache has {', '.join(SPLITS)}.")
    if empty := next((name for name in SPLITS if manifest.splits[name].tokens < 1), None):
        raise InputError(f"{path}: there is no {empty} text; build the cache anew with more documents.")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a cache; raises InputError when the folder is missing, or a part is or has another size."""
    if not folder.is_dir():
        raise InputError(f"corpus {folder} does not exist; leave the option out to build the default one.")
    manifest = parse_manifest(folder / "manifest.json")
    width = token_dtype(manifest.vocab_size).itemsize
    for name in SPLITS:
        part, size = folder / f"{name}.bin", manifest.splits[name].tokens * width
        if not part.is_file() or part.stat().st_size != size:
            raise InputError(f"{part} is missing or has not the {size} bytes of its manifest; build it anew.")
    return manifest


def check_digests(folder: Path, manifest: Manifest) -> None:
    """Raise InputError when a file of the cache is missing or is not the one of the manifest."""
    for name, digest in files_of(manifest).items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} is missing; build the cache anew.")
        if sha256_file(path) != digest:
            raise InputError(f"{path} is damaged: its digest is not that of the manifest; build it anew.")
    found = cache_identity(manifest.tokenizer, {name: split.sha256 for name, split in manifest.splits.items()})
    if found != manifest.sha256:
        raise InputError(f"{folder / 'manifest.json'} is damaged: it names another identity than that of its parts.")


def read_tokens(folder: Path, manifest: Manifest, split: str) -> UInt[np.ndarray, " tokens"]:
    """Return the tokens of one part, mapped from the disk and not to be written."""
    return np.asarray(np.memmap(folder / f"{split}.bin", token_dtype(manifest.vocab_size), "r"))


def read_documents(folder: Path, split: str) -> UInt64[np.ndarray, " documents1"]:
    """Return where each document of one part starts, and where the last one ends."""
    return np.fromfile(folder / f"{split}.documents.bin", "<u8")


def read_token_bytes(folder: Path, manifest: Manifest) -> UInt16[np.ndarray, " V"]:
    """Return the bytes of text that each token stands for; 0 for separators and other special tokens of a BPE."""
    if manifest.tokenizer == BYTES:
        return ONE_EACH
    return np.fromfile(folder / "token_bytes.bin", "<u2")
