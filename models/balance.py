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


def _margins(routing: Routing) -> Float[Array, "E T"]:
    margins: Array = jax.lax.stop_gradient(routing.logits - routing.threshold)
    return margins


def balanced_bias(routing: Routing) -> Float[Array, " E"]:
    """Return the bias for the next step: minus the margin that T K / E tokens of this batch reach, mean removed.

    The margin of a token at an expert is its unbiased logit minus the token's threshold.
    """
    top_k, experts, tokens = routing.chosen.shape
    share = max(1, tokens * top_k // experts)
    beta = jax.lax.top_k(_margins(routing), share)[0][:, -1]
    return jnp.mean(beta) - beta


def histogram_bias(routing: Routing, bins: int) -> Float[Array, " E"]:
    """Return the bias of `balanced_bias` from counts in `bins` equal bins over the range of all margins.

    Counts add up over devices where order statistics do not. The margin is interpolated within the bin in which the
    count from the top reaches T K / E, so it is right to the width of a bin.
    """
    top_k, experts, tokens = routing.chosen.shape
    margins = _margins(routing)
    low, high = jnp.min(margins), jnp.max(margins)
    width = jnp.maximum((high - low) / bins, SMALLEST_WIDTH)
    place = jnp.clip(((margins - low) / width).astype(jnp.int32), 0, bins - 1)
    counts = jnp.zeros((experts, bins), jnp.int32).at[jnp.arange(experts)[:, None], place].add(1)
    from_top = jnp.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    share = tokens * top_k / experts
    last = jnp.sum(from_top >= share, axis=1) - 1  # counts from the top fall with the bin: the highest that has enough
    reached = jnp.take_along_axis(from_top, last[:, None], axis=1)[:, 0]
    inside = jnp.take_along_axis(counts, last[:, None], axis=1)[:, 0]
    beta = low + width * last + width * (reached - share) / jnp.maximum(inside, 1)
    return jnp.mean(beta) - beta


def next_bias(routing: Routing, bias: Float[Array, " E"], plan: RouterPlan) -> Float[Array, " E"]:
    """Return the bias for the next step under `plan`; zeros where nothing is balanced by a bias.

    The loss-free rule moves each expert's bias by `plan.rate` in the direction of its equal share.
    """
    match plan.balancing, plan.estimator:
        case "quantile", "topk":
            return balanced_bias(routing)
        case "quantile", "histogram":
            return histogram_bias(routing, plan.bins)
        case "bias", _:
            load = expert_load(routing)
            moved: Array = bias + plan.rate * jnp.sign(jnp.mean(load) - load)
            return moved
    return jnp.zeros_like(bias)


def router_penalty(routing: Routing, plan: RouterPlan) -> Float[Array, ""]:
    """Return what one router adds to the loss: its z-loss and, where experts are balanced by it, the auxiliary loss.

    The z-loss is the mean over tokens of the squared log-partition. The auxiliary loss is E times the sum over experts
    of load share and mean score share: 1 at perfect balance, E at worst for K = 1.
    """
    penalty = jnp.zeros(())
    if plan.z_loss:
        penalty += plan.z_loss * jnp.mean(jax.nn.logsumexp(routing.logits, axis=0) ** 2)
    if plan.balancing == "auxiliary":
        soft = plan.scores == "softmax"
        log_scores = routing.logits if soft else jax.nn.log_sigmoid(routing.logits)
        scores = jnp.mean(jax.nn.softmax(log_scores, axis=0), axis=1)
        load = expert_load(routing)
        penalty += plan.rate * len(load) * jnp.sum(load / jnp.sum(load) * scores)
    return penalty
