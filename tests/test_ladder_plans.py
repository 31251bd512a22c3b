"""Optima, token ratios, serving and sweeps, against the laws of fits, brute force and the published hero ladder."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fits.laws import Chinchilla
from fits.laws_moe import Ludziejewski
from fits.optimum import allocation
from ladder.cli import app
from ladder.counts import count_params
from ladder.errors import InputError, UnusableError
from ladder.flops import FlopConvention, training_flops_per_token
from ladder.optima import BESIROGLU, HOFFMANN, ludziejewski, optima_named
from ladder.pin import check_derivation
from ladder.plan_optima import TOLERANCE, near_optimal, plan_at_optima, plan_at_ratio
from ladder.recipe import recipe_named
from ladder.rung import Ladder, Role, read_ladder
from ladder.sizing import make_rung
from ladder.sweep import plan_around

V16, HERO, DELPHI, TINY = map(recipe_named, ("marin-moe-v16", "marin-hero", "delphi-v2", "tiny-cpu"))
GOLDEN_FIT = Path(__file__).parent / "golden" / "fit.json"


@pytest.mark.parametrize("experts", [1, 8, 32, 64])
def test_published_surfaces_are_those_of_fits(experts: int) -> None:
    x = {"active_params": 1.1e9, "tokens": 2e10, "experts": experts}
    theirs = Ludziejewski().predict(Ludziejewski.published["ludziejewski2025"], x)
    assert ludziejewski(experts).loss(1.1e9, 2e10) == pytest.approx(float(theirs), rel=1e-9)
    for surface, source in ((HOFFMANN, "hoffmann2022"), (BESIROGLU, "besiroglu2024")):
        theirs = Chinchilla().predict(Chinchilla.published[source], x)
        assert surface.loss(1.1e9, 2e10) == pytest.approx(float(theirs), rel=1e-12)
        assert surface.loss(1.1e9, surface.tokens_for(1.1e9, 2.7)) == pytest.approx(2.7)
        assert surface.tokens_for(1e3, 1.9) == math.inf


def test_near_optimal_set_is_what_brute_force_finds() -> None:
    budget, losses = 10**22, {}
    for hidden in V16.widths():
        shape = V16.shape(hidden)
        tokens = budget / training_flops_per_token(shape, V16.flop_convention)
        losses[hidden] = BESIROGLU.loss(count_params(shape).active, tokens)
    best = min(losses.values())
    expected = {hidden for hidden, loss in losses.items() if loss <= best * (1 + TOLERANCE)}
    found = near_optimal(V16, budget, BESIROGLU)
    assert {item.hidden for item in found} == expected
    assert len(expected) > 3
    assert min(item.excess for item in found) == 0
    assert len(near_optimal(V16, budget, BESIROGLU, tolerance=0.02)) > len(found)


def test_best_dense_size_is_near_the_laws_own_optimum() -> None:
    # C = 6 N D and exact FLOPs differ by a few per cent at this size, widths by 5 %
    (best,) = (item for item in near_optimal(DELPHI, 10**22, BESIROGLU) if item.excess == 0)
    closed = allocation(Chinchilla(), Chinchilla.published["besiroglu2024"], 1e22)
    assert best.size == pytest.approx(closed.size, rel=0.2)
    assert best.tokens == pytest.approx(closed.tokens, rel=0.2)


def test_recipe_rule_gives_the_rungs_of_the_default_ladder() -> None:
    ladder = plan_at_optima(V16, [10**21, 10**22], optima_named("recipe", V16), held_out=[10**23], held_out_seeds=2)
    assert [rung.name for rung in ladder.rungs] == ["1e21-d2560", "1e22-d3584", "1e23-d5376"]
    assert [rung.role for rung in ladder.rungs] == [Role.FIT, Role.FIT, Role.HELD_OUT]
    assert ladder.rungs[-1].seeds == (0, 1)
    text = " ".join(ladder.remarks)
    assert "within 0.25 % of its loss: d3328" in text
    assert "C=1e+23 (fitted 3e+18 to 3e+20)" in text
    assert check_derivation(ladder, V16, "L") == 3
    # the free law of the same runs has 1.3 times as many parameters at 1e23
    free = plan_at_optima(V16, [10**23], optima_named("0.0109*C^0.535", V16))
    assert free.rungs[0].shape.hidden > 5376


def test_serving_costs_least_at_equal_loss() -> None:
    law, budget, serving = ludziejewski(64), 10**22, 10**12
    loss = min(law.loss(item.size, item.tokens) for item in near_optimal(V16, budget, law))
    costs = {}
    for hidden in V16.widths():
        shape = V16.shape(hidden)
        tokens = law.tokens_for(count_params(shape).active, loss)
        full = training_flops_per_token(shape, FlopConvention.MATMUL_FULL)
        costs[hidden] = full * tokens + full / 3 * serving
    found = near_optimal(V16, budget, law, serving_tokens=serving)
    best = next(item for item in found if item.excess == 0)
    assert best.hidden == min(costs, key=lambda hidden: costs[hidden])
    assert law.loss(best.size, best.tokens) == pytest.approx(loss)
    smaller = [
        next(item.hidden for item in near_optimal(V16, budget, law, serving_tokens=n) if item.excess == 0)
        for n in (10**9, 10**11, 10**12, 10**13)
    ]
    assert smaller == sorted(smaller, reverse=True)  # the more is served, the smaller the model
    assert smaller[0] > smaller[-1]
    rung = plan_at_optima(V16, [budget], law, serving_tokens=serving).rungs[0]
    assert rung.tokens == pytest.approx(best.tokens, rel=1e-3)
    assert rung.budget == best.training > budget


def test_hero_ladder_comes_out_at_its_ratio() -> None:
    ladder = plan_at_ratio(HERO, HERO.fit_budgets, 791, held_out=HERO.held_out_budgets)
    assert [(rung.shape.hidden, rung.steps) for rung in ladder.rungs] == [
        (768, 11_420),
        (1024, 15_276),
        (1536, 15_128),
        (2048, 20_072),
        (6144, 390_251),
    ]
    assert [rung.role for rung in ladder.rungs] == [Role.FIT] * 4 + [Role.HELD_OUT]
    assert check_derivation(ladder, HERO, "L") == 5


def test_tokens_beyond_the_corpus_are_said_in_epochs() -> None:
    for ladder in (
        plan_at_ratio(HERO, HERO.fit_budgets[:1], 791, corpus_tokens=10**10),
        plan_at_optima(V16, [10**21], BESIROGLU, corpus_tokens=10**10),
    ):
        assert "epochs of a corpus of 10B" in ladder.remarks[-1]


def test_a_ratio_says_what_it_gives_away() -> None:
    ladder = plan_at_ratio(V16, [10**20, 10**21], 791, law=BESIROGLU)
    shares = [float(remark.split(": +")[1].split(" %")[0]) for remark in ladder.remarks[1:]]
    assert len(shares) == 2
    for rung, share in zip(ladder.rungs, shares, strict=True):
        (best,) = (item for item in near_optimal(V16, rung.budget, BESIROGLU) if item.excess == 0)
        lost = BESIROGLU.loss(rung.counts.active, rung.tokens) / BESIROGLU.loss(best.size, best.tokens) - 1
        assert share == round(100 * lost, 2) > 0


def test_fits_are_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs of recipe synthetic, the plan is for marin-moe-v16"):
        optima_named(str(GOLDEN_FIT), V16)
    data = {**json.loads(GOLDEN_FIT.read_text()), "recipe": ""}
    (tmp_path / "any.json").write_text(json.dumps(data))
    law = optima_named(str(tmp_path / "any.json"), V16)
    theta = {item["name"]: item["estimate"] for item in data["param_estimates"]}
    x = {"active_params": 1e9, "tokens": 1e11}
    assert law.excess(1e20, [1e9, 2e9], [1e11, 5e10])[0] >= 0
    assert law.loss(1e9, 1e11) == pytest.approx(float(Chinchilla().predict(theta, x)))  # type: ignore[attr-defined]
    assert plan_at_optima(V16, [10**20], law).rungs

    def variant(**changes: object) -> str:
        path = tmp_path / "fit.json"
        path.write_text(json.dumps({**data, **changes}))
        return str(path)

    vertices = [
        {
            "parabola": [3.0, 0.0, 0.03],
            "optimum": {"compute": c, "size": 0.1 * c**0.5, "loss": 3.0, "raw_minimum": False},
        }
        for c in (1e18, 1e19, 1e20)
    ]
    isoflop = {"size_column": "nonembedding_active_params", "profiles": vertices}
    spec = {**data["spec"], "law": "power-law-floor"}
    path = optima_named(variant(spec=spec, isoflop=isoflop, flop_convention="MATMUL_NO_HEAD"), V16)
    assert "N* ~ C^0.500 through 3" in path.source
    assert path.excess(1e22, [0.1e11, 0.2e11], [1, 1]) == pytest.approx([0, math.expm1(0.01 * math.log(2) ** 2)])
    for changes, error, message in (
        ({"status": "bound_hit"}, UnusableError, "bound_hit, not converged"),
        ({"spec": spec, "isoflop": isoflop}, InputError, "counts FLOPs under SIX_ND_ACTIVE"),
        ({"spec": spec}, InputError, "says nothing of the best size"),
        ({"recipe": "tiny-cpu"}, InputError, "runs of recipe tiny-cpu"),
        ({"param_estimates": []}, InputError, "the fit lacks 'E'"),
        (
            {"spec": spec, "isoflop": {**isoflop, "profiles": vertices[:1]}, "flop_convention": "MATMUL_NO_HEAD"},
            InputError,
            "1 IsoFLOP vertices",
        ),
    ):
        with pytest.raises(error, match=message):
            optima_named(variant(**changes), V16)


def test_sweeps_vary_one_thing_at_the_same_compute() -> None:
    rung = make_rung(V16, 10**20, 1536)
    axes = {
        "seeds": [3.0],
        "lr": [0.5, 1.0, 2.0],
        "batch": [0.5, 2.0],
        "experts": [32.0, 128.0],
        "top_k": [2.0, 8.0],
        "granularity": [0.5, 2.0],
        "shared_share": [0.0, 0.2, 0.5],
    }
    ladder = plan_around(V16, rung, axes)
    assert len(ladder.rungs) == 14  # lr=1 is the rung itself
    assert check_derivation(ladder, V16, "L") == 14
    assert max(abs(item.compute_error) for item in ladder.rungs) < 1e-3
    centre, *others = ladder.rungs
    assert (centre.rung_id, centre.seeds) == (rung.rung_id, (0, 1, 2))
    half = others[0]
    assert half.optimizer.matrix_lr == rung.optimizer.matrix_lr / 2
    assert half.optimizer.adam_lr == rung.optimizer.adam_lr / 2
    assert replace(half.optimizer, matrix_lr=rung.optimizer.matrix_lr, adam_lr=rung.optimizer.adam_lr) == rung.optimizer
    for item in others:
        names = {o.field for o in item.overrides}
        routed = item.shape.top_k * item.shape.expert_width
        active = routed + item.shape.shared_experts * item.shape.shared_width
        if "shared_width" in names or names == {"experts", "expert_width", "top_k"}:
            assert active == 4 * 768 + 1536  # moved between experts, not changed
        if names == {"experts", "expert_width", "top_k"}:
            assert item.shape.experts * item.shape.expert_width == 64 * 768
    assert [item.shape.sparsity for item in others if {o.field for o in item.overrides} == {"experts"}] == [
        1 - 4 / 32,
        1 - 4 / 128,
    ]


def test_sweep_survives_its_file(tmp_path: Path) -> None:
    ladder = plan_around(TINY, make_rung(TINY, 10**11, 32), {"lr": [0.5, 2.0]})
    ladder.save(tmp_path / "L.json")
    assert read_ladder(tmp_path / "L.json") == ladder
    assert [[o.value for o in rung.overrides] for rung in ladder.rungs] == [[], [0.5], [2]]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "say what to vary"),
        ({"colour": [1.0]}, "unknown axis 'colour'"),
        ({"seeds": [1.0, 2.0]}, "takes one value"),
        ({"seeds": [0.0]}, "from 1 to 1000"),
        ({"seeds": [1e9]}, "from 1 to 1000"),
        ({"seeds": [1.5]}, "no positive whole number"),
        ({"granularity": [0.0]}, "must be positive"),
        ({"batch": [1e300]}, "at most 1e"),
        ({"lr": [math.nan]}, "must be positive"),
        ({"lr": [1.0]}, "but the rung itself"),
        ({"lr": [0.0]}, "must be positive"),
        ({"lr": [-1.0]}, "must be positive"),
        ({"lr": [math.inf]}, "must be positive"),
        ({"batch": [0.3]}, "no positive whole number"),
        ({"experts": [2.0]}, "top_k=4 is larger than experts=2"),
        ({"top_k": [65.0]}, "top_k=65 is larger than experts=64"),
        ({"granularity": [7.0]}, "no positive whole number"),
        ({"shared_share": [1.0]}, "below 1"),
    ],
)
def test_impossible_sweeps_are_refused(axes: dict[str, list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_around(V16, make_rung(V16, 10**20, 1536), axes)


def test_a_dense_or_foreign_rung_has_no_sparsity_to_sweep() -> None:
    with pytest.raises(InputError, match="is dense"):
        plan_around(DELPHI, make_rung(DELPHI, 10**20, 1024), {"experts": [8.0]})
    with pytest.raises(InputError, match="does not follow from recipe"):
        plan_around(V16, replace(make_rung(V16, 10**20, 1536), batch_seqs=999), {"lr": [0.5]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at-optima", "kaplan"], "'kaplan' is no known optimum"),
        (["--at-optima", "none.json"], "does not exist"),
        (["--at-optima", "recipe", "--serving-tokens", "1T"], "give a surface"),
        (["--at-optima", "recipe", "--tolerance", "0"], "tolerance=0.0 is a share"),
        (["--at-optima", "recipe", "--tokens-per-param", "20"], "give a surface"),
        (["--at-optima", "recipe", "--replicate", "1e20"], "--replicate says nothing to a plan at optima"),
        (["--at-optima", "recipe", "--budget", "1e21", "--held-out", "1e20"], "not above the largest fit budget"),
        (["--at-optima", "ludziejewski2025", "--serving-tokens", "1e12 FLOPs"], "expected tokens"),
        (["--at-optima", "besiroglu2024", "--serving-tokens", "3e18"], "is that number in FLOPs"),
        (["--tokens-per-param", "0"], "must be positive"),
        (["--tokens-per-param", "inf"], "at most 1e+06"),
        (["--tokens-per-param", "nan"], "must be positive"),
        (["--at-optima", "0.0*C^0.5"], "is no path of sizes"),
        (["--at-optima", "0.1*C^9"], "is no path of sizes"),
        (["--at-optima", "1.2.3*C^0.5"], "is no known optimum"),
        (["--at-optima", "recipe", "--budget", "1e400"], "check its exponent"),
        (["--tokens-per-param", "20", "--budget", "-1e18"], "must be positive"),
        (["--at-optima", "recipe", "--budget", "0"], "must be positive"),
        (["--tokens-per-param", "20", "--corpus", "3e18"], "is that number in FLOPs"),
        (["--at-optima", "recipe", "--corpus", "3e18"], "is that number in FLOPs"),
        (["--tokens-per-param", "20", "--budget", "1e20,1.01e20"], "nearest to the same width"),
        (["--tokens-per-param", "20", "--sizes", "3"], "--sizes says nothing"),
        (["--serving-tokens", "1T"], "--serving-tokens says nothing to a plan of an IsoFLOP sweep"),
        (["--vary", "lr=0.5"], "--vary says nothing to a plan of an IsoFLOP sweep"),
    ],
)
def test_contradicting_options_are_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", "-o", str(tmp_path / "L.json"), *arguments])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_plans_from_the_command_line(tmp_path: Path) -> None:
    def plan(name: str, *arguments: str) -> Ladder:
        result = CliRunner().invoke(app, ["plan", "-o", str(tmp_path / name), *arguments, "--json"])
        assert result.exception is None, result.exception
        return read_ladder(tmp_path / name)

    ladder = plan("a.json", "--at-optima", "ludziejewski2025", "--budget", "1e21", "--held-out", "1e22", "--sizes", "3")
    assert len(ladder.fit_rungs) == 3
    served = plan("b.json", "--at-optima", "ludziejewski2025", "--budget", "1e22", "--serving-tokens", "10T")
    assert served.fit_rungs[0].shape.hidden < ladder.held_out_rungs[0].shape.hidden
    around = f"{tmp_path}/a.json:{ladder.rungs[0].rung_id}"
    swept = plan("c.json", "--around", around, "--vary", "lr=0.5,2", "--vary", "seeds=2")
    assert len(swept.rungs) == 3
    result = CliRunner().invoke(app, ["plan", "-o", str(tmp_path / "d.json"), "--around", f"{tmp_path}/a.json"])
    assert "must name a rung" in str(result.exception)
    result = CliRunner().invoke(app, ["plan", "-o", str(tmp_path / "d.json"), "--around", around, "--vary", "lr"])
    assert "AXIS=VALUE" in str(result.exception)


def test_a_sweep_over_names_has_the_compute_of_its_rung(tmp_path: Path) -> None:
    """Other balancing costs nothing; another optimizer is planned at every rate; every rung has the seeds."""
    rung = make_rung(TINY, 2 * 10**10, 16)
    axes = {"balancing": ["auxiliary", "bias", "none", "quantile"], "optimizer": ["adamw"], "lr": [0.5, 1, 2]}
    ladder = plan_around(TINY, rung, axes, 3)
    assert [item.router.balancing for item in ladder.rungs[:4]] == ["quantile", "auxiliary", "bias", "none"]
    assert [item.router.rate for item in ladder.rungs[:4]] == [0.0, 0.01, 0.001, 0.0]
    adamw = [item for item in ladder.rungs if item.optimizer.name == "adamw"]
    assert [item.optimizer.matrix_lr for item in adamw] == pytest.approx([0.009, 0.018, 0.036])
    assert {item.optimizer.weight_decay for item in adamw} == {0.1}
    assert len(ladder.rungs) == 4 + 3 + 2
    assert {(item.compute, item.seeds) for item in ladder.rungs} == {(rung.compute, (0, 1, 2))}
    assert len({item.rung_id for item in ladder.rungs}) == len(ladder.rungs)
    (tmp_path / "ladder.json").write_bytes(ladder.to_json())
    assert read_ladder(tmp_path / "ladder.json") == ladder
    assert check_derivation(ladder, recipe_named("tiny-cpu"), "L") == 9
    for axes, message in (
        ({"balancing": ["luck"]}, "balancing='luck' is not known"),
        ({"optimizer": ["lion"]}, "no rates for optimizer 'lion'"),
        ({"balancing": [3.0]}, "balancing=3 must be a name"),
        ({"lr": ["fast"]}, "lr=fast must be a number"),
    ):
        with pytest.raises(InputError, match=message):
            plan_around(TINY, rung, axes)
