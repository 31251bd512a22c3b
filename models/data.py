"""Training and evaluation text in memory or mapped from the disk; batches that depend on seed and step alone.

Training sequences are windows of a domain's text, documents one after the other with a separator behind each; a
window may hold parts of several documents, see `models.mixture.Documents`. The window i holds tokens i S to
i S + S, so that every token but a text's first is predicted once an epoch.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt, UInt16
from numpy.lib.stride_tricks import sliding_window_view

from ladder.errors import InputError
from ladder.records import canonical_json, sha256_bytes
from ladder.rung import Rung
from models.cache import check_digests, read_manifest, read_token_bytes, read_tokens
from models.interleave import Interleaving
from models.mixture import Mixture, read_mixture

# Tokens predicted of each held-out text; never changed, since losses on other parts do not compare. Forecasts are of the
# test text; validation is for tuning, where a coarser number does.
EVAL_TOKENS = {"validation": 32_768, "test": 131_072}


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A held-out text.

    Attributes:
        split: "validation" or "test".
        domain: of the mixture; empty for a corpus used alone.
        identity: what losses on it are compared by.
    """

    split: str
    domain: str
    tokens: UInt[np.ndarray, " _"]
    identity: str

    @property
    def name(self) -> str:
        """The split, and the domain where there are some: ``test/code``."""
        return f"{self.split}/{self.domain}" if self.domain else self.split


@dataclass(frozen=True, eq=False)
class Corpus:
    """A mixture with its texts.

    Attributes:
        mixture: what it is made of; `mixture.sha256` is its identity.
        train: training text of each domain.
        held_out: held-out texts of all domains.
        token_bytes: bytes of text that each token stands for.
    """

    mixture: Mixture
    train: tuple[UInt[np.ndarray, " _"], ...]
    held_out: tuple[HeldOut, ...]
    token_bytes: UInt16[np.ndarray, " V"]

    @property
    def eval_sets(self) -> dict[str, str]:
        """Identity of each held-out text by name; with domains also of each split, for the mean over them."""
        found = {text.name: text.identity for text in self.held_out}
        for split in EVAL_TOKENS:
            parts = [text.identity for text in self.held_out if text.split == split]
            found.setdefault(split, f"{split}:{sha256_bytes(canonical_json(sorted(parts)))}")
        return found


def read_corpus(source: Path | Mixture) -> Corpus:
    """Return a mixture, or the token cache in a folder, with its texts; digests are checked, which reads all of it.

    Raises InputError when a folder or a part is missing, or when the tokens are not those of the manifest.
    """
    mixture = source if isinstance(source, Mixture) else read_mixture(str(source))
    train, held_out = [], []
    for domain in mixture.domains:
        manifest = read_manifest(domain.cache)
        check_digests(domain.cache, manifest)
        if manifest.sha256 != domain.sha256:
            raise InputError(f"{domain.cache} holds another cache than when this command began; start it again.")
        train.append(read_tokens(domain.cache, manifest, "train"))
        for split in EVAL_TOKENS:
            tokens = read_tokens(domain.cache, manifest, split)
            held_out.append(HeldOut(split, domain.name, tokens, f"{split}:{domain.sha256}"))
    return Corpus(mixture, tuple(train), tuple(held_out), read_token_bytes(mixture.domains[0].cache, manifest))


def training_order(windows: int, seed: int, domain: int = 0, epoch: int = 0) -> Int[np.ndarray, " windows"]:
    """Return the windows of a text in the order in which `seed` trains on them in an epoch, each once.

    `domain` is the number of the text in its mixture. The order is by raw words of NumPy's Philox, a stream that NumPy
    keeps; seed and domain are its key, the epoch the highest word of its counter.
    """
    words = np.random.Philox(key=seed + (domain << 64), counter=epoch << 192).random_raw(windows)
    return np.argsort(words, kind="stable").astype(np.int32)


class Batches:
    """The batches of one run: a function of mixture, seed and step alone.

    The n-th sequence of a run is the next window, in the seed's order, of the domain that `Interleaving` names.
    """

    def __init__(self, corpus: Corpus, rung: Rung, seed: int) -> None:
        self._corpus, self._seed = corpus, seed
        self._batch_seqs, self._seq_len = rung.batch_seqs, rung.shape.seq_len
        weights = [domain.weight for domain in corpus.mixture.domains]
        self._interleaving = Interleaving.of(weights, rung.steps * rung.batch_seqs)
        self._windows = np.array([domain.windows(self._seq_len) for domain in corpus.mixture.domains])
        self._orders: dict[int, tuple[int, Int[np.ndarray, " windows"]]] = {}

    def at(self, first: int, last: int) -> UInt[np.ndarray, "steps B S1"]:
        """Return the batches of the steps from `first` on before `last`, counted from 0: rows of S + 1 tokens."""
        sequences = np.arange(first * self._batch_seqs, last * self._batch_seqs)
        domains, ranks = self._interleaving.at(sequences)
        epochs, within = np.divmod(ranks, self._windows[domains])
        rows = np.empty((len(sequences), self._seq_len + 1), self._corpus.train[0].dtype)
        passes = epochs * len(self._windows) + domains
        for number in np.unique(passes).tolist():
            epoch, domain = divmod(number, len(self._windows))
            here = passes == number
            windows = sliding_window_view(self._corpus.train[domain], self._seq_len + 1)[:: self._seq_len]
            rows[here] = windows[self._order(domain, epoch)[within[here]]]
        return rows.reshape(last - first, self._batch_seqs, -1)

    def _order(self, domain: int, epoch: int) -> Int[np.ndarray, " windows"]:
        """Return the order of an epoch; each domain's latest is kept, since batches are asked for in turn."""
        if domain not in self._orders or self._orders[domain][0] != epoch:
            order = training_order(int(self._windows[domain]), self._seed, domain, epoch)
            self._orders[domain] = (epoch, order)
        return self._orders[domain][1]


def eval_windows(text: UInt[np.ndarray, " tokens"], seq_len: int, limit: int) -> UInt[np.ndarray, "windows S1"]:
    """Return windows of a held-out text, S + 1 tokens each: `limit` / S of them, evenly spaced over all documents.

    Fewer where the text is shorter; then they predict every token but the first once.
    """
    windows = (len(text) - 1) // seq_len
    count = min(windows, limit // seq_len)
    return sliding_window_view(text, seq_len + 1)[np.arange(count) * windows // count * seq_len]
