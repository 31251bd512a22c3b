"""The model: every path agrees with the slow one, counts are exact, routing and drops equal NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder.counts import count_params
from ladder.flops import forward_flops_per_token
from ladder.recipe import recipe_named
from ladder.shape import MoeShape
from models.attention import Attention, causal_mix
from models.balance import balanced_bias
from models.experts import Experts, Gather, capacity, dense, reference
from models.layers import Draw, linear, rms_norm
from models.losses import token_losses
from models.router import expert_load, load_entropy, route
from tests.models_flops import dot_flops
from tests.models_small import SHAPE, small_model

TOKENS = jax.random.randint(jax.random.key(5), (3, SHAPE.seq_len + 1), 0, 256)
BIAS = 0.1 * jax.random.normal(jax.random.key(6), (SHAPE.layers, SHAPE.experts))


def loss_of(dispatch):
    def loss(model):
        logits, _ = model(TOKENS[:, :-1], BIAS, dispatch)
        losses, partition = token_losses(logits, TOKENS[:, 1:])
        return jnp.mean(losses) + 1e-3 * jnp.mean(partition**2)

    return loss


@pytest.mark.parametrize("dispatch", [dense, Gather(TOKENS[:, :-1].size)], ids=["dense", "gather"])
def test_dispatches_equal_the_reference_in_value_and_gradient(dispatch) -> None:
    model = small_model()
    value, grads = jax.jit(jax.value_and_grad(loss_of(dispatch)))(model)
    expected, expected_grads = jax.jit(jax.value_and_grad(loss_of(reference)))(model)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for got, want in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("slots", [1, 3, 7, 20])
def test_drops_equal_a_count_in_numpy(slots: int) -> None:
    tokens, experts, top_k = 40, 6, 2
    logits = jax.random.normal(jax.random.key(slots), (experts, tokens)) + jnp.arange(experts)[:, None]
    routing = route(logits, jnp.zeros(experts), top_k)
    stack = Experts.init((experts,), 8, 5, Draw(10_000, key=jax.random.key(1)))
    x = jax.random.normal(jax.random.key(2), (tokens, 8))
    outputs, dropped = jax.jit(Gather(slots))(stack, x, routing)

    taken = np.zeros(experts, int)
    expected, lost = np.zeros((tokens, 8)), 0
    for t in range(tokens):
        for k, e in enumerate(np.asarray(routing.experts)[:, t]):
            taken[e] += 1
            if taken[e] > slots:
                lost += 1
                continue
            hidden = np.asarray(x[t] @ stack.gate_up[e])
            gate, up = hidden[:5], hidden[5:]
            expected[t] += routing.weights[k, t] * ((gate / (1 + np.exp(-gate)) * up) @ np.asarray(stack.down[e]))
    assert float(dropped) == lost > 0 or slots == 20
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_drop_gradients_equal_those_of_differentiating_what_was_kept() -> None:
    experts, tokens, slots = 4, 24, 5
    logits = jax.random.normal(jax.random.key(0), (experts, tokens)) * 2
    stack = Experts.init((experts,), 6, 3, Draw(10_000, key=jax.random.key(1)))
    x = jax.random.normal(jax.random.key(2), (tokens, 6))
    table = np.asarray(route(logits, jnp.zeros(experts), 2).experts)
    kept, taken = np.zeros((2, tokens)), np.zeros(experts, int)
    for t in range(tokens):
        for k in range(2):
            taken[table[k, t]] += 1
            kept[k, t] = taken[table[k, t]] <= slots

    def fast(stack, x, logits):
        return jnp.sum(jnp.sin(Gather(slots)(stack, x, route(logits, jnp.zeros(experts), 2))[0]))

    def slow(stack, x, logits):
        routing = route(logits, jnp.zeros(experts), 2)
        hidden = jnp.einsum("td,ktdf->ktf", x, stack.gate_up[routing.experts])
        gate, up = jnp.split(hidden, 2, axis=-1)
        out = jnp.einsum("ktf,ktfd->ktd", jax.nn.silu(gate) * up, stack.down[routing.experts])
        return jnp.sum(jnp.sin(jnp.sum((kept * routing.weights)[..., None] * out, axis=0)))

    for got, want in zip(
        jax.tree.leaves(jax.jit(jax.grad(fast, argnums=(0, 1, 2)))(stack, x, logits)),
        jax.tree.leaves(jax.jit(jax.grad(slow, argnums=(0, 1, 2)))(stack, x, logits)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_quantile_balancing_equals_numpy() -> None:
    experts, tokens, top_k = 8, 96, 2
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(experts, tokens)) + np.linspace(-1, 1, experts)[:, None]).astype(np.float32)
    bias = rng.normal(size=experts).astype(np.float32) * 0.3
    routing = route(jnp.asarray(logits, jnp.float32), jnp.asarray(bias), top_k)

    biased = logits + bias[:, None]
    order = np.argsort(-biased, axis=0, kind="stable")
    np.testing.assert_array_equal(routing.experts, order[:top_k])
    threshold = np.take_along_axis(biased, order[top_k : top_k + 1], 0)[0]
    np.testing.assert_allclose(routing.threshold, threshold, rtol=1e-6, atol=1e-7)
    scores = 1 / (1 + np.exp(-np.take_along_axis(logits, order[:top_k], 0)))
    np.testing.assert_allclose(routing.weights, 2 * scores / scores.sum(0), rtol=1e-5)
    margins = logits - threshold
    beta = np.sort(margins, axis=1)[:, -(tokens * top_k // experts)]
    np.testing.assert_allclose(balanced_bias(routing), beta.mean() - beta, rtol=1e-4, atol=1e-6)
    # Tokens whose threshold is this expert's own logit share one margin, so equality may take in a few more.
    assert all((m > b).sum() < tokens * top_k // experts <= (m >= b).sum() for m, b in zip(margins, beta, strict=True))


def test_routing_far_from_zero_stays_finite_in_value_and_gradient() -> None:
    logits = jnp.array([[-60.0, 70.0, -200.0], [-58.0, -95.0, -201.0], [-90.0, 3.0, -300.0], [-70.0, 0.0, -250.0]])

    def mixed(z):
        weights = route(z, jnp.array([0.0, 0.0, -30.0, -30.0]), 2).weights
        return jnp.sum(jnp.sin(weights) * jnp.arange(1, 7).reshape(2, 3))

    weights = route(logits, jnp.zeros(4), 2).weights
    np.testing.assert_allclose(jnp.sum(weights, axis=0), 2.0, rtol=1e-6)
    assert np.isfinite(jax.grad(mixed)(logits)).all()
    # exp(-58) against exp(-60): shares of 1 / (1 + e^-2)
    np.testing.assert_allclose(weights[0, 0], 2 / (1 + np.exp(-2)), rtol=1e-5)


def test_quantile_balancing_evens_out_a_lopsided_router() -> None:
    experts, tokens, top_k = 8, 512, 2
    logits = jax.random.normal(jax.random.key(0), (experts, tokens)) + jnp.linspace(-2, 2, experts)[:, None]
    bias, loads = jnp.zeros(experts), []
    for _ in range(6):
        routing = route(logits, bias, top_k)
        loads.append(expert_load(routing))
        bias = balanced_bias(routing)
    assert float(jnp.max(loads[0])) > 2.5 * tokens * top_k / experts
    assert float(jnp.max(loads[-1])) < 1.15 * tokens * top_k / experts
    assert float(load_entropy(loads[-1])) > 0.995 * np.log(experts)


@pytest.mark.parametrize(
    "shape", [SHAPE, *(recipe_named("tiny-cpu").shape(d) for d in recipe_named("tiny-cpu").widths())], ids=str
)
def test_leaves_add_up_to_the_counts(shape: MoeShape) -> None:
    model = jax.eval_shape(lambda: small_model(shape=shape))
    counts = count_params(shape)
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == counts.total
    groups = {
        "embedding": model.embedding.size,
        "head": model.head.size,
        "attention": model.blocks.attention.qkv.size + model.blocks.attention.out.size,
        "router": model.blocks.router.size,
        "routed_experts": sum(leaf.size for leaf in jax.tree.leaves(model.blocks.experts)),
        "shared_experts": sum(leaf.size for leaf in jax.tree.leaves(model.blocks.shared)),
        "norms": model.head_norm.size + model.blocks.attention_norm.size + model.blocks.expert_norm.size,
    }
    assert groups == {name: getattr(counts, name) for name in groups}


@pytest.mark.parametrize("hidden", [16, 48, 64])
def test_flops_equal_a_count_over_dot_products(hidden: int) -> None:
    shape = recipe_named("tiny-cpu").shape(hidden)
    model = jax.eval_shape(lambda: small_model(shape=shape))
    tokens = jax.ShapeDtypeStruct((4, shape.seq_len), jnp.int32)
    bias = jax.ShapeDtypeStruct((shape.layers, shape.experts), jnp.float32)
    per_token = 4 * shape.seq_len
    flops = forward_flops_per_token(shape)

    exact = dot_flops(lambda m, t, b: m(t, b, reference)[0], model, tokens, bias) / per_token
    assert exact == flops.matmuls
    assert exact == pytest.approx(flops.total, rel=0.02)

    slots = capacity(shape, 1.5, per_token)
    assert slots * shape.experts == 1.5 * per_token * shape.top_k
    routed = dot_flops(lambda m, t, b: m(t, b, Gather(slots))[0], model, tokens, bias) / per_token
    ratio = (routed - (flops.matmuls - flops.routed_experts)) / flops.routed_experts
    print(f"width {hidden}: routed term executed / analytic = {ratio:.4f}")
    assert ratio == pytest.approx(1.5, abs=1e-9)  # nothing but the routed term grows, by the capacity factor


def test_attention_equals_numpy_and_sees_no_future() -> None:
    attention = jax.tree.map(lambda leaf: leaf[0], Attention.init(SHAPE, Draw(10_000, key=jax.random.key(3))))
    x = np.asarray(jax.random.normal(jax.random.key(4), (2, 16, 12)), np.float64)
    qkv = (x @ np.asarray(attention.qkv, np.float64)).reshape(2, 16, 8, 4)

    def rotated(vectors):
        vectors = vectors / np.sqrt((vectors**2).mean(-1, keepdims=True) + 1e-6)
        out = np.zeros_like(vectors)
        for position in range(16):
            for pair in range(2):
                angle = position * SHAPE.attention.rope_theta ** (-2 * pair / 4)
                a, b = vectors[:, position, :, pair], vectors[:, position, :, pair + 2]
                out[:, position, :, pair] = a * np.cos(angle) - b * np.sin(angle)
                out[:, position, :, pair + 2] = a * np.sin(angle) + b * np.cos(angle)
        return out

    q, k, v = rotated(qkv[:, :, :4]), rotated(qkv[:, :, 4:6]), qkv[:, :, 6:]
    mixed = np.zeros((2, 16, 4, 4))
    for head in range(4):
        for position in range(16):
            keys, values = k[:, : position + 1, head // 2], v[:, : position + 1, head // 2]
            scores = np.einsum("bh,bkh->bk", q[:, position, head], keys) * 1.3 / 2
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            mixed[:, position, head] = np.einsum("bk,bkh->bh", weights, values)
    expected = mixed.reshape(2, 16, 16) @ np.asarray(attention.out, np.float64)
    np.testing.assert_allclose(
        jax.jit(lambda a, x: a(x, jnp.array(True)))(attention, jnp.asarray(x, jnp.float32)),
        expected,
        rtol=2e-4,
        atol=2e-5,
    )


def test_token_losses_equal_log_softmax_in_value_and_gradient() -> None:
    logits = 4 * jax.random.normal(jax.random.key(0), (2, 3, 11))
    targets = jax.random.randint(jax.random.key(1), (2, 3), 0, 11)

    def plain(z):
        partition = jax.nn.logsumexp(z, axis=-1)
        return partition - jnp.take_along_axis(z, targets[..., None], -1)[..., 0], partition

    def total(f):
        return lambda z: jnp.sum(jnp.cos(f(z)[0])) + jnp.sum(f(z)[1] ** 2)

    fast = lambda z: token_losses(z, targets)
    np.testing.assert_allclose(fast(logits)[0], plain(logits)[0], rtol=1e-5)
    np.testing.assert_allclose(
        jax.jit(jax.grad(total(fast)))(logits), jax.jit(jax.grad(total(plain)))(logits), rtol=1e-4, atol=1e-5
    )


def assert_same_gradients(fast, slow, *arguments) -> None:
    weighted = lambda f: lambda *a: jnp.sum(jnp.sin(f(*a)))
    every = tuple(range(len(arguments)))
    np.testing.assert_allclose(fast(*arguments), slow(*arguments), rtol=2e-5, atol=1e-6)
    got = jax.jit(jax.grad(weighted(fast), argnums=every))(*arguments)
    want = jax.jit(jax.grad(weighted(slow), argnums=every))(*arguments)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6)


def test_hand_written_gradients_equal_automatic_ones() -> None:
    x, w, stack = (jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate([(7, 5), (5, 4), (3, 5, 4)]))
    assert_same_gradients(linear, jnp.matmul, x, w)
    assert_same_gradients(linear, jnp.matmul, jax.random.normal(jax.random.key(3), (3, 7, 5)), stack)
    plain = lambda x, gain: x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain
    assert_same_gradients(rms_norm, plain, x, jax.random.normal(jax.random.key(4), (5,)))

    def softmax_mix(q, k, v):
        seen = jnp.tile(jnp.tril(jnp.ones((6, 6), bool)), (2, 1))
        scores = jnp.where(seen, jnp.einsum("nqh,nkh->nqk", q, k), -jnp.inf)
        return jnp.einsum("nqk,nkh->nqh", jax.nn.softmax(scores, axis=-1), v)

    q, k, v = (jax.random.normal(jax.random.key(n), (2, rows, 4)) for n, rows in ((5, 12), (6, 6), (7, 6)))
    assert_same_gradients(causal_mix, softmax_mix, q, k, v)


def test_many_layers_in_a_loop_equal_unrolled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    unrolled, _ = model(TOKENS[:, :-1], BIAS, dense)
    monkeypatch.setattr("models.transformer.UNROLLED_LAYERS", 0)
    looped, _ = model(TOKENS[:, :-1], BIAS, dense)
    np.testing.assert_allclose(looped, unrolled, rtol=1e-5, atol=1e-6)
