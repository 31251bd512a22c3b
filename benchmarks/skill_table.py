"""The table of skill in the README, written from a saved result of benchmarks/skill.py.

python -m benchmarks.skill > benchmarks/skill.json && python -m benchmarks.skill_table
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- skill:begin -->", "<!-- skill:end -->"
SHOWN = {
    "stacked": "**stacked**",
    "floor-integrated": "one prior",
    "free-floor-m2": "free floor",
    "pinned-floor": "pinned",
    "m4": "M4",
    "bnsl": "BNSL",
    "chinchilla": "Chinchilla",
    "published": "published",
}


def _cell(methods: dict[str, Any], method: str, name: str) -> str:
    if method not in methods:
        return ""
    found = methods[method]
    if "geometric_rmse" in found:
        return f"{100 * found['geometric_rmse']:.2f}"
    partial = "" if found["n"] == methods["stacked"]["n"] else f" (n {found['n']})"
    return f"{found['mean_abs_error']:.2f}{partial}"


def table(document: dict[str, Any]) -> str:
    """Return the table in Markdown: mean absolute error by set and method, coverage and width of the policy."""
    head = ["set", "targets", *SHOWN.values(), "50 %", "90 %", "width of 90 %"]
    lines = [" | ".join(head), " | ".join(["---"] + ["---:"] * (len(head) - 1))]
    for name, found in document["sets"].items():
        methods, policy = found["methods"], found["methods"]["stacked"]
        cells = [_cell(methods, method, name) for method in SHOWN]
        printed = found.get("printed", {})
        if not cells[-1] and printed:
            cells[-1] = f"{printed['mean']:.2f}†" if "mean" in printed else f"{100 * printed['geometric_rmse']:.2f}†"
        curve = " (RMSE)" if "geometric_rmse" in policy else ""
        row = [f"{name}{curve}", str(found["n_targets"]), *cells]
        row += [f"{policy['coverage']['50']:.2f}", f"{policy['coverage']['90']:.2f}", f"{policy['width']['90']:.1f}"]
        lines.append(" | ".join(row))
    by = document["coverage_by_method"]
    lines.append(
        " | ".join(["covered at 90 %", "", *(f"{by[m]['90']:.2f}" if m in by else "" for m in SHOWN), "", "", ""])
    )
    text = [f"| {line} |" for line in lines]
    named = ", ".join(f"{name} {error:+.2f} %" for name, error in document["named_targets"].items())
    total = document["coverage"]
    text += [
        "",
        "Mean absolute error in per cent of the loss (geometric mean RMSE of ln L, times 100, for the curves); the last "
        "columns are the policy's own intervals. Over all sets, each weighing the same, its intervals cover "
        + ", ".join(f"{total[level]:.2f} at {level} %" for level in ("50", "80", "90", "95"))
        + f". From the last cut: {named}. † as printed by the publication or in the set's README, for the same split.",
    ]
    return "\n".join(text)


def main() -> int:
    """Write the table between the marks of the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="../shared/data", help="not used: figures come from the saved result")
    parser.add_argument("--result", type=Path, default=Path("benchmarks/skill.json"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    arguments = parser.parse_args()
    document = json.loads(arguments.result.read_text())
    text = arguments.readme.read_text()
    found = re.search(f"{re.escape(BEGIN)}.*{re.escape(END)}", text, flags=re.DOTALL)
    if found is None:
        print(f"skill_table.py: {arguments.readme} has no {BEGIN} ... {END}; add the two marks.", file=sys.stderr)
        return 1
    arguments.readme.write_text(text[: found.start()] + f"{BEGIN}\n{table(document)}\n{END}" + text[found.end() :])
    print(json.dumps({"benchmark": "skill_table", "readme": str(arguments.readme), "sets": len(document["sets"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
