"""What a compiled step means, and how a compilation that cannot be made says so."""

import gzip
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from ladder import plan_isoflop, recipe_named
from ladder.attention import AttentionPattern
from ladder.cli import app as ladder_app
from ladder.errors import InputError, UnusableError
from ladder.recipe_marin_moe import MUON
from ladder.records import canonical_json, write_atomic
from ladder.rung import Rung
from models import pod_compile
from models.cli import app
from models.compile_plan import BACKENDS, alternatives, compile_to_fit, planned_request
from models.groups import Group, Method, group_of
from models.muon import orthogonalised
from models.pod_attention import BLOCK
from models.pod_compile import Answer, Request, compile_rung, known
from models.pod_report import ATTENTION_BLOCK, ATTENTION_PRODUCTS, attention_flops, expected_factors, muon_flops, report
from models.transformer import Transformer
from tests.models_flops import dot_flops
from tests.models_pod import HERO

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


def test_what_is_made_again_is_what_the_backward_pass_reads(rung: Rung) -> None:
    """Counted by hand for one token: d=640, 5 heads, 1 key head, one shared expert of d, rank 128, 64 experts."""
    shape, d, layers = rung.shape, rung.shape.hidden, rung.shape.layers
    assert (d, shape.heads, shape.kv_heads, shape.top_k, shape.expert_width) == (640, 5, 1, 4, 384)
    qkv, out, router, gate_up, down = 2 * d * 7 * 128, 2 * d * d, 2 * d * 64, 4 * d * d, 2 * d * d
    once = qkv + out + router + gate_up + down
    found = expected_factors(shape, 1.25)
    assert found["dense"] == pytest.approx((3 * once + once - down) / (3 * once))
    assert found["routed"] == pytest.approx(4 / 3 * 1.25)
    assert expected_factors(shape, 1.25, "hidden")["routed"] == pytest.approx((3 + 1 / 3) / 3 * 1.25)
    norm, gate = 4 * d * 128, 2 * d * 5
    inside = layers * (2 * norm + gate)
    assert found["gates"] == pytest.approx((3 * (inside + 2 * norm) + inside) / (3 * (inside + 2 * norm)))


def test_the_products_of_muon_are_those_of_its_matrices() -> None:
    """By the leaves of the model, against the shape; one matrix's products as JAX counts them."""
    params = jax.eval_shape(lambda: Transformer.init(HERO, key=jax.random.key(0)))
    method, total = Method("muonh", MUON), 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if group_of(path, leaf, method) is Group.MUONH:
            r, c = sorted(leaf.shape[-2:])
            total += 5 * int(np.prod(leaf.shape[:-2])) * (4 * r * r * c + 2 * r**3)
    assert muon_flops(HERO, 5) == total
    one = dot_flops(lambda x: orthogonalised(x, 5, 1e-8), jax.ShapeDtypeStruct((6, 4), jnp.float32))
    assert one == 5 * (4 * 4 * 4 * 6 + 2 * 4**3)


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


def keep(store: Path, request: Request, said: dict[str, object], program: str | None) -> None:
    """Put an answer where the compiler would have put it, the program named by its request."""
    asked = pod_compile._asked(request)
    write_atomic(asked, canonical_json({"schema": pod_compile.SCHEMA, "program": asked.stem}))
    home = store / "foretell" / "compiled" / asked.stem
    write_atomic(home / "said.json", canonical_json({"schema": pod_compile.SCHEMA, **said}))
    if program:
        write_atomic(home / "program.hlo.gz", gzip.compress(program.encode()))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pod_compile, "compiler_version", lambda: "0")
    return tmp_path


def test_answers_are_kept_by_what_decides_them(rung: Rung, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {pod_compile._asked(replace(request_of(rung), backend=backend)) for backend in BACKENDS.values()}
    assert len(asked) == len(BACKENDS)
    assert known(request_of(rung)) is None
    keep(store, request_of(rung), SAID, PROGRAM)
    assert known(request_of(rung)) == Answer({"schema": pod_compile.SCHEMA, **SAID}, PROGRAM)
    monkeypatch.setattr(pod_compile, "compiler_version", lambda: "1")
    assert known(request_of(rung)) is None


def test_what_would_fit_is_found_by_compiling(rung: Rung, store: Path) -> None:
    request = request_of(rung)
    full = {**SAID, "hbm_used": 2.0**38, "hbm_limit": 2.0**36, "message": "RESOURCE_EXHAUSTED"}
    keep(store, request, full, None)
    tried = list(alternatives(request))
    for _, other in tried[:2]:
        keep(store, other, full, None)
    keep(store, tried[2][1], SAID, PROGRAM)
    said: list[str] = []
    first, remedy, found = compile_to_fit(request, said.append)
    assert not first.fits
    assert remedy == tried[2][0]
    assert found is not None
    assert found.fits
    assert len(said) == 3
    keep(store, request, SAID, PROGRAM)
    assert compile_to_fit(request)[1:] == ("", None)


def test_the_ladder_marks_what_was_compiled(rung: Rung, store: Path) -> None:
    ladder = plan_isoflop(recipe_named("marin-moe-v16"), (3 * 10**18,), sizes=5, name="one")
    path = store / "ladder.json"
    write_atomic(path, ladder.to_json())
    keep(store, planned_request(rung, "v5p", None, None), SAID, PROGRAM)
    ran = CliRunner().invoke(app, ["compile", str(path), "--rung", rung.rung_id, "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["rungs"][0]["rung_id"] == rung.rung_id
    shown = CliRunner().invoke(ladder_app, ["show", str(path)], env={"COLUMNS": "200"})
    assert "v5p:2x2x1, 2.0 of 95.7 GiB" in shown.output
    assert shown.output.count("v5p:") == 1


@pytest.mark.skipif(LIBTPU, reason="libtpu is installed, so the compiler would answer")
def test_a_compiler_that_dies_is_reported_and_nothing_kept(rung: Rung, store: Path) -> None:
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
    """Minutes. Every kind of product is accounted for."""
    request = request_of(rung)
    found = report(request, compile_rung(request))
    assert found.fits
    assert not found.unknown_loops
    for kind, term in found.terms.items():
        assert term.accounted == pytest.approx(1, abs=0.01), kind
