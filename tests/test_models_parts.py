"""Every switchable part equals a slow, plain form of it in value and gradient; leaves equal ladder's counts."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.errors import InputError
from ladder.recipe import RECIPES, recipe_named
from ladder.recipe_interface import NO_ROUTER, RouterPlan
from ladder.shape import MoeShape
from models.attention import Attention, rope_frequencies
from models.balance import balanced_bias, histogram_bias, next_bias, router_penalty
from models.experts import Gather, dense, reference
from models.layers import Draw, GatedNorm, causal_conv, gated_norm
from models.losses import chunked_losses, token_losses
from models.router import expert_load, route
from models.transformer import Transformer, documents_of
from tests.models_small import SHAPE

SEQ = 12
LOCAL = AttentionPattern(window=5, global_every=2)
PATTERNS = {
    "v16": replace(LOCAL, gate=True, exclusive=True),
    "may": replace(LOCAL, rope_fraction=0.5, key_offset=True, gate=True, exclusive=True, last_global=True),
    "hero": replace(LOCAL, rope_fraction=0.5, global_rope=False, gate=True, exclusive=True, global_kv_heads=1),
    "delphi": AttentionPattern(rope_theta=5e5, qk_gains=True, rope_scaling="llama3"),
}


def attention_of(name: str) -> Attention:
    """One layer of attention with every leaf drawn anew, so that no part is at its starting value."""
    shape = replace(SHAPE, attention=PATTERNS.get(name, SHAPE.attention), short_conv=3 if name == "hero" else 0)
    layers = Attention.init(shape, Draw(10_000, key=jax.random.key(0)))
    drawn = [
        leaf[0] + 0.3 * jax.random.normal(jax.random.key(n), leaf.shape[1:])
        for n, leaf in enumerate(jax.tree.leaves(layers))
    ]
    return jax.tree.unflatten(jax.tree.structure(layers), drawn)


def rotations(pattern: AttentionPattern, head_dim: int, seq: int) -> np.ndarray:
    """The rotation of each position as a matrix."""
    pairs = int(head_dim * pattern.rope_fraction) // 2
    out = np.tile(np.eye(head_dim), (seq, 1, 1))
    for t in range(seq):
        for i in range(pairs):
            angle = t * rope_frequencies(2 * pairs, pattern.rope_theta, pattern.rope_scaling)[i]
            block = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            out[np.ix_([t], [i, i + pairs], [i, i + pairs])] = block
    return out


def slow_attention(layer: Attention, x: jax.Array, is_global: bool) -> jax.Array:
    """Attention of one sequence [S, d] from the definitions: rotations, shifts and masks as matrices."""
    shape, pattern = layer.shape, layer.shape.attention
    seq, head_dim = len(x), shape.head_dim
    stored = max(shape.kv_heads, pattern.global_kv_heads)
    used = pattern.global_kv_heads if is_global and pattern.global_kv_heads else shape.kv_heads
    projected = (x @ layer.qkv).reshape(seq, shape.heads + 2 * stored, head_dim)
    q, k, v = projected[:, : shape.heads], projected[:, shape.heads : -stored], projected[:, -stored:]
    shift = np.eye(seq, k=-1)

    def convolved(y, taps):
        flat = y.reshape(seq, -1)
        return sum(np.linalg.matrix_power(shift, j) @ flat * tap for j, tap in enumerate(taps)).reshape(y.shape)

    rotation = rotations(pattern, head_dim, seq)
    if is_global and not pattern.global_rope:
        rotation = np.tile(np.eye(head_dim), (seq, 1, 1))

    def placed(y, gain):
        y = y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-6) * (1 if gain is None else gain)
        return jnp.einsum("tij,thj->thi", rotation, y)

    k = k if layer.key_conv is None else convolved(k, layer.key_conv)
    q, k = placed(q, layer.query_gain), placed(k, layer.key_gain)
    if pattern.key_offset and is_global:
        half = head_dim // 2
        k = jnp.concatenate([k[..., :half], jnp.einsum("ts,shi->thi", shift, k[..., half:])], axis=-1)
    seen = np.tril(np.ones((seq, seq)))
    if pattern.window and not is_global:
        seen = seen * np.triu(np.ones((seq, seq)), 1 - pattern.window)
    mixed = []
    for head in range(shape.heads):
        group = head // (shape.heads // used)
        scores = q[:, head] @ k[:, group].T * (1.0 if pattern.qk_gains else 1.3) / head_dim**0.5
        powers = seen * jnp.exp(scores)
        own = v[:, group]
        y = powers / powers.sum(1, keepdims=True) @ own
        if pattern.exclusive:
            y = y - (y * own).sum(1, keepdims=True) / (own * own).sum(1, keepdims=True) * own
        if layer.gate is not None:
            y = y * 2 / (1 + jnp.exp(-(x @ layer.gate[:, head])))[:, None]
        mixed.append(y)
    out = jnp.concatenate(mixed, axis=1) @ layer.out
    return out if layer.out_conv is None else convolved(out, layer.out_conv)


def assert_equal_trees(got, want, rtol=2e-4, atol=3e-6) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


FEW = {("v16", False), ("may", True), ("hero", True)}


@pytest.mark.parametrize(
    ("name", "is_global"),
    [
        pytest.param(name, is_global, marks=[] if (name, is_global) in FEW else pytest.mark.slow)
        for name in PATTERNS
        for is_global in (False, True)
    ],
)
def test_attention_equals_the_definition_in_value_and_gradient(name: str, is_global: bool, monkeypatch) -> None:
    monkeypatch.setattr("models.attention.QUERY_BLOCK", 5)  # three blocks, the last not full
    layer, x = attention_of(name), jax.random.normal(jax.random.key(9), (SEQ, SHAPE.hidden))
    fast = lambda layer, x: jnp.sum(jnp.sin(layer(x[None], jnp.array(is_global))))
    slow = lambda layer, x: jnp.sum(jnp.sin(slow_attention(layer, x, is_global)))
    got = jax.jit(jax.value_and_grad(fast, argnums=(0, 1)))(layer, x)
    want = jax.jit(jax.value_and_grad(slow, argnums=(0, 1)))(layer, x)
    assert_equal_trees(got, want)


@pytest.mark.parametrize("name", ["plain", "v16", pytest.param("delphi", marks=pytest.mark.slow)])
def test_attention_within_documents_is_that_of_each_alone(name: str, monkeypatch) -> None:
    monkeypatch.setattr("models.attention.QUERY_BLOCK", 5)
    layer, x = attention_of(name), jax.random.normal(jax.random.key(9), (2, SEQ, SHAPE.hidden))
    parts = [[(0, 7), (7, 8), (8, SEQ)], [(0, 3), (3, SEQ)]]  # of each row
    documents = jnp.array([[at for at, (a, b) in enumerate(row) for _ in range(b - a)] for row in parts])

    def alone(layer, x):
        return sum(
            jnp.sum(jnp.sin((2 + number) * slow_attention(layer, x[number, a:b], False)))
            for number, row in enumerate(parts)
            for a, b in row
        )

    def together(layer, x):
        mixed = layer(x, jnp.array(False), documents)
        return jnp.sum(jnp.sin(jnp.array([2, 3])[:, None, None] * mixed))

    got = jax.jit(jax.value_and_grad(together, argnums=(0, 1)))(layer, x)
    assert_equal_trees(got, jax.jit(jax.value_and_grad(alone, argnums=(0, 1)))(layer, x), atol=1e-5)


def test_a_separator_belongs_to_the_document_it_ends() -> None:
    tokens = jnp.array([[5, 0, 7, 7, 0, 0, 3], [0, 1, 1, 1, 1, 1, 1]])
    found = documents_of(tokens, jnp.int32(0))
    assert found.tolist() == [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]


def test_gated_norm_and_convolution_equal_numpy() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32)
    gate = GatedNorm.init((), 6, 3, Draw(100, key=jax.random.key(0)))
    y = x[0] / np.sqrt((x[0] ** 2).mean(-1, keepdims=True) + 1e-6)
    inner = y @ np.asarray(gate.norm_down)
    outer = (inner / (1 + np.exp(-inner))) @ np.asarray(gate.norm_up)
    np.testing.assert_allclose(
        gated_norm(jnp.asarray(x[0]), jnp.ones(6), gate), y / (1 + np.exp(-outer)), rtol=1e-4, atol=1e-6
    )
    taps = np.arange(12.0, dtype=np.float32).reshape(2, 6)
    want = taps[0] * x + taps[1] * np.concatenate([np.zeros((2, 1, 6)), x[:, :-1]], axis=1)
    np.testing.assert_allclose(causal_conv(jnp.asarray(x), jnp.asarray(taps)), want, rtol=1e-5, atol=1e-6)


HERO = replace(
    SHAPE,
    latent_width=6,
    gated_norm_rank=3,
    embedding_norm=True,
    short_conv=2,
    shared_experts=2,
    attention=PATTERNS["hero"],
    layers=3,
)
DENSE = replace(SHAPE, experts=0, top_k=0, expert_width=0, attention=PATTERNS["delphi"])
PLANS = {
    "qb": RouterPlan("quantile", "topk", 0, 2.5, 0.0),
    "histogram": RouterPlan("quantile", "histogram", 100, 0.0, 1e-3),
    "bias": RouterPlan("bias", "", 0, 1.0, 0.0, "softmax", 0.01),
    "auxiliary": RouterPlan("auxiliary", "", 0, 0.0, 1e-3, "softmax", 0.01),
}


def model_loss(dispatch):
    tokens = jax.random.randint(jax.random.key(5), (2, SHAPE.seq_len + 1), 0, 256)

    def loss(model):
        bias = 0.1 * jax.random.normal(jax.random.key(6), (model.shape.layers, model.shape.experts))
        losses, partition, stats = model.losses(tokens, bias, dispatch)
        return jnp.mean(losses) + 1e-3 * jnp.mean(partition**2) + jnp.sum(stats.penalty)

    return loss


def assert_near(got, want) -> None:
    """Each leaf is equal to 1e-4 of its largest entry: small entries of gradients are differences of large ones."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * float(jnp.max(jnp.abs(other))) + 1e-9)


