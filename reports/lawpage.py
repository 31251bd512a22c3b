"""The parts of a report that follow from the fit: the law, its parameters, how it was fitted, the optima."""

import pandas as pd

from fits.isoflop import LEVEL, IsoflopResult
from fits.laws import law_named
from fits.result import FitResult
from ladder.units import format_count, format_flops, format_loss, format_percent
from reports.context import LawSection
from reports.formula import formula_text
from reports.references import bibliography
from reports.tables import ABSENT, Field, Table, table_of
from reports.wording import format_factor, format_level

POLICY_FORMULA = r"L(C) = L_{\max}\,(r + (1 - r)\,(C/C_{\max})^{-\gamma})"  # the docstring of fits/floor_posterior.py
STATUS = {
    "vertex": "vertex", "exact_vertex": "exact vertex", "single_size": "single size", "too_few_sizes": "too few sizes",
    "concave": "concave", "unbracketed": "not bracketed",
}  # fmt: skip


def formula_of(result: FitResult) -> str:
    """Return the formula of a law or policy in LaTeX."""
    return POLICY_FORMULA if result.spec.is_policy else law_named(result.law).formula


def law_keys(result: FitResult) -> set[str]:
    """Return the keys of the references that the law section cites."""
    keys = {source for param in result.param_estimates for source in param.published}
    return keys if result.spec.is_policy else keys | {law_named(result.law).reference}


def law_section(result: FitResult, name: str) -> LawSection:
    """Return the section on the fit of the main forecast, which is called `name` in the record."""
    reference = "" if result.spec.is_policy else bibliography()[law_named(result.law).reference].label
    return LawSection(
        name=name,
        formula=formula_of(result),
        reference=reference,
        status=str(result.status).replace("_", " "),
        usable=result.usable,
        message=result.message,
        facts=_facts(result),
        params=_params(result),
        optima=_optima(result.isoflop) if result.isoflop else None,
    )


def _params(result: FitResult) -> Table:
    rows = []
    for param in result.param_estimates:
        bounded = " (on its bound)" if param.at_bound else ""
        rows.append(
            {
                "symbol": formula_text(param.symbol),
                "meaning": param.meaning,
                "estimate": f"{param.estimate:.4g}{bounded}",
                "se": None if param.se is None else f"{param.se:.2g}",
                "interval": None if param.lo is None or param.hi is None else f"{param.lo:#.3g} – {param.hi:#.3g}",
                **{source: f"{value:.4g}" for source, value in param.published.items()},
            }
        )
    frame = pd.DataFrame(rows)
    known = bibliography()
    published = [name for name in frame.columns if name in known]
    fields = [
        Field("symbol", "symbol", number=False),
        Field("meaning", "meaning", number=False),
        Field("estimate", "estimate"),
        Field("se", "s.e."),
        Field("interval", f"{format_level(LEVEL)} interval"),
        *(Field(name, known[name].label) for name in published),
    ]
    caption = "Parameters. " + (
        "Posterior means, standard deviations and intervals."
        if result.spec.is_policy
        else "Estimates, bootstrap standard errors and intervals."
    )
    notes = (
        ("Published values come from other data, tokenizers and counts of N; they are no targets.",)
        if published
        else ()
    )
    return table_of(frame, fields, caption=caption, notes=notes, wrap=True)


def _facts(result: FitResult) -> Table:
    facts = [fact for fact in result.summary().facts if fact[0] != "status"]
    if not result.spec.is_policy:
        facts.append(("noise of one run", f"{format_percent(result.noise_scale()[0], signed=False)} of the loss"))
    if result.condition is not None:
        facts.append(("condition number", f"{result.condition:.2g}"))
    if result.agreement is not None:
        facts.append(("starts that agree", format_percent(result.agreement, signed=False)))
    return table_of(
        pd.DataFrame(facts, columns=["what", "value"]),
        [Field("what", "", number=False), Field("value", "", number=False)],
        caption="How it was fitted.",
        wrap=True,
    )


def _optima(profiles: IsoflopResult) -> Table:
    frame = profiles.frame().astype({"reason": "object"})
    size = [
        ABSENT if pd.isna(row["size"]) else format_count(row["size"]) + _range(row["size_lo"], row["size_hi"])
        for row in frame.to_dict("records")
    ]
    loss = [
        ABSENT
        if pd.isna(row["loss"])
        else format_loss(row["loss"]) + ("" if pd.isna(row["loss_se"]) else f" ± {format_loss(row['loss_se'])}")
        for row in frame.to_dict("records")
    ]
    ratio = frame["tokens"].astype(float) / frame["size"].astype(float)
    shown = frame.assign(size_text=size, loss_text=loss, ratio=ratio, state=[STATUS[s] for s in frame["status"]])
    fields = [
        Field("budget", "budget", format_flops, "FLOPs"),
        Field("state", "profile", number=False),
        Field("size_text", "N*", unit=f"parameters ({format_level(LEVEL)})"),
        Field("tokens", "D*", format_count, "tokens"),
        Field("ratio", "D*/N*", format_factor),
        Field("loss_text", "L* ± s.e."),
    ]
    notes = tuple(dict.fromkeys(str(reason) for reason in frame["reason"] if reason))
    return table_of(
        shown,
        fields,
        caption="Optimum of each budget: the vertex of a parabola of the loss in the logarithm of N.",
        notes=tuple(f"{note[0].upper()}{note[1:]}." for note in notes),
    )


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return ""
    return f" ({format_count(low)} – {format_count(high)})"
