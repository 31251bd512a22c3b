"""Top-K routing: which experts a token goes to, and the weights of their outputs.

A bias per expert decides, with the logits, which experts a token goes to; the weights come from the unbiased logits.
How the bias is found is in `models.balance`. Source: Marin's MoE recipe, whose selection this file follows.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ladder.recipe_interface import RouterPlan
from models.support import TINY_ROUTER

FEW_EXPERTS = 32  # up to here comparing all pairs finds the ranks faster than a sort on a CPU


class Routing(eqx.Module):
    """Where each of T tokens goes. Arrays are [expert, token] or [choice, token], so that tokens are contiguous.

    Attributes:
        logits: unbiased router logits, in float32.
        threshold: the (K+1)-th largest biased logit of each token; the K above it are chosen.
        chosen: whether a token goes to an expert, one plane for each of its K choices.
        experts: the K experts of each token, by falling biased logit.
        weights: their weights.
    """

    logits: Float[Array, "E T"]
    threshold: Float[Array, " T"]
    chosen: Bool[Array, "K E T"]
    experts: Int[Array, "K T"]
    weights: Float[Array, "K T"]


def _ranks(values: Float[Array, "E T"]) -> Int[Array, "E T"]:
    """Return the place of each expert in its token's order, largest first; of equals the first expert wins.

    E comparisons per value; at 8 experts and 256 tokens a twentieth of the time that top_k takes on a CPU.
    """
    experts = values.shape[0]
    first = jnp.arange(experts)
    tie = first[:, None] < first[None, :]
    above = (values[:, None] > values[None, :]) | ((values[:, None] == values[None, :]) & tie[..., None])
    return jnp.sum(above, axis=0, dtype=jnp.int32)


def _selected(biased: Float[Array, "E T"], top_k: int) -> tuple[Bool[Array, "K E T"], Int[Array, "K T"], Array]:
    experts = biased.shape[0]
    if experts <= FEW_EXPERTS:
        ranks = _ranks(biased)
        chosen = ranks[None] == jnp.arange(top_k)[:, None, None]
        numbers = jnp.sum(jnp.where(chosen, jnp.arange(experts)[:, None], 0), axis=1, dtype=jnp.int32)
        if top_k < experts:
            return chosen, numbers, jnp.sum(jnp.where(ranks == top_k, biased, 0.0), axis=0)
        return chosen, numbers, jnp.min(biased, axis=0)
    values, order = jax.lax.top_k(biased.T, min(top_k + 1, experts))
    numbers = order.T[:top_k].astype(jnp.int32)
    return numbers[:, None] == jnp.arange(experts)[:, None], numbers, values[:, -1]


def log_scores(logits: Float[Array, "n m"], plan: RouterPlan, *, axis: int) -> Float[Array, "n m"]:
    """Return the logarithms of the scores, sigmoids or softmax, of unbiased logits; experts lie along `axis`."""
    return jax.nn.log_sigmoid(logits) if plan.scores == "sigmoid" else jax.nn.log_softmax(logits, axis=axis)


def combine_weights(picked: Float[Array, "n m"], plan: RouterPlan, *, axis: int) -> Float[Array, "n m"]:
    """Return the weights of the chosen experts from the logarithms of their scores; choices lie along `axis`."""
    if not plan.weight_sum:
        return jnp.exp(picked)
    # The rescaled scores as a softmax of their logarithms: far from zero all K sigmoids of a token can be as small
    # as 1e-25, and the gradient of their plain ratio is then not a number (it ended a run at step 10,766 of 11,801).
    rescaled: Array = plan.weight_sum * jax.nn.softmax(picked, axis=axis)
    return rescaled


def route(logits: Float[Array, "E T"], bias: Float[Array, " E"], top_k: int, plan: RouterPlan = TINY_ROUTER) -> Routing:
    """Return the routing of T tokens: selection on `logits + bias`, weights as `plan` has them.

    Weights are sigmoid(logits) or softmax(logits) over all experts, those of the K chosen rescaled to add up to
    `plan.weight_sum` where that is not 0.
    """
    biased = jax.lax.stop_gradient(logits) + bias[:, None]
    # Without the barrier the compiler may work the sum out twice with different rounding, once on each side of a
    # comparison; two experts then take the same rank and a token loses a choice.
    biased = jax.lax.optimization_barrier(biased)
    chosen, experts, threshold = _selected(biased, top_k)
    picked = jnp.sum(jnp.where(chosen, log_scores(logits, plan, axis=0), 0.0), axis=1)
    return Routing(logits, threshold, chosen, experts, combine_weights(picked, plan, axis=0))


def expert_load(routing: Routing) -> Float[Array, " E"]:
    """Return how many of the tokens' choices went to each expert; they add up to T K."""
    return jnp.sum(routing.chosen, axis=(0, 2), dtype=jnp.float32)


def load_entropy(load: Float[Array, " E"]) -> Float[Array, ""]:
    """Return the entropy, in nats, of the shares of the experts: log E when all have the same."""
    share = load / jnp.sum(load)
    return -jnp.sum(jax.scipy.special.xlogy(share, share))
