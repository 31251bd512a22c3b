"""A pod's step: against the small trainer's model on one device, and itself on every mesh of eight."""

import json
import math
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
from ladder.errors import InputError
from ladder.recipe_marin_moe import MUON
from ladder.rung import Rung
from ladder.shape import MoeShape
from models.experts import dense
from models.mesh import check_mesh, make_mesh, shardings
from models.pod_layers import PodOptions
from models.pod_step import _gradients
from models.train import initial_state
from models.transformer import RouterStats, Transformer
from tests.models_pod import DENSE, HERO, MOE, ROUTERS

ROOT = Path(__file__).parents[1]


def pod_rung(shape: MoeShape = MOE, router: str = "topk") -> Rung:
    """A rung of the tiny recipe with another shape and router; with the latter's histogram, trained by MuonH."""
    rung = plan_isoflop(recipe_named("tiny-cpu"), (2 * 10**10,), sizes=3, name="pod").rungs[0]
    if router == "histogram":
        rung = replace(rung, optimizer=replace(rung.optimizer, name="muonh", muon=MUON, head_lr=0.02))
    return replace(rung, shape=shape, router=ROUTERS[router], batch_seqs=16)


def shaken_params(rung: Rung) -> Transformer:
    """Parameters whose gates, gains and convolutions are not at their neutral starts."""
    params = Transformer.init(rung.shape, rung.router, key=jax.random.key(1))
    leaves, structure = jax.tree.flatten(params)
    noise = [0.1 * jax.random.normal(jax.random.key(at), leaf.shape) for at, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, [leaf + more for leaf, more in zip(leaves, noise, strict=True)])


def tokens(seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, (16, MOE.seq_len + 1)), jnp.int32)


@pytest.mark.parametrize(("shape", "router"), [(MOE, "topk"), (MOE, "auxiliary"), (HERO, "histogram"), (DENSE, "topk")])
def test_loss_gradient_and_balance_are_those_of_the_small_trainer(shape: MoeShape, router: str) -> None:
    rung = pod_rung(shape, router)
    params = shaken_params(rung)
    bias = 0.05 * jax.random.normal(jax.random.key(2), (shape.layers, shape.experts))
    mesh = make_mesh(jax.devices()[:1])
    options = PodOptions("scatter", dtype="float32", splash=False, chunk=64)
    with jax.set_mesh(mesh):
        (loss, stats), grads = jax.jit(lambda p, b, t: _gradients(p, b, t, rung, mesh, options))(params, bias, tokens())

    def objective(p: Transformer) -> tuple[jax.Array, tuple[jax.Array, RouterStats]]:
        losses, partition, stats = p.losses(tokens(), bias, dense)
        total = jnp.mean(losses) + rung.optimizer.z_loss * jnp.mean(partition**2) + jnp.sum(stats.penalty)
        return total, (jnp.mean(losses), stats)

    (_, (expected, wanted)), expected_grads = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(loss, expected, rtol=2e-6)
    np.testing.assert_allclose(stats.next_bias, wanted.next_bias, atol=2e-5)
    np.testing.assert_allclose(stats.load, wanted.load)
    np.testing.assert_allclose(stats.penalty, wanted.penalty, rtol=1e-5)
    assert float(jnp.sum(stats.dropped)) == 0
    for (path, got), want in zip(
        jax.tree_util.tree_leaves_with_path(grads), jax.tree.leaves(expected_grads), strict=True
    ):
        scale = float(jnp.max(jnp.abs(want))) if want.size else 1.0
        np.testing.assert_allclose(got, want, atol=5e-5 * (scale or 1.0), err_msg=jax.tree_util.keystr(path))


MESHES = """
import json
import sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from models.groups import Method
from models.mesh import BATCH, make_mesh, shardings
from models.pod_layers import PodOptions
from models.pod_step import pod_step
from models.train import Hyperparams, initial_state
from tests.models_pod import HERO, MOE
from tests.test_models_pod import pod_rung, tokens

out = {}
for shape, router, devices, expert, backend, parts, factor in json.loads(sys.argv[1]):
    rung = pod_rung({"MOE": MOE, "HERO": HERO}[shape], router)
    hyper = Hyperparams.of(rung)
    mesh = make_mesh(jax.devices()[:devices], expert=expert)
    remat = "hidden" if backend == "ring" and factor > 1 else "full"  # keeping activations changes no number
    options = PodOptions(backend, factor, dtype="float32", splash=False, chunk=64, accumulation=parts, remat=remat)
    batch = tokens().reshape(parts, 16 // parts, -1)
    with jax.set_mesh(mesh):
        state = initial_state(rung.shape, jnp.int32(0), rung.router, Method.of(rung.optimizer))
        state = jax.tree.map(jax.device_put, state, shardings(state, mesh))
        batch = jax.device_put(batch, NamedSharding(mesh, P(None, BATCH, None)))
        step = jax.jit(lambda state, batch: pod_step(state, batch, hyper, rung, mesh, options))
        state, first = step(state, batch)
    weights = float(sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(state.params)))
    bias = float(jnp.sum(jnp.abs(state.bias))) if router == "histogram" else 0.0
    name = f"{shape}-{devices}-{expert}-{backend}-{parts}-{factor}"
    out[name] = [float(first.loss), float(first.grad_norm), float(first.drop_fraction), weights, bias]
print(json.dumps(out))
"""

