"""AdamH keeps every matrix's norm and equals NumPy; no leaf is trained the wrong way; the schedule is its formula."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.optimizer import GROUPS, Group, Rates, adamh, clip_by_global_norm, parameter_groups
from models.schedule import wsd
from tests.models_small import small_model

RATES = Rates(*(jnp.float32(value) for value in (0.05, 0.01, 0.9, 0.95, 1e-8)))


def steps(model, count: int):
    """`model` after `count` updates with random gradients, and those gradients."""
    groups = parameter_groups(model)
    transform = adamh(groups)
    state, all_grads = transform.init(model), []
    update = jax.jit(lambda grads, state, model: transform.update(grads, state, model, rates=RATES))
    for step in range(count):
        leaves, structure = jax.tree.flatten(model)
        keys = jax.random.split(jax.random.key(step), len(leaves))
        grads = structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])
        updates, state = update(grads, state, model)
        model = jax.tree.map(jnp.add, model, updates)
        all_grads.append(grads)
    return model, all_grads


def test_norms_are_kept_per_matrix_and_per_expert() -> None:
    before = small_model()
    after, _ = steps(before, 20)
    groups = jax.tree.leaves(parameter_groups(before))
    for group, old, new in zip(groups, jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert not np.allclose(old, new)
        if group is Group.ADAMH:
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
            moved = w - 0.05 * u * norm / np.linalg.norm(u, axis=(-2, -1), keepdims=True)
            w = moved * norm / np.linalg.norm(moved, axis=(-2, -1), keepdims=True)
        np.testing.assert_allclose(pick(after), w, rtol=2e-4, atol=1e-5)


def test_every_leaf_has_the_group_of_its_kind() -> None:
    groups = parameter_groups(small_model())
    assert groups.embedding is groups.blocks.router is groups.blocks.attention_norm is Group.ADAM
    assert groups.head is groups.blocks.experts.down is groups.blocks.shared.gate_up is Group.ADAMH
    assert groups.blocks.attention.qkv is Group.ADAMH


def test_unknown_leaves_and_vectors_in_matrix_groups_fail_loudly() -> None:
    class Stranger(eqx.Module):
        mystery: jax.Array

    class Vector(eqx.Module):
        head: jax.Array

    with pytest.raises(ValueError, match="mystery"):
        parameter_groups(Stranger(jnp.ones((2, 2))))
    with pytest.raises(ValueError, match="which AdamH cannot train"):
        parameter_groups(Vector(jnp.ones(3)))
    assert set(GROUPS.values()) == set(Group)


def test_zero_gradients_and_zero_matrices_stay() -> None:
    model = jax.tree.map(jnp.zeros_like, small_model())
    transform = adamh(parameter_groups(model))
    updates, _ = transform.update(model, transform.init(model), model, rates=RATES)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(updates))


def test_clip_scales_to_the_limit_and_reports_the_norm() -> None:
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    clipped, norm = clip_by_global_norm(grads, jnp.float32(1.0))
    assert float(norm) == pytest.approx(5.0)
    assert float(clipped["a"][0]) == pytest.approx(0.6)
    same, _ = clip_by_global_norm(grads, jnp.float32(10.0))
    assert float(same["b"][0]) == 4.0


def test_schedule_is_warmup_stable_decay() -> None:
    lr = [float(wsd(jnp.int32(s), jnp.int32(100), *(jnp.float32(x) for x in (0.1, 0.3, 0.0)))) for s in range(100)]
    assert lr[9] == pytest.approx(1.0)
    assert all(0 < a < b <= 1 for a, b in itertools.pairwise(lr[:10]))
    assert lr[10:70] == pytest.approx([1.0] * 60)
    assert all(a > b for a, b in itertools.pairwise(lr[70:]))
    assert 0 <= lr[99] < 0.05
