"""Rungs at optima and at fixed token ratios: the size a law likes best at a budget, what else is nearly as good, and
the size that costs least once it is served.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import TRAINING_PASSES, FlopConvention, training_flops_per_token
from ladder.generate import check_corpus, epoch_remarks
from ladder.optima import SIZES, AbstractOptima, Surface
from ladder.pin import pin_recipe
from ladder.provenance import provenance
from ladder.recipe_interface import AbstractRecipe
from ladder.rung import Ladder, Role, Rung
from ladder.sizing import make_rung
from ladder.units import format_count, format_flops, format_percent

MAX_SERVED_TOKENS = 10**17  # far more than any model has served; a number beyond it is in FLOPs
MAX_RATIO = 1e6  # tokens per parameter; a number beyond it counts tokens
TOLERANCE = 0.0025  # of the loss: near-optimal as DeepSeek LLM (2024) and Ling (2025) have it
FULL = FlopConvention.MATMUL_FULL  # what a served token costs includes the head


@dataclass(frozen=True)
class Candidate:
    """One width at one budget.

    Attributes:
        hidden: the width.
        size: N as the law counts it.
        tokens: D.
        training: training FLOPs, in the recipe's convention.
        excess: share by which its loss lies above that of the best candidate, at equal training FLOPs or, where the
            model is served, at equal FLOPs of training and serving together.
        served: FLOPs of serving, forward with the head; 0 where it is not served.
    """

    hidden: int
    size: int
    tokens: float
    training: int
    excess: float
    served: float = 0.0


def near_optimal(
    recipe: AbstractRecipe, budget: int, law: AbstractOptima, tolerance: float = TOLERANCE, serving_tokens: int = 0
) -> tuple[Candidate, ...]:
    """Return every width of the recipe whose loss is within `tolerance` of the best one's, ascending.

    Without `serving_tokens` each trains on what `budget` FLOPs buy. With them each trains until it has the loss of the
    best size at `budget`, and the sizes are compared by the FLOPs of training and of serving that many tokens (Sardana
    et al. 2024, arXiv 2401.00448): smaller models train longer and are served cheaper. Their `excess` is what a size
    would lose if it had the best one's FLOPs for both. Serving counts the forward FLOPs of each token,
    head included; that decoding is bound by memory, not by FLOPs, is not in it.

    Raises InputError when serving is asked of a law that knows no loss away from its optimum.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance={tolerance} is a share of the loss, such as 0.0025 for 0.25 %.")
    if not 0 <= serving_tokens <= MAX_SERVED_TOKENS:
        raise InputError(f"{serving_tokens:.3g} tokens served is more than any model serves; is that number in FLOPs?")
    if budget <= 0:
        raise InputError("budgets must be positive and at least one, such as 3e18.")
    found = _trained(recipe, budget, law)
    if not found:
        raise InputError(f"recipe {recipe.name} offers no width at {format_flops(budget)} FLOPs; use a larger budget.")
    if serving_tokens:
        if not isinstance(law, Surface):
            raise InputError(
                f"{law.source} knows the best size at a budget but no loss of an overtrained one; for --serving-tokens "
                "give a surface: a fit.json of chinchilla, or ludziejewski2025."
            )
        found = _served(recipe, found, law, serving_tokens)
    return tuple(item for item in found if item.excess <= tolerance)


def _trained(recipe: AbstractRecipe, budget: int, law: AbstractOptima) -> list[Candidate]:
    widths, sizes, tokens = [], [], []
    for hidden in recipe.widths_at(budget):
        shape = recipe.shape(hidden)
        widths.append(hidden)
        sizes.append(SIZES[law.size](count_params(shape)))
        tokens.append(budget / training_flops_per_token(shape, recipe.flop_convention))
    excess = law.excess(budget, sizes, tokens) if widths else []
    return [Candidate(h, n, d, budget, e) for h, n, d, e in zip(widths, sizes, tokens, excess, strict=True)]