Case = tuple[str, str, int, int, str, int, float]


def steps_on(*cases: Case) -> dict[str, list[float]]:
    """Loss, gradient norm, dropped share, sums of weights and of histogram biases after a step on virtual devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    command = [sys.executable, "-c", MESHES, json.dumps(cases)]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, list[float]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_fsdp_and_expert_parallelism_take_the_step_of_one_device() -> None:
    """Accumulation in two parts as well; and where capacity binds, choices are dropped and counted."""
    one: Case = ("MOE", "topk", 1, 1, "scatter", 1, 8.0)
    found = steps_on(
        one,
        ("MOE", "topk", 8, 1, "scatter", 2, 8.0),
        ("MOE", "topk", 8, 4, "ring", 1, 8.0),
        ("MOE", "topk", 8, 2, "fixed_all_to_all", 1, 8.0),
        ("MOE", "topk", 8, 4, "ring", 1, 0.5),
    )
    single, split, ring, fixed, tight = found.values()
    np.testing.assert_allclose(split, single, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(ring, single, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(fixed, single, rtol=2e-5, atol=1e-6)
    assert 0.2 < tight[2] < 0.8
    assert abs(tight[0] - single[0]) < 0.2


DROPS = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
from models.experts import Experts
from models.mesh import make_mesh, place_rows
from models.pod_layers import PodOptions
from models.pod_moe import routed_experts

mesh = make_mesh(jax.devices(), expert=4)
rng = np.random.default_rng(0)
skewed = np.exp(-np.arange(8) / 2)
chosen = np.stack([rng.choice(8, 2, replace=False, p=skewed / skewed.sum()) for _ in range(64)]).astype(np.int32)
found = {"chosen": chosen.tolist()}
with jax.set_mesh(mesh):
    rows = [place_rows(each, mesh) for each in (rng.normal(size=(64, 4)).astype(np.float32), chosen, np.ones((64, 2), np.float32))]
    experts = Experts(jnp.ones((8, 4, 6)), jnp.ones((8, 3, 4)))
    for backend in ("fixed_all_to_all", "ring"):
        for factor in (0.5, 1.0, 1.5, 8.0):
            options = PodOptions(backend, factor, dtype="float32", splash=False)
            run = jax.jit(lambda x, chosen, weights: routed_experts(experts, x, chosen, weights, mesh, options)[1])
            found[f"{backend} {factor}"] = float(run(*rows))
print(json.dumps(found))
"""


def test_what_a_mesh_drops_is_what_numpy_counts() -> None:
    """Two groups of four devices. Fixed: slots for each pair of sending device and expert; ring: for each device's experts."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    ran = subprocess.run([sys.executable, "-c", DROPS], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    chosen = np.array(found["chosen"])
    for factor in (0.5, 1.0, 1.5, 8.0):
        lost = 0
        for sender in chosen.reshape(8, 8, 2):
            lost += np.maximum(np.bincount(sender.ravel(), minlength=8) - max(1, math.ceil(factor * 16 / 8)), 0).sum()
        assert found[f"fixed_all_to_all {factor}"] == lost, factor
        lost = 0
        for group in chosen.reshape(2, 32, 2):
            loads = np.bincount(group.ravel(), minlength=8).reshape(4, 2).sum(axis=1)
            lost += np.maximum(loads - min(64, max(2, math.ceil(factor * 64 / 4))), 0).sum()
        assert found[f"ring {factor}"] == lost, factor
    assert found["ring 0.5"] > found["ring 1.0"] > found["ring 8.0"] == 0 == found["fixed_all_to_all 8.0"]


@pytest.mark.slow
def test_every_backend_axis_and_shape_takes_the_step_of_one_device() -> None:
    for shape, router in (("MOE", "topk"), ("HERO", "histogram")):
        found = steps_on(
            (shape, router, 1, 1, "scatter", 1, 8.0),
            (shape, router, 8, 1, "scatter", 1, 8.0),
            (shape, router, 8, 2, "fixed_all_to_all", 1, 8.0),
            (shape, router, 8, 8, "ring", 1, 8.0),
        )
        single, *others = found.values()
        for other in others:
            np.testing.assert_allclose(other, single, rtol=2e-5, atol=1e-5)


def test_a_mesh_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide 1 devices"):
        make_mesh(jax.devices()[:1], expert=2)
    mesh = make_mesh(jax.devices()[:1])
    check_mesh(MOE, mesh, 16)
    with pytest.raises(InputError, match="sequences do not divide"):
        check_mesh(MOE, make_mesh([jax.devices()[0]] * 3), 16)


@pytest.mark.parametrize("recipe", ["marin-moe-v16", "marin-hero", "delphi-v2"])
def test_every_large_leaf_is_split_over_both_axes(recipe: str) -> None:
    """A leaf that lived whole on every device would cost the memory that FSDP is for."""
    state = jax.eval_shape(lambda: initial_state(recipe_named(recipe).shape(1024), jnp.int32(0)))
    mesh = make_mesh([jax.devices()[0]] * 16, expert=4)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    places = jax.tree.leaves(shardings(state, mesh))
    for (path, leaf), sharding in zip(leaves, places, strict=True):
        if leaf.size > 10**6:
            assert leaf.size // int(np.prod(sharding.shard_shape(leaf.shape))) >= 4, jax.tree_util.keystr(path)
