"""How close forecasts of larger runs come, and whether their intervals hold, on the public sets.

    python -m benchmarks.skill [--data DIR] [--sets NAME ...] [--quick]

One JSON object on one line: per set and method the number of targets, errors (per cent of the loss), CRPS and WIS (in
100 ln L), coverage and mean width (per cent) of 50/80/90/95 % intervals; and the default policy's `coverage` over all
sets, each set weighing the same. A name that is no public set is read as a folder with a run table (runs.csv or
runs.parquet) whose rows of role held_out are predicted from the others.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from benchmarks.methods import DEFAULT, METHODS, Mixture, Problem
from benchmarks.sets import COLUMNS, SETS, Case
from forecasts.record import QUANTILE_LEVELS
from ladder.runs import read_runs

LEVELS = (50, 80, 90, 95)
CRPS_LEVELS = np.arange(0.01, 1.0, 0.02)
SCORED = 40  # held-out rows of one case whose distributions are scored; errors are of all rows
RESAMPLES, QUICK_RESAMPLES = 200, 40
QUICK_CURVES = 4  # every fourth learning curve is run
# Errors the publications print for forecasts like these, from the READMEs of the sets.
PRINTED = {
    "clark_routed_lm": {"mean": 1.94, "what": "the paper's law refitted below 1e9, mean of three routers"},
    "gadre_overtraining": {"mean": 0.72, "what": "the authors' notebook, C4, their choice of points"},
    "chinchilla_epoch": {"mean": 1.01, "what": "best published variant, sqrt(C) weights, mean of three cuts"},
    "rnsl_extrapolation": {"geometric_rmse": 0.0192, "what": "one-break BNSL; M4 0.0200"},
}


def cases_of(name: str, data: Path) -> Iterator[Case]:
    """Return the cases of a public set, or of a folder with a run table."""
    if name in SETS:
        return SETS[name](data)
    return _run_table(data / name)


def _run_table(folder: Path) -> Iterator[Case]:
    path = next((folder / f"runs.{kind}" for kind in ("parquet", "csv") if (folder / f"runs.{kind}").exists()), None)
    if path is None:
        raise SystemExit(f"skill.py: {folder} has no runs.csv or runs.parquet, and is none of {', '.join(SETS)}.")
    frame = read_runs(path).frame
    size = "nonembedding_active_params" if frame["nonembedding_active_params"].notna().all() else "active_params"
    usable = frame[frame["excluded_reason"].isna() & frame["loss"].notna()]
    for (metric, recipe), group in usable.groupby(["metric", "recipe"], dropna=False):
        table = group.assign(size=group[size], rung=pd.factorize(group["rung_id"])[0], published=np.nan)[COLUMNS]
        held = (group["role"] == "held_out").fillna(False).to_numpy(bool)
        if held.any():
            yield Case(f"{metric} {recipe}", table[~held], table[held])


def weighted(values: Float[np.ndarray, " rows"], weights: Float[np.ndarray, " rows"]) -> float:
    """Return the weighted mean."""
    return float(np.average(values, weights=weights))


def scores_of(mixture: Mixture, outcome: Float[np.ndarray, " rows"]) -> dict[str, Float[np.ndarray, " rows"]]:
    """Return CRPS, WIS, and coverage and width of the intervals, all of ln L, for each row."""
    quantile = {level: mixture.quantile(level) for level in {*QUANTILE_LEVELS, *CRPS_LEVELS.tolist()}}

    def pinball(level: float) -> Float[np.ndarray, " rows"]:
        return np.asarray((outcome - quantile[level]) * (level - (outcome < quantile[level])))

    found = {
        "crps": 2 * np.mean([pinball(level) for level in CRPS_LEVELS.tolist()], axis=0),
        "wis": 2 * np.mean([pinball(level) for level in QUANTILE_LEVELS], axis=0),
    }
    for level in LEVELS:
        low, high = (mixture.quantile((1 + sign * level / 100) / 2) for sign in (-1, 1))
        found[f"in{level}"] = ((low <= outcome) & (outcome <= high)).astype(float)
        found[f"width{level}"] = high - low
    return found


def run(name: str, data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the scores of every method on one set; curves weigh the same, whatever their points."""
    parts: dict[str, list[dict[str, Any]]] = {method: [] for method in (*METHODS, "published")}
    targets, cases = 0, 0
    resamples = QUICK_RESAMPLES if quick else RESAMPLES
    every = QUICK_CURVES if quick and name == "rnsl_extrapolation" else 1
    for case in itertools.islice(cases_of(name, data), 0, None, every):
        problem = Problem.of(case, resamples)
        outcome = np.log(case.held_out["loss"].to_numpy())
        chosen = np.unique(np.linspace(0, len(outcome) - 1, min(SCORED, len(outcome))).round().astype(int))
        targets, cases = targets + len(outcome), cases + 1
        curve = name == "rnsl_extrapolation"
        for method, make in METHODS.items():
            mixture = make(problem)
            if mixture is None:
                continue
            error = mixture.quantile(0.5) - outcome
            some = Mixture(
                mixture.weights[:, chosen], mixture.centres[:, chosen], mixture.scales[:, chosen], mixture.df
            )
            parts[method].append(
                {
                    "error": error,
                    "weight": np.full(len(error), 1 / len(error) if curve else 1.0),
                    "scores": scores_of(some, outcome[chosen]),
                    "score_weight": np.full(len(chosen), 1 / len(chosen) if curve else len(error) / len(chosen)),
                }
            )
        known = case.held_out["published"].notna().to_numpy()
        if known.any():
            said = np.log(case.held_out["published"].to_numpy()[known])
            parts["published"].append({"error": said - outcome[known], "weight": np.ones(known.sum()), "scores": None})
    summary = {method: _summary(found, name) for method, found in parts.items() if found}
    result: dict[str, Any] = {"n_targets": targets, "n_cases": cases, "methods": summary}
    if name in PRINTED:
        result["printed"] = PRINTED[name]
    return result