@pytest.mark.parametrize(
    "plan", ["qb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("histogram", "bias", "auxiliary"))]
)
def test_latent_experts_equal_the_reference(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.transformer.UNROLLED_LAYERS", 0)
    model = Transformer.init(HERO, PLANS[plan], key=jax.random.key(0))
    want = jax.jit(jax.value_and_grad(model_loss(reference)))(model)
    assert_near(jax.jit(jax.value_and_grad(model_loss(Gather(2 * SHAPE.seq_len))))(model), want)


@pytest.mark.slow
def test_looped_layers_and_chunked_losses_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Transformer.init(HERO, PLANS["qb"], key=jax.random.key(0))
    want = jax.jit(jax.value_and_grad(model_loss(dense)))(model)
    monkeypatch.setattr("models.transformer.UNROLLED_LAYERS", 0)
    monkeypatch.setattr("models.transformer.WHOLE_VOCABULARY", 100)
    assert_near(jax.jit(jax.value_and_grad(model_loss(dense)))(model), want)


def test_a_dense_model_has_losses_and_gradients() -> None:
    model = Transformer.init(DENSE, NO_ROUTER, key=jax.random.key(0))
    value, grads = jax.jit(jax.value_and_grad(model_loss(dense)))(model)
    assert 4 < float(value) < 7
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("chunk", [3, 5, 11])
def test_chunked_losses_equal_whole_ones(chunk: int) -> None:
    x, head = jax.random.normal(jax.random.key(0), (7, 4)), jax.random.normal(jax.random.key(1), (4, 11))
    targets = jnp.array([0, 10, 3, 9, 8, 2, 10])
    summed = lambda f: lambda x, head: (lambda a, b: jnp.sum(jnp.cos(a)) + jnp.sum(b**2))(*f(x, head))
    chunked = lambda x, head: chunked_losses(x, head, targets, chunk)
    whole = lambda x, head: tuple(part[0] for part in token_losses((x @ head)[None], targets[None]))
    assert_equal_trees(chunked(x, head), whole(x, head), rtol=1e-5)
    assert_equal_trees(jax.grad(summed(chunked), (0, 1))(x, head), jax.grad(summed(whole), (0, 1))(x, head))


def some_routing(plan: RouterPlan, experts: int = 8, tokens: int = 96, bias: float = 0.0):
    logits = jax.random.normal(jax.random.key(1), (experts, tokens)) + jnp.linspace(-1, 1, experts)[:, None]
    return route(logits, jnp.full(experts, bias), 2, plan)


def test_weights_are_the_scores_of_the_plan() -> None:
    for plan in PLANS.values():
        routing = some_routing(plan)
        z = np.asarray(routing.logits, np.float64)
        scores = 1 / (1 + np.exp(-z)) if plan.scores == "sigmoid" else np.exp(z) / np.exp(z).sum(0)
        want = np.take_along_axis(scores, np.asarray(routing.experts), 0)
        want = plan.weight_sum * want / want.sum(0) if plan.weight_sum else want
        np.testing.assert_allclose(routing.weights, want, rtol=1e-5)


def test_many_experts_are_selected_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = some_routing(PLANS["qb"])
    monkeypatch.setattr("models.router.FEW_EXPERTS", 0)
    assert_equal_trees(some_routing(PLANS["qb"]), few, rtol=0, atol=0)


def test_histogram_bias_equals_numpy_and_nears_the_exact_one() -> None:
    routing = some_routing(PLANS["histogram"])
    m = np.asarray(routing.logits - routing.threshold, np.float64)
    for bins in (16, 1000):
        edges = np.linspace(m.min(), m.max(), bins + 1)
        width, share = edges[1] - edges[0], 96 * 2 / 8
        beta = []
        for row in m:
            counts = np.histogram(row, edges)[0]
            from_top = counts[::-1].cumsum()[::-1]
            last = max(b for b in range(bins) if from_top[b] >= share)
            beta.append(edges[last] + width * (from_top[last] - share) / max(counts[last], 1))
        np.testing.assert_allclose(histogram_bias(routing, bins), np.mean(beta) - beta, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(histogram_bias(routing, 10_000), balanced_bias(routing), atol=2e-2)


def test_bias_rule_and_penalties_equal_numpy() -> None:
    routing = some_routing(PLANS["bias"])
    load = np.bincount(np.asarray(routing.experts).ravel(), minlength=8)
    want = 0.3 + 0.01 * np.sign(load.mean() - load)
    np.testing.assert_allclose(next_bias(routing, jnp.full(8, 0.3), PLANS["bias"]), want, rtol=1e-6)
    np.testing.assert_array_equal(next_bias(routing, jnp.zeros(8), PLANS["auxiliary"]), 0)
    z = np.asarray(routing.logits, np.float64)
    shares = np.exp(z) / np.exp(z).sum(0)
    want = 1e-3 * np.mean(np.log(np.exp(z).sum(0)) ** 2) + 0.01 * 8 * (load / load.sum() * shares.mean(1)).sum()
    np.testing.assert_allclose(router_penalty(routing, PLANS["auxiliary"]), want, rtol=1e-5)


@pytest.mark.parametrize("plan", ["histogram", "bias"])
def test_a_bias_evens_out_a_lopsided_router(plan: str) -> None:
    logits = jax.random.normal(jax.random.key(0), (8, 512)) + jnp.linspace(-1, 1, 8)[:, None]
    bias, loads = jnp.zeros(8), []
    for _ in range(6 if plan == "histogram" else 200):
        routing = route(logits, bias, 2, PLANS[plan])
        loads.append(float(jnp.max(expert_load(routing))) / 128)
        bias = next_bias(routing, bias, PLANS[plan])
    assert loads[0] > 1.6
    assert loads[-1] < 1.15


def sizes(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", RECIPES)
def test_leaves_of_every_recipe_equal_ladders_counts(name: str) -> None:
    recipe = recipe_named(name)
    for hidden in (recipe.widths()[0], recipe.widths()[-1]):
        check_counts(recipe.shape(hidden), recipe.router)


def check_counts(shape: MoeShape, router: RouterPlan) -> None:
    model = jax.eval_shape(lambda: Transformer.init(shape, router, key=jax.random.key(0)))
    counts, blocks = count_params(shape), model.blocks
    attention = blocks.attention
    groups = {
        "embedding": sizes(model.embedding),
        "head": sizes(model.head),
        "attention": sizes((attention.qkv, attention.out)),
        "router": sizes(blocks.router),
        "routed_experts": sizes(blocks.experts)
        + (sizes((blocks.latent.latent_down, blocks.latent.latent_up)) if blocks.latent else 0),
        "shared_experts": sizes(blocks.shared),
        "norms": sizes((model.embedding_norm, model.head_norm, blocks.attention_norm, blocks.expert_norm))
        + sizes((attention.query_gain, attention.key_gain, blocks.latent.latent_norm if blocks.latent else None)),
        "gates": sizes((attention.gate, attention.key_conv, attention.out_conv, blocks.mlp_conv))
        + sizes((model.embedding_gate, model.head_gate, blocks.attention_gate, blocks.expert_gate)),
    }
    assert groups == {name: getattr(counts, name) for name in groups}
    assert sizes(model) == counts.total


def test_scaled_frequencies_are_llama3s() -> None:
    """Against the published rule, pair by pair."""
    found = rope_frequencies(128, 5e5, "llama3")
    for pair, frequency in enumerate(5e5 ** (-np.arange(64) / 64)):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            expected = frequency
        elif wavelength > 8192:
            expected = frequency / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * frequency / 8 + smooth * frequency
        assert found[pair] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(rope_frequencies(128, 5e5), 5e5 ** (-np.arange(64) / 64))
    with pytest.raises(InputError, match="use llama3"):
        AttentionPattern(rope_scaling="yarn")
