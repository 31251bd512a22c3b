"""The decoder-only Mixture-of-Experts transformer and its next-token loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ladder.counts import count_params
from ladder.shape import MoeShape
from models.attention import Attention
from models.experts import Dispatch, Experts, swiglu
from models.layers import Draw, linear, rms_norm
from models.router import balanced_bias, expert_load, load_entropy, route

UNROLLED_LAYERS = 8  # up to here layers are unrolled: a loop over two took a quarter longer a step on a CPU


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
    """Attention, then routed and shared experts side by side; each on the normalised residual stream.

    The model holds all its blocks as one, each leaf with a leading axis of layers.
    """

    attention_norm: Float[Array, "*L d"]
    attention: Attention
    expert_norm: Float[Array, "*L d"]
    router: Float[Array, "*L d E"]
    experts: Experts
    shared: Experts

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Block":
        """Return the blocks of all layers, stacked, with fresh weights and gains of one."""
        gain = jnp.ones((shape.layers, shape.hidden))
        return Block(
            gain,
            Attention.init(shape, draw),
            gain,
            draw.matrix(shape.layers, shape.hidden, shape.experts),
            Experts.init((shape.layers, shape.experts), shape.hidden, shape.expert_width, draw),
            Experts.init((shape.layers, shape.shared_experts), shape.hidden, shape.shared_width, draw),
        )

    def __call__(
        self, x: Float[Array, "B S d"], bias: Float[Array, " E"], top_k: int, dispatch: Dispatch
    ) -> tuple[Float[Array, "B S d"], RouterStats]:
        """Return the residual stream after this block, and what its router did (without the axis of layers)."""
        rows = x.reshape(-1, x.shape[-1])
        x = x + self.attention(rms_norm(rows, self.attention_norm).reshape(x.shape))
        inputs = rms_norm(x.reshape(rows.shape), self.expert_norm)
        routing = route(linear(inputs, self.router).T, bias, top_k)
        outputs, dropped = dispatch(self.experts, inputs, routing)
        for gate_up, down in zip(self.shared.gate_up, self.shared.down, strict=True):
            outputs = outputs + linear(swiglu(linear(inputs, gate_up)), down)
        load = expert_load(routing)
        stats = RouterStats(balanced_bias(routing), load, load_entropy(load), dropped)
        return x + outputs.reshape(x.shape), stats


class Transformer(eqx.Module):
    """Embedding, L blocks, a last norm and an untied head. Leaves add up to `ladder.counts.count_params`."""

    embedding: Float[Array, "V d"]
    blocks: Block
    head_norm: Float[Array, " d"]
    head: Float[Array, "d V"]
    shape: MoeShape = eqx.field(static=True)

    @staticmethod
    def init(shape: MoeShape, *, key: PRNGKeyArray) -> "Transformer":
        """Return a model with fresh weights; see `models.layers.Draw` for their scale."""
        draw = Draw(count_params(shape).total, key=key)
        return Transformer(
            draw.matrix(shape.hidden, shape.vocab_size).T,
            Block.init(shape, draw),
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

        def layer(
            x: Float[Array, "B S d"], block_and_bias: tuple[Block, Float[Array, " E"]]
        ) -> tuple[Float[Array, "B S d"], RouterStats]:
            block, layer_bias = block_and_bias
            return block(x, layer_bias, self.shape.top_k, dispatch)

        unroll = self.shape.layers <= UNROLLED_LAYERS
        x, stats = jax.lax.scan(layer, x, (self.blocks, bias), unroll=unroll)
        outputs = rms_norm(x.reshape(-1, x.shape[-1]), self.head_norm)
        return linear(outputs, self.head).reshape(*tokens.shape, -1), stats


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
