"""A pod's step: against a slow reference on one device, and itself on every mesh of eight."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ladder import plan_isoflop, recipe_named
from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.errors import InputError
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.mesh import check_mesh, make_mesh, shardings
from models.optimizer import adamh_steps
from models.pod import Pod
from models.pod_moe import PodOptions
from models.pod_step import _gradients, _update, initial_state
from models.train import Hyperparams
from tests.models_pod import objective

ROOT = Path(__file__).parents[1]
PATTERN = AttentionPattern(window=12, global_every=2, gate=True, exclusive=True)
SHAPE = MoeShape(
    vocab_size=256,
    seq_len=32,
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    experts=8,
    top_k=2,
    expert_width=16,
    shared_experts=1,
    shared_width=32,
    gated_norm_rank=4,
    embedding_norm=True,
    attention=PATTERN,
)


def pod_rung(weight_sum: float = 2.5, router_z: float = 1e-3) -> Rung:
    """A rung of the tiny recipe with the shape and router of a large one."""
    rung = plan_isoflop(recipe_named("tiny-cpu"), (2 * 10**10,), sizes=3, name="pod").rungs[0]
    router = replace(rung.router, weight_sum=weight_sum, z_loss=router_z)
    return replace(rung, shape=SHAPE, router=router, batch_seqs=16)


def tokens(seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, (16, SHAPE.seq_len + 1)), jnp.int32)


@pytest.mark.parametrize("width", [640, 1024, 2048, 2560, 5376])
def test_parameters_are_those_the_ladder_counts(width: int) -> None:
    shape = recipe_named("marin-moe-v16").shape(width)
    pod = jax.eval_shape(lambda: Pod.init(shape, key=jax.random.key(0)))
    assert sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(pod)) == count_params(shape).total


@pytest.mark.parametrize("weight_sum", [0.0, 2.5])
def test_loss_gradient_and_balance_are_those_of_the_slow_reference(weight_sum: float) -> None:
    rung = pod_rung(weight_sum)
    params = Pod.init(SHAPE, key=jax.random.key(1))
    bias = 0.05 * jax.random.normal(jax.random.key(2), (SHAPE.layers, SHAPE.experts))
    mesh = make_mesh(jax.devices()[:1])
    options = PodOptions("scatter", dtype="float32", splash=False, chunk=64)
    with jax.set_mesh(mesh):
        (loss, stats), grads = jax.jit(lambda p, b, t: _gradients(p, b, t, rung, mesh, options))(params, bias, tokens())
    slow = jax.value_and_grad(
        lambda p: objective(SHAPE, rung.router, rung.optimizer.z_loss, p, bias, tokens()), has_aux=True
    )
    (_, (expected, next_bias)), expected_grads = jax.jit(slow)(params)
    np.testing.assert_allclose(loss, expected, rtol=2e-6)
    np.testing.assert_allclose(stats.bias, next_bias, atol=2e-5)
    assert float(jnp.sum(stats.dropped)) == 0
    for (path, got), want in zip(
        jax.tree_util.tree_leaves_with_path(grads), jax.tree.leaves(expected_grads), strict=True
    ):
        scale = float(jnp.max(jnp.abs(want))) or 1.0
        np.testing.assert_allclose(got, want, atol=3e-5 * scale, err_msg=jax.tree_util.keystr(path))


def test_matrices_move_as_the_small_trainer_moves_them() -> None:
    state = initial_state(SHAPE, jnp.int32(0))
    w = state.params.layers.down
    m, s = (jax.random.normal(jax.random.key(at), w.shape) ** power for at, power in ((3, 1), (4, 2)))
    hyper = Hyperparams.of(pod_rung())
    path = (jax.tree_util.GetAttrKey("layers"), jax.tree_util.GetAttrKey("down"))
    moved = _update(path, w, m, s, jnp.float32(0.03), jnp.float32(0.1), hyper)
    (delta,) = adamh_steps([w], [m / (jnp.sqrt(s) + hyper.epsilon)], jnp.float32(0.03))
    np.testing.assert_allclose(moved, w + delta, atol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(moved, axis=(-2, -1)), jnp.linalg.norm(w, axis=(-2, -1)), rtol=1e-5)


def test_a_field_without_a_group_is_refused() -> None:
    path = (jax.tree_util.GetAttrKey("novelty"),)
    one = jnp.ones((2, 2))
    with pytest.raises(ValueError, match="novelty"):
        _update(path, one, one, one, jnp.float32(0.1), jnp.float32(0.1), Hyperparams.of(pod_rung()))


MESHES = """
import json
import sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from models.mesh import BATCH, make_mesh, shardings
from models.pod_moe import PodOptions
from models.pod_step import initial_state, pod_step
from models.train import Hyperparams
from tests.test_models_pod import SHAPE, pod_rung, tokens

