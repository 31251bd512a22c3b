"""Every optimizer against NumPy, Optax or Levanter; norms kept; no leaf trained the wrong way; schedules as formulas."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ladder.errors import InputError
from ladder.recipe_interface import Schedule
from ladder.recipe_marin_moe import MUON
from models.groups import ADAMH, MATRICES, REST, Group, Method, parameter_groups
from models.muon import orthogonalised
from models.optimizer import Rates, clip_by_global_norm, norm_kept_steps, optimizer_of
from models.pod_update import norm_kept
from models.schedule import ScheduleValues, rate_fraction
from models.support import OPTIMIZERS
from tests.models_small import small_model

MUONH = Method("muonh", MUON)


def rates(decay: float = 0.0) -> Rates:
    return Rates(*(jnp.float32(value) for value in (0.05, 0.03, 0.01, 0.9, 0.95, 1e-8, decay)))


def steps(model, count: int, method: Method = ADAMH, decay: float = 0.0):
    """`model` after `count` updates with random gradients, and those gradients."""
    transform = optimizer_of(method, model)
    state, all_grads = transform.init(model), []
    update = jax.jit(lambda grads, state, model: transform.update(grads, state, model, rates=rates(decay)))
    for step in range(count):
        leaves, structure = jax.tree.flatten(model)
        keys = jax.random.split(jax.random.key(step), len(leaves))
        grads = structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])
        updates, state = update(grads, state, model)
        model = jax.tree.map(jnp.add, model, updates)
        all_grads.append(grads)
    return model, all_grads


@pytest.mark.parametrize("method", [ADAMH, MUONH], ids=lambda method: method.name)
def test_norms_are_kept_per_matrix_and_per_expert(method: Method) -> None:
    before = small_model()
    after, _ = steps(before, 20, method)
    groups = jax.tree.leaves(parameter_groups(before, method))
    assert (Group.MUONH in groups) == (method is MUONH)
    for group, old, new in zip(groups, jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert not np.allclose(old, new)
        if group in (Group.ADAMH, Group.MUONH):
            norm = lambda w: np.sqrt((np.asarray(w, np.float64) ** 2).sum((-2, -1)))
            np.testing.assert_allclose(norm(new), norm(old), rtol=1e-5)


def test_updates_equal_numpy() -> None:
    before = small_model()
    after, grads = steps(before, 3)
    pairs = (lambda m: m.blocks.experts.down[1], lambda m: m.head, lambda m: m.embedding)
    for pick, hyper in zip(pairs, (True, True, False), strict=True):
        w = np.asarray(pick(before), np.float64)
        mean = square = 0
        for step, gradient in enumerate(grads, start=1):
            g = np.asarray(pick(gradient), np.float64)
            mean, square = 0.9 * mean + 0.1 * g, 0.95 * square + 0.05 * g * g
            u = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.95**step)) + 1e-8)
            if not hyper:
                w = w - 0.01 * u
                continue
            norm = np.linalg.norm(w, axis=(-2, -1), keepdims=True)
            moved = w - 0.03 * u * norm / np.linalg.norm(u, axis=(-2, -1), keepdims=True)
            w = moved * norm / np.linalg.norm(moved, axis=(-2, -1), keepdims=True)
        np.testing.assert_allclose(pick(after), w, rtol=2e-4, atol=1e-5)


def test_muonh_equals_numpy_with_exact_orthogonal_factors_nearly() -> None:
    """Momentum and Nesterov's rule by hand; the orthogonal factor from singular values, which five steps reach to 3 %."""
    before = small_model()
    after, grads = steps(before, 3, MUONH)
    pick = lambda m: m.blocks.experts.down[1]
    w, momentum = np.asarray(pick(before), np.float64), 0.0
    for gradient in grads:
        g = np.asarray(pick(gradient), np.float64)
        momentum = 0.95 * momentum + g
        u, _, vt = np.linalg.svd(0.95 * momentum + g, full_matrices=False)
        direction = u @ vt
        norm = np.linalg.norm(w, axis=(-2, -1), keepdims=True)
        moved = w - 0.05 * direction * norm / np.linalg.norm(direction, axis=(-2, -1), keepdims=True)
        w = moved * norm / np.linalg.norm(moved, axis=(-2, -1), keepdims=True)
    travelled = np.linalg.norm(w - np.asarray(pick(before)))
    assert np.linalg.norm(np.asarray(pick(after)) - w) < 0.03 * travelled


