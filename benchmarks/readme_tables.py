"""The tables that are computed, not typed: the default ladder with its cost, and what the TPU's compiler said.

README.md has the ladder and the compiled rungs, docs/compiling-for-tpu.md the comparisons. What the compiler said is in
benchmarks/compiled.json, see benchmarks/compile_rungs.py.

    python benchmarks/readme_tables.py            # write them
    python benchmarks/readme_tables.py --check    # exit 1 when the file is stale

Prints one line of JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compiled_tables import collectives_table, compared_table, measured_table, rungs_table
from ladder.chips import chip_named
from ladder.cost import cost_of
from ladder.errors import InputError
from ladder.generate import plan_isoflop
from ladder.hardware import DEFAULT_MFU
from ladder.recipe import recipe_named
from ladder.records import write_atomic
from ladder.units import format_count, format_flops

ROOT = Path(__file__).resolve().parent.parent
README, COMPILING = ROOT / "README.md", ROOT / "docs" / "compiling-for-tpu.md"
COMPILED = ROOT / "benchmarks" / "compiled.json"
RECIPE, CHIP = "marin-moe-v16", "v5p"


def ladder_table() -> str:
    """Return the default ladder, one row a budget, with what it needs of TPU v5p, as Markdown."""
    recipe = recipe_named(RECIPE)
    ladder = plan_isoflop(recipe, recipe.fit_budgets, held_out=recipe.held_out_budgets)
    cost = cost_of(ladder, chip_named(CHIP))
    placed = {rung.rung_id: placement for rung, placement in cost.rungs}
    lines = [
        "| budget | role | widths | active | total | tokens | steps | slices | hours a run | chip-hours |",
        "| ---: | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for budget in dict.fromkeys(rung.budget for rung in ladder.rungs):
        rungs = [rung for rung in ladder.rungs if rung.budget == budget]
        places = [placed[rung.rung_id] for rung in rungs]
        spans = (
            _span([rung.counts.nonembedding_active for rung in rungs], format_count),
            _span([rung.counts.total for rung in rungs], format_count),
            _span([rung.tokens for rung in rungs], format_count),
            _span([rung.steps for rung in rungs], lambda value: f"{value:,.0f}"),
        )
        widths = ", ".join(str(rung.shape.hidden) for rung in rungs)
        slices = ", ".join(dict.fromkeys(place.topology.partition(":")[2] for place in places))
        hours = _span([place.hours for place in places], lambda value: f"{value:.3g}")
        total = sum(place.chip_hours for place in places)
        role = str(rungs[0].role).replace("_", " ")
        cells = (format_flops(budget), role, widths, *spans, slices, hours, f"{total:,.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    worst = max(abs(rung.compute_error) for rung in ladder.rungs)
    remark = (
        f"{len(ladder.rungs)} rungs of `{RECIPE}`, {len(ladder.held_out_rungs)} of them held out, compute within "
        f"{100 * worst:.4f} % of budget; active is without embedding and head. {cost.chip_hours:,.0f} chip-hours of TPU "
        f"{CHIP} in all, on the smallest slice that holds a rung and ends it within 30 days, at an assumed "
        f"{DEFAULT_MFU:.0%} MFU: estimates, nothing measured."
    )
    return "\n".join((*lines, "", remark))


def _span(values: Sequence[float], shown: Callable[[float], str]) -> str:
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def with_tables(text: str, tables: Mapping[str, str], where: Path) -> str:
    """Return a page's text with its computed tables renewed; raises InputError when the marks of one are missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise InputError(f"{where} needs the lines {begin} and {end}; put them where the table belongs.")
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


def pages() -> dict[Path, dict[str, str]]:
    """Return the computed tables of each page by name."""
    compiled = json.loads(COMPILED.read_text())
    return {
        README: {"ladder": ladder_table(), "compiled": rungs_table(compiled)},
        COMPILING: {
            "compared": compared_table(compiled),
            "collectives": collectives_table(compiled),
            "measured": measured_table(compiled),
        },
    }


def main() -> int:
    """Renew or check the tables and return the exit code."""
    parser = argparse.ArgumentParser(description="Renew or check the computed tables of README.md.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="not needed; there for uniformity")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a table is stale")
    arguments = parser.parse_args()
    stale = []
    try:
        for path, tables in pages().items():
            old = path.read_text()
            new = with_tables(old, tables, path)
            if new != old:
                stale.append(path.name)
                if not arguments.check:
                    write_atomic(path, new.encode())
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps({"stale": stale, "written": bool(stale) and not arguments.check}))
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
