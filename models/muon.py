"""Orthogonalised directions of Muon: Newton-Schulz steps that bring every singular value near 1."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

# (a, b, c) of successive steps, taken again from the first after the fifth: the "quintic" of Levanter's
# `zeropower_via_newtonschulz5`, with which Marin's recipes ran.
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalised(x: Float[Array, "*n r c"], steps: int, epsilon: float) -> Float[Array, "*n r c"]:
    """Return U V^T, nearly, of x = U S V^T, for each matrix of a stack.

    Arguments:
        steps: of x <- a x + (b A + c A A) x with A = x x^T, after x is divided by its Frobenius norm plus `epsilon`.
    """
    tall = x.shape[-2] > x.shape[-1]
    y = jnp.swapaxes(x, -1, -2) if tall else x  # products of the shorter side
    y = y / (jnp.sqrt(jnp.sum(y * y, axis=(-2, -1), keepdims=True)) + epsilon)
    for step in range(steps):
        a, b, c = QUINTIC[step % len(QUINTIC)]
        gram = y @ jnp.swapaxes(y, -1, -2)
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return jnp.swapaxes(y, -1, -2) if tall else y


def orthogonalised_on_mesh(x: Float[Array, "*n r c"], steps: int, epsilon: float, mesh: Mesh) -> Float[Array, "*n r c"]:
    """Return `orthogonalised` of a stack whose matrices are split over `mesh`, each made whole on one device.

    The stack, filled up with zeros to a multiple of the devices, is spread over all of them, worked on, and put back
    where it was: two exchanges and no product done twice. Of [L, E, r, c], experts lead, since they are split already.
    """
    where = jax.typeof(x).sharding.spec
    lead, matrix = x.shape[:-2], x.shape[-2:]
    stack = x if lead else x[None]
    layers, experts = (*stack.shape[:-2], 1)[:2]
    needed = mesh.size // math.gcd(mesh.size, experts)
    padded = -(-layers // needed) * needed
    stack = jnp.pad(stack, ((0, padded - layers), *((0, 0),) * (stack.ndim - 1)))
    if stack.ndim == 4:
        spec = jax.typeof(stack).sharding.spec
        stack = jnp.swapaxes(stack, 0, 1).reshape(-1, *matrix, out_sharding=P(spec[1], *spec[2:]))
    everywhere = P(("expert", "data"), None, None)
    found = orthogonalised(jax.sharding.reshard(stack, everywhere), steps, epsilon)
    if len(lead) == 2:
        found = jax.sharding.reshard(found, P(where[1], *where[2:]))
        found = jnp.swapaxes(found.reshape(experts, padded, *matrix, out_sharding=P(where[1], None, *where[2:])), 0, 1)
    else:
        found = jax.sharding.reshard(found, P(None, *where[-2:]))
    found = found[:layers]
    back: Array = jax.sharding.reshard(found if lead else found[0], where)
    return back
