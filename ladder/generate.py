"""From budgets and a recipe to a ladder: which sizes at which budget, which rungs are held out, what to say of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ladder.errors import InputError
from ladder.pin import pin_recipe
from ladder.provenance import provenance
from ladder.recipe_interface import AbstractRecipe
from ladder.rung import Ladder, Override, Role, Rung
from ladder.sizing import make_rung as make_rung
from ladder.sizing import size_of
from ladder.sizing import widths_near_optimum as widths_near_optimum
from ladder.units import format_count, format_flops

MAX_CORPUS_TOKENS = 10**15  # more than all text; a number beyond it is in FLOPs
NEAR, WIDER = 4.0, 8.0  # largest over smallest shape about the optimum; about tokens per parameter over the optimum's
ENOUGH, FEWEST = 7, 5  # shapes: fewer than ENOUGH within NEAR widen it, and never fewer than FEWEST
BRACKET = 2  # shapes wanted on each side of the optimum


def widths_about_optimum(recipe: AbstractRecipe, budget: int) -> tuple[int, ...]:
    """Return every width the recipe allows within 4x of the expected optimum at `budget`, ascending.

    4x in tokens per parameter, which at a fixed budget is a factor of 2 in parameters on either side; 8x where that
    gives fewer than seven widths; the nearest five where even that gives fewer. Raises InputError when the recipe
    allows fewer than five.
    """
    target = recipe.expected_optimum(budget)
    sizes = {hidden: size_of(recipe, hidden) for hidden in recipe.widths_at(budget)}
    for span in (NEAR, WIDER):
        factor = math.sqrt(span)
        within = tuple(hidden for hidden, size in sizes.items() if target / factor <= size <= target * factor)
        if len(within) >= ENOUGH:
            return within
    return within if len(within) >= FEWEST else widths_near_optimum(recipe, budget, FEWEST)


def plan_isoflop(
    recipe: AbstractRecipe,
    budgets: Sequence[int],
    *,
    sizes: int | None = None,
    held_out: Sequence[int] = (),
    seeds: int = 1,
    replicates: Mapping[int, int] | None = None,
    held_out_seeds: int = 1,
    name: str = "isoflop",
    corpus_tokens: int = 0,
    overrides: Mapping[int, Mapping[str, int]] | None = None,
) -> Ladder:
    """Return a ladder of several widths at each budget and one rung of the expected optimum at each held-out budget.

    Arguments:
        budgets: fit budgets in FLOPs under the recipe's convention, exact integers.
        sizes: widths per budget, nearest the expected optimum; None for all of `widths_about_optimum`.
        held_out: budgets above all of them; their rungs are marked held out.
        seeds: runs of every fit rung; `held_out_seeds` those of every held-out rung.
        replicates: further seeds of the rung nearest the expected optimum at some of the budgets, by budget; they
            measure seed noise.
        corpus_tokens: distinct tokens there are; rungs that need more say how many epochs they make.
        overrides: what to set by hand on the rung of a held-out budget, by budget; see `make_rung`, and ``hidden``
            for its width.
    """
    if not budgets or any(budget <= 0 for budget in (*budgets, *held_out)):
        raise InputError("budgets must be positive and at least one, such as 3e18.")
    if len({*budgets, *held_out}) != len(budgets) + len(held_out):
        raise InputError("a budget is given twice; name each once.")
    if held_out and min(held_out) <= max(budgets):
        raise InputError(
            f"held-out budget {format_flops(min(held_out))} is not above the largest fit budget "
            f"{format_flops(max(budgets))}; a forecast is for a larger run."
        )
    extra = dict(replicates or {})
    if unknown := sorted(set(extra) - set(budgets)):
        raise InputError(f"replicates are asked for at {format_flops(unknown[0])}, which is no fit budget.")
    by_hand = dict(overrides or {})
    if unknown := sorted(set(by_hand) - set(held_out)):
        raise InputError(f"overrides are given at {format_flops(unknown[0])}, which is no held-out budget.")
    check_corpus(corpus_tokens)
    rungs, remarks = [], []
    for budget in sorted(budgets):
        (central,) = widths_near_optimum(recipe, budget, 1)
        widths = widths_about_optimum(recipe, budget) if sizes is None else widths_near_optimum(recipe, budget, sizes)
        for hidden in widths:
            runs = range(seeds + (extra.get(budget, 0) if hidden == central else 0))
            rungs.append(make_rung(recipe, budget, hidden, seeds=tuple(runs), corpus_tokens=corpus_tokens))
        remarks += _bracket_remarks(recipe, budget, widths)
    for budget in sorted(held_out):
        rungs.append(_held_out(recipe, budget, by_hand.get(budget, {}), tuple(range(held_out_seeds)), corpus_tokens))
    remarks += epoch_remarks(rungs)
    return Ladder(name, tuple(rungs), provenance(), (pin_recipe(recipe),), tuple(remarks))


def _held_out(
    recipe: AbstractRecipe, budget: int, by_hand: Mapping[str, int], seeds: tuple[int, ...], corpus_tokens: int
) -> Rung:
    (central,) = widths_near_optimum(recipe, budget, 1)
    rest = {name: value for name, value in by_hand.items() if name != "hidden"}
    hidden = by_hand.get("hidden", central)
    rung = make_rung(
        recipe, budget, hidden, role=Role.HELD_OUT, seeds=seeds, overrides=rest, corpus_tokens=corpus_tokens
    )
    if "hidden" in by_hand:
        recorded = (Override("hidden", hidden, central), *rung.overrides)
        return replace(rung, overrides=tuple(sorted(recorded, key=lambda item: item.field)))
    return rung


def _bracket_remarks(recipe: AbstractRecipe, budget: int, widths: Sequence[int]) -> list[str]:
    target = math.log(recipe.expected_optimum(budget))
    offsets = [math.log(size_of(recipe, hidden)) - target for hidden in widths]
    below, above = sum(offset < 0 for offset in offsets), sum(offset > 0 for offset in offsets)
    return [
        f"{format_flops(budget)}: {count} {'shape' if count == 1 else 'shapes'} {side} the expected optimum of "
        f"{format_count(math.exp(target))} parameters, fewer than the {BRACKET} that bracket it safely"
        for count, side in ((below, "below"), (above, "above"))
        if count < BRACKET
    ]


def check_corpus(tokens: int) -> None:
    """Raise InputError for a corpus of more tokens than there is text, which is a number in FLOPs."""
    if not 0 <= tokens <= MAX_CORPUS_TOKENS:
        raise InputError(
            f"a corpus of {tokens:.3g} tokens is more than there is text, or negative; is that number in FLOPs?"
        )


def epoch_remarks(rungs: Sequence[Rung]) -> list[str]:
    """Return, for each rung with more tokens than its corpus, how many epochs it makes."""
    return [
        f"{rung.name} ({rung.rung_id}): {format_count(rung.tokens)} tokens are {rung.epochs:.3g} epochs of a corpus of "
        f"{format_count(rung.corpus_tokens)}; repeated tokens are worth less than the law assumes"
        for rung in rungs
        if rung.corpus_tokens and rung.tokens > rung.corpus_tokens
    ]
