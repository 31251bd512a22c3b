"""The next-token loss: from logits, or from the model's outputs with the head applied a chunk of the vocabulary a time."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.custom_vjp
def token_losses(
    logits: Float[Array, "B S V"], targets: Int[Array, "B S"]
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Return, for each position, the cross-entropy of its target in nats and the log-partition of its logits."""
    return _token_losses_fwd(logits, targets)[0]


def _token_losses_fwd(
    logits: Float[Array, "B S V"], targets: Int[Array, "B S"]
) -> tuple[tuple[Float[Array, "B S"], Float[Array, "B S"]], tuple[Float[Array, "B S V"], Int[Array, "B S"]]]:
    top = jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.exp(logits - top)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    partition = (top + jnp.log(total))[..., 0]
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (partition - picked, partition), (powers / total, targets)


def _token_losses_bwd(
    saved: tuple[Float[Array, "B S V"], Int[Array, "B S"]],
    grads: tuple[Float[Array, "B S"], Float[Array, "B S"]],
) -> tuple[Float[Array, "B S V"], None]:
    # Keeping the probabilities saves the second pass of exponentials that automatic differentiation makes.
    probabilities, targets = saved
    to_loss, to_partition = grads
    hit = jnp.arange(probabilities.shape[-1]) == targets[..., None]
    return (to_loss + to_partition)[..., None] * probabilities - jnp.where(hit, to_loss[..., None], 0.0), None


token_losses.defvjp(_token_losses_fwd, _token_losses_bwd)


def _chunk(head: Float[Array, "d V"], start: Int[Array, ""], size: int) -> tuple[Array, Array, Array]:
    """Return columns of the head, the number of each, and whether it is new: the last chunk overlaps the one before."""
    first = jnp.minimum(start, head.shape[1] - size)
    numbers = first + jnp.arange(size)
    return jax.lax.dynamic_slice_in_dim(head, first, size, axis=1), numbers, numbers >= start


def _starts(vocab: int, size: int) -> Int[Array, " chunks"]:
    return jnp.arange(0, vocab, size)


_Losses = tuple[Float[Array, " n"], Float[Array, " n"]]
_Kept = tuple[Float[Array, "n d"], Float[Array, "d V"], Int[Array, " n"], Float[Array, " n"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def chunked_losses(x: Float[Array, "n d"], head: Float[Array, "d V"], targets: Int[Array, " n"], chunk: int) -> _Losses:
    """Return what `token_losses` says of the logits `x @ head`, which never exist whole.

    Arguments:
        chunk: columns of the head at a time, at most V; V need not be a multiple of it.

    The gradient makes each chunk of logits anew, so that memory is n times `chunk`.
    """
    return _chunked_fwd(x, head, targets, chunk)[0]


def _chunked_fwd(
    x: Float[Array, "n d"], head: Float[Array, "d V"], targets: Int[Array, " n"], chunk: int
) -> tuple[_Losses, _Kept]:
    def add(carry: tuple[Array, Array, Array], start: Int[Array, ""]) -> tuple[tuple[Array, Array, Array], None]:
        top, total, picked = carry
        columns, numbers, new = _chunk(head, start, chunk)
        logits = jnp.where(new, x @ columns, -jnp.inf)
        higher = jnp.maximum(top, jnp.max(logits, axis=1))
        total = total * jnp.exp(top - higher) + jnp.sum(jnp.exp(logits - higher[:, None]), axis=1)
        hit = (numbers == targets[:, None]) & new
        return (higher, total, picked + jnp.sum(jnp.where(hit, logits, 0.0), axis=1)), None

    zeros = jnp.zeros(len(x))
    (top, total, picked), _ = jax.lax.scan(add, (zeros - jnp.inf, zeros, zeros), _starts(head.shape[1], chunk))
    partition = top + jnp.log(total)
    return (partition - picked, partition), (x, head, targets, partition)


def _chunked_bwd(chunk: int, kept: _Kept, grads: _Losses) -> tuple[Array, Array, None]:
    x, head, targets, partition = kept
    to_loss, to_partition = grads
    both = (to_loss + to_partition)[:, None]

    def add(carry: tuple[Array, Array], start: Int[Array, ""]) -> tuple[tuple[Array, Array], None]:
        to_x, to_head = carry
        columns, numbers, new = _chunk(head, start, chunk)
        probabilities = jnp.where(new, jnp.exp(x @ columns - partition[:, None]), 0.0)
        hit = (numbers == targets[:, None]) & new
        to_logits = both * probabilities - jnp.where(hit, to_loss[:, None], 0.0)
        old = jax.lax.dynamic_slice_in_dim(to_head, numbers[0], chunk, axis=1)
        to_head = jax.lax.dynamic_update_slice_in_dim(to_head, old + x.T @ to_logits, numbers[0], axis=1)
        return (to_x + to_logits @ columns.T, to_head), None

    zeros = (jnp.zeros_like(x), jnp.zeros_like(head))
    (to_x, to_head), _ = jax.lax.scan(add, zeros, _starts(head.shape[1], chunk))
    return to_x, to_head, None


chunked_losses.defvjp(_chunked_fwd, _chunked_bwd)
