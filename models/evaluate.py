"""Evaluation on held-out text: dropless, on fixed windows, in nats per token and bits per byte."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from models.data import eval_windows
from models.experts import dense
from models.transformer import Transformer, token_losses

WINDOWS_AT_ONCE = 64  # 4096 tokens: larger batches are slower once their activations leave the cache


@dataclass(frozen=True)
class Evaluation:
    """A loss on one held-out text.

    Attributes:
        nats_per_token: mean cross-entropy.
        standard_error: of that mean, over windows taken as independent.
        bits_per_byte: the same in bits over the bytes of the predicted text.
        windows: windows of S predictions.
    """

    nats_per_token: float
    standard_error: float
    bits_per_byte: float
    windows: int


@jax.jit
def _window_losses(
    params: Transformer, bias: Float[Array, "L E"], windows: UInt8[Array, "groups W S1"]
) -> Float[Array, "groups W"]:
    def group(tokens: UInt8[Array, "W S1"]) -> Float[Array, " W"]:
        numbers = tokens.astype(jnp.int32)
        logits, _ = params(numbers[:, :-1], bias, dense)
        return jnp.mean(token_losses(logits, numbers[:, 1:])[0], axis=1)

    losses: Array = jax.lax.map(group, windows)
    return losses


def evaluate(
    params: Transformer, bias: Float[Array, "L E"], text: UInt8[np.ndarray, " bytes"], limit: int
) -> Evaluation:
    """Return the loss of a model, with the router bias it trained with, on the fixed windows of `text`, `limit` bytes.

    One byte is one token, so bits per byte are nats per token over ln 2.
    """
    windows = eval_windows(text, params.shape.seq_len, limit)
    count = len(windows)
    # A last group that is not full is filled up with its first window and the surplus cut off again.
    missing = -count % WINDOWS_AT_ONCE
    padded = np.concatenate([windows, np.repeat(windows[:1], missing, axis=0)])
    groups = padded.reshape(-1, WINDOWS_AT_ONCE, windows.shape[1])
    losses = np.asarray(_window_losses(params, bias, jnp.asarray(groups)), np.float64).reshape(-1)[:count]
    mean = float(losses.mean())
    return Evaluation(mean, float(losses.std(ddof=1) / math.sqrt(count)), mean / math.log(2), count)
