"""Tokenizers: bytes, or a byte-level BPE of Hugging Face's `tokenizers`, given or trained.

Losses in bits per byte need the bytes that each token stands for. A byte-level BPE (GPT-2, Llama 3, Qwen, OLMo) says
that exactly, and it is checked on every document; other kinds, which put spaces in front or lose bytes, are refused.
"""

import abc
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt16

from ladder.errors import InputError
from models.cache import ONE_EACH

# Tokens that end a document in published tokenizers: GPT-2, OLMo and this file; Llama 3; Llama 2 and Mistral; Gemma.
SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
SMALLEST_BPE = 257  # all bytes and the separator


class AbstractTokenizer(abc.ABC):
    """What numbers the tokens of a text.

    Attributes:
        vocab_size: entries; token numbers are below it.
        separator: the token that ends a document and stands in none.
        json: content of the tokenizer.json; None where bytes are the tokens.
        token_bytes: bytes of text that each token stands for, 0 for special tokens.
    """

    vocab_size: int
    separator: int
    json: bytes | None
    token_bytes: UInt16[np.ndarray, " V"]

    @abc.abstractmethod
    def encode(self, documents: Sequence[tuple[str, str]]) -> list[tuple[Integer[np.ndarray, " _"], int]]:
        """Return, for each document and where it stands, its tokens and the bytes of text that they stand for."""


@dataclass(frozen=True, eq=False)
class ByteTokenizer(AbstractTokenizer):
    """The bytes of UTF-8. The zero byte, which is no text, ends documents and is left out of them."""

    vocab_size: int = 256
    separator: int = 0
    json: None = None
    token_bytes: UInt16[np.ndarray, " V"] = field(default_factory=lambda: ONE_EACH)

    def encode(self, documents: Sequence[tuple[str, str]]) -> list[tuple[Integer[np.ndarray, " _"], int]]:
        """Return the bytes of each document without zero bytes, and how many they are."""
        found = [np.frombuffer(text.encode().replace(b"\0", b""), np.uint8) for text, _ in documents]
        return [(tokens, len(tokens)) for tokens in found]


@dataclass(frozen=True, eq=False)
class BpeTokenizer(AbstractTokenizer):
    """A byte-level BPE, run by `engine`, a `tokenizers.Tokenizer`. Names of special tokens in a text are text there."""

    vocab_size: int
    separator: int
    json: bytes
    token_bytes: UInt16[np.ndarray, " V"]
    engine: Any

    def encode(self, documents: Sequence[tuple[str, str]]) -> list[tuple[Integer[np.ndarray, " _"], int]]:
        """Return the tokens of each document and the bytes that they stand for.

        Raises InputError where those are not the bytes of the text, after the tokenizer's own normalisation of it.
        """
        normalizer = self.engine.normalizer
        encodings = self.engine.encode_batch_fast([text for text, _ in documents], add_special_tokens=False)
        encoded = []
        for (text, where), encoding in zip(documents, encodings, strict=True):
            tokens = np.asarray(encoding.ids, np.int64)
            stands_for = int(self.token_bytes[tokens].sum())
            there = len((normalizer.normalize_str(text) if normalizer else text).encode())
            if stands_for != there:
                raise InputError(
                    f"{where}: the document's tokens stand for {stands_for} bytes, but it has {there}; use a byte-level "
                    "BPE that puts no space in front and drops nothing, or bytes."
                )
            encoded.append((tokens, stands_for))
        return encoded


def read_tokenizer(data: bytes, where: str, separator: str | None = None) -> BpeTokenizer:
    """Return the tokenizer of a tokenizer.json; `separator` names the token that ends documents.

    Without a name it is the first of SEPARATORS that is there. Raises InputError where the file is no tokenizer, is
    not byte-level, or has no such token.
    """
    from tokenizers import Tokenizer

    try:
        engine = Tokenizer.from_str(data.decode("utf-8"))
        kinds = _kinds(json.loads(data).get("decoder"))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{where} is no tokenizer.json: {str(error).splitlines()[0]}.") from None
    if "ByteLevel" not in kinds:
        raise InputError(f"{where} is no byte-level BPE, whose tokens stand for bytes one by one; use one, or bytes.")
    vocab: dict[str, int] = engine.get_vocab(with_added_tokens=True)
    names = (separator,) if separator else SEPARATORS
    ends = next((vocab[name] for name in names if name in vocab), None)
    if ends is None:
        raise InputError(f"{where} has no token {' or '.join(names)} to end documents with; name one with --separator.")
    engine.no_padding()
    engine.no_truncation()
    engine.encode_special_tokens = True
    size = max(vocab.values()) + 1
    table = np.zeros(size, np.uint16)
    for token, number in vocab.items():
        table[number] = sum(character in _ALPHABET for character in token)
    for number, added in engine.get_added_tokens_decoder().items():
        table[number] = 0 if added.special else len(added.content.encode())
    if table[ends]:
        raise InputError(f"{where}: token {separator!r} stands for text; documents are to end with a special token.")
    return BpeTokenizer(size, ends, data, table, engine)


def train_bpe(texts: Iterable[str], vocab_size: int) -> BpeTokenizer:
    """Return a byte-level BPE with `vocab_size` entries trained on `texts`: the separator, all bytes, and merges.

    Raises InputError where the size is below SMALLEST_BPE or the texts have not that many pairs to merge.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST_BPE:
        raise InputError(f"a vocabulary of {vocab_size} does not hold all bytes; use at least {SMALLEST_BPE}.")
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATORS[0]],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    if engine.get_vocab_size() != vocab_size:
        raise InputError(
            f"the training text gives a vocabulary of {engine.get_vocab_size()} entries, not of {vocab_size}; use more "
            "text or a smaller --vocab-size."
        )
    return read_tokenizer(engine.to_str().encode(), "the trained tokenizer")


def _kinds(part: Any) -> set[str]:
    """Return the types that a part of a tokenizer.json is made of."""
    if not isinstance(part, dict):
        return set()
    below = [each for value in part.values() if isinstance(value, list) for each in value]
    return {str(part.get("type"))}.union(*map(_kinds, below))


# The characters for which byte-level BPEs write the 256 bytes (`bytes_to_unicode` of GPT-2's encoder.py): printable
# ones of Latin-1 as themselves, the other 68 in order from U+0100.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_ALPHABET = frozenset(map(chr, (*_PRINTABLE, *range(0x100, 0x100 + 256 - len(_PRINTABLE)))))
