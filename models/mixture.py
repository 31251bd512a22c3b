"""Mixtures: several token caches, the domains, trained on together in fixed proportions.

A mixture is a small TOML or JSON file, its folders and URLs relative to itself:

    schema = "mixture/1"
    documents = "separate"     # or "packed", the default

    [domains.docs]
    cache = "caches/docs"
    weight = 3

    [domains.code]
    cache = "gs://bucket/caches/code"
    weight = 1

Which domain the n-th training sequence comes from is said by `models.interleave`.
"""

import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from ladder.records import canonical_json, sha256_bytes
from ladder.rung import Rung
from models.cache import read_manifest
from models.fetch import is_url, local_cache, read_bytes
from models.interleave import Interleaving

SCHEMA = "mixture/1"
NAME = re.compile(r"[a-z0-9_.-]+")  # of a domain, which stands in the names of metrics
LARGEST_RATIO = 10**6  # between weights; beyond it one is mistyped


class Documents(StrEnum):
    """What attention makes of a sequence that holds parts of several documents."""

    PACKED = "packed"  # it crosses their separators
    SEPARATE = "separate"  # each token sees its own document alone


@dataclass(frozen=True)
class Domain:
    """One token cache of a mixture and its weight.

    Attributes:
        name: in metrics; empty for a corpus that is used alone.
        cache: its folder on this machine.
        weight: sequences out of every sum of weights.
        sha256, tokenizer, vocab_size, separator, train_tokens: as its manifest says.
        held_out_tokens: of the shorter one of its held-out texts.
    """

    name: str
    cache: Path
    weight: int
    sha256: str
    tokenizer: str
    vocab_size: int
    separator: int
    train_tokens: int
    held_out_tokens: int

    def windows(self, seq_len: int) -> int:
        """Return how many sequences one epoch has."""
        return (self.train_tokens - 1) // seq_len


@dataclass(frozen=True)
class Mixture:
    """Domains with weights; the batches of a run follow from it and the seed.

    Attributes:
        epochs: passes over a domain that a run may make.
        documents: how several share a sequence.
    """

    domains: tuple[Domain, ...]
    epochs: int = 1
    documents: Documents = Documents.PACKED

    @property
    def sha256(self) -> str:
        """Identity: names, contents and weights, in order, and how documents are treated; of a cache used alone its own.

        Where the caches lie and how many epochs are allowed decide no batch.
        """
        if not self.domains[0].name:
            return self.domains[0].sha256
        parts = [[each.name, each.sha256, each.weight] for each in self.domains]
        return sha256_bytes(canonical_json({"documents": self.documents.value, "domains": parts}))

    @property
    def tokenizer(self) -> str:
        """The one tokenizer of all domains."""
        return self.domains[0].tokenizer

    @property
    def separator(self) -> int | None:
        """The token at whose occurrences attention is cut; None where documents are packed."""
        return self.domains[0].separator if self.documents is Documents.SEPARATE else None

    def sequences(self, rung: Rung) -> tuple[int, ...]:
        """Return how many sequences a run of `rung` takes from each domain."""
        total = rung.steps * rung.batch_seqs
        return Interleaving.of([domain.weight for domain in self.domains], total).counts(total)

    def unique_tokens(self, rung: Rung) -> int:
        """Return the distinct tokens that a run of `rung` trains on."""
        seq_len = rung.shape.seq_len
        used = zip(self.domains, self.sequences(rung), strict=True)
        return sum(min(count, domain.windows(seq_len)) for domain, count in used) * seq_len

    def epochs_of(self, rung: Rung) -> dict[str, float]:
        """Return how often a run of `rung` goes through each domain, by name; "corpus" is one used alone."""
        used = zip(self.domains, self.sequences(rung), strict=True)
        return {domain.name or "corpus": count / domain.windows(rung.shape.seq_len) for domain, count in used}

    def check(self, rung: Rung) -> None:
        """Raise InputError where `rung` cannot be trained on this: too few tokens, or more in the vocabulary than it has."""
        shape = rung.shape
        if (there := max(domain.vocab_size for domain in self.domains)) > shape.vocab_size:
            raise InputError(
                f"the tokenizer has {there} tokens but rung {rung.name} a vocabulary of {shape.vocab_size}; use a "
                "smaller tokenizer or a ladder with a larger vocabulary."
            )
        for domain, count in zip(self.domains, self.sequences(rung), strict=True):
            windows = domain.windows(shape.seq_len)
            where = f" of domain {domain.name}" if domain.name else ""
            # Two sequences of a held-out text, so that its loss has a standard error.
            if domain.train_tokens <= shape.seq_len or domain.held_out_tokens <= 2 * shape.seq_len:
                raise InputError(
                    f"the corpus{where} has {domain.train_tokens} training tokens and a held-out text of "
                    f"{domain.held_out_tokens}, too few for sequences of {shape.seq_len}; use a larger one."
                )
            if count <= windows * self.epochs:
                continue
            allowed = f", {windows * shape.seq_len * self.epochs} in {self.epochs} epochs" if self.epochs > 1 else ""
            raise InputError(
                f"the run needs {count * shape.seq_len} training tokens{where} but the corpus has "
                f"{windows * shape.seq_len}{allowed}; repeated text changes the law. Use a larger corpus, a smaller "
                f"budget, or allow {math.ceil(count / windows)} passes with --epochs {math.ceil(count / windows)}."
            )


