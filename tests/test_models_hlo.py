"""Compiled programs as text: FLOPs, loops, collectives and bytes against closed forms and brute force."""

import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.errors import InputError
from models.hlo import Module, Shape, parse_hlo, trip_count
from models.hlo_costs import convolution_flops, count_costs, group_size

ROOT = Path(__file__).parents[1]
WIDTH, ROWS, LAYERS = 32, 48, 6
MATMUL = 2 * ROWS * WIDTH * WIDTH


def compiled_text(function: object, *args: object) -> str:
    text: str = jax.jit(function).lower(*args).compile().as_text()  # type: ignore[arg-type]
    return text


def layers(weights: jax.Array, x: jax.Array, unroll: int) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    return jnp.sum(jax.lax.scan(layer, x, weights, unroll=unroll)[0] ** 2)


@pytest.mark.parametrize("unroll", [1, 2, 3, LAYERS])
def test_a_loop_counts_as_often_as_it_runs(unroll: int) -> None:
    weights, x = jnp.ones((LAYERS, WIDTH, WIDTH)), jnp.ones((ROWS, WIDTH))
    step = jax.grad(lambda w, x: layers(w, x, unroll))
    costs = count_costs(parse_hlo(compiled_text(step, weights, x)))
    # Forward; backward to the weights; backward to the inputs, which the first layer's loop body makes too.
    assert costs.matmul_flops in (3 * LAYERS * MATMUL, (3 * LAYERS - 1) * MATMUL)
    assert not costs.unknown_loops


def test_loops_within_loops_multiply() -> None:
    def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.lax.fori_loop(2, 7, lambda _, x: jnp.tanh(x @ x), x), None

    text = compiled_text(lambda x: jax.lax.scan(outer, x, None, length=3)[0], jnp.ones((WIDTH, WIDTH)))
    assert count_costs(parse_hlo(text)).matmul_flops == 3 * 5 * 2 * WIDTH**3


def test_a_batched_product_counts_every_batch() -> None:
    text = compiled_text(lambda a, b: jnp.einsum("eij,ejk->eik", a, b), jnp.ones((5, 8, 16)), jnp.ones((5, 16, 4)))
    assert count_costs(parse_hlo(text)).matmul_flops == 2 * 5 * 8 * 16 * 4


def test_the_compiler_agrees_where_there_is_no_loop() -> None:
    function = jax.jit(lambda a, b: a @ b).lower(jnp.ones((24, 40)), jnp.ones((40, 56))).compile()
    assert count_costs(parse_hlo(function.as_text())).matmul_flops == function.cost_analysis()["flops"]


HEAD = "HloModule m, is_scheduled=true\n\nENTRY %main (a: f32[1]) -> f32[1] {\n"


def one_line(line: str) -> Module:
    return parse_hlo(f"{HEAD}  %a = f32[8,16]{{1,0}} parameter(0)\n  {line}\n}}\n")


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_a_convolution_counts_the_products_that_exist(
    size: int, width: int, stride: int, dilate: int, holes: int, low: int, high: int
) -> None:
    """Summing the convolution of ones with ones counts its products: an independent count."""
    reach = (size - 1) * holes + 1 + low + high
    if reach < (width - 1) * dilate + 1:
        return
    out = jax.lax.conv_general_dilated(
        jnp.ones((2, 3, size)),
        jnp.ones((4, 3, width)),
        (stride,),
        [(low, high)],
        lhs_dilation=(holes,),
        rhs_dilation=(dilate,),
    )
    window = f"{{size={width} stride={stride} pad={low}_{high} lhs_dilate={holes} rhs_dilate={dilate}}}"
    line = f"ROOT %c = f32[2,4,{out.shape[2]}] convolution(%a, %a), window={window}, dim_labels=bf0_oi0->bf0"
    convolution = one_line(line).computations["main"].root
    found = convolution_flops(convolution, Shape("f32", (2, 3, size)), Shape("f32", (4, 3, width)))
    assert found == 2 * round(float(out.sum()))


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,8]<=[16]", 8),
        ("mesh['data'=4,'expert'=8] {'expert'}", 8),
        ("mesh['data'=4,'expert'=8] {'data','expert'}", 32),
    ],
)
def test_groups_of_devices_in_every_spelling(groups: str, size: int) -> None:
    line = f"ROOT %g = f32[64,16] all-gather(%a), channel_id=1, replica_groups={groups}, dimensions={{0}}"
    module = one_line(line)
    assert group_size(module.computations["main"].root) == size
    (found,) = count_costs(module).collectives
    assert found.wire_bytes == 64 * 16 * 4 * (size - 1) / size


