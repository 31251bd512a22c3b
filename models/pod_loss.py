"""Cross-entropy without full logits: chunks of tokens, gradients made in the same pass, one reduction of the head's."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from models.mesh import BATCH

Carry = tuple[Array, Array, Array]
Sums = tuple[Float[Array, ""], Float[Array, ""]]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def chunked_loss(
    x: Float[Array, "T d"],
    head: Float[Array, "d V"],
    targets: Int[Array, " T"],
    z_loss: float,
    chunk: int,
    mesh: Mesh,
) -> Sums:
    """Return the mean cross-entropy in nats plus `z_loss` times the mean squared log-partition, and the former alone.

    Only the first has a gradient. Every device holds the logits of `chunk` of its tokens at a time.
    """
    return _forward(x, head, targets, z_loss, chunk, mesh)[0]


def _forward(
    x: Array, head: Array, targets: Array, z_loss: float, chunk: int, mesh: Mesh
) -> tuple[Sums, tuple[Array, Array]]:
    total = x.shape[0]
    gathered = jax.sharding.reshard(head.astype(x.dtype), P(None, None))

    def local(x: Array, head: Array, targets: Array) -> tuple[Array, Array, Array, Array]:
        rows = x.shape[0]
        size = min(chunk, rows)
        if rows % size:
            raise ValueError(f"{rows} tokens of a device do not divide into chunks of {size}")

        def step(carry: Carry, part: tuple[Array, Array]) -> tuple[Carry, Array]:
            objective, entropy, to_head = carry
            states, labels = part
            logits = (states @ head).astype(jnp.float32)
            partition = jax.nn.logsumexp(logits, axis=-1)
            picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
            hit = jnp.arange(logits.shape[-1]) == labels[:, None]
            grad = jnp.exp(logits - partition[:, None]) * (1 + 2 * z_loss * partition)[:, None] - hit
            grad = (grad / total).astype(states.dtype)
            losses = partition - picked
            objective = objective + jnp.sum(losses + z_loss * partition * partition) / total
            entropy = entropy + jnp.sum(losses) / total
            to_head = to_head + jnp.einsum("td,tv->dv", states, grad, preferred_element_type=jnp.float32)
            return (objective, entropy, to_head), grad @ head.T

        parts = (x.reshape(-1, size, x.shape[1]), targets.reshape(-1, size))
        zero = jnp.zeros((), jnp.float32)
        start = (zero, zero, jnp.zeros(head.shape, jnp.float32))
        (objective, entropy, to_head), to_x = jax.lax.scan(step, start, parts)
        # One reduction for all chunks; each device keeps the rows of the head that it owns.
        if head.shape[0] % mesh.shape["data"] == 0:
            to_head = jax.lax.psum_scatter(to_head, "data", scatter_dimension=0, tiled=True)
            to_head = jax.lax.psum(to_head, tuple(axis for axis in BATCH if axis != "data"))
        else:
            to_head = jax.lax.psum(to_head, BATCH)
        return (
            jax.lax.psum(objective, BATCH),
            jax.lax.psum(entropy, BATCH),
            to_x.reshape(x.shape),
            to_head,
        )

    owned = P("data", None) if head.shape[0] % mesh.shape["data"] == 0 else P(None, None)
    objective, entropy, to_x, to_head = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(BATCH, None), P(None, None), P(BATCH)),
        out_specs=(P(), P(), P(BATCH, None), owned),
        check_vma=False,
    )(x, gathered, targets)
    to_head = jax.sharding.reshard(to_head, jax.typeof(head).sharding.spec)
    return (objective, entropy), (to_x, to_head)


def _backward(
    z_loss: float, chunk: int, mesh: Mesh, saved: tuple[Array, Array], grads: Sums
) -> tuple[Array, Array, None]:
    to_x, to_head = saved
    scale = grads[0]
    return (scale * to_x).astype(to_x.dtype), scale * to_head, None


chunked_loss.defvjp(_forward, _backward)
