"""Top-K routing with quantile balancing: a bias per expert, set so that each would have had its equal share of tokens.

The bias decides which experts a token goes to; the weights of their outputs come from the unbiased logits. There is
no balancing loss and no rate to tune. Source: Marin's MoE recipe, whose selection and update this file follows.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.support import WEIGHT_SUM


class Routing(eqx.Module):
    """Where each of T tokens goes. Arrays are [expert, token] or [choice, token], so that tokens are contiguous.

    Attributes:
        logits: unbiased router logits, in float32.
        threshold: the (K+1)-th largest biased logit of each token; the K above it are chosen.
        chosen: whether a token goes to an expert, one plane for each of its K choices.
        experts: the K experts of each token, by falling biased logit.
        weights: their weights, which add up to WEIGHT_SUM.
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


def route(logits: Float[Array, "E T"], bias: Float[Array, " E"], top_k: int) -> Routing:
    """Return the routing of T tokens: selection on `logits + bias`, weights sigmoid(logits) rescaled to WEIGHT_SUM."""
    biased = jax.lax.stop_gradient(logits) + bias[:, None]
    ranks = _ranks(biased)
    chosen = ranks[None] == jnp.arange(top_k)[:, None, None]
    experts = jnp.sum(jnp.where(chosen, jnp.arange(logits.shape[0])[:, None], 0), axis=1, dtype=jnp.int32)
    # The rescaled sigmoids as a softmax of their logarithms: far from zero all K sigmoids of a token can be as small
    # as 1e-25, and the gradient of their plain ratio is then not a number (it ended a run at step 10,766 of 11,801).
    log_scores = jnp.sum(jnp.where(chosen, jax.nn.log_sigmoid(logits), 0.0), axis=1)
    weights = WEIGHT_SUM * jax.nn.softmax(log_scores, axis=0)
    if top_k < logits.shape[0]:
        threshold = jnp.sum(jnp.where(ranks == top_k, biased, 0.0), axis=0)
    else:
        threshold = jnp.min(biased, axis=0)
    return Routing(logits, threshold, chosen, experts, weights)


def balanced_bias(routing: Routing) -> Float[Array, " E"]:
    """Return the bias for the next step: minus the margin that T K / E tokens of this batch reach, mean removed.

    The margin of a token at an expert is its unbiased logit minus the token's threshold.
    """
    top_k, experts, tokens = routing.chosen.shape
    margins = jax.lax.stop_gradient(routing.logits - routing.threshold)
    share = max(1, tokens * top_k // experts)
    beta = jax.lax.top_k(margins, share)[0][:, -1]
    return jnp.mean(beta) - beta


def expert_load(routing: Routing) -> Float[Array, " E"]:
    """Return how many of the tokens' choices went to each expert; they add up to T K."""
    return jnp.sum(routing.chosen, axis=(0, 2), dtype=jnp.float32)


def load_entropy(load: Float[Array, " E"]) -> Float[Array, ""]:
    """Return the entropy, in nats, of the shares of the experts: log E when all have the same."""
    share = load / jnp.sum(load)
    return -jnp.sum(jax.scipy.special.xlogy(share, share))