def _summary(parts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    error = np.concatenate([part["error"] for part in parts])
    weight = np.concatenate([part["weight"] for part in parts])
    order = np.argsort(np.abs(error))
    middle = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    found: dict[str, Any] = {
        "n": len(error),
        "median_abs_error": 100 * float(np.abs(error)[order][middle]),
        "mean_abs_error": 100 * weighted(np.abs(error), weight),
        "bias": 100 * weighted(error, weight),
    }
    if name == "rnsl_extrapolation":
        rmse = [float(np.sqrt((part["error"] ** 2).mean())) for part in parts]
        found["geometric_rmse"] = float(np.exp(np.mean(np.log(np.maximum(rmse, 1e-12)))))
    if parts[0]["scores"] is not None:
        weight = np.concatenate([part["score_weight"] for part in parts])
        scores = {key: np.concatenate([part["scores"][key] for part in parts]) for key in parts[0]["scores"]}
        found |= {key: 100 * weighted(scores[key], weight) for key in ("crps", "wis")}
        found["coverage"] = {str(level): weighted(scores[f"in{level}"], weight) for level in LEVELS}
        found["width"] = {str(level): 100 * weighted(scores[f"width{level}"], weight) for level in LEVELS}
    return found


def targets_of_the_issue(sets: dict[str, Any], data: Path) -> dict[str, float]:
    """Return the named single forecasts: errors in per cent at Marin's and Delphi's largest runs from the last cut."""
    found: dict[str, float] = {}
    for name in ("marin_moe", "delphi"):
        if name not in sets:
            continue
        *_, last = SETS[name](data)
        mixture = METHODS[DEFAULT](Problem.of(last, 20))
        assert mixture is not None
        error = 100 * (mixture.quantile(0.5) - np.log(last.held_out["loss"].to_numpy()))
        found |= {f"{name} {c:.0e}": float(e) for c, e in zip(last.held_out["compute"], error, strict=True)}
    return found


def main() -> int:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public sets")
    parser.add_argument("--sets", nargs="*", default=None, help="names of sets; by default all")
    parser.add_argument("--quick", action="store_true", help="fewer resamples, every fourth curve")
    arguments = parser.parse_args()
    names = arguments.sets or [name for name in SETS if (arguments.data / name).exists()]
    started, sets = time.time(), {}
    for name in names:
        sets[name] = run(name, arguments.data, quick=arguments.quick)
        main_scores = sets[name]["methods"][DEFAULT]
        print(
            f"{name}: {sets[name]['n_targets']} targets, mean error {main_scores['mean_abs_error']:.2f} %, 90 % interval "
            f"covers {main_scores['coverage']['90']:.2f}, {time.time() - started:.0f} s",
            file=sys.stderr,
        )
    pooled = {
        method: {
            str(level): float(
                np.mean([s["methods"][method]["coverage"][str(level)] for s in sets.values() if method in s["methods"]])
            )
            for level in LEVELS
        }
        for method in METHODS
    }
    document = {
        "benchmark": "skill",
        "policy": DEFAULT,
        "quick": arguments.quick,
        "coverage": pooled[DEFAULT],
        "coverage_by_method": pooled,
        "named_targets": targets_of_the_issue(sets, arguments.data),
        "sets": sets,
        "seconds": time.time() - started,
    }
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
