"""What a compiled step means, and how a compilation that cannot be made says so."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ladder import plan_isoflop, recipe_named
from ladder.attention import AttentionPattern
from ladder.errors import InputError, UnusableError
from ladder.rung import Rung
from models import pod_compile
from models.cli import app
from models.cli_compile import BACKENDS, alternatives, planned_request
from models.pod_attention import BLOCK
from models.pod_compile import Answer, Request, compile_rung, known
from models.pod_report import ATTENTION_BLOCK, ATTENTION_PRODUCTS, attention_flops, report

LIBTPU = importlib.util.find_spec("libtpu") is not None
PROGRAM = """HloModule m, is_scheduled=true

ENTRY %main (a: bf16[8,16], b: bf16[16,4]) -> bf16[8,4] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,4]{1,0} parameter(1)
  %g = bf16[16,4]{1,0} all-reduce(%b), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %d = bf16[8,4]{1,0} dot(%a, %g), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp(head)/dot_general"}, backend_config={"estimated_cycles":"1750"}
}
"""
SAID = {"devices": 4, "versions": {"jax": "0"}, "message": "", "hbm_used": 2.0**31, "compile_s": 1.0}


@pytest.fixture(scope="module")
def rung() -> Rung:
    recipe = recipe_named("marin-moe-v16")
    return plan_isoflop(recipe, (3 * 10**18,), sizes=5, name="one").rungs[0]


def request_of(rung: Rung) -> Request:
    return Request(rung, "v5p:2x2x1", 1, "scatter", 1.0, 1)


@pytest.mark.parametrize(("seq", "window", "every"), [(4096, 2048, 4), (4096, 0, 0), (2048, 700, 2), (1024, 512, 3)])
def test_attention_counts_the_blocks_that_a_mask_touches(rung: Rung, seq: int, window: int, every: int) -> None:
    assert ATTENTION_BLOCK == BLOCK
    pattern = AttentionPattern(window=window, global_every=every)
    shape = replace(rung.shape, seq_len=seq, attention=pattern)
    rows, columns = np.arange(seq)[:, None], np.arange(seq)[None]
    total = 0
    for layer in range(shape.layers):
        mask = columns <= rows
        if not pattern.is_global(layer, shape.layers):
            mask &= columns > rows - window
        blocks = mask.reshape(seq // BLOCK, BLOCK, seq // BLOCK, BLOCK).any(axis=(1, 3)).sum()
        total += int(blocks) * 2 * BLOCK * BLOCK * shape.head_dim * shape.heads * ATTENTION_PRODUCTS
    assert attention_flops(shape, 3.0) == 3 * total


def test_a_program_becomes_terms_traffic_and_a_bound(rung: Rung) -> None:
    found = report(request_of(rung), Answer(SAID, PROGRAM))
    assert found.fits
    assert found.terms["head"].executed == 2 * 8 * 4 * 16
    assert (
        found.terms["head"].analytic == 3 * 2 * rung.shape.hidden * rung.shape.vocab_size * rung.batch_seqs * 4096 / 4
    )
    assert found.xla_s == pytest.approx(1e-6)
    (traffic,) = found.collectives
    assert (traffic.kind, traffic.group, traffic.runs, traffic.wire_bytes) == ("all-reduce", 4, 1, 2 * 128 * 3 / 4)
    assert found.roofline_step_s is not None
    assert found.roofline_step_s > found.kernel_s > 0


def test_a_program_that_does_not_fit_is_a_result(rung: Rung) -> None:
    said = {**SAID, "hbm_used": 2.0**38, "hbm_limit": 2.0**36, "message": "RESOURCE_EXHAUSTED"}
    found = report(request_of(rung), Answer(said, None))
    assert not found.fits
    assert found.roofline_step_s is None
    assert found.hbm_limit == 2.0**36


def test_what_is_tried_next_divides_the_batch(rung: Rung) -> None:
    tried = list(alternatives(request_of(rung)))
    assert any(other.accumulation == 2 for _, other in tried)
    assert any(other.topology == "v5p:2x2x2" for _, other in tried)
    for _, other in tried:
        devices = np.prod([int(side) for side in other.topology.partition(":")[2].split("x")])
        assert rung.batch_seqs % (devices * other.accumulation) == 0


def test_the_plan_chooses_slice_and_backend(rung: Rung) -> None:
    request = planned_request(rung, "v5p", None, None)
    assert request.topology == "v5p:2x2x1"
    assert (request.expert_axis, request.backend) == (1, "scatter")
    assert planned_request(rung, "v5p", None, "ring").expert_axis == 2
    with pytest.raises(InputError, match="does not exist"):
        planned_request(rung, "v5p", "v5p:3x3x3", None)


def test_answers_are_kept_by_what_decides_them(rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pod_compile, "compiler_version", lambda: "0")
    homes = {pod_compile._home(replace(request_of(rung), backend=backend)) for backend in BACKENDS.values()}
    assert len(homes) == len(BACKENDS)
    assert known(request_of(rung)) is None
    monkeypatch.setattr(pod_compile, "compiler_version", lambda: "1")
    assert pod_compile._home(request_of(rung)) not in homes


@pytest.mark.skipif(LIBTPU, reason="libtpu is installed, so the compiler would answer")
def test_a_compiler_that_dies_is_reported_and_nothing_kept(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pod_compile, "compiler_version", lambda: "0")
    with pytest.raises(UnusableError, match="ended with status"):
        compile_rung(request_of(rung))
    assert known(request_of(rung)) is None


@pytest.mark.skipif(LIBTPU, reason="libtpu is installed")
def test_without_the_compiler_one_sentence_names_the_remedy(rung: Rung) -> None:
    ran = CliRunner().invoke(app, ["compile", "absent.json", "--all"])
    assert isinstance(ran.exception, InputError)
    assert "make setup-tpu" in str(ran.exception)


@pytest.mark.slow
@pytest.mark.skipif(not LIBTPU, reason="libtpu is not installed; make setup-tpu")
def test_the_smallest_rung_compiles_and_fits(rung: Rung) -> None:
    """Minutes. Head exactly three passes; routed experts exactly four thirds of three, the recomputation."""
    request = request_of(rung)
    found = report(request, compile_rung(request))
    assert found.fits
    assert not found.unknown_loops
    assert found.terms["head"].executed == pytest.approx(found.terms["head"].analytic, rel=1e-6)
    assert found.terms["routed"].executed == pytest.approx(found.terms["routed"].analytic * 4 / 3, rel=0.01)
    assert found.terms["dense"].executed == pytest.approx(found.terms["dense"].analytic * 4 / 3, rel=0.06)
