"""Which rungs would help a law most next, given what a ladder planned and what its runs have shown.

Rules in a fixed order, each with its reason and its cost; no model of the information in a run. First what makes data
that are paid for usable (a gap, a minimum at the edge), then what tells noise from signal, then more range.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder.errors import InputError
from ladder.generate import BRACKET, FEWEST
from ladder.recipe_interface import AbstractRecipe
from ladder.rung import Ladder, Rung
from ladder.runs import RunTable
from ladder.sizing import make_rung, size_of
from ladder.units import format_count, format_flops

REPLICATES = (
    2  # further seeds: three runs give an sd within a factor of 2.1 nine times in ten (chi-square, 2 df: no less)
)
REPLICATE_SHARE = 0.05  # of the compute spent: the largest budget whose replicates cost no more is replicated
USUAL_RATIO = 10**0.5  # between budgets, where a ladder has only one


@dataclass(frozen=True)
class Proposal:
    """Rungs to run next, and why. `seeds` of a rung are those still to run; `kind` is the rule.

    Kind ``"no width"`` has no rungs: a budget that no rung of the recipe can bracket.
    """

    kind: str
    reason: str
    rungs: tuple[Rung, ...]

    @property
    def compute(self) -> int:
        """FLOPs of all proposed runs, exact, in the convention of the ladder."""
        return sum(rung.compute * len(rung.seeds) for rung in self.rungs)


@dataclass(frozen=True)
class _Measured:
    """A rung with runs: mean loss over seeds, and the seeds."""

    rung: Rung
    loss: float
    seeds: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.rung.counts.nonembedding_active


def propose(ladder: Ladder, runs: RunTable, metric: str, recipe: AbstractRecipe) -> tuple[Proposal, ...]:
    """Return proposals, the most useful first; never empty while the recipe offers another budget.

    Rows enter as they would a fit: finished, without a reason for exclusion, not held out.

    Raises InputError when no row belongs to a rung of the ladder, and for a ladder of several recipes.
    """
    if ladder.recipe_names != (recipe.name,):
        raise InputError(
            f"ladder {ladder.name!r} follows {', '.join(ladder.recipe_names)}, not only {recipe.name}; name a ladder of "
            "one recipe."
        )
    measured = _measured(ladder, runs, metric)
    budgets = sorted({rung.budget for rung in ladder.fit_rungs})
    planned = {budget: [rung for rung in ladder.fit_rungs if rung.budget == budget] for budget in budgets}
    done = {budget: [measured[r.rung_id] for r in planned[budget] if r.rung_id in measured] for budget in budgets}
    found: list[Proposal] = []
    for budget in budgets:
        gaps = tuple(rung for rung in planned[budget] if rung.rung_id not in measured)
        if gaps and done[budget]:
            reason = f"{format_flops(budget)}: {len(gaps)} of {len(planned[budget])} planned sizes have no usable run"
            found.append(Proposal("gap", reason, gaps))
        elif not gaps:
            found += _brackets(recipe, budget, done[budget])
    found += _replicates(budgets, done)
    for budget in budgets:
        if not done[budget]:
            reason = f"{format_flops(budget)}: planned, and nothing of it has run"
            found.append(Proposal("planned", reason, tuple(planned[budget])))
    found += _next_budget(recipe, ladder, budgets, done)
    return tuple(found)


def _measured(ladder: Ladder, runs: RunTable, metric: str) -> dict[str, _Measured]:
    rows = runs.included().select(metric).frame
    rows = rows[(rows["status"] == "finished") & rows["loss"].notna()]
    found = {}
    for rung in ladder.fit_rungs:
        own = rows[rows["rung_id"] == rung.rung_id].sort_values("eval_step").drop_duplicates("run_id", keep="last")
        if len(own):
            seeds = tuple(int(seed) for seed in own["seed"].dropna())
            found[rung.rung_id] = _Measured(rung, float(own["loss"].mean()), seeds or tuple(range(len(own))))
    if not found:
        raise InputError(
            f"no row of {metric} in the run table belongs to a fit rung of ladder {ladder.name!r}; check that both are "
            "of one study."
        )
    return found


def _brackets(recipe: AbstractRecipe, budget: int, done: Sequence[_Measured]) -> list[Proposal]:
    ordered = sorted(done, key=lambda item: item.size)
    best = min(range(len(ordered)), key=lambda index: ordered[index].loss)
    found = []
    for side, there in (("below", best), ("above", len(ordered) - 1 - best)):
        if there >= BRACKET:
            continue
        beyond = _beyond(recipe, budget, ordered, side)[: BRACKET - there]
        where = (
            "at the edge of the sizes, where no parabola may be used" if there == 0 else f"with one size {side} it only"
        )
        name = f"{format_flops(budget)}: the smallest loss is at d{ordered[best].rung.shape.hidden}, {where}"
        if beyond:
            rungs = tuple(make_rung(recipe, budget, hidden, corpus_tokens=_corpus(done)) for hidden in beyond)
            found.append(Proposal("bracket" if there == 0 else "second bracket", name, rungs))
        elif there == 0:
            found.append(Proposal("no width", f"{name}, and the recipe offers no width {side} it", ()))
    return found


def _beyond(recipe: AbstractRecipe, budget: int, ordered: Sequence[_Measured], side: str) -> list[int]:
    """Return widths the recipe offers beyond the measured ones, nearest first, that the budget can train."""
    widths = [item.rung.shape.hidden for item in ordered]
    offered = sorted(recipe.widths_at(budget))
    if side == "below":
        return [hidden for hidden in reversed(offered) if hidden < min(widths)]
    return [hidden for hidden in offered if hidden > max(widths)]


def _corpus(done: Sequence[_Measured]) -> int:
    return max(item.rung.corpus_tokens for item in done)


def _replicates(budgets: Sequence[int], done: dict[int, list[_Measured]]) -> list[Proposal]:
    measured = [item for budget in budgets for item in done[budget]]
    if any(len(item.seeds) > 1 for item in measured):
        return []
    spent = sum(item.rung.compute for item in measured)
    bests = [min(done[budget], key=lambda item: item.loss) for budget in budgets if done[budget]]
    cheap = [item for item in bests if REPLICATES * item.rung.compute <= REPLICATE_SHARE * spent] or bests[:1]
    chosen = cheap[-1]
    first = max(chosen.seeds) + 1
    rung = replace(chosen.rung, seeds=tuple(range(first, first + REPLICATES)))
    reason = (
        f"no rung has a second seed, so noise can only be inferred; {rung.name} is the best size of the largest budget "
        f"whose {REPLICATES} replicates cost at most {REPLICATE_SHARE:.0%} of what was spent"
        if REPLICATES * rung.compute <= REPLICATE_SHARE * spent
        else f"no rung has a second seed, so noise can only be inferred; {rung.name} is the cheapest best size"
    )
    return [Proposal("replicate", reason, (rung,))]


def _next_budget(
    recipe: AbstractRecipe, ladder: Ladder, budgets: Sequence[int], done: dict[int, list[_Measured]]
) -> list[Proposal]:
    """Return the budget that continues the ladder's spacing, at sizes about its own measured optima."""
    ratio = budgets[-1] / budgets[-2] if len(budgets) > 1 else USUAL_RATIO
    budget = round(float(f"{budgets[-1] * ratio:.2g}"))
    held = min((rung.budget for rung in ladder.held_out_rungs), default=None)
    if held is not None and budget >= held:
        return []
    offsets = [
        math.log(min(items, key=lambda item: item.loss).size / recipe.expected_optimum(at))
        for at, items in done.items()
        if items
    ]
    target = recipe.expected_optimum(budget) * math.exp(sum(offsets) / len(offsets))
    nearest = sorted(recipe.widths_at(budget), key=lambda hidden: abs(math.log(size_of(recipe, hidden) / target)))
    corpus = _corpus([item for items in done.values() for item in items])
    rungs = tuple(make_rung(recipe, budget, hidden, corpus_tokens=corpus) for hidden in sorted(nearest[:FEWEST]))
    reason = (
        f"{format_flops(budget)} continues the spacing of {ratio:.3g}x; sizes about {format_count(target)} parameters, "
        f"the recipe's rule times {math.exp(sum(offsets) / len(offsets)):.2f}, by which the measured minima differ from it"
    )
    return [Proposal("budget", reason, rungs)]
