"""Recipes: the slips that were published stay caught, rules keep their units, pins hold, users bring their own."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.errors import InputError, VerificationError
from ladder.flops import FlopConvention, forward_flops_per_token, training_flops_per_token
from ladder.generate import make_rung, plan_isoflop
from ladder.pin import check_derivation, pin_recipe
from ladder.recipe import RECIPES, recipe_named
from ladder.recipe_marin_hero import DEPTH, MarinHero
from ladder.recipe_marin_moe import MarinMoeV16, muonh
from ladder.rung import Ladder, RecipePin, read_ladder
from ladder.shape import MoeShape

V16, HERO = MarinMoeV16(), MarinHero()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_recipe_offers_whole_shapes_and_finite_rates(recipe) -> None:
    for hidden in recipe.widths():
        shape = recipe.shape(hidden)
        tokens = 20.0 * count_params(shape).nonembedding_active
        batch = recipe.batch_seqs(tokens, shape)
        plan = recipe.optimizer(tokens, batch, shape)
        assert batch >= 1
        rates = (plan.matrix_lr, plan.adam_lr, plan.beta1, plan.beta2, plan.epsilon)
        assert all(math.isfinite(rate) and rate > 0 for rate in rates)
        assert plan.beta2 < 1
    budgets = (*recipe.fit_budgets, *recipe.held_out_budgets)
    assert [recipe.expected_optimum(budget) for budget in budgets] == sorted(map(recipe.expected_optimum, budgets))
    assert all(set(recipe.widths_at(budget)) <= set(recipe.widths()) for budget in budgets)


def test_layers_follow_the_rule_that_the_logged_flops_fit_and_not_the_readme() -> None:
    # README@04331363 prints 10, 14 and 18; isoflop-moe-v16-1e+18-d768 logged 1.9425473936857495e18 FLOPs on
    # 1,594,884,096 tokens (v16_isoflop_data.json)
    assert [V16.shape(hidden).layers for hidden in (768, 1536, 2048)] == [8, 16, 21]
    per_token = training_flops_per_token(V16.shape(768), FlopConvention.MATMUL_FULL)
    assert per_token * 1_594_884_096 == pytest.approx(1.9425473936857495e18, rel=1e-9)
    slip = replace(V16.shape(768), layers=10)
    assert training_flops_per_token(slip, FlopConvention.MATMUL_FULL) > 1.1 * per_token


def test_the_last_layer_is_global_where_the_published_count_forgot_it() -> None:
    # the launcher counts L // 4: d512 -2.0 %, d1280 -0.9 %, d2048 -0.45 % (9.201e21 printed, 9.242e21 trained)
    errors = {}
    for hidden in DEPTH:
        shape = HERO.shape(hidden)
        forgetful = replace(shape, attention=replace(shape.attention, last_global=False))
        counted, actual = (forward_flops_per_token(item, windowed=True).total for item in (forgetful, shape))
        assert shape.attention.global_layers(shape.layers) == math.ceil(shape.layers / 4)
        errors[hidden] = round(100 * (counted / actual - 1), 2)
    assert errors == {512: -2.04, 768: 0, 1024: 0, 1280: -0.9, 1536: 0, 2048: -0.44, 6144: 0}
    flops = training_flops_per_token(HERO.shape(2048), FlopConvention.MATMUL_FULL_WINDOWED) * HERO.tokens(
        HERO.shape(2048)
    )
    assert flops == pytest.approx(9.242e21, rel=1e-4)


@given(st.integers(1, 60), st.integers(0, 8), st.booleans())
def test_global_layers_are_counted_as_they_are_laid_out(layers: int, every: int, last: bool) -> None:
    pattern = AttentionPattern(window=16, global_every=every, last_global=last)
    assert pattern.global_layers(layers) == sum(pattern.is_global(layer, layers) for layer in range(layers))
    assert AttentionPattern().global_layers(layers) == layers


def test_muonh_takes_its_batch_in_tokens_and_adamh_in_sequences() -> None:
    # the source prints sqrt(B) for both; 18.31 belongs to sequences of 4096, 0.06602 to tokens
    tokens, batch, hidden = 4.42e9, 64, 768
    plan = muonh(tokens, batch * 4096, hidden, z_loss=0.0)
    assert plan.matrix_lr == pytest.approx(18.31 * tokens**-0.395 * hidden**-0.150 * math.sqrt(batch), rel=1e-3)
    adamh = V16.optimizer(tokens, batch, V16.shape(hidden))
    assert adamh.adam_lr == pytest.approx(1.63 * tokens**-0.2813 * hidden**-0.3678 * math.sqrt(batch), rel=1e-12)
    # issue #5951: carrying the AdamH law over to MuonH gives another rate, the more so at 1e23
    far = muonh(1e12, 2048 * 4096, 5120, z_loss=0.0).adam_lr / V16.optimizer(1e12, 2048, V16.shape(5120)).adam_lr
    near = plan.adam_lr / adamh.adam_lr
    assert near == pytest.approx(0.88, abs=0.01)
    assert far == pytest.approx(0.72, abs=0.01)


def test_6nd_errs_both_ways() -> None:
    # attention dominates at long sequences, where 6ND is too small; the looked-up embedding at large vocabularies
    wide = replace(V16.shape(512), seq_len=32_768)
    assert training_flops_per_token(wide, FlopConvention.SIX_ND_ACTIVE) < 0.6 * training_flops_per_token(
        wide, FlopConvention.MATMUL_FULL
    )
    wordy = replace(V16.shape(512), seq_len=256)
    assert training_flops_per_token(wordy, FlopConvention.SIX_ND_ACTIVE) > 1.4 * training_flops_per_token(
        wordy, FlopConvention.MATMUL_FULL
    )
    # over all parameters 6ND charges a token for experts it never meets
    ratio = [
        training_flops_per_token(V16.shape(d), FlopConvention.SIX_ND) / training_flops_per_token(V16.shape(d), c)
        for d, c in ((512, FlopConvention.MATMUL_FULL), (5120, FlopConvention.MATMUL_FULL))
    ]
    assert ratio[0] < 3 < 7 < ratio[1]


def test_matching_active_parameters_does_not_match_compute() -> None:
    # issue #9287: two d512 variants matched by active parameters were off by -17.1 % and +18.3 % in FLOPs
    base = V16.shape(512)
    deep = replace(base, layers=12, expert_width=64, shared_width=192)
    n, m = count_params(base).nonembedding_active, count_params(deep).nonembedding_active
    assert m == pytest.approx(n, rel=0.03)
    flops = [training_flops_per_token(item, FlopConvention.MATMUL_NO_HEAD) for item in (base, deep)]
    assert flops[1] > 1.3 * flops[0]


MIXTRAL = MoeShape(32_000, 4096, 32, 4096, 32, 8, 128, 8, 2, 14_336, 0, 0)
QWEN3_30B = MoeShape(
    151_936, 4096, 48, 2048, 32, 4, 128, 128, 8, 768, 0, 0, attention=AttentionPattern(qk_gains=True, rope_theta=1e6)
)


def test_open_models_are_counted_as_their_checkpoints() -> None:
    assert count_params(MIXTRAL).total == 46_702_792_704  # huggingface.co/mistralai/Mixtral-8x7B-v0.1
    assert count_params(MIXTRAL).active == pytest.approx(12.88e9, rel=1e-3)
    assert count_params(QWEN3_30B).total == 30_532_122_624  # huggingface.co/Qwen/Qwen3-30B-A3B
    # MaxText PR #678: FLOPs by active experts, 79.98, not by all, 287.78
    every = replace(MIXTRAL, top_k=8)
    assert forward_flops_per_token(every).total / forward_flops_per_token(MIXTRAL).total > 3.3


def test_default_plan_is_compute_matched_and_brackets_every_optimum() -> None:
    ladder = plan_isoflop(V16, V16.fit_budgets, held_out=V16.held_out_budgets)
    assert (len(ladder.rungs), len(ladder.held_out_rungs)) == (31, 5)
    assert max(abs(rung.compute_error) for rung in ladder.rungs) < 1e-4
    assert ladder.remarks == ()
    for budget in V16.fit_budgets:
        sizes = [rung.counts.nonembedding_active for rung in ladder.fit_rungs if rung.budget == budget]
        assert len(sizes) >= 5
        assert (
            min(
                sum(size < V16.expected_optimum(budget) for size in sizes),
                sum(size > V16.expected_optimum(budget) for size in sizes),
            )
            >= 2
        )
    assert all(rung.extrapolated_recipe for rung in ladder.held_out_rungs if rung.budget > 10**21)


def test_an_optimum_that_is_not_bracketed_is_said() -> None:
    ladder = plan_isoflop(V16, [10**17])
    assert "fewer than the 2 that bracket it" in ladder.remarks[0]


def test_near_budgets_stay_apart() -> None:
    # Marin rounds to one digit, which makes 1.5e19 and 2.4e19 one bucket
    ladder = plan_isoflop(V16, [15 * 10**18, 24 * 10**18], sizes=2)
    assert sorted({rung.budget for rung in ladder.rungs}) == [15 * 10**18, 24 * 10**18]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: V16.shape(1000), "hidden=1000 is not a positive multiple of .* head_dim=128; use 1024"),
        (lambda: V16.shape(0), "use 128"),
        (lambda: HERO.shape(896), "no width 896; use one of 512, 768"),
        (lambda: recipe_named("tiny-cpu").shape(100), "no width 100"),
        (lambda: replace(V16.shape(512), top_k=65), "top_k=65 is larger than experts=64"),
        (lambda: replace(V16.shape(512), experts=0), "top_k=4 is larger than experts=0"),
        (lambda: replace(V16.shape(512), expert_width=0), "all are positive, or all 0"),
        (lambda: replace(RECIPES["delphi-v2"].shape(512), shared_experts=0, shared_width=0), "MLP as shared expert"),
        (lambda: AttentionPattern(last_global=True), "window=0 makes"),
        (lambda: AttentionPattern(window=-1), "must not be negative"),
        (lambda: AttentionPattern(rope_fraction=0.0), "rope_fraction=0.0 must be above 0"),
        (lambda: plan_isoflop(V16, [10**18, 0]), "budgets must be positive"),
        (lambda: plan_isoflop(V16, [3 * 10**18], corpus_tokens=3 * 10**18), "is that number in FLOPs"),
        (lambda: plan_isoflop(V16, [3 * 10**9]), "too small for width"),
        (lambda: plan_isoflop(V16, [10**18], overrides={10**18: {"layers": 3}}), "no held-out budget"),
        (lambda: make_rung(V16, 10**18, 512, overrides={"colour": 3}), "cannot override 'colour'"),
        (lambda: make_rung(V16, 10**18, 512, overrides={"hidden": 640}), "cannot override 'hidden'"),
        (lambda: make_rung(V16, 10**18, 512, overrides={"steps": 0}), "must be at least 1"),
        (lambda: make_rung(V16, 10**18, 512, overrides={"steps": 9, "tokens": 9}), "not both"),
        (lambda: make_rung(V16, 10**18, 512, overrides={"steps": 100}), "more than 2 % off the budget"),
        (lambda: make_rung(V16, 10**18, 512, overrides={"kv_heads": 3}), "kv_heads=3 does not divide heads=4"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_tokens_beyond_the_corpus_are_said_in_epochs() -> None:
    ladder = plan_isoflop(V16, [3 * 10**18], sizes=1, corpus_tokens=10**9)
    assert ladder.rungs[0].epochs == ladder.rungs[0].tokens / 10**9
    assert "epochs of a corpus of 1B" in ladder.remarks[-1]
    enough = plan_isoflop(V16, [3 * 10**18], sizes=1, corpus_tokens=10**13)
    assert not [remark for remark in enough.remarks if "epochs" in remark]
    assert math.isnan(plan_isoflop(V16, [3 * 10**18], sizes=1).rungs[0].epochs)


def test_pinned_ladder_is_derived_again_alike_or_refused(tmp_path: Path) -> None:
    by_hand = {10**23: {"hidden": 5120, "layers": 48, "batch_seqs": 2048, "steps": 120_332}}
    ladder = plan_isoflop(V16, [3 * 10**18], held_out=[10**23], overrides=by_hand)
    ladder.save(tmp_path / "ladder.json")
    again = read_ladder(tmp_path / "ladder.json")
    assert again == ladder
    assert again.recipes == (pin_recipe(V16),)
    assert check_derivation(again, V16, "ladder.json") == len(ladder.rungs)
    assert {item.field: item.value for item in again.held_out_rungs[0].overrides} == by_hand[10**23]
    other = Ladder("x", ladder.rungs, ladder.provenance, (RecipePin(V16.name, "0" * 64),))
    with pytest.raises(VerificationError, match="another recipe that was also called marin-moe-v16"):
        check_derivation(other, V16, "ladder.json")
    forged = replace(ladder.rungs[0], batch_seqs=ladder.rungs[0].batch_seqs * 2, steps=ladder.rungs[0].steps // 2)
    with pytest.raises(VerificationError, match="does not follow from recipe"):
        check_derivation(Ladder("x", (forged,), ladder.provenance, ladder.recipes), V16, "ladder.json")


def test_identity_survives_new_fields_and_ignores_remarks() -> None:
    rung = make_rung(V16, 3 * 10**18, 768)
    assert replace(rung, extrapolated_recipe="why").rung_id == rung.rung_id
    assert replace(rung, shape=replace(rung.shape, short_conv=0)).rung_id == rung.rung_id
    assert replace(rung, shape=replace(rung.shape, short_conv=4)).rung_id != rung.rung_id
    assert make_rung(V16, 3 * 10**18, 768, overrides={"layers": 8}).rung_id == rung.rung_id


OWN = '''
from __future__ import annotations
from dataclasses import dataclass
from ladder.recipe import RECIPES, AbstractRecipe
V16 = RECIPES["marin-moe-v16"]

@dataclass(frozen=True)
class Mine(AbstractRecipe):
    """v16 with half the batch."""

    name = "mine"
    flop_convention, capacity_factor, router = V16.flop_convention, 1.25, V16.router
    fit_budgets, held_out_budgets = (10**18,), ()
    shape, widths, widths_at, expected_optimum = V16.shape, V16.widths, V16.widths_at, V16.expected_optimum
    optimizer, schedule, outside_range = V16.optimizer, V16.schedule, V16.outside_range

    def batch_seqs(self, tokens, shape):
        return V16.batch_seqs(tokens, shape) // 2

mine = Mine()
number = 3
'''


def test_a_recipe_of_ones_own_needs_no_registration(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    for attribute in ("Mine", "mine"):
        recipe = recipe_named(f"{path}:{attribute}")
        rung = make_rung(recipe, 10**18, 512)
        assert (rung.recipe, rung.batch_seqs, rung.capacity_factor) == ("mine", 32, 1.25)
    ladder = plan_isoflop(recipe, recipe.fit_budgets)
    assert check_derivation(ladder, recipe, "ladder.json") == len(ladder.rungs)
    path.write_text(OWN.replace("// 2", "// 4"))
    with pytest.raises(VerificationError, match="also called mine"):
        check_derivation(ladder, recipe_named(f"{path}:mine"), "ladder.json")


@pytest.mark.parametrize(
    ("text", "attribute", "message"),
    [
        (OWN, "number", "is no recipe"),
        (OWN, "missing", "is no recipe"),
        (OWN.replace('name = "mine"', 'name = "marin-moe-v16"'), "mine", "give it another name"),
        (OWN.replace("fit_budgets, held_out_budgets = (10**18,), ()", ""), "mine", "does not declare fit_budgets"),
        (OWN.replace("    def batch_seqs", "    def batch"), "Mine", "cannot be"),
        ("1 / 0", "mine", "ZeroDivisionError"),
        ("def", "mine", "SyntaxError"),
    ],
)
def test_a_broken_recipe_file_is_refused(tmp_path: Path, text: str, attribute: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        recipe_named(f"{path}:{attribute}")
    with pytest.raises(InputError, match="does not exist"):
        recipe_named(f"{tmp_path}/none.py:mine")
