"""The decoder-only transformer, dense or Mixture-of-Experts, of every shape in `ladder.shape`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ladder.counts import count_params
from ladder.recipe_interface import RouterPlan
from ladder.shape import MoeShape
from models.attention import Attention
from models.balance import next_bias, router_penalty
from models.experts import Dispatch, Experts, swiglu
from models.layers import Draw, GatedNorm, causal_conv, gated_norm, identity_conv, linear, rms_norm
from models.losses import chunked_losses
from models.losses import token_losses as token_losses
from models.router import expert_load, load_entropy, route
from models.support import TINY_ROUTER

UNROLLED_LAYERS = 8  # up to here layers are unrolled: a loop over two took a quarter longer a step on a CPU
WHOLE_VOCABULARY = 4096  # up to here all logits are made at once, above in chunks of as many


class RouterStats(eqx.Module):
    """What the routers of L layers did with one batch.

    Attributes:
        next_bias: balancing bias for the next step.
        load: choices per expert.
        entropy: of the experts' shares of the load, in nats.
        dropped: choices that found no free slot.
        penalty: what the router adds to the loss.
    """

    next_bias: Float[Array, "*L E"]
    load: Float[Array, "*L E"]
    entropy: Float[Array, "*L"]
    dropped: Float[Array, "*L"]
    penalty: Float[Array, "*L"]


class Latent(eqx.Module):
    """The latent in which routed experts live (LatentMoE): a projection down with a norm after it, and one up."""

    latent_down: Float[Array, "*L d l"]
    latent_norm: Float[Array, "*L l"]
    latent_up: Float[Array, "*L l d"]

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Latent | None":
        """Return the latents of all layers, stacked, or None where `shape` has none."""
        if not shape.latent_width:
            return None
        down = draw.matrix(shape.layers, shape.hidden, shape.latent_width)
        gain = jnp.ones((shape.layers, shape.latent_width))
        return Latent(down, gain, draw.matrix(shape.layers, shape.latent_width, shape.hidden))


class Block(eqx.Module):
    """Attention, then routed and shared experts side by side; each on the normalised residual stream.

    The model holds all its blocks as one, each leaf with a leading axis of layers; a part that the shape has not is
    None. A dense model has no router and no routed experts.
    """

    attention_norm: Float[Array, "*L d"]
    attention_gate: GatedNorm | None
    attention: Attention
    expert_norm: Float[Array, "*L d"]
    expert_gate: GatedNorm | None
    router: Float[Array, "*L d E"] | None
    experts: Experts | None
    shared: Experts
    latent: Latent | None
    mlp_conv: Float[Array, "*L n d"] | None

    @staticmethod
    def init(shape: MoeShape, draw: Draw) -> "Block":
        """Return the blocks of all layers, stacked, with fresh weights and gains of one."""
        layers, hidden, rank = shape.layers, shape.hidden, shape.gated_norm_rank
        gain = jnp.ones((layers, hidden))
        attention = Attention.init(shape, draw)
        router = None if shape.dense else draw.matrix(layers, hidden, shape.experts)
        stack = (layers, shape.experts)
        experts = None if shape.dense else Experts.init(stack, shape.expert_input, shape.expert_width, draw)
        shared = Experts.init((layers, shape.shared_experts), hidden, shape.shared_width, draw)
        return Block(
            attention_norm=gain,
            attention_gate=GatedNorm.init((layers,), hidden, rank, draw),
            attention=attention,
            expert_norm=gain,
            expert_gate=GatedNorm.init((layers,), hidden, rank, draw),
            router=router,
            experts=experts,
            shared=shared,
            latent=Latent.init(shape, draw),
            mlp_conv=identity_conv(layers, shape.short_conv, hidden),
        )

    def __call__(
        self,
        x: Float[Array, "B S d"],
        bias: Float[Array, " E"],
        is_global: Bool[Array, ""],
        plan: RouterPlan,
        top_k: int,
        dispatch: Dispatch,
        documents: Int[Array, "B S"] | None = None,
    ) -> tuple[Float[Array, "B S d"], RouterStats]:
        """Return the residual stream after this block, and what its router did (without the axis of layers)."""
        rows = x.reshape(-1, x.shape[-1])
        normed = gated_norm(rows, self.attention_norm, self.attention_gate)
        x = x + self.attention(normed.reshape(x.shape), is_global, documents)
        inputs = gated_norm(x.reshape(rows.shape), self.expert_norm, self.expert_gate)
        parts = []
        stats = RouterStats(bias, bias, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))
        if self.router is not None and self.experts is not None:
            routing = route(linear(inputs, self.router).T, bias, top_k, plan)
            routed, dropped = dispatch(self.experts, self._expert_inputs(inputs), routing)
            parts.append(routed if self.latent is None else linear(routed, self.latent.latent_up))
            load = expert_load(routing)
            penalty = router_penalty(routing, plan)
            stats = RouterStats(next_bias(routing, bias, plan), load, load_entropy(load), dropped, penalty)
        for gate_up, down in zip(self.shared.gate_up, self.shared.down, strict=True):
            parts.append(linear(swiglu(linear(inputs, gate_up)), down))
        outputs = functools.reduce(jnp.add, parts).reshape(x.shape)
        return x + (outputs if self.mlp_conv is None else causal_conv(outputs, self.mlp_conv)), stats

    def _expert_inputs(self, inputs: Float[Array, "T d"]) -> Float[Array, "T l"]:
        if self.latent is None:
            return inputs
        return rms_norm(linear(inputs, self.latent.latent_down), self.latent.latent_norm)


def documents_of(tokens: Int[Array, "B S"], separator: Int[Array, ""]) -> Int[Array, "B S"]:
    """Return the number of each position's document within its row, from 0; a separator belongs to the one it ends."""
    ends = (tokens == separator).astype(jnp.int32)
    return jnp.cumsum(ends, axis=1) - ends


