"""Evaluation on a pod: the same windows as `models.evaluate`, dropless on any mesh."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, UInt, UInt16

from ladder.errors import UnusableError
from models.data import eval_windows
from models.evaluate import summary_of
from models.losses import chunked_losses
from models.mesh import BATCH, place_rows
from models.pod import hidden_states
from models.pod_layers import PodOptions, whole
from models.record import Evaluation
from models.transformer import WHOLE_VOCABULARY, Transformer


@partial(jax.jit, static_argnums=(3, 4))
def window_losses(
    params: Transformer, bias: Float[Array, "L E"], windows: Int[Array, "W S1"], mesh: Mesh, options: PodOptions
) -> tuple[Float[Array, " W"], Float[Array, ""]]:
    """Return the mean cross-entropy of each window in nats per token, and how many choices were dropped."""
    states, stats = hidden_states(params, bias, windows[:, :-1], mesh, options)
    head = whole(params.head, states)

    def local(states: Array, head: Array, targets: Array) -> Array:
        rows = states.reshape(-1, states.shape[-1]).astype(jnp.float32)
        chunk = min(WHOLE_VOCABULARY, head.shape[1])
        losses, _ = chunked_losses(rows, head.astype(jnp.float32), targets.reshape(-1), chunk)
        return jnp.mean(losses.reshape(targets.shape), axis=1)

    split = P(BATCH, None)
    losses: Array = jax.shard_map(
        local, mesh=mesh, in_specs=(P(BATCH, None, None), P(None, None), split), out_specs=P(BATCH), check_vma=False
    )(states, head, windows[:, 1:])
    return jax.sharding.reshard(losses, P(None)), jnp.sum(stats.dropped)


def dropless(options: PodOptions, mesh: Mesh) -> PodOptions:
    """Return `options` with a slot for every choice, whoever gets it: a ring whose devices hold all that could come."""
    axis = mesh.shape["expert"]
    return replace(options, backend="ring" if axis > 1 else "scatter", capacity_factor=float(axis), accumulation=1)


def evaluate_on_pod(
    params: Transformer,
    bias: Float[Array, "L E"],
    text: UInt[np.ndarray, " tokens"],
    limit: int,
    token_bytes: UInt16[np.ndarray, " V"],
    mesh: Mesh,
    options: PodOptions,
) -> Evaluation:
    """Return what `models.evaluate.evaluate` returns, two windows on a device at a time.

    Raises UnusableError where a choice was dropped all the same: such a loss must not enter a fit.
    """
    windows = eval_windows(text, params.shape.seq_len, limit)
    count, at_once = len(windows), 2 * mesh.size
    padded = np.concatenate([windows, np.repeat(windows[:1], -count % at_once, axis=0)]).astype(np.int32)
    found, dropped = [], 0.0
    for first in range(0, len(padded), at_once):
        rows = place_rows(padded[first : first + at_once], mesh)
        losses, lost = window_losses(params, bias, rows, mesh, dropless(options, mesh))
        found.append(np.asarray(losses, np.float64))
        dropped += float(lost)
    if dropped:
        raise UnusableError(f"{dropped:g} choices were dropped in evaluation, so its loss is not that of the model.")
    return summary_of(np.concatenate(found)[:count], windows, token_bytes)
