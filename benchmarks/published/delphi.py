"""Published figures of the Delphi suite against ours."""

from collections import defaultdict
from pathlib import Path

from benchmarks.published.comparison import Comparison, Row, rows
from ladder.counts import count_params
from ladder.flops import training_flops_per_token
from ladder.recipe import RECIPES
from ladder.sizing import make_rung

DELPHI = RECIPES["delphi-v2"]
V2 = "delphi_v2_adamh_v6"


def _counted(row: Row, params: str, flops: str) -> list[Comparison]:
    """Compare what follows from the width and the tokens alone, whatever the recipe."""
    shape = DELPHI.shape(int(row.values["hidden"]))
    total = training_flops_per_token(shape, DELPHI.flop_convention) * int(row.values["tokens"])
    found = (
        row.exact("layers", shape.layers) + row.exact("heads", shape.heads) + row.exact("mlp_dim", shape.shared_width)
    )
    return found + row.exact(params, count_params(shape).total) + row.within(flops, total, 1e-12)


def _rates(row: Row, budget: int, batch: int, names: dict[str, str]) -> list[Comparison]:
    """Compare rates; the published code sets them for the tokens before steps are rounded, so we ask for those."""
    shape = DELPHI.shape(int(row.values["hidden"]))
    tokens = budget / training_flops_per_token(shape, DELPHI.flop_convention)
    plan = DELPHI.optimizer(tokens, batch, shape)
    ours = {"lr": plan.matrix_lr, "adam_lr": plan.adam_lr, "beta2": plan.beta2, "epsilon": plan.epsilon}
    return [item for name, field in names.items() for item in row.within(field, ours[name], 1e-12)]


RATES = {name: name for name in ("lr", "adam_lr", "beta2", "epsilon")}


def isoflop_runs(data: Path) -> list[Comparison]:
    """Compare all 339 runs by count and FLOPs, and the 81 of the recipe by layers, batch, steps, tokens and rates."""
    found = []
    for row in rows(data, "isoflop_runs.csv", "run_name"):
        found += _counted(row, "params", "total_flops")
        if row.values["suite"] == V2:
            budget = int(float(row.values["budget_flops"]))
            rung = make_rung(DELPHI, budget, int(row.values["hidden"]))
            found += row.exact("batch_size", rung.batch_seqs) + row.exact("tokens", rung.tokens)
            found += row.exact("steps", rung.steps)
            found += row.exact("vocab_size", rung.shape.vocab_size) + row.exact("seq_len", rung.shape.seq_len)
            found += _rates(row, budget, rung.batch_seqs, RATES)
    return found


def candidates(data: Path) -> list[Comparison]:
    """Compare the regenerated candidates: which widths each budget allows, their batches, steps, tokens and rates."""
    found = []
    widths: dict[int, list[int]] = defaultdict(list)
    for row in rows(data, "recipe_candidates_regenerated.csv", "budget_flops", "hidden"):
        budget, hidden = int(float(row.values["budget_flops"])), int(row.values["hidden"])
        widths[budget].append(hidden)
        rung = make_rung(DELPHI, budget, hidden)
        found += row.exact("layers", rung.shape.layers) + row.exact("params", rung.counts.total)
        found += row.exact("batch_size", rung.batch_seqs) + row.exact("steps", rung.steps)
        found += row.exact("tokens", rung.tokens) + _rates(row, budget, rung.batch_seqs, RATES)
        chosen = rung.counts.nonembedding_active == DELPHI.expected_optimum(budget)
        if budget >= 10**21:
            found += row.exact("selected_for_heldout", int(chosen))
    for budget, listed in widths.items():
        allowed = DELPHI.widths_at(budget)
        row = Row("recipe_candidates_regenerated.csv", f"{budget:.2g}", {"widths": " ".join(map(str, listed))})
        found += row.exact("widths", " ".join(map(str, allowed)))
    return found


def held_out(data: Path) -> list[Comparison]:
    """Compare the held-out runs; those of the recipe have batches set by hand and keep the tokens of the rule's."""
    found = []
    for row in rows(data, "heldout_runs.csv", "run_name"):
        found += _counted(row, "params", "total_flops")
        if row.values["suite"] == V2:
            budget, batch = int(float(row.values["budget_flops"])), int(row.values["batch_size"])
            hidden = int(row.values["hidden"])
            by_hand = {"batch_seqs": batch, "tokens": make_rung(DELPHI, budget, hidden).tokens}
            rung = make_rung(DELPHI, budget, hidden, overrides=by_hand)
            found += row.exact("steps", rung.steps) + row.exact("tokens", rung.tokens)
            found += _rates(row, budget, batch, {"lr": "lr_computed", "adam_lr": "adam_lr_computed"})
    at_batch = make_rung(DELPHI, 10**23, 5376, overrides={"batch_seqs": 2048})
    text = Row("delphi.md (a)", "1e23", {"steps": "74883", "steps from the budget": "74883"})
    kept = make_rung(DELPHI, 10**23, 5376, overrides={"batch_seqs": 2048, "tokens": 628_172_521_472})
    return found + text.exact("steps", kept.steps) + text.exact("steps from the budget", at_batch.steps)