rung, out = pod_rung(), {}
hyper = Hyperparams.of(rung)
for devices, expert, backend, parts, factor in json.loads(sys.argv[1]):
    mesh = make_mesh(jax.devices()[:devices], expert=expert)
    options = PodOptions(backend, factor, dtype="float32", splash=False, chunk=64, accumulation=parts)
    batch = tokens().reshape(parts, 16 // parts, -1)
    with jax.set_mesh(mesh):
        state = initial_state(SHAPE, jnp.int32(0))
        state = jax.tree.map(jax.device_put, state, shardings(state, mesh))
        batch = jax.device_put(batch, NamedSharding(mesh, P(None, BATCH, None)))
        step = jax.jit(lambda state, batch: pod_step(state, batch, hyper, rung, mesh, options))
        state, first = step(state, batch)
    weights = float(sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(state.params)))
    name = f"{devices}-{expert}-{backend}-{parts}-{factor}"
    out[name] = [float(first.loss), float(first.grad_norm), float(first.drop_fraction), weights]
print(json.dumps(out))
"""


def steps_on(*cases: tuple[int, int, str, int, float]) -> dict[str, list[float]]:
    """Loss, gradient norm, dropped share and sum of weights after one step on eight virtual devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    command = [sys.executable, "-c", MESHES, json.dumps(cases)]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, list[float]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_fsdp_and_expert_parallelism_take_the_step_of_one_device() -> None:
    """Accumulation in two parts as well; and where capacity binds, choices are dropped and counted."""
    one = (1, 1, "scatter", 1, 8.0)
    found = steps_on(one, (8, 1, "scatter", 2, 8.0), (8, 4, "ring", 1, 8.0), (8, 4, "ring", 1, 0.5))
    single, split, ring, tight = found.values()
    np.testing.assert_allclose(split, single, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(ring, single, rtol=2e-5, atol=1e-6)
    assert 0.2 < tight[2] < 0.8
    assert abs(tight[0] - single[0]) < 0.2


@pytest.mark.slow
def test_every_backend_and_axis_takes_the_step_of_one_device() -> None:
    one = (1, 1, "scatter", 1, 8.0)
    found = steps_on(one, (8, 1, "scatter", 1, 8.0), (8, 2, "fixed_all_to_all", 1, 8.0), (8, 8, "ring", 1, 8.0))
    single, *others = found.values()
    for other in others:
        np.testing.assert_allclose(other, single, rtol=2e-5, atol=1e-6)


def test_a_mesh_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide 1 devices"):
        make_mesh(jax.devices()[:1], expert=2)
    mesh = make_mesh(jax.devices()[:1])
    check_mesh(SHAPE, mesh, 16)
    with pytest.raises(InputError, match="sequences do not divide"):
        check_mesh(SHAPE, make_mesh([jax.devices()[0]] * 3), 16)


def test_every_large_leaf_is_split_over_both_axes() -> None:
    """A leaf that lived whole on every device would cost the memory that FSDP is for."""
    shape = recipe_named("marin-moe-v16").shape(1024)
    state = jax.eval_shape(lambda: initial_state(shape, jnp.int32(0)))
    mesh = make_mesh([jax.devices()[0]] * 16, expert=4)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    places = jax.tree.leaves(shardings(state, mesh))
    for (path, leaf), sharding in zip(leaves, places, strict=True):
        if leaf.size > 10**6:
            assert leaf.size // int(np.prod(sharding.shard_shape(leaf.shape))) >= 4, jax.tree_util.keystr(path)
