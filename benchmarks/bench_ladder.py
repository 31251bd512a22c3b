"""How fast ladders are planned: the default ladder from the command line, and 10,000 candidate shapes with counts.

Prints one JSON line. Each planning is paired with a bare start of the same interpreter, so that a slow machine shows
in both; bytecode is cached, as any second start has it. Exits 1 when the default ladder takes a second or more of wall
time at its fastest (other work on the machine only adds to that), the candidates three, or planning imports a package
that costs as much.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ladder.counts import count_params
from ladder.flops import FlopConvention, training_flops_per_token
from ladder.recipe import RECIPES

ROOT = Path(__file__).resolve().parent.parent
PLAN_SECONDS, CANDIDATE_SECONDS = 1.0, 3.0  # what the planner promises
CANDIDATES = 10_000


def _seconds(arguments: list[str], bytecode: str) -> tuple[float, float]:
    """Return wall and CPU seconds of one interpreter."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={**kept, "PYTHONPYCACHEPREFIX": bytecode},
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plan_times(
    repetitions: int,
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], tuple[float, float]]:
    """Return (wall, CPU) seconds of planning the default ladder and of a bare interpreter, alternating, and the first.

    The first plan compiles everything and is not among the others.
    """
    planned, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(repetitions + 1):
            bare.append(_seconds(["-c", "pass"], f"{folder}/bytecode"))
            command = ["-c", PLAN, "ladder", "plan", "-o", f"{folder}/{index}.json", "--json"]
            planned.append(_seconds(command, f"{folder}/bytecode"))
    return planned[1:], bare[1:], planned[0]


PLAN = "import foretell; foretell.main()"


def imported_by_planning() -> list[str]:
    """Return which heavy packages planning imports; there should be none."""
    probe = (
        "import sys, foretell\n"
        "try: foretell.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('jax', 'pandas', 'numpy', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", probe, "ladder", "plan", "-o", f"{folder}/L.json", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return [str(name) for name in json.loads(done.stdout.splitlines()[-1].replace("'", '"'))]


def candidate_seconds() -> tuple[float, float]:
    """Return (wall, CPU) seconds for 10,000 shapes of all recipes with counts and FLOPs under every convention."""
    started, cpu = time.perf_counter(), time.process_time()
    made = 0
    while made < CANDIDATES:
        for recipe in RECIPES.values():
            for hidden in recipe.widths():
                shape = recipe.shape(hidden)
                count_params(shape)
                for convention in FlopConvention:
                    training_flops_per_token(shape, convention)
                made += 1
    share = CANDIDATES / made
    return (time.perf_counter() - started) * share, (time.process_time() - cpu) * share


def main() -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(description="Time the planning of ladders.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="not needed; there for uniformity")
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    planned, bare, first = plan_times(arguments.repetitions)
    walls, starts = [wall for wall, _ in planned], [wall for wall, _ in bare]
    fastest = min(walls)
    (candidates, candidates_cpu), heavy = candidate_seconds(), imported_by_planning()
    result = {
        "plan_seconds": round(fastest, 3),
        "plan_seconds_median": round(statistics.median(walls), 3),
        "plan_seconds_worst": round(max(walls), 3),
        "plan_cpu_seconds": round(min(cpu for _, cpu in planned), 3),
        "plan_cpu_seconds_median": round(statistics.median(cpu for _, cpu in planned), 3),
        "first_plan_seconds": round(first[0], 3),
        "interpreter_seconds": round(statistics.median(starts), 3),
        "plan_over_interpreter": round(statistics.median(p / b for p, b in zip(walls, starts, strict=True)), 1),
        "candidates": CANDIDATES,
        "candidate_seconds": round(candidates, 3),
        "candidate_cpu_seconds": round(candidates_cpu, 3),
        "heavy_imports": heavy,
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))
    return int(fastest >= PLAN_SECONDS or candidates >= CANDIDATE_SECONDS or bool(heavy))


if __name__ == "__main__":
    sys.exit(main())
