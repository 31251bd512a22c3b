"""Sharded states are saved and restored on eight virtual devices, on other meshes, and past damage."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHILD = """
import json, resource, shutil, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from ladder.errors import InputError, StorageError
from models.mesh import make_mesh, shardings
from models.pod_checkpoint import restore_pod, save_pod
from models.train import initial_state
from tests.models_pod import HERO

folder, digest = Path(sys.argv[1]), "a" * 64
shapes = jax.eval_shape(lambda: initial_state(HERO, jnp.int32(0)))

def placed(expert, devices=8):
    mesh = make_mesh(jax.devices()[:devices], expert=expert)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, shardings(shapes, mesh)
    )

def state(step, like):
    rng = np.random.default_rng(step)
    def fill(leaf):
        value = rng.standard_normal(leaf.shape).astype(leaf.dtype) if leaf.shape else np.asarray(step, leaf.dtype)
        return jax.device_put(value, leaf.sharding)
    return jax.tree.map(fill, like)

def same(found, step, like):
    return all(jax.tree.leaves(jax.tree.map(
        lambda a, b, want: bool(np.array_equal(a, b)) and a.sharding == want.sharding, found, state(step, like), like
    )))

def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)

like, out = placed(4), {}
out["none"] = restore_pod(folder, digest, like) is None
for step in (1, 2, 3, 4):
    save_pod(folder, digest, state(step, like), permanent=step == 2)
out["kept"] = sorted(path.name for path in folder.iterdir())
out["split"] = max(len({str(s.index) for s in leaf.addressable_shards}) for leaf in jax.tree.leaves(restore_pod(folder, digest, like)))
out["same"] = [same(restore_pod(folder, digest, place), 4, place) for place in (like, placed(2), placed(1), placed(1, 1))]
out["other"] = refused(InputError, lambda: restore_pod(folder, "b" * 64, like))
out["arrays"] = refused(InputError, lambda: restore_pod(folder, digest, like.params))

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
out["full"] = refused(StorageError, lambda: save_pod(folder, digest, state(5, like)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
save_pod(folder, digest, state(4, like))
out["left"] = sorted(path.name for path in folder.iterdir() if path.name[-1].isdigit())
out["after full"] = same(restore_pod(folder, digest, like), 4, like)

def largest(path):
    return max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)

bad = largest(folder / "step-0000000004")
data = bytearray(bad.read_bytes()); data[len(data) // 2] ^= 1; bad.write_bytes(bytes(data))
out["flipped"] = same(restore_pod(folder, digest, like), 3, like)
bad = largest(folder / "step-0000000003")
bad.write_bytes(bad.read_bytes()[:-1])
out["cut"] = same(restore_pod(folder, digest, like), 2, like)
(folder / "kept-0000000002" / "seal.json").unlink()
out["damaged"] = refused(InputError, lambda: restore_pod(folder, digest, like))
print(json.dumps(out))
"""


def test_sharded_states_survive_other_meshes_full_disks_and_damage(tmp_path: Path) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    out = json.loads(ran.stdout.splitlines()[-1])
    assert out["none"]
    assert out["kept"] == ["kept-0000000002", "step-0000000003", "step-0000000004"]
    assert out["split"] == 8
    assert out["same"] == [True] * 4
    assert "belongs to another configuration (spec aaaaaaaa, this run has bbbbbbbb)" in out["other"]
    assert "holds other arrays" in out["arrays"]
    assert "the checkpoint of step 5 cannot be written" in out["full"]
    assert out["after full"]
    assert out["left"] == out["kept"]
    assert out["flipped"]
    assert out["cut"]
    assert "every checkpoint in" in out["damaged"]
