"""Published figures of Marin's hero recipe, its ladders, and the fast-track models of the same shapes."""

from dataclasses import replace
from pathlib import Path

from benchmarks.published.comparison import Comparison, Row, rows
from benchmarks.published.marin_moe import run_1e23
from ladder.counts import count_params
from ladder.flops import FlopConvention, forward_flops_per_token, training_flops_per_token
from ladder.recipe import RECIPES
from ladder.recipe_marin_hero import RACKS, SEQS_PER_RACK, MarinHero
from ladder.rung import Rung
from ladder.shape import MoeShape
from ladder.sizing import make_rung

HERO = MarinHero()
WINDOWED = FlopConvention.MATMUL_FULL_WINDOWED
FAST_TRACK_VOCAB = 16_384


def hero_rung(hidden: int, batch_seqs: int | None = None) -> Rung:
    """Return the rung of the hero ladder of this width, at a batch of its own where given."""
    shape = HERO.shape(hidden)
    budget = training_flops_per_token(shape, WINDOWED) * HERO.tokens(shape)
    return make_rung(HERO, budget, hidden, overrides={"batch_seqs": batch_seqs} if batch_seqs else None)


def ladders(data: Path) -> list[Comparison]:
    """Compare the GB200 and H100 ladders: shapes, batches, steps exactly, tokens, counts and FLOPs as printed."""
    found = []
    for row in rows(data, "hero_ladder.csv", "hardware", "rung"):
        hidden = int(row.values["hidden_dim"])
        rung = hero_rung(hidden, int(row.values["batch_seqs"]))
        counts = rung.counts.without_gates_and_norms()
        found += _shape(row, rung.shape)
        if row.values["racks"]:
            found += row.exact("racks", RACKS[hidden])
            found += row.exact("batch_seqs", HERO.batch_seqs(rung.tokens, rung.shape))
            found += row.exact("batch_seqs", SEQS_PER_RACK * int(row.values["racks"]))
        found += row.exact("steps", rung.steps)
        planned = HERO.tokens(rung.shape)
        found += row.printed("tokens", planned)
        found += row.printed("active_params", counts.nonembedding_active) + row.printed("total_params", counts.total)
        found += row.printed("train_flops", training_flops_per_token(rung.shape, WINDOWED) * planned)
    return found


def _shape(row: Row, shape: MoeShape) -> list[Comparison]:
    return [
        *row.exact("num_layers", shape.layers),
        *row.exact("num_heads", shape.heads),
        *row.exact("local_kv_heads", shape.kv_heads),
        *row.exact("global_kv_heads", shape.attention.global_kv_heads),
        *row.exact("num_experts", shape.experts),
        *row.exact("top_k", shape.top_k),
        *row.exact("expert_width", shape.expert_width),
        *row.exact("latent_dim", shape.latent_width),
    ]


