"""From budgets and a recipe to a ladder: which sizes at which budget, how many steps, with what error."""

import math
from collections.abc import Mapping, Sequence

from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import training_flops_per_token
from ladder.provenance import provenance
from ladder.recipe import AbstractRecipe
from ladder.rung import Ladder, Role, Rung
from ladder.units import format_flops

MAX_COMPUTE_ERROR = 0.02  # a rung of fewer than 25 steps cannot match its budget better; such rungs say nothing


def make_rung(
    recipe: AbstractRecipe, budget: int, hidden: int, *, role: Role = Role.FIT, seeds: tuple[int, ...] = (0,)
) -> Rung:
    """Return the rung of width `hidden` whose realised compute is within half a step of `budget` FLOPs.

    Tokens follow from the budget, the batch from the tokens by the recipe's rule, the steps from both by rounding;
    rates are set for the realised tokens.

    Raises InputError when the budget buys so few steps that half a step is more than 2 % of it.
    """
    shape = recipe.shape(hidden)
    flops_per_token = training_flops_per_token(shape, recipe.flop_convention)
    tokens = budget / flops_per_token
    batch_seqs = recipe.batch_seqs(tokens, shape)
    flops_per_step = flops_per_token * batch_seqs * shape.seq_len
    steps = max(1, (2 * budget + flops_per_step) // (2 * flops_per_step))
    if abs(steps * flops_per_step - budget) > MAX_COMPUTE_ERROR * budget:
        least = math.ceil(flops_per_step / (2 * MAX_COMPUTE_ERROR))
        raise InputError(
            f"budget {format_flops(budget)} FLOPs is too small for width {hidden} of recipe {recipe.name}: one step "
            f"costs {format_flops(flops_per_step)}. Use a smaller width or at least {format_flops(least)} FLOPs."
        )
    realised = steps * batch_seqs * shape.seq_len
    return Rung(
        recipe=recipe.name,
        role=role,
        budget=budget,
        flop_convention=recipe.flop_convention,
        shape=shape,
        batch_seqs=batch_seqs,
        steps=steps,
        optimizer=recipe.optimizer(realised, batch_seqs, shape),
        schedule=recipe.schedule(),
        capacity_factor=recipe.capacity_factor,
        seeds=seeds,
        extrapolated_recipe=recipe.outside_range(realised, shape),
    )


def widths_near_optimum(recipe: AbstractRecipe, budget: int, sizes: int) -> tuple[int, ...]:
    """Return the `sizes` widths whose parameters are nearest, in ratio, to the recipe's expected optimum at `budget`.

    Raises InputError when the recipe offers fewer widths.
    """
    widths = recipe.widths()
    if len(widths) < sizes:
        raise InputError(f"recipe {recipe.name} offers {len(widths)} widths, fewer than the {sizes} asked for.")
    target = math.log(recipe.expected_optimum(budget))

    def distance(hidden: int) -> float:
        return abs(math.log(count_params(recipe.shape(hidden)).nonembedding_active) - target)

    return tuple(sorted(sorted(widths, key=distance)[:sizes]))


def plan_isoflop(
    recipe: AbstractRecipe,
    budgets: Sequence[int],
    *,
    sizes: int,
    held_out: Sequence[int] = (),
    seeds: int = 1,
    replicates: Mapping[int, int] | None = None,
    held_out_seeds: int = 1,
    name: str = "isoflop",
) -> Ladder:
    """Return a ladder of `sizes` widths at each budget and one rung of the expected optimum at each held-out budget.

    Arguments:
        budgets: fit budgets in FLOPs under the recipe's convention, exact integers.
        held_out: budgets above all of them; their rungs are marked held out.
        seeds: runs of every fit rung; `held_out_seeds` those of every held-out rung.
        replicates: further seeds of the rung nearest the expected optimum at some of the budgets, by budget; they
            measure seed noise.
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
    rungs = []
    for budget in sorted(budgets):
        (central,) = widths_near_optimum(recipe, budget, 1)
        for hidden in widths_near_optimum(recipe, budget, sizes):
            runs = seeds + (extra.get(budget, 0) if hidden == central else 0)
            rungs.append(make_rung(recipe, budget, hidden, seeds=tuple(range(runs))))
    for budget in sorted(held_out):
        (central,) = widths_near_optimum(recipe, budget, 1)
        rungs.append(make_rung(recipe, budget, central, role=Role.HELD_OUT, seeds=tuple(range(held_out_seeds))))
    return Ladder(name, tuple(rungs), provenance())