def _served(recipe: AbstractRecipe, trained: list[Candidate], law: Surface, serving: int) -> list[Candidate]:
    loss = min(law.loss(item.size, item.tokens) for item in trained)
    costs, made = [], []
    for item in trained:
        tokens = law.tokens_for(item.size, loss)
        if not math.isfinite(tokens):
            continue
        shape = recipe.shape(item.hidden)
        per_token = training_flops_per_token(shape, FULL)
        served = per_token / TRAINING_PASSES * serving
        costs.append(per_token * tokens + served)
        training = round(training_flops_per_token(shape, recipe.flop_convention) * tokens)
        made.append((Candidate(item.hidden, item.size, tokens, training, 0.0, served), per_token))
    least = min(costs)
    kept = []
    for item, per_token in made:
        left = (least - item.served) / per_token
        if left > 0:
            excess = max(0.0, law.loss(item.size, left) / loss - 1)
            kept.append(Candidate(item.hidden, item.size, item.tokens, item.training, excess, item.served))
    return kept


def plan_at_optima(
    recipe: AbstractRecipe,
    budgets: Sequence[int],
    law: AbstractOptima,
    *,
    held_out: Sequence[int] = (),
    sizes: int = 1,
    tolerance: float = TOLERANCE,
    serving_tokens: int = 0,
    seeds: int = 1,
    held_out_seeds: int = 1,
    corpus_tokens: int = 0,
) -> Ladder:
    """Return the best `sizes` of the near-optimal widths at each budget; remarks name the whole set.

    At held-out budgets there is one, the best. With `serving_tokens` a rung's budget is what its own training costs.
    Raises InputError as `near_optimal` does, and when the ranges of budgets overlap.
    """
    if not budgets and not held_out:
        raise InputError("at least one budget is needed, such as 1e22.")
    if budgets and held_out and min(held_out) <= max(budgets):
        raise InputError(f"held-out budget {format_flops(min(held_out))} is not above the largest fit budget.")
    check_corpus(corpus_tokens)
    rungs, remarks = [], [f"Optima by {law.source}."]
    for budget in sorted({*budgets, *held_out}):
        held = budget in held_out
        near = near_optimal(recipe, budget, law, tolerance, serving_tokens)
        best = sorted(near, key=lambda item: item.excess)[: 1 if held else sizes]
        for item in sorted(best, key=lambda item: item.hidden):
            role, runs = (Role.HELD_OUT, held_out_seeds) if held else (Role.FIT, seeds)
            seed_range = tuple(range(runs))
            rung = make_rung(
                recipe, item.training, item.hidden, role=role, seeds=seed_range, corpus_tokens=corpus_tokens
            )
            rungs.append(rung)
        remarks += _set_remarks(recipe, budget, near, law, tolerance, serving_tokens)
    remarks += epoch_remarks(rungs)
    return Ladder("optima", tuple(rungs), provenance(), (pin_recipe(recipe),), tuple(remarks))


def _set_remarks(
    recipe: AbstractRecipe,
    budget: int,
    near: Sequence[Candidate],
    law: AbstractOptima,
    tolerance: float,
    serving: int,
) -> list[str]:
    best = min(near, key=lambda item: item.excess)
    listed = ", ".join(f"d{item.hidden} {format_percent(item.excess)}" for item in near if item is not best)
    what = (
        f"{format_flops(budget)}: d{best.hidden} is best, {format_count(best.size)} parameters on "
        f"{format_count(best.tokens)} tokens ({best.tokens / best.size:.3g} each); "
    )
    if serving:
        what = (
            f"{format_flops(budget)}'s loss, then {format_count(serving)} tokens served: d{best.hidden} costs least, "
            f"{format_flops(best.training)} FLOPs to train on {format_count(best.tokens)} tokens "
            f"({best.tokens / best.size:.3g} per parameter) and {format_flops(best.served)} to serve; "
        )
    within = format_percent(tolerance, signed=False)
    found = [what + (f"within {within} of its loss: {listed}" if listed else f"no other width within {within}")]
    offered = recipe.widths_at(budget)
    if best.hidden in (offered[0], offered[-1]):
        found.append(
            f"{format_flops(budget)}: that is the edge of the widths the recipe offers, so no optimum is shown"
        )
    if outside := law.beyond(budget, best.size, best.tokens):
        found.append(f"{format_flops(budget)}: beyond what {law.source} was fitted to: {outside}")
    return found


