"""Evaluation on held-out text: dropless, on fixed windows, in nats per token and bits per byte."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from models.data import eval_windows
from models.experts import dense
from models.record import Evaluation
from models.transformer import Transformer, token_losses

WINDOWS_AT_ONCE = 64  # 4096 tokens: larger batches are slower once their activations leave the cache
GROUPS_AT_ONCE = 8  # in one dispatch: the validation text of the tiny recipe, a quarter of its test text


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
    # A last call that is not full is filled up with the first window and the surplus cut off again, so that texts of
    # any length are evaluated by one compiled program.
    missing = -count % (GROUPS_AT_ONCE * WINDOWS_AT_ONCE)
    padded = np.concatenate([windows, np.repeat(windows[:1], missing, axis=0)])
    calls = padded.reshape(-1, GROUPS_AT_ONCE, WINDOWS_AT_ONCE, windows.shape[1])
    found = [np.asarray(_window_losses(params, bias, jnp.asarray(groups)), np.float64) for groups in calls]
    losses = np.concatenate(found, axis=None)[:count]
    mean = float(losses.mean())
    return Evaluation(mean, float(losses.std(ddof=1) / math.sqrt(count)), mean / math.log(2), count)