def test_started_collectives_count_once_and_reductions_twice() -> None:
    lines = (
        "%s = (f32[8,16], f32[32,16]) all-gather-start(%a), replica_groups={{0,1,2,3}}, dimensions={0}\n"
        "  %d = f32[32,16] all-gather-done(%s)\n"
        "  %r = f32[8,16] all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add\n"
        "  ROOT %p = f32[8,16] collective-permute(%r), source_target_pairs={{0,1},{1,0}}"
    )
    kinds = {each.kind: each.wire_bytes for each in count_costs(one_line(lines)).collectives}
    assert kinds["all-gather"] == 32 * 16 * 4 * 3 / 4
    assert kinds["all-reduce"] == 2 * 8 * 16 * 4 * 3 / 4
    assert kinds["collective-permute"] == 8 * 16 * 4
    assert len(kinds) == 3


def test_kernels_count_by_their_estimates_or_are_named() -> None:
    lines = (
        '%k = f32[8,16] custom-call(%a), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":\n'
        '{"body":"x","cost_estimate":{"flops":1234,"transcendentals":0,"bytes_accessed":99}}}\n'
        '  %splash_fwd.2 = f32[8,16] custom-call(%k), custom_call_target="tpu_custom_call", frontend_attributes={m={\n'
        '"block": "512"\n}}, metadata={op_name="splash"}\n'
        '  ROOT %f = f32[8,16] copy(%splash_fwd.2), backend_config={"window_config":{"estimated_cycles":"77"}}'
    )
    costs = count_costs(one_line(lines))
    assert costs.kernel_flops == 1234
    assert dict(costs.kernels) == {"splash_fwd": 1}
    assert costs.cycles == 77
    assert costs.bytes >= 2 * 8 * 16 * 4


def test_cycles_the_compiler_does_not_know_are_left_out() -> None:
    line = 'ROOT %f = f32[8,16] copy(%a), backend_config={"estimated_cycles":"9223372036854775807"}'
    assert count_costs(one_line(line)).cycles == 0


def test_a_slice_of_a_large_array_moves_its_own_size() -> None:
    def slice_of(stack: jax.Array, at: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(stack, at, keepdims=False) * 2.0

    text = compiled_text(slice_of, jnp.ones((1000, 16, 16)), jnp.int32(3))
    assert count_costs(parse_hlo(text)).bytes < 20 * 16 * 16 * 4


def test_trips_are_read_from_the_condition_where_nothing_else_says_them() -> None:
    text = """HloModule m

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %p = (s32[], f32[8,16]) parameter(0)
  ROOT %t = (s32[], f32[8,16]) tuple(%p)
}

%cond (q: (s32[], f32[8,16])) -> pred[] {
  %q = (s32[], f32[8,16]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%q), index=0
  %n = s32[]{:T(128)} constant(9)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: f32[8,16]) -> (s32[], f32[8,16]) {
  %a = f32[8,16] parameter(0)
  %two = s32[] constant(2)
  %s = (s32[], f32[8,16]) tuple(%two, %a)
  ROOT %w = (s32[], f32[8,16]) while(%s), condition=%cond, body=%body
}
"""
    module = parse_hlo(text)
    entry = module.computations["main"]
    assert trip_count(module, entry, entry.root) == 7


def test_a_loop_without_a_bound_counts_once_and_is_named() -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 5.0, lambda x: x @ x, x)

    costs = count_costs(parse_hlo(compiled_text(until, jnp.ones((WIDTH, WIDTH)))))
    assert len(costs.unknown_loops) == 1
    assert costs.matmul_flops == 2 * WIDTH**3


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 1.0))
def test_text_that_is_cut_off_is_refused_or_whole(share: float) -> None:
    text = HEAD + "  %a = f32[8,16]{1,0} parameter(0)\n  ROOT %c = f32[8,16] copy(%a)\n}\n"
    cut = text[: int(share * len(text))]
    if "}\n" in cut[len(HEAD) :].replace("{1,0}", ""):
        assert parse_hlo(cut).entry == "main"
    else:
        with pytest.raises(InputError, match="HLO"):
            parse_hlo(cut)


SHARDED = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from models.hlo import parse_hlo
from models.hlo_costs import count_costs
mesh = Mesh(jax.devices(), ("data",))
def place(shape, spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
def loss(w, x):
    y = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]
    return jnp.sum(y)
step = jax.jit(jax.grad(loss), out_shardings=NamedSharding(mesh, P(None, "data", None)))
text = step.lower(place((6, 64, 64), P(None, "data", None)), place((80, 64), P("data", None))).compile().as_text()
costs = count_costs(parse_hlo(text))
print(costs.matmul_flops, *sorted({(c.kind, c.group) for c in costs.collectives}), costs.wire_bytes, sep="|")
"""


def test_sharded_weights_are_gathered_in_every_pass_of_the_loop() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    ran = subprocess.run([sys.executable, "-c", SHARDED], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    flops, *kinds, wire = ran.stdout.strip().split("|")
    matmul = 2 * (80 // 8) * 64 * 64
    assert float(flops) in (18 * matmul, 17 * matmul)
    assert "('all-gather', 8)" in kinds
    assert float(wire) >= 6 * 64 * 64 * 4 * 7 / 8
    assert math.isfinite(float(wire))
