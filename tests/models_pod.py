"""A pod's model written once more, slowly: whole logits, every expert on every token, no scan, no kernel, no mesh."""

import jax
import jax.numpy as jnp
import numpy as np

from ladder.recipe_interface import RouterPlan
from ladder.shape import MoeShape
from models.pod import NORM_EPSILON, QUERY_SCALE, Norm, Pod


def norm(p: Norm, x: jax.Array) -> jax.Array:
    y = p.gain * x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + NORM_EPSILON)
    if not p.gate_in.shape[-1]:
        return y
    inner = y @ p.gate_in
    return y * jax.nn.sigmoid(inner * jax.nn.sigmoid(inner) @ p.gate_out)


def unit(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + NORM_EPSILON)


def rotated(x: jax.Array, theta: float) -> jax.Array:
    """Pairs as complex numbers, [B, S, H, h]."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * np.outer(np.arange(x.shape[1]), theta ** (-np.arange(half) / half)))[:, None]
    z = (x[..., :half] + 1j * x[..., half:]) * turn
    return jnp.concatenate([z.real, z.imag], -1)


def attention(shape: MoeShape, p: Pod, at: int, x: jax.Array) -> jax.Array:
    layers, pattern = p.layers, shape.attention
    batch, seq, _ = x.shape
    q, k, v = ((x @ w[at]).reshape(batch, seq, -1, shape.head_dim) for w in (layers.query, layers.key, layers.value))
    q, k = rotated(unit(q) * QUERY_SCALE, pattern.rope_theta), rotated(unit(k), pattern.rope_theta)
    group = shape.heads // shape.kv_heads
    outputs = []
    for head in range(shape.heads):
        own = v[:, :, head // group]
        scores = jnp.einsum("bqh,bkh->bqk", q[:, :, head], k[:, :, head // group]) / shape.head_dim**0.5
        reach = seq if pattern.is_global(at, shape.layers) else pattern.window
        seen = np.tril(np.ones((seq, seq), bool)) & ~np.tril(np.ones((seq, seq), bool), -reach)
        y = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1) @ own
        if pattern.exclusive:
            y = y - jnp.sum(y * own, -1, keepdims=True) / (jnp.sum(own**2, -1, keepdims=True) + NORM_EPSILON) * own
        if pattern.gate:
            y = y * jax.nn.sigmoid(x @ layers.attention_gate[at])[..., head : head + 1]
        outputs.append(y)
    return jnp.concatenate(outputs, -1) @ layers.out[at]


def swiglu(x: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    gate, up = jnp.split(x @ gate_up, 2, -1)
    return (gate * jax.nn.sigmoid(gate) * up) @ down


def objective(
    shape: MoeShape, router: RouterPlan, z_loss: float, p: Pod, bias: jax.Array, tokens: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Return the objective, the cross-entropy, and the bias for the next step as one device would set it."""
    x = p.embedding[tokens[:, :-1]]
    x = norm(p.embedding_norm, x) if p.embedding_norm is not None else x
    extra, biases = jnp.zeros(()), []
    for at in range(shape.layers):
        layer = jax.tree.map(lambda leaf, at=at: leaf[at], p.layers)
        x = x + attention(shape, p, at, norm(layer.attention_norm, x))
        y = norm(layer.expert_norm, x)
        logits = y @ layer.router
        order = jnp.argsort(-(logits + bias[at]), -1)
        top = jnp.sum(jax.nn.one_hot(order[..., : shape.top_k], shape.experts), -2)
        score = jax.nn.sigmoid(logits) * top
        weights = router.weight_sum * score / jnp.sum(score, -1, keepdims=True) if router.weight_sum else score
        outputs = sum(
            weights[..., e : e + 1] * swiglu(y, layer.gate_up[e], layer.down[e]) for e in range(shape.experts)
        )
        for s in range(shape.shared_experts):
            outputs = outputs + swiglu(y, layer.shared_gate_up[s], layer.shared_down[s])
        extra = extra + router.z_loss * jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)
        margin = logits - jnp.sort(logits + bias[at], -1)[..., -shape.top_k - 1, None]
        flat = jnp.sort(margin.reshape(-1, shape.experts), 0)
        beta = flat[-(flat.shape[0] * shape.top_k // shape.experts)]
        biases.append(jnp.mean(beta) - beta)
        x = x + outputs
    logits = norm(p.head_norm, x) @ p.head
    partition = jax.nn.logsumexp(logits, -1)
    entropy = jnp.mean(partition - jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0])
    return entropy + z_loss * jnp.mean(partition**2) + extra, (entropy, jnp.stack(biases))
