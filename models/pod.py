"""The forward pass of `models.transformer` as a pod runs it: bf16 products, layers scanned, everything rematerialised.

The parameters are those of `Transformer`, so that a checkpoint serves both; tests hold the two to each other on virtual
devices. Weights are gathered layer by layer (FSDP), activations stay split by sequences.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from models.mesh import BATCH
from models.pod_attention import attention
from models.pod_layers import PodOptions, normed
from models.pod_moe import feed_forward
from models.transformer import Block, RouterStats, Transformer

EXPERT_HIDDEN = "grug_moe_expert_hidden"  # what Levanter's backends call it


def hidden_states(
    params: Transformer, bias: Float[Array, "L E"], tokens: Int[Array, "B S"], mesh: Mesh, options: PodOptions
) -> tuple[Float[Array, "B S d"], RouterStats]:
    """Return the normalised states before the head, and what the routers did."""
    shape, dtype = params.shape, jnp.dtype(options.dtype)
    table = jax.sharding.reshard(params.embedding.astype(dtype), P(None, None))
    x = table.at[tokens].get(out_sharding=NamedSharding(mesh, P(BATCH, None, None)))
    if params.embedding_norm is not None:
        x = normed(x, params.embedding_norm, params.embedding_gate)

    def layer(
        x: Float[Array, "B S d"], inputs: tuple[Block, Float[Array, " E"], Array]
    ) -> tuple[Float[Array, "B S d"], RouterStats]:
        block, layer_bias, is_global = inputs
        y = normed(x, block.attention_norm, block.attention_gate)
        with jax.named_scope("attention"):
            x = x + attention(block.attention, y, is_global, mesh, splash=options.splash)
        y = normed(x, block.expert_norm, block.expert_gate)
        outputs, stats = feed_forward(block, y, layer_bias, params, mesh, options)
        return x + outputs, stats

    body = layer if options.remat == "none" else partial(jax.checkpoint, policy=_kept(options.remat))(layer)
    is_global = np.array([shape.attention.is_global(at, shape.layers) for at in range(shape.layers)])
    x, stats = jax.lax.scan(body, x, (params.blocks, bias, jnp.asarray(is_global)))
    return normed(x, params.head_norm, params.head_gate), stats


def _kept(remat: str) -> Any:
    """Return what of a layer the backward pass finds kept."""
    policies = jax.checkpoint_policies
    return policies.save_only_these_names(EXPERT_HIDDEN) if remat == "hidden" else policies.nothing_saveable