def test_orthogonal_factors_are_levanters() -> None:
    levanter = pytest.importorskip("levanter.optim.util")
    for shape in ((6, 4), (4, 6), (5, 5)):
        x = jax.random.normal(jax.random.key(0), shape)
        expected = levanter.zeropower_via_newtonschulz5(x, steps=5, eps=1e-8)
        np.testing.assert_allclose(orthogonalised(x, 5, 1e-8), expected, atol=2e-6)
    stack = jax.random.normal(jax.random.key(1), (2, 3, 4, 6))
    one = orthogonalised(stack[1, 2], 5, 1e-8)
    np.testing.assert_allclose(orthogonalised(stack, 5, 1e-8)[1, 2], one, atol=2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_and_adamw_equal_optax(decay: float) -> None:
    before = small_model()
    after, grads = steps(before, 3, Method("adamw"), decay)
    for pick, rate, shrinks in ((lambda m: m.blocks.experts.down, 0.05, decay), (lambda m: m.embedding, 0.01, 0.0)):
        reference = optax.adamw(rate, 0.9, 0.95, 1e-8, weight_decay=shrinks)
        w = pick(before)
        state = reference.init(w)
        for gradient in grads:
            change, state = reference.update(pick(gradient), state, w)
            w = w + change
        np.testing.assert_allclose(pick(after), w, rtol=1e-5, atol=1e-6)


def test_every_leaf_has_the_group_of_its_kind() -> None:
    groups = parameter_groups(small_model(), ADAMH)
    assert groups.embedding is groups.blocks.router is groups.blocks.attention_norm is Group.ADAM
    assert groups.head is groups.blocks.experts.down is groups.blocks.shared.gate_up is Group.ADAMH
    assert groups.blocks.attention.qkv is Group.ADAMH
    muonh = parameter_groups(small_model(), MUONH)
    assert (muonh.head, muonh.blocks.experts.down, muonh.blocks.router) == (Group.ADAMH, Group.MUONH, Group.ADAM)
    square = optimizer_of(MUONH, small_model()).init(small_model()).square
    assert square.blocks.experts.down is None
    assert square.head is not None
    for name in OPTIMIZERS:
        assert set(jax.tree.leaves(parameter_groups(small_model(), Method(name, MUON)))) <= set(Group)


def test_unknown_leaves_and_vectors_in_matrix_groups_fail_loudly() -> None:
    class Stranger(eqx.Module):
        mystery: jax.Array

    class Vector(eqx.Module):
        head: jax.Array

    with pytest.raises(ValueError, match="mystery"):
        optimizer_of(ADAMH, Stranger(jnp.ones((2, 2))))
    with pytest.raises(ValueError, match="trained as a matrix"):
        optimizer_of(MUONH, Vector(jnp.ones(3)))
    assert not MATRICES & REST


def test_one_matrix_moves_as_all_together() -> None:
    stack, direction = (jax.random.normal(jax.random.key(at), (2, 3, 4, 5)) for at in (3, 4))
    (delta,) = norm_kept_steps([stack], [direction], jnp.float32(0.03))
    moved = norm_kept(stack, direction, jnp.float32(0.03))
    np.testing.assert_allclose(moved, stack + delta, atol=1e-6)
    np.testing.assert_allclose(norm_kept(stack, 0 * direction, jnp.float32(0.03)), stack)


def test_zero_gradients_and_zero_matrices_stay() -> None:
    model = jax.tree.map(jnp.zeros_like, small_model())
    transform = optimizer_of(ADAMH, model)
    updates, _ = transform.update(model, transform.init(model), model, rates=rates())
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(updates))


def test_clip_scales_to_the_limit_and_reports_the_norm() -> None:
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    clipped, norm = clip_by_global_norm(grads, jnp.float32(1.0))
    assert float(norm) == pytest.approx(5.0)
    assert float(clipped["a"][0]) == pytest.approx(0.6)
    for limit in (10.0, 0.0):
        same, _ = clip_by_global_norm(grads, jnp.float32(limit))
        assert float(same["b"][0]) == 4.0


def fractions(schedule: Schedule, steps: int = 100) -> list[float]:
    values = ScheduleValues.of(schedule)
    return [float(rate_fraction(jnp.int32(step), jnp.int32(steps), values)) for step in range(steps)]


def test_wsd_is_warmup_stable_decay() -> None:
    schedule = Schedule(0.1, 0.3, 0.0)
    lr = fractions(schedule)
    assert lr[9] == pytest.approx(1.0)
    assert all(0 < a < b <= 1 for a, b in itertools.pairwise(lr[:10]))
    assert lr[10:70] == pytest.approx([1.0] * 60)
    assert all(a > b for a, b in itertools.pairwise(lr[70:]))
    assert 0 <= lr[99] < 0.05
    assert schedule.name == "wsd"


@pytest.mark.parametrize("final", [0.0, 0.05])
def test_linear_and_cosine_decay_as_optax_has_them(final: float) -> None:
    linear, cosine = Schedule(0.1, 0.9, final), Schedule(0.1, 0.9, final, "cosine")
    assert (linear.name, cosine.name) == ("linear", "cosine")
    expected = [float(optax.linear_schedule(1.0, final, 90)(step)) for step in range(90)]
    assert fractions(linear)[10:] == pytest.approx(expected, abs=1e-6)
    expected = [float(optax.cosine_decay_schedule(1.0, 90, final)(step)) for step in range(90)]
    assert fractions(cosine)[10:] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match="use linear or cosine"):
        Schedule(0.1, 0.9, 0.0, "square")
