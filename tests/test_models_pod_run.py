"""A run on eight virtual devices: cut, gone on with on another mesh, and the small trainer's run in the end."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.data import read_corpus
from models.record import read_record
from models.run import train_run
from tests.models_small import write_corpus
from tests.test_models_pod import pod_rung

ROOT = Path(__file__).parents[1]
POD = """
import sys
from dataclasses import replace
from pathlib import Path
import jax
if len(sys.argv) > 4:
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[4]}", 2, int(sys.argv[5]))
from models.data import read_corpus
from models.mesh import make_mesh
from models.pod_layers import PodOptions
from models.pod_run import PodRun, train_on_pod
from tests.test_models_pod import pod_rung
from tests.test_models_pod_run import STEPS

corpus, folder = read_corpus(Path(sys.argv[1])), Path(sys.argv[2])
rung = replace(pod_rung(router="histogram"), steps=STEPS, capacity_factor=8.0)
for expert, backend, parts, stop in eval(sys.argv[3]):
    options = PodOptions(backend, 8.0, dtype="float32", splash=False, chunk=64, accumulation=parts)
    how = PodRun(make_mesh(jax.devices(), expert=expert), options, stop_at=stop)
    record = train_on_pod(rung, 0, folder, corpus, how)
    assert (record is None) == (stop is not None)
"""
STEPS = 12


def start(devices: int, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", POD, *arguments]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def assert_the_same_run(folder: Path, corpus_folder: Path, tmp_path: Path) -> None:
    """Losses of every step and of both held-out texts, against the small trainer on one device."""
    rung = replace(pod_rung(router="histogram"), steps=STEPS, capacity_factor=8.0)
    expected = train_run(rung, 0, tmp_path / "small", read_corpus(corpus_folder))
    found = read_record(folder / "record.json")
    assert (found.steps_done, found.status, found.spec_sha256) == (STEPS, expected.status, expected.spec_sha256)
    assert found.drop_fraction == 0
    assert found.train_loss == pytest.approx(expected.train_loss, rel=1e-3)
    for text, evaluation in expected.evaluations.items():
        assert found.evaluations[text].nats_per_token == pytest.approx(evaluation.nats_per_token, rel=1e-3)
        assert found.evaluations[text].bits_per_byte == pytest.approx(evaluation.bits_per_byte, rel=1e-3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    small = [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)) == [line["step"] for line in small]
    # Rounding differs from the first product on and grows from step to step.
    np.testing.assert_allclose([line["loss"] for line in lines], [line["loss"] for line in small], rtol=1e-3)
    np.testing.assert_allclose([line["loss"] for line in lines[:2]], [line["loss"] for line in small[:2]], rtol=3e-5)


def test_a_cut_run_goes_on_elsewhere_and_is_the_small_trainers(tmp_path: Path) -> None:
    """FSDP in two parts up to step 5, then a ring over four devices; loss after 12 steps of MuonH."""
    corpus = write_corpus(tmp_path / "corpus")
    legs = "[(1, 'scatter', 2, 5), (4, 'ring', 1, None)]"
    pod = start(8, str(corpus), str(tmp_path / "pod"), legs)
    _, said = pod.communicate()
    assert pod.returncode == 0, said[-2000:]
    assert_the_same_run(tmp_path / "pod", corpus, tmp_path)


@pytest.mark.slow
def test_two_processes_make_one_run(tmp_path: Path) -> None:
    """Four devices each, joined by jax.distributed: shards of both are in the checkpoint, the first keeps the record."""
    corpus = write_corpus(tmp_path / "corpus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    legs = "[(2, 'ring', 1, 5), (2, 'fixed_all_to_all', 1, None)]"
    pods = [start(4, str(corpus), str(tmp_path / "pod"), legs, port, str(number)) for number in range(2)]
    said = [pod.communicate()[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said[0][-2000:] + said[1][-2000:]
    assert_the_same_run(tmp_path / "pod", corpus, tmp_path)
