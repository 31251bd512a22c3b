"""Published figures of Marin's v16, May and August recipes against ours."""

from dataclasses import replace
from pathlib import Path

from benchmarks.published.comparison import Comparison, Row, rows
from ladder.attention import AttentionPattern
from ladder.counts import count_params
from ladder.flops import FlopConvention, forward_flops_per_token, training_flops_per_token
from ladder.recipe import RECIPES
from ladder.recipe_marin_hero import DEPTH
from ladder.recipe_marin_moe import batch_for, depth
from ladder.rung import Rung
from ladder.shape import MoeShape
from ladder.sizing import make_rung

V16, MAY = RECIPES["marin-moe-v16"], RECIPES["marin-moe-may"]
NO_HEAD, FULL = FlopConvention.MATMUL_NO_HEAD, FlopConvention.MATMUL_FULL


def isoflop_runs(data: Path) -> list[Comparison]:
    """Compare the 49 IsoFLOP runs: budget to 0.1 %, logged FLOPs to 1e-9, tokens of our rung to a budget's 0.03 %."""
    found = []
    for row in rows(data, "isoflop_v16_runs.csv", "run"):
        hidden, tokens = int(row.values["hidden_dim"]), int(row.values["tokens"])
        budget = int(float(row.values["budget_flops_nonlmhead"]))
        rung = make_rung(V16, budget, hidden)
        found += row.within("budget_flops_nonlmhead", training_flops_per_token(rung.shape, NO_HEAD) * tokens, 1e-3)
        found += row.within("total_train_flops_incl_lmhead", training_flops_per_token(rung.shape, FULL) * tokens, 1e-9)
        found += row.within("tokens", rung.tokens, 3e-4)
        found += row.exact("num_experts", rung.shape.experts) + row.exact("top_k", rung.shape.top_k)
        found += row.exact("seq_len", rung.shape.seq_len)
        found += row.exact("optimizer", {"adamh": "AdamH"}[rung.optimizer.name])
    return found


def architecture(data: Path) -> list[Comparison]:
    """Compare the derived architecture table: every dimension and count, small tensors left out."""
    found = []
    for row in rows(data, "v16_architecture_derived.csv", "hidden_dim"):
        rule = V16.shape(int(row.values["hidden_dim"]))
        shape = replace(rule, layers=int(row.values["num_layers"]))
        counts = count_params(shape).without_gates_and_norms()
        found += row.exact("num_layers", rule.layers)
        for field, ours in {
            "num_heads": shape.heads,
            "num_kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "expert_width": shape.expert_width,
            "shared_expert_width": shape.shared_width,
            "num_experts": shape.experts,
            "top_k": shape.top_k,
            "active_params_nonembed": counts.nonembedding_active,
            "total_params_nonembed": counts.nonembedding_total,
            "active_params_plus_embed": counts.active - counts.head,
            "active_params_plus_embed_and_lmhead": counts.active,
            "total_params_plus_embed_and_lmhead": counts.total,
        }.items():
            found += row.exact(field, ours)
    return found


def baselines(data: Path) -> list[Comparison]:
    """Compare the compute-optimal baselines of v16, May (EP1, EP2) and July (sequences of 8192)."""
    found = []
    for row in rows(data, "compute_optimal_baselines.csv", "recipe", "hidden_dim"):
        recipe = V16 if row.values["recipe"].startswith("v16") else MAY
        shape = replace(recipe.shape(int(row.values["hidden_dim"])), seq_len=int(row.values["seq_len"]))
        found += row.exact("num_layers", shape.layers)
        found += row.exact("num_experts", shape.experts) + row.exact("top_k", shape.top_k)
        if not row.values["steps"]:
            continue
        batch, steps = int(row.values["batch_seqs"]), int(row.values["steps"])
        tokens = steps * batch * shape.seq_len
        found += row.exact("batch_seqs", batch_for(tokens, shape.seq_len))
        found += row.printed("tokens", tokens)
        found += row.printed("budget_flops_nonlmhead", training_flops_per_token(shape, NO_HEAD) * tokens)
        rung = make_rung(recipe, training_flops_per_token(shape, NO_HEAD) * tokens, shape.hidden)
        if shape.seq_len == rung.shape.seq_len:
            found += row.exact("steps", rung.steps)
        found += row.exact("optimizer", {"adamh": "AdamH", "muonh": "MuonH"}[rung.optimizer.name])
    return found