def ratio_rung(recipe: AbstractRecipe, hidden: int, ratio: float, role: Role, seeds: int, corpus_tokens: int) -> Rung:
    """Return the rung of width `hidden` trained on `ratio` tokens for each of its active parameters.

    N is as the published ratios have it: active, without embedding, head, gates and norms (marin issue #8435).
    """
    if not 0 < ratio <= MAX_RATIO:
        raise InputError(f"tokens per parameter must be positive and at most {MAX_RATIO:g}, found {ratio:g}.")
    shape = recipe.shape(hidden)
    tokens = ratio * count_params(shape).without_gates_and_norms().nonembedding_active
    budget = round(training_flops_per_token(shape, recipe.flop_convention) * tokens)
    runs = tuple(range(seeds))
    return make_rung(recipe, budget, hidden, role=role, seeds=runs, corpus_tokens=corpus_tokens)


def plan_at_ratio(
    recipe: AbstractRecipe,
    budgets: Sequence[int],
    ratio: float,
    *,
    held_out: Sequence[int] = (),
    law: AbstractOptima | None = None,
    seeds: int = 1,
    held_out_seeds: int = 1,
    corpus_tokens: int = 0,
) -> Ladder:
    """Return one rung for each budget: of the width whose run at `ratio` tokens per parameter costs nearest to it.

    The rung keeps the ratio, so its budget is what that run costs, not the one asked for. With a `law` that is a
    surface, remarks say how much loss the ratio gives away against the best size for the same FLOPs.

    Raises InputError when two budgets meet the same width, or `law` knows no loss away from its optimum.
    """
    check_corpus(corpus_tokens)
    asked = [(budget, Role.FIT) for budget in budgets] + [(budget, Role.HELD_OUT) for budget in held_out]
    if not asked or min(budget for budget, _ in asked) <= 0:
        raise InputError("budgets must be positive and at least one, such as 3e18.")
    if law is not None and not isinstance(law, Surface):
        raise InputError(f"{law.source} knows no loss away from its optimum; give a surface, or leave --at-optima out.")
    made = {hidden: ratio_rung(recipe, hidden, ratio, Role.FIT, seeds, corpus_tokens) for hidden in recipe.widths()}
    chosen: dict[int, Rung] = {}
    for budget, role in sorted(asked):
        hidden = min(made, key=lambda width: abs(math.log(made[width].budget / budget)))
        if hidden in chosen:
            raise InputError(
                f"two budgets are nearest to the same width {hidden}, which costs {format_flops(made[hidden].budget)} "
                f"FLOPs at {ratio:g} tokens per parameter; leave one out, or space them further."
            )
        held = role is Role.HELD_OUT
        runs = held_out_seeds if held else seeds
        chosen[hidden] = ratio_rung(recipe, hidden, ratio, role, runs, corpus_tokens)
    remarks = [f"{ratio:g} tokens for each active parameter, embedding, head, gates and norms not counted."]
    if law is not None:
        remarks += [_given_away(recipe, rung, law) for rung in chosen.values()]
    remarks += epoch_remarks(tuple(chosen.values()))
    return Ladder("ratio", tuple(chosen.values()), provenance(), (pin_recipe(recipe),), tuple(remarks))


def _given_away(recipe: AbstractRecipe, rung: Rung, law: Surface) -> str:
    best = min(_trained(recipe, rung.budget, law), key=lambda item: item.excess)
    size = SIZES[law.size](rung.counts)
    excess = law.loss(size, rung.tokens) / law.loss(best.size, best.tokens) - 1
    return f"{rung.name}: {format_percent(max(excess, 0.0))} in loss against d{best.hidden} at the same FLOPs, by {law.source}"
