"""The decoder-only Mixture-of-Experts transformer and its next-token loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ladder.counts import count_params
from ladder.shape import MoeShape
from models.attention import Attention
from models.experts import Dispatch, Experts, swiglu
from models.layers import Draw, rms_norm
from models.router import balanced_bias, expert_load, load_entropy, route


class RouterStats(eqx.Module):
    """What the routers of L layers did with one batch.

    Attributes:
        next_bias: quantile-balancing bias for the next step.
        load: choices per expert.
        entropy: of the experts' shares of the load, in nats.
        dropped: choices that found no free slot.
    """

    next_bias: Float[Array, "*L E"]
    load: Float[Array, "*L E"]
    entropy: Float[Array, "*L"]
    dropped: Float[Array, "*L"]


class Block(eqx.Module):
    """Attention, then routed and shared experts side by side; each on the normalised residual stream."""

    attention_norm: Float[Array, " d"]
    attention: Attention
    expert_norm: Float[Array, " d"]
    router: Float[Array, "d E"]
    experts: Experts
    shared: Experts

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Block":
        """Return a block with fresh weights and gains of one."""
        gain = jnp.ones(shape.hidden)
        return Block(
            gain,
            Attention.init(shape, draw),
            gain,
            draw.matrix(shape.hidden, shape.experts),
            Experts.init(shape.experts, shape.hidden, shape.expert_width, draw),
            Experts.init(shape.shared_experts, shape.hidden, shape.shared_width, draw),
        )

    def __call__(
        self, x: Float[Array, "B S d"], bias: Float[Array, " E"], top_k: int, dispatch: Dispatch
    ) -> tuple[Float[Array, "B S d"], RouterStats]:
        """Return the residual stream after this block, and what its router did (without the axis of layers)."""
        x = x + self.attention(rms_norm(x) * self.attention_norm)
        inputs = (rms_norm(x) * self.expert_norm).reshape(-1, x.shape[-1])
        routing = route(jnp.einsum("de,td->et", self.router, inputs), bias, top_k)
        outputs, dropped = dispatch(self.experts, inputs, routing)
        for gate_up, down in zip(self.shared.gate_up, self.shared.down, strict=True):
            outputs = outputs + swiglu(inputs @ gate_up) @ down
        load = expert_load(routing)
        stats = RouterStats(balanced_bias(routing), load, load_entropy(load), dropped)
        return x + outputs.reshape(x.shape), stats


class Transformer(eqx.Module):
    """Embedding, L blocks, a last norm and an untied head. Leaves add up to `ladder.counts.count_params`."""

    embedding: Float[Array, "V d"]
    blocks: tuple[Block, ...]
    head_norm: Float[Array, " d"]
    head: Float[Array, "d V"]
    shape: MoeShape = eqx.field(static=True)

    @staticmethod
    def init(shape: MoeShape, *, key: PRNGKeyArray) -> "Transformer":
        """Return a model with fresh weights; see `models.layers.Draw` for their scale."""
        draw = Draw(count_params(shape).total, key=key)
        return Transformer(
            draw.matrix(shape.hidden, shape.vocab_size).T,
            tuple(Block.init(shape, draw) for _ in range(shape.layers)),
            jnp.ones(shape.hidden),
            draw.matrix(shape.hidden, shape.vocab_size),
            shape,
        )

    def __call__(
        self, tokens: Int[Array, "B S"], bias: Float[Array, "L E"], dispatch: Dispatch
    ) -> tuple[Float[Array, "B S V"], RouterStats]:
        """Return the logits of each next token and what the routers did.

        Arguments:
            tokens: token numbers below V.
            bias: quantile-balancing bias of each layer, from the step before; zeros at first.
            dispatch: how the routed experts are run.
        """
        x = self.embedding[tokens]
        stats = []
        for block, layer_bias in zip(self.blocks, bias, strict=True):
            x, layer_stats = block(x, layer_bias, self.shape.top_k, dispatch)
            stats.append(layer_stats)
        stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *stats)
        return (rms_norm(x) * self.head_norm) @ self.head, stacked


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
