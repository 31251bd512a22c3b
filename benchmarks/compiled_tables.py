"""Tables of what the TPU's compiler said, made from a saved result of benchmarks/compile_rungs.py, as Markdown."""

from collections.abc import Sequence
from typing import Any

from ladder.chips import GIB, chip_named
from ladder.units import format_count

TERMS = ("head", "routed", "dense", "attention")
HEAD = ("rung", "slice", "mesh", "parts", "HBM, GiB", "FLOPs, TF", "executed / analytic", "received, GB", "step, s")


def _mesh(row: dict[str, Any]) -> str:
    way = "FSDP" if row["mesh"]["expert"] == 1 else f"{row['mesh']['data']} x {row['mesh']['expert']} {row['backend']}"
    return way.replace("_all_to_all", " a2a")


def _received(row: dict[str, Any]) -> float:
    return float(sum(each["wire_bytes"] for each in row["collectives"]) / 1e9)


def _executed(row: dict[str, Any]) -> float:
    return float(sum(term["executed"] for term in row["terms"].values()) / 1e12)


def _seconds(row: dict[str, Any]) -> str:
    return f"{row['roofline_step_s']:.2f}" if row["roofline_step_s"] else "unknown"


def _lines(head: Sequence[str], rows: list[list[str]], left: int) -> list[str]:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return [f"| {' | '.join(cells)} |" for cells in ([*head], rule, *rows)]


def rungs_table(document: dict[str, Any]) -> str:
    """Return the optimum rungs and the published one: slice, mesh, memory, FLOPs, bytes, the bound on a step."""
    rows = []
    for row in document["optima"] + document["published"] + document["kept"] + document["hero"]:
        fits = "" if row["fits"] else ", does not fit"
        rows.append(
            [
                row["name"] + (", hidden kept" if row.get("remat") == "hidden" else ""),
                row["topology"],
                _mesh(row),
                str(row["accumulation"]),
                f"{row['hbm_used'] / GIB:.1f} / {row['hbm_limit'] / GIB:.1f}{fits}",
                f"{_executed(row):,.0f}",
                f"{row['flops_ratio']:.2f}" if row["flops_ratio"] else "",
                f"{_received(row):,.1f}",
                _seconds(row),
            ]
        )
    worst = max(
        abs(term["executed"] / (term["analytic"] * term["factor"]) - 1)
        for row in document["optima"] + document["published"]
        for kind, term in row["terms"].items()
        if kind in ("head", "routed", "dense")
    )
    versions = ", ".join(f"{name} {number}" for name, number in document["optima"][0]["versions"].items())
    remark = (
        "Of one device and one step: memory used and granted; FLOPs executed, and over three forward passes by the "
        "ladder's count; bytes received over the interconnect; a bound on the step's time from below, an estimate. Of v16 head, "
        f"routed and dense products are within {100 * worst:.1f} % of that count times what rematerialisation and "
        f"capacity make of it; attention is reckoned from its masks. Compiled with {versions}; nothing was run on a TPU."
    )
    return "\n".join([*_lines(HEAD, rows, 3), "", remark])


def compared_table(document: dict[str, Any]) -> str:
    """Return ways to run the experts on one mesh, by rung: memory, FLOPs, each part of the bound, what bounds it."""
    head = [
        "rung",
        "slice",
        "experts",
        "HBM in GiB",
        "FLOPs in TF",
        "memory traffic in GB",
        "received in GB",
        "XLA in s",
    ]
    head += ["kernels in s", "wire in s", "step in s", "bound by"]
    rows = []
    for row in document["compared"]:
        if "refused" in row:
            rows.append([row["name"], "", row["backend"], *[""] * 8, row["refused"]])
            continue
        parts = {"XLA": row["xla_s"], "kernels": row["kernel_s"], "wire": row["wire_s"]}
        rows.append(
            [
                row["name"],
                row["topology"],
                _mesh(row),
                f"{row['hbm_used'] / GIB:.1f}" + ("" if row["fits"] else ", does not fit"),
                f"{_executed(row):,.0f}",
                f"{row['bytes'] / 1e9:,.0f}",
                f"{_received(row):,.0f}",
                *(f"{seconds:.2f}" for seconds in parts.values()),
                _seconds(row),
                max(parts, key=lambda name: parts[name]) if row["roofline_step_s"] else "",
            ]
        )
    return "\n".join(_lines(head, rows, 3))


def collectives_table(document: dict[str, Any]) -> str:
    """Return each collective of the compared steps: how often in a step, over how many devices, bytes received."""
    head = ("rung", "experts", "collective", "devices", "runs", "received, GB")
    rows = [
        [
            row["name"],
            _mesh(row),
            each["kind"],
            str(each["group"]),
            f"{each['runs']:,}",
            f"{each['wire_bytes'] / 1e9:.2f}",
        ]
        for row in document["compared"]
        if "refused" not in row
        for each in row["collectives"]
    ]
    return "\n".join(_lines(head, rows, 3))


def measured_table(document: dict[str, Any]) -> str:
    """Return published speeds beside the bound on the compiled step of the same shape and slice."""
    head = (
        "rung",
        "slice",
        "mesh",
        "bound, s",
        "bound, tokens/s",
        "published tokens/s",
        "published time / bound",
        "MFU at the bound",
    )
    rows = []
    for row in document["measured"]:
        chip = chip_named(row["topology"].partition(":")[0])
        bound = row["roofline_step_s"]
        speed = row["batch_tokens"] / bound
        analytic = sum(term["analytic"] for term in row["terms"].values())
        rows.append(
            [
                row["name"],
                row["topology"],
                _mesh(row),
                f"{bound:.3f}",
                format_count(round(speed)),
                format_count(row["published_tokens_per_second"]),
                f"{speed / row['published_tokens_per_second']:.2f}",
                f"{100 * analytic / bound / (chip.peak_flops / chip.devices):.0f} %",
            ]
        )
    return "\n".join(_lines(head, rows, 3))
