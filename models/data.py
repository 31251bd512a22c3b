"""Training and evaluation text: byte corpora on disk, batches that depend on seed and step alone."""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from ladder.errors import InputError
from ladder.records import sha256_bytes
from models.corpus import Manifest, read_manifest

# Bytes predicted of each held-out text; never changed, since losses on other parts do not compare. Forecasts are of the
# test text; validation is for tuning, where a coarser number does.
EVAL_BYTES = {"validation": 32_768, "test": 131_072}


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus in memory: one byte is one token.

    Attributes:
        manifest: what it is made of; `manifest.sha256` is its identity.
        train: training text.
        held_out: held-out texts by name, "validation" and "test".
    """

    manifest: Manifest
    train: UInt8[np.ndarray, " bytes"]
    held_out: dict[str, UInt8[np.ndarray, " _"]]


def read_corpus(folder: Path) -> Corpus:
    """Return the corpus in `folder`; its digests are checked.

    Raises InputError when the folder or a part is missing, or when the bytes are not those of the manifest.
    """
    manifest = read_manifest(folder)
    texts: dict[str, np.ndarray] = {}
    for name in ("train", "validation", "test"):
        if name not in manifest.splits:
            raise InputError(f"corpus {folder} has no {name} text; build it anew.")
        data = (folder / f"{name}.bin").read_bytes()
        if sha256_bytes(data) != manifest.splits[name].sha256:
            raise InputError(f"{folder / name}.bin is damaged: its digest is not that of the manifest; build it anew.")
        texts[name] = np.frombuffer(data, np.uint8)
    return Corpus(manifest, texts.pop("train"), texts)


def training_order(text: UInt8[np.ndarray, " bytes"], seq_len: int, seed: int) -> Int[np.ndarray, " windows"]:
    """Return the windows of `text` in the order in which `seed` trains on them, each once.

    Window i holds bytes i S to i S + S. The order is by raw words of NumPy's Philox, a stream that NumPy keeps.
    """
    windows = (len(text) - 1) // seq_len
    return np.argsort(np.random.Philox(key=seed).random_raw(windows), kind="stable").astype(np.int32)


def check_enough(corpus: Corpus, tokens: int, seq_len: int) -> None:
    """Raise InputError when a run of `tokens` tokens would see a window of the training text twice."""
    there = (len(corpus.train) - 1) // seq_len * seq_len
    if there < tokens:
        raise InputError(
            f"the run needs {tokens} training tokens but the corpus has {there}; repeated text changes the law. "
            "Use a larger corpus or a smaller budget."
        )


def batch_at(
    text: UInt8[Array, " bytes"], order: Int[Array, " windows"], step: Int[Array, ""], batch_seqs: int, seq_len: int
) -> Int[Array, "B S1"]:
    """Return the batch of `step`: the next `batch_seqs` windows of `order`, S + 1 tokens each."""
    starts = order[step * batch_seqs + jnp.arange(batch_seqs)] * seq_len
    return text[starts[:, None] + jnp.arange(seq_len + 1)].astype(jnp.int32)


def eval_windows(text: UInt8[np.ndarray, " bytes"], seq_len: int, limit: int) -> UInt8[np.ndarray, "windows S1"]:
    """Return windows of a held-out text, S + 1 bytes each: `limit` / S of them, evenly spaced over all documents.

    Fewer where the text is shorter; then they predict every byte but the first once.
    """
    windows = (len(text) - 1) // seq_len
    count = min(windows, limit // seq_len)
    starts = np.arange(count) * windows // count * seq_len
    chosen: np.ndarray = text[starts[:, None] + np.arange(seq_len + 1)]
    return chosen
