"""Balancing the experts: the bias for the next step, and the losses that act on the router.

Quantile balancing (QB) sets a bias with which each expert would have had its equal share of the batch; there is no
rate to tune. Its sources are Marin's MoE recipes, whose two estimators these are.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ladder.recipe_interface import RouterPlan
from models.router import Routing, expert_load

SMALLEST_WIDTH = 1e-30  # of a bin, where all margins are equal
Axes = tuple[str, ...]  # of the mesh over which tokens are split; empty on one device


def _margins(routing: Routing) -> Float[Array, "E T"]:
    margins: Array = jax.lax.stop_gradient(routing.logits - routing.threshold)
    return margins


def _quantile(margins: Float[Array, "E T"], top_k: int, axes: Axes) -> Float[Array, " E"]:
    """Return the margin that T K / E tokens of a device reach, the mean over devices."""
    experts, tokens = margins.shape
    beta: Array = jax.lax.top_k(margins, max(1, tokens * top_k // experts))[0][:, -1]
    return jax.lax.pmean(beta, axes) if axes else beta


def _histogram_quantile(margins: Float[Array, "E T"], top_k: int, bins: int, axes: Axes) -> Float[Array, " E"]:
    """Return the margin that T K / E tokens of all devices reach, from counts in `bins` bins."""
    experts, tokens = margins.shape
    low, high = jnp.min(margins), jnp.max(margins)
    if axes:
        low, high = jax.lax.pmin(low, axes), jax.lax.pmax(high, axes)
        tokens *= jax.lax.axis_size(axes)
    width = jnp.maximum((high - low) / bins, SMALLEST_WIDTH)
    place = jnp.clip(((margins - low) / width).astype(jnp.int32), 0, bins - 1)
    counts = jnp.zeros((experts, bins), jnp.int32).at[jnp.arange(experts)[:, None], place].add(1)
    counts = jax.lax.psum(counts, axes) if axes else counts
    from_top = jnp.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    share = tokens * top_k / experts
    last = jnp.sum(from_top >= share, axis=1) - 1  # counts from the top fall with the bin: the highest that has enough
    reached = jnp.take_along_axis(from_top, last[:, None], axis=1)[:, 0]
    inside = jnp.take_along_axis(counts, last[:, None], axis=1)[:, 0]
    return low + width * last + width * (reached - share) / jnp.maximum(inside, 1)


def _centred(beta: Float[Array, " E"]) -> Float[Array, " E"]:
    return jnp.mean(beta) - beta


def balanced_bias(routing: Routing) -> Float[Array, " E"]:
    """Return the bias for the next step: minus the margin that T K / E tokens of this batch reach, mean removed.

    The margin of a token at an expert is its unbiased logit minus the token's threshold.
    """
    return _centred(_quantile(_margins(routing), len(routing.chosen), ()))


def histogram_bias(routing: Routing, bins: int) -> Float[Array, " E"]:
    """Return the bias of `balanced_bias` from counts in `bins` equal bins over the range of all margins.

    Counts add up over devices where order statistics do not. The margin is interpolated within the bin in which the
    count from the top reaches T K / E, so it is right to the width of a bin.
    """
    return _centred(_histogram_quantile(_margins(routing), len(routing.chosen), bins, ()))


def next_bias(routing: Routing, bias: Float[Array, " E"], plan: RouterPlan) -> Float[Array, " E"]:
    """Return the bias for the next step under `plan`; zeros where nothing is balanced by a bias.

    The loss-free rule moves each expert's bias by `plan.rate` in the direction of its equal share.
    """
    return bias_after(_margins(routing), expert_load(routing), bias, len(routing.chosen), plan)


def bias_after(
    margins: Float[Array, "E T"],
    load: Float[Array, " E"],
    bias: Float[Array, " E"],
    top_k: int,
    plan: RouterPlan,
    axes: Axes = (),
) -> Float[Array, " E"]:
    """Return what `next_bias` says, of margins and loads at hand.

    With `axes`, margins are those of one device's tokens inside a `shard_map` over these axes, and load is of all: exact
    quantiles are then taken on each device and averaged, as Marin's recipes do, and histograms added up.
    """
    match plan.balancing, plan.estimator:
        case "quantile", "topk":
            return _centred(_quantile(margins, top_k, axes))
        case "quantile", "histogram":
            return _centred(_histogram_quantile(margins, top_k, plan.bins, axes))
        case "bias", _:
            moved: Array = bias + plan.rate * jnp.sign(jnp.mean(load) - load)
            return moved
    return jnp.zeros_like(bias)


def router_penalty(routing: Routing, plan: RouterPlan) -> Float[Array, ""]:
    """Return what one router adds to the loss; see `penalty_of`."""
    return penalty_of(routing.logits, expert_load(routing), plan, axis=0)


def penalty_of(
    logits: Float[Array, "n m"], load: Float[Array, " E"], plan: RouterPlan, *, axis: int
) -> Float[Array, ""]:
    """Return a router's z-loss and, where experts are balanced by it, its auxiliary loss.

    The z-loss is the mean over tokens of the squared log-partition. The auxiliary loss is E times the sum over experts
    of load share and mean score share: 1 at perfect balance, E at worst for K = 1.

    Arguments:
        logits: of all tokens, unbiased; experts lie along `axis`.
    """
    penalty = jnp.zeros(())
    if plan.z_loss:
        penalty += plan.z_loss * jnp.mean(jax.nn.logsumexp(logits, axis=axis) ** 2)
    if plan.balancing == "auxiliary":
        log_scores = logits if plan.scores == "softmax" else jax.nn.log_sigmoid(logits)
        scores = jnp.mean(jax.nn.softmax(log_scores, axis=axis), axis=1 - axis)
        penalty += plan.rate * len(load) * jnp.sum(load / jnp.sum(load) * scores)
    return penalty
