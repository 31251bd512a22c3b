"""Evaluation on held-out text: dropless, on fixed windows, in nats per token and bits per byte."""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt, UInt16

from models.data import EVAL_TOKENS, Corpus, HeldOut, eval_windows
from models.experts import dense
from models.record import Evaluation
from models.transformer import Transformer, token_losses

WINDOWS_AT_ONCE = 64  # 4096 tokens: larger batches are slower once their activations leave the cache
GROUPS_AT_ONCE = 8  # in one dispatch: the validation text of the tiny recipe, a quarter of its test text


@jax.jit
def _window_losses(
    params: Transformer,
    bias: Float[Array, "L E"],
    windows: UInt[Array, "groups W S1"],
    separator: Int[Array, ""] | None,
) -> Float[Array, "groups W"]:
    def group(tokens: UInt[Array, "W S1"]) -> Float[Array, " W"]:
        numbers = tokens.astype(jnp.int32)
        logits, _ = params(numbers[:, :-1], bias, dense, separator)
        return jnp.mean(token_losses(logits, numbers[:, 1:])[0], axis=1)

    losses: Array = jax.lax.map(group, windows)
    return losses


def evaluate(
    params: Transformer,
    bias: Float[Array, "L E"],
    text: UInt[np.ndarray, " tokens"],
    limit: int,
    token_bytes: UInt16[np.ndarray, " V"],
    separator: Int[Array, ""] | None = None,
) -> Evaluation:
    """Return the loss of a model, with the router bias it trained with, on the fixed windows of `text`, `limit` tokens.

    Bits per byte are the nats of all predicted tokens over ln 2 and over the bytes of text that those tokens stand for
    by `token_bytes`; separators cost nats and stand for no bytes, unless bytes are the tokens. With a `separator` a token
    attends to its own document alone.
    """
    windows = eval_windows(text, params.shape.seq_len, limit)
    count = len(windows)
    # A last call that is not full is filled up with the first window and the surplus cut off again, so that texts of
    # any length are evaluated by one compiled program.
    missing = -count % (GROUPS_AT_ONCE * WINDOWS_AT_ONCE)
    padded = np.concatenate([windows, np.repeat(windows[:1], missing, axis=0)])
    calls = padded.reshape(-1, GROUPS_AT_ONCE, WINDOWS_AT_ONCE, windows.shape[1])
    found = [np.asarray(_window_losses(params, bias, jnp.asarray(groups), separator), np.float64) for groups in calls]
    losses = np.concatenate(found, axis=None)[:count]
    return summary_of(losses, windows, token_bytes)


def summary_of(
    losses: Float[np.ndarray, " windows"],
    windows: UInt[np.ndarray, "windows S1"],
    token_bytes: UInt16[np.ndarray, " V"],
) -> Evaluation:
    """Return the evaluation that the mean losses of windows, in nats per token, amount to; see `evaluate`."""
    mean, predicted = float(losses.mean()), windows[:, 1:]
    tokens_per_byte = predicted.size / int(token_bytes[predicted].sum())
    error = float(losses.std(ddof=1) / math.sqrt(len(losses)))
    return Evaluation(mean, error, mean / math.log(2) * tokens_per_byte, len(losses))


def evaluate_all(params: Transformer, bias: Float[Array, "L E"], corpus: Corpus) -> dict[str, Evaluation]:
    """Return the loss on every held-out text by name, with the means of `with_macro_means`."""
    separator = None if corpus.mixture.separator is None else jnp.int32(corpus.mixture.separator)

    def of(text: HeldOut) -> Evaluation:
        return evaluate(params, bias, text.tokens, EVAL_TOKENS[text.split], corpus.token_bytes, separator)

    return with_macro_means({text.name: of(text) for text in corpus.held_out}, corpus)


def with_macro_means(found: Mapping[str, Evaluation], corpus: Corpus) -> dict[str, Evaluation]:
    """Return evaluations of all held-out texts by name and, where there are several domains, each split's mean over them.

    The mean is the macro loss: every domain counts the same, whatever its size and weight.
    """
    by_split: dict[str, list[Evaluation]] = {}
    for text in corpus.held_out:
        by_split.setdefault(text.split, []).append(found[text.name])
    return {split: macro_mean(parts) for split, parts in by_split.items()} | dict(found)


def macro_mean(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the mean of some evaluations, each counted the same, with the standard error of independent ones."""
    count = len(parts)
    return Evaluation(
        sum(part.nats_per_token for part in parts) / count,
        math.sqrt(sum(part.standard_error**2 for part in parts)) / count,
        sum(part.bits_per_byte for part in parts) / count,
        sum(part.windows for part in parts),
    )
