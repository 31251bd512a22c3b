"""Reproduce the published ladders: every figure of the Marin MoE, hero and Delphi tables against ours.

Prints one JSON line: per table how many figures were compared, agreed and disagreed for a known reason, then the
headline figures. Exits 1 when a figure disagrees that is not in published/known_disagreements.csv, or when an entry
of that file no longer disagrees.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.published import delphi, hero, marin_moe
from benchmarks.published.comparison import Comparison, Verdict, judge, known_disagreements

FLOPS = {"budget_flops_nonlmhead", "total_train_flops_incl_lmhead", "total_flops"}  # known to many digits


def comparisons(data: Path) -> list[Comparison]:
    """Return every comparison; `data` holds the folders marin_moe and delphi."""
    moe, dense = data / "marin_moe", data / "delphi"
    return [
        *marin_moe.isoflop_runs(moe),
        *marin_moe.architecture(moe),
        *marin_moe.baselines(moe),
        *marin_moe.published_1e23(),
        *marin_moe.august(moe),
        *hero.ladders(moe),
        *hero.derived(moe),
        *hero.single_figures(),
        *hero.fast_track(moe),
        *hero.large_runs(moe),
        *delphi.isoflop_runs(dense),
        *delphi.candidates(dense),
        *delphi.held_out(dense),
    ]


def summary(verdict: Verdict) -> dict[str, Any]:
    """Return the JSON summary of `verdict`."""
    agreeing, known, new = (
        Counter(item.table for item in group) for group in (verdict.agreeing, verdict.known, verdict.new)
    )
    run, rung = marin_moe.run_1e23(), hero.hero_rung(6144)
    small_left_out = rung.counts.without_gates_and_norms()
    worst: dict[str, float] = {}
    for item in (*verdict.agreeing, *verdict.known, *verdict.new):
        if "_runs.csv" in item.table and item.field in FLOPS:
            key = f"{item.table} {item.field}"
            worst[key] = max(worst.get(key, 0.0), abs(float(item.ours) / float(item.published) - 1))
    return {
        "compared": sum(agreeing.values()) + sum(known.values()) + sum(new.values()),
        "agreeing": sum(agreeing.values()),
        "known_disagreements": sum(known.values()),
        "new_disagreements": [item.shown for item in verdict.new],
        "stale_entries": [f"{entry.table} {entry.row} {entry.field}" for entry in verdict.stale],
        "tables": {
            table: {"agreeing": agreeing[table], "known": known[table], "new": new[table]}
            for table in sorted(agreeing | known | new)
        },
        "runs": {
            "v16": _rows(verdict, "isoflop_v16_runs.csv"),
            "delphi_family": _rows(verdict, "isoflop_runs.csv"),
        },
        "worst_relative_error": worst,
        "hero": {"active": small_left_out.nonembedding_active, "total": small_left_out.total, "steps": rung.steps},
        "run_1e23": {
            "overrides": {item.field: {"value": item.value, "rule": item.rule} for item in run.overrides},
            "steps": run.steps,
            "adam_lr": run.optimizer.adam_lr,
            "matrix_lr": run.optimizer.matrix_lr,
            "epsilon": run.optimizer.epsilon,
        },
    }


def _rows(verdict: Verdict, table: str) -> dict[str, int]:
    """Return how many rows of `table` were compared, and in how many every figure agrees."""
    everything = (*verdict.agreeing, *verdict.known, *verdict.new)
    compared = {item.row for item in everything if item.table == table}
    wrong = {item.row for item in (*verdict.known, *verdict.new) if item.table == table}
    return {"compared": len(compared), "every_figure_agrees": len(compared - wrong)}


def main() -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(description="Reproduce the published ladders.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public data")
    data = parser.parse_args().data
    if not (data / "marin_moe").is_dir() or not (data / "delphi").is_dir():
        print(f"{data} has no folders marin_moe and delphi; name the folder of the public data.", file=sys.stderr)
        return 2
    verdict = judge(comparisons(data), known_disagreements())
    print(json.dumps(summary(verdict)))
    return 1 if verdict.new or verdict.stale else 0


if __name__ == "__main__":
    sys.exit(main())
