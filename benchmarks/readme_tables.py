"""The tables of README.md that are computed, not typed: the default ladder with its cost.

    python benchmarks/readme_tables.py            # write them
    python benchmarks/readme_tables.py --check    # exit 1 when the file is stale

Prints one line of JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ladder.chips import chip_named
from ladder.cost import cost_of
from ladder.errors import InputError
from ladder.generate import plan_isoflop
from ladder.hardware import DEFAULT_MFU
from ladder.recipe import recipe_named
from ladder.records import write_atomic
from ladder.units import format_count, format_flops

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
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


def with_tables(text: str) -> str:
    """Return README.md's text with its computed table renewed; raises InputError when the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"README.md needs the lines {BEGIN} and {END}; put them where the table belongs.")
    return f"{before}{BEGIN}\n{ladder_table()}\n{END}{after}"


def main() -> int:
    """Renew or check the tables and return the exit code."""
    parser = argparse.ArgumentParser(description="Renew or check the computed tables of README.md.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="not needed; there for uniformity")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a table is stale")
    arguments = parser.parse_args()
    old = README.read_text()
    try:
        new = with_tables(old)
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if not arguments.check and new != old:
        write_atomic(README, new.encode())
    print(json.dumps({"stale": new != old, "written": new != old and not arguments.check}))
    return int(arguments.check and new != old)


if __name__ == "__main__":
    sys.exit(main())