def run_1e23() -> Rung:
    """Return our rung of the published 1e23 run, with what it set by hand (issue #4697)."""
    by_hand = {"layers": 48, "batch_seqs": 2048, "tokens": 1_009_417_977_856}
    return make_rung(V16, 10**23, 5120, overrides=by_hand)


def published_1e23() -> list[Comparison]:
    """Compare the 1e23 run with its overrides: issue #4697 and the slip in the README's column of layers."""
    rung = run_1e23()
    counts = rung.counts
    row = Row("issue #4697", "1e23", {
        "steps": "120332",
        "adam_lr": "0.001339",
        "matrix_lr": "0.005803",
        "epsilon": "3.356e-15",
        "total": "129.2e9",
        "active with embedding and head": "15.9e9",
        "budget": "1e23",
    })  # fmt: skip
    found = row.exact("steps", rung.steps) + row.within("budget", rung.compute, 1e-3)
    found += row.printed("adam_lr", rung.optimizer.adam_lr) + row.printed("matrix_lr", rung.optimizer.matrix_lr)
    found += row.printed("epsilon", rung.optimizer.epsilon)
    found += row.printed("total", counts.total) + row.printed("active with embedding and head", counts.active)
    for hidden, layers in {768: "10", 1536: "14", 2048: "18"}.items():
        found += Row("README@04331363", f"d{hidden}", {"layers": layers}).exact("layers", depth(hidden))
    return found


def august_shape(hidden: int, layers: int) -> MoeShape:
    """Return a shape of the August FSDP sweep: 128 experts of d/2, two shared of d/2, sequences of 8192, no latent."""
    heads = hidden // 128
    pattern = AttentionPattern(window=2048, global_every=4, last_global=True, gate=True, exclusive=True)
    return MoeShape(
        vocab_size=128_256,
        seq_len=8192,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=max(1, heads // 4),
        head_dim=128,
        experts=128,
        top_k=4,
        expert_width=hidden // 2,
        shared_experts=2,
        shared_width=hidden // 2,
        gated_norm_rank=128,
        embedding_norm=True,
        attention=pattern,
    )


def august(data: Path) -> list[Comparison]:
    """Compare the August sweeps: the learning-rate grid's counts, and the budgets of the IsoFLOP cells.

    The cells' convention is not published. Twice the active parameters plus half an attention map (the causal half)
    with windows of 1024 reproduces their budgets; that was inferred from these very cells, so it proves little.
    """
    found = []
    for row in rows(data, "nd_grid_aug_lr_sweep.csv", "hidden_dim", "tokens_per_active_param"):
        hidden = int(row.values["hidden_dim"])
        shape = august_shape(hidden, int(row.values["num_layers"]))
        counts = count_params(shape).without_gates_and_norms()
        tokens = float(row.values["tokens_per_active_param"]) * counts.nonembedding_active
        found += row.exact("num_layers", DEPTH[hidden])
        found += row.exact("num_experts", shape.experts) + row.exact("top_k", shape.top_k)
        found += row.printed("active_params_excl_embed_lmhead", counts.nonembedding_active)
        found += row.printed("total_params", counts.total)
        found += row.within("tokens_derived", tokens, 5e-3)
        found += row.exact("batch_seqs", batch_for(tokens, shape.seq_len))
        found += row.exact("seq_len", shape.seq_len)
    for row in rows(data, "isoflop_aug_hero_runs.csv", "budget_flops", "hidden_dim"):
        hidden, tokens = int(row.values["hidden_dim"]), float(row.values["tokens"])
        shape = august_shape(hidden, DEPTH[hidden])
        narrow = replace(shape, attention=replace(shape.attention, window=1024))
        halved = forward_flops_per_token(narrow, windowed=True).attention_map // 2
        per_token = 3 * (2 * count_params(shape).without_gates_and_norms().nonembedding_active + halved)
        found += row.within("budget_flops", per_token * tokens, 1e-2)
    return found