class Transformer(eqx.Module):
    """Embedding, L blocks, a last norm and an untied head. Leaves add up to `ladder.counts.count_params`."""

    embedding: Float[Array, "V d"]
    embedding_norm: Float[Array, " d"] | None
    embedding_gate: GatedNorm | None
    blocks: Block
    head_norm: Float[Array, " d"]
    head_gate: GatedNorm | None
    head: Float[Array, "d V"]
    shape: MoeShape = eqx.field(static=True)
    router: RouterPlan = eqx.field(static=True)

    @staticmethod
    def init(shape: MoeShape, router: RouterPlan = TINY_ROUTER, *, key: PRNGKeyArray) -> "Transformer":
        """Return a model with fresh weights; see `models.layers.Draw` for their scale."""
        draw = Draw(count_params(shape).total, key=key)
        hidden, rank = shape.hidden, shape.gated_norm_rank
        embedding = draw.matrix(hidden, shape.vocab_size).T
        blocks = Block.init(shape, draw)
        head = draw.matrix(hidden, shape.vocab_size)
        return Transformer(
            embedding=embedding,
            embedding_norm=jnp.ones(hidden) if shape.embedding_norm else None,
            embedding_gate=GatedNorm.init((), hidden, rank * shape.embedding_norm, draw),
            blocks=blocks,
            head_norm=jnp.ones(hidden),
            head_gate=GatedNorm.init((), hidden, rank, draw),
            head=head,
            shape=shape,
            router=router,
        )

    def outputs(
        self,
        tokens: Int[Array, "B S"],
        bias: Float[Array, "L E"],
        dispatch: Dispatch,
        separator: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, "n d"], RouterStats]:
        """Return what the head reads, a row for each token, and what the routers did; see `__call__`."""
        shape = self.shape
        x = self.embedding[tokens]
        if self.embedding_norm is not None:
            x = gated_norm(x.reshape(-1, shape.hidden), self.embedding_norm, self.embedding_gate).reshape(x.shape)

        def layer(
            x: Float[Array, "B S d"], item: tuple[Block, Float[Array, " E"], Bool[Array, ""]]
        ) -> tuple[Float[Array, "B S d"], RouterStats]:
            block, layer_bias, is_global = item
            return block(x, layer_bias, is_global, self.router, shape.top_k, dispatch, documents)

        documents = None if separator is None else documents_of(tokens, separator)
        unroll = shape.layers <= UNROLLED_LAYERS
        kinds = jnp.array([shape.attention.is_global(number, shape.layers) for number in range(shape.layers)])
        # In a loop the backward pass computes a layer again, which needs one residual stream per layer and no more.
        body = layer if unroll else jax.checkpoint(layer)
        x, stats = jax.lax.scan(body, x, (self.blocks, bias, kinds), unroll=unroll)
        return gated_norm(x.reshape(-1, shape.hidden), self.head_norm, self.head_gate), stats

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        bias: Float[Array, "L E"],
        dispatch: Dispatch,
        separator: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B S V"], RouterStats]:
        """Return the logits of each next token and what the routers did.

        Arguments:
            tokens: token numbers below V.
            bias: balancing bias of each layer, from the step before; zeros at first.
            dispatch: how the routed experts are run.
            separator: token that ends each document; where given, a position attends to its own document alone.
        """
        outputs, stats = self.outputs(tokens, bias, dispatch, separator)
        return linear(outputs, self.head).reshape(*tokens.shape, -1), stats

    def losses(
        self,
        tokens: Int[Array, "B S1"],
        bias: Float[Array, "L E"],
        dispatch: Dispatch,
        separator: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B S"], Float[Array, "B S"], RouterStats]:
        """Return cross-entropy in nats and log-partition at each position but the last, and what the routers did.

        Large vocabularies are taken in chunks; arguments as in `__call__`, but each row holds one token more.
        """
        if self.shape.vocab_size <= WHOLE_VOCABULARY:
            logits, stats = self(tokens[:, :-1], bias, dispatch, separator)
            return *token_losses(logits, tokens[:, 1:]), stats
        outputs, stats = self.outputs(tokens[:, :-1], bias, dispatch, separator)
        losses, partition = chunked_losses(outputs, self.head, tokens[:, 1:].reshape(-1), WHOLE_VOCABULARY)
        shape = tokens[:, 1:].shape
        return losses.reshape(shape), partition.reshape(shape), stats