def _domain(name: str, folder: Path, weight: int) -> Domain:
    manifest = read_manifest(folder)
    tokens = {split: part.tokens for split, part in manifest.splits.items()}
    held_out = min(tokens["validation"], tokens["test"])
    known = (manifest.sha256, manifest.tokenizer, manifest.vocab_size, manifest.separator)
    return Domain(name, folder, weight, *known, tokens["train"], held_out)


def read_mixture(where: str, epochs: int = 1) -> Mixture:
    """Return the mixture in a .toml or .json file, or the one cache in a folder, used alone; paths may be URLs.

    Caches at URLs are copied here. Raises InputError naming the file and what is wrong with it or a cache.
    """
    if not where.endswith((".toml", ".json")):
        return Mixture((_domain("", local_cache(where), 1),), epochs)
    entries, documents = _entries(_parsed(where), where)
    weights = _whole_weights([weight for _, _, weight in entries])
    base = where.rpartition("/")[0] if is_url(where) else str(Path(where).parent)
    domains = []
    for (name, cache, _), weight in zip(entries, weights, strict=True):
        absolute = cache if is_url(cache) or cache.startswith("/") else f"{base}/{cache}"
        domains.append(_domain(name, local_cache(absolute), weight))
    for domain in domains:
        if (domain.tokenizer, domain.separator) != (domains[0].tokenizer, domains[0].separator):
            raise InputError(f"{where}: domains {domains[0].name} and {domain.name} have different tokenizers.")
        first = next(each for each in domains if each.sha256 == domain.sha256)
        if first is not domain:
            raise InputError(f"{where}: domains {first.name} and {domain.name} are one cache; give it once.")
    return Mixture(tuple(domains), epochs, documents)


def _parsed(where: str) -> Any:
    data = read_bytes(where, "mixture")
    try:
        # Weights as they are written, so that 0.1 is a tenth.
        if where.endswith(".toml"):
            return tomllib.loads(data.decode("utf-8"), parse_float=Decimal)
        return json.loads(data.decode("utf-8"), parse_float=Decimal)
    except (ValueError, RecursionError) as error:  # of UTF-8, TOML and JSON
        raise InputError(f"{where} is no valid {where.rpartition('.')[2].upper()}: {error}.") from None


def _entries(data: Any, where: str) -> tuple[list[tuple[str, str, Fraction]], Documents]:
    """Return (name, cache, weight) of the domains of a mixture file, and what it says of documents."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{where} is no mixture file: its schema is {schema!r}, expected {SCHEMA!r}.")
    domains = data.get("domains")
    if not isinstance(domains, dict) or not domains:
        raise InputError(f"{where} has no domains; write [domains.NAME] with cache and weight for each.")
    if unknown := sorted(set(data) - {"schema", "documents", "domains"}):
        raise InputError(f"{where}: unknown field {unknown[0]}; a mixture has schema, documents and domains.")
    documents = data.get("documents", Documents.PACKED.value)
    if documents not in list(Documents):
        raise InputError(f"{where}: documents {documents!r} must be {' or '.join(Documents)}.")
    found = []
    for name, entry in domains.items():
        if not NAME.fullmatch(name):
            raise InputError(f"{where}: domain {name!r} must be of lower-case letters, digits, '_', '-' and '.'.")
        if not isinstance(entry, dict) or set(entry) != {"cache", "weight"}:
            raise InputError(f"{where}: domain {name} must have cache and weight, and nothing else.")
        cache, weight = entry["cache"], entry["weight"]
        if not isinstance(cache, str) or not cache:
            raise InputError(f"{where}: domain {name}: cache {cache!r} is no folder or URL.")
        if isinstance(weight, bool) or not isinstance(weight, int | Decimal) or not Decimal(weight).is_finite():
            raise InputError(f"{where}: domain {name}: weight {weight!s} is no number.")
        if weight <= 0:
            raise InputError(f"{where}: domain {name}: weight {weight} must be positive; leave the domain out instead.")
        found.append((name, cache, Decimal(weight)))
    least, most = min(weight for *_, weight in found), max(weight for *_, weight in found)
    if most > LARGEST_RATIO * least:
        raise InputError(f"{where}: weights {least} and {most} are more than a factor of {LARGEST_RATIO} apart.")
    return [(name, cache, Fraction(weight)) for name, cache, weight in found], Documents(documents)


def _whole_weights(weights: Sequence[Fraction]) -> list[int]:
    """Return the smallest whole numbers in the proportions of `weights`."""
    denominator = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * denominator) for weight in weights]
    return [weight // math.gcd(*whole) for weight in whole]
