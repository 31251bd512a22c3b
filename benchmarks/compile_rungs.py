"""Compile rungs for TPU slices and save what the compiler says, for the tables of README.md and docs.

    python -m benchmarks.compile_rungs > benchmarks/compiled.json && python benchmarks/readme_tables.py

Needs `make setup-tpu`; half an hour on two cores, seconds again. Prints one line of JSON:

    optima      the rung nearest the expected optimum of each budget of the default ladder, as planned on TPU v5p
    published   Marin's 1e23 run (d5120, 48 layers, 2048 sequences) on v5p
    kept        the same with the experts' hidden activations kept
    compared    ways to run the experts on one mesh, a middle rung and the 1e23 run
    measured    steps of the shapes whose tokens per second are published, on the slices they ran on
    hero        Marin's hero, d6144
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ladder.errors import ForetellError
from ladder.generate import plan_isoflop
from ladder.optima import nearest_optima
from ladder.recipe import recipe_named
from ladder.rung import Rung
from ladder.sizing import make_rung
from models.cli_compile import as_row
from models.compile_plan import BACKENDS, compile_to_fit, planned_request
from models.pod_compile import Request, compile_rung
from models.pod_report import report

RECIPE = recipe_named("marin-moe-v16")
MARIN_1E23 = make_rung(RECIPE, 10**23, 5120, overrides={"layers": 48, "batch_seqs": 2048})
MIDDLE = make_rung(RECIPE, 10**21, 2048, overrides={"batch_seqs": 1024})
# Tokens per second of Marin: d512 and d1024 of v16 on a v5p-8, experiments/grug/moe/README.md; the 1e23 run near step
# 3863 on v4-1024, ring over 4, capacity factor 1.0 (job_summary_1e23.md). Their batches at d512 and d1024 follow the
# recipe's rule for the compute-optimal tokens; the last takes two parts, since one does not fit our step.
MEASURED = (
    (Request(make_rung(RECIPE, 219 * 10**15, 512), "v5p:2x2x1", 1, "scatter", 1.0, 1), 405_630),
    (Request(make_rung(RECIPE, 9 * 10**18, 1024), "v5p:2x2x1", 1, "scatter", 1.0, 1), 175_165),
    (Request(MARIN_1E23, "v4:8x8x8", 4, "ring", 1.0, 2), 194_443),
)
HERO_SLICE = "v5p:8x8x16"  # 1024 chips; the run itself has 11 racks of GB200
COMPARED = ((MIDDLE, "v5p:4x4x4", 4), (MARIN_1E23, "v5p:8x8x16", 8))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _planned(rung: Rung, topology: str | None = None) -> dict[str, Any]:
    first, remedy, found = compile_to_fit(planned_request(rung, "v5p", topology, None), _say)
    return as_row(first, remedy) | {"fitting": as_row(found) if found else None}


def _as_given(request: Request) -> dict[str, Any]:
    try:
        return as_row(report(request, compile_rung(request, _say)))
    except ForetellError as error:
        return {"name": request.rung.name, "backend": request.backend, "refused": str(error)}


def _compared(rung: Rung, topology: str, axis: int) -> list[Request]:
    """Return a request for each way to run the experts; a factor of 1.25 where slots are fixed, dropless without."""
    one = replace(planned_request(rung, "v5p", topology, "ring"), expert_axis=axis, capacity_factor=1.25)
    return [replace(one, backend=name, expert_axis=1 if way == "fsdp" else axis) for way, name in BACKENDS.items()]


def main() -> None:
    """Compile what is not kept and print the document."""
    parser = argparse.ArgumentParser(description="Compile rungs for TPU slices.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="not needed; there for uniformity")
    parser.add_argument("--workers", type=int, default=2, help="compilations at once")
    parser.add_argument("--only", default="", help="parts, comma-separated; all by default")
    arguments = parser.parse_args()
    start = time.monotonic()
    ladder = plan_isoflop(RECIPE, RECIPE.fit_budgets, held_out=RECIPE.held_out_budgets)
    hero = recipe_named("marin-hero")
    parts: dict[str, Any] = {
        "optima": lambda pool: pool.map(_planned, nearest_optima(ladder)),
        "published": lambda pool: pool.map(_planned, (MARIN_1E23,)),
        "kept": lambda pool: [_as_given(replace(planned_request(MARIN_1E23, "v5p", None, None), remat="hidden"))],
        "measured": lambda pool: pool.map(_as_given, [request for request, _ in MEASURED]),
        "compared": lambda pool: pool.map(_as_given, [each for case in COMPARED for each in _compared(*case)]),
        "hero": lambda pool: [_planned(make_rung(hero, hero.held_out_budgets[0], 6144), HERO_SLICE)],
    }
    wanted = arguments.only.split(",") if arguments.only else list(parts)
    with ThreadPoolExecutor(arguments.workers) as pool:
        found = {name: list(parts[name](pool)) for name in wanted}
    for row, (request, speed) in zip(found.get("measured", ()), MEASURED, strict=False):
        row |= {"batch_tokens": request.rung.batch_tokens, "published_tokens_per_second": speed}
    print(json.dumps({**found, "seconds": round(time.monotonic() - start, 1)}))


if __name__ == "__main__":
    main()