def derived(data: Path) -> list[Comparison]:
    """Compare the derived table, both FLOP columns: the last layer global as in the model, and L // 4 as in the code."""
    found = []
    for row in rows(data, "hero_ladder_derived.csv", "rung"):
        shape = HERO.shape(int(row.values["hidden_dim"]))
        slip = replace(shape, attention=replace(shape.attention, last_global=False))
        counts = count_params(shape).without_gates_and_norms()
        planned = HERO.tokens(shape)
        found += _shape(row, shape)
        found += row.exact("active_params_excl_embed_lmhead", counts.nonembedding_active)
        found += row.exact("total_params_incl_embed_lmhead", counts.total)
        found += row.exact("tokens_at_791x", planned)
        for suffix, counted, layers in (
            ("actual", shape, row.exact("global_layers_actual", shape.attention.global_layers(shape.layers))),
            ("counted", slip, row.exact("global_layers_counted_L_div_4", shape.layers // 4)),
        ):
            forward = forward_flops_per_token(counted, windowed=True).total
            found += layers + row.printed(f"fwd_flops_per_token_{suffix}", forward)
            found += row.printed(f"train_flops_{suffix}", 3 * forward * planned)
    return found


def single_figures() -> list[Comparison]:
    """Compare figures printed in issues #8435 and #9277, and the hero's rates derived from the May constants."""
    rung = hero_rung(6144)
    counts = rung.counts
    balancing_state = rung.shape.layers * rung.shape.experts  # one bias per expert, counted by the H100 port
    row = Row("issues #8435, #9277", "hero d6144", {
        "active": "22.76e9",
        "total": "535.3e9",
        "every tensor": "535477106688",
        "adam_lr": "7.04e-4",
        "matrix_lr": "3.05e-3",
    })  # fmt: skip
    small_left_out = counts.without_gates_and_norms()
    found = row.printed("active", small_left_out.nonembedding_active) + row.printed("total", small_left_out.total)
    found += row.exact("every tensor", counts.total + balancing_state)
    return found + row.printed("adam_lr", rung.optimizer.adam_lr) + row.printed("matrix_lr", rung.optimizer.matrix_lr)


def _fast_track(hidden: int, layers: int, moe: bool) -> MoeShape:
    shape = replace(HERO.shape(hidden), vocab_size=FAST_TRACK_VOCAB, layers=layers)
    if moe:
        return shape
    return replace(shape, experts=0, top_k=0, expert_width=0, latent_width=0, shared_experts=1, shared_width=3 * hidden)


def fast_track(data: Path) -> list[Comparison]:
    """Compare the fast-track models: hero shapes at a vocabulary of 16,384, and dense ones with an MLP of 3d.

    FLOPs were logged with the index of the last step, one step short of the run.
    """
    found = []
    for row in rows(data, "fast_track_ladder.csv", "variant", "hidden_dim"):
        hidden, batch = int(row.values["hidden_dim"]), int(row.values["batch_seqs"])
        shape = _fast_track(hidden, HERO.shape(hidden).layers, row.values["variant"] == "moe")
        counts = count_params(shape)
        active = counts.without_gates_and_norms().nonembedding_active
        tokens = int(row.values["tokens_per_active_param"]) * active
        steps = round(tokens / (batch * shape.seq_len))
        logged = (steps - 1) * batch * shape.seq_len * training_flops_per_token(shape, WINDOWED)
        found += row.printed("active_params", active) + row.printed("total_params", counts.total)
        found += row.exact("vocab_size", shape.vocab_size) + row.exact("steps", steps) + row.printed("tokens", tokens)
        full_precision = len(row.values["train_flops"]) > len("3.46e+17")
        found += row.within("train_flops", logged, 1e-12) if full_precision else row.printed("train_flops", logged)
    for row in rows(data, "fast_track_depth.csv", "hidden_dim", "num_layers"):
        shape = _fast_track(int(row.values["hidden_dim"]), int(row.values["num_layers"]), moe=True)
        batch, per_sequence = int(row.values["batch_seqs"]), training_flops_per_token(shape, WINDOWED) * shape.seq_len
        steps = round(60 * count_params(shape).without_gates_and_norms().nonembedding_active / (batch * shape.seq_len))
        found += row.exact("flops_per_example", per_sequence) + row.exact("steps", steps)
        found += row.within("train_flops", per_sequence * batch * (steps - 1), 1e-12)
    return found


def large_runs(data: Path) -> list[Comparison]:
    """Compare the large runs: the v16 runs at 1e21 to 1e23 and the hero's counts, tokens and FLOPs."""
    found = []
    v16 = RECIPES["marin-moe-v16"]
    for row in rows(data, "large_runs.csv", "run", "step", "metric"):
        hidden, run = int(row.values["hidden_dim"]), row.values["run"]
        if run.startswith("moe_1e23"):
            rung = run_1e23()
            counts = rung.counts
            found += row.exact("tokens", rung.tokens) + row.within("compute_flops", rung.compute, 1e-3)
            found += row.exact("step", rung.steps) + row.exact("num_layers", rung.shape.layers)
            found += row.printed("active_params", counts.active)
            found += row.printed("total_params", counts.without_gates_and_norms().total)
        elif run.startswith(("isoflop", "moe-v7")):
            shape = v16.shape(hidden)
            tokens, counts = float(row.values["tokens"]), count_params(shape)
            convention = FlopConvention.MATMUL_NO_HEAD if run.startswith("isoflop") else FlopConvention.MATMUL_FULL
            found += row.exact("num_layers", shape.layers)
            found += row.within("compute_flops", training_flops_per_token(shape, convention) * tokens, 1e-3)
            found += row.printed("active_params", counts.active) + row.printed("total_params", counts.total)
        else:
            rung = hero_rung(hidden, None if hidden == 6144 else 1024)
            counts = rung.counts.without_gates_and_norms()
            found += row.exact("num_layers", rung.shape.layers)
            found += row.printed("active_params", counts.nonembedding_active)
            found += row.printed("total_params", counts.total)
            found += row.printed("tokens", int(row.values["step"]) * rung.batch_tokens)
            found += row.printed("compute_flops", rung.compute)
    return found
