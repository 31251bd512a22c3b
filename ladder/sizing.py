"""From a budget, a recipe and a width to a rung: how many tokens, which batch, how many steps, with what error."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ladder.counts import count_params
from ladder.errors import InputError
from ladder.flops import training_flops_per_token
from ladder.recipe_interface import AbstractRecipe, OptimizerPlan, router_balanced
from ladder.rung import Override, Role, Rung
from ladder.shape import MoeShape
from ladder.units import format_flops

MAX_COMPUTE_ERROR = 0.02  # a rung of fewer than 25 steps cannot match its budget better; such rungs say nothing


def make_rung(
    recipe: AbstractRecipe,
    budget: int,
    hidden: int,
    *,
    role: Role = Role.FIT,
    seeds: tuple[int, ...] = (0,),
    overrides: Mapping[str, float | str] | None = None,
    corpus_tokens: int = 0,
) -> Rung:
    """Return the rung of width `hidden` whose realised compute is within half a step of `budget` FLOPs.

    Tokens follow from the budget, the batch from the tokens by the recipe's rule, the steps from both by rounding;
    rates are set for the realised tokens. `overrides` sets dimensions of the shape, `batch_seqs`, `steps` or `tokens`
    by hand; the rung records them beside the rule's values, and rates follow the overridden ones; `lr_multiple` then
    multiplies all peak rates, bounds of the recipe included. `balancing` and `optimizer` name other ways than the
    recipe's own to balance experts and to train.

    Raises InputError when the budget buys so few steps that half a step is more than 2 % of it, when overridden
    steps or tokens miss it by as much, and when `overrides` names something else or an impossible shape.
    """
    shape = recipe.shape(hidden)
    batch_seqs, steps = _batch_and_steps(recipe, budget, shape, {})
    names = {name: value for name, value in (overrides or {}).items() if isinstance(value, str)}
    numbers = {name: value for name, value in (overrides or {}).items() if not isinstance(value, str)}
    recorded: tuple[Override, ...] = ()
    if overrides:
        _check_overrides(numbers, names)
        rule: dict[str, int | str] = {**_decided(shape, batch_seqs, steps), **_named(recipe, shape)}
        changes: dict[str, Any] = {name: value for name, value in numbers.items() if name in SHAPE_NUMBERS}
        shape = replace(shape, **changes)
        batch_seqs, steps = _batch_and_steps(recipe, budget, shape, numbers)
        made: dict[str, int | float | str] = {
            **_decided(shape, batch_seqs, steps),
            LR_MULTIPLE: numbers.get(LR_MULTIPLE, 1),
            **names,
        }
        recorded = tuple(Override(name, made[name], rule[name]) for name in sorted(overrides))
    flops_per_step = training_flops_per_token(shape, recipe.flop_convention) * batch_seqs * shape.seq_len
    if abs(steps * flops_per_step - budget) > MAX_COMPUTE_ERROR * budget:
        if "steps" in numbers or "tokens" in numbers:
            raise InputError(
                f"{steps} steps of {batch_seqs} sequences cost {format_flops(steps * flops_per_step)} FLOPs, more than "
                f"2 % off the budget {format_flops(budget)}; override fewer fields or change the budget."
            )
        least = math.ceil(flops_per_step / (2 * MAX_COMPUTE_ERROR))
        raise InputError(
            f"budget {format_flops(budget)} FLOPs is too small for width {hidden} of recipe {recipe.name}: one step "
            f"costs {format_flops(flops_per_step)}. Use a smaller width or at least {format_flops(least)} FLOPs."
        )
    realised = steps * batch_seqs * shape.seq_len
    plan = recipe.optimizer(realised, batch_seqs, shape)
    if names.get("optimizer", plan.name) != plan.name:
        plan = recipe.other_optimizer(names["optimizer"], realised, batch_seqs, shape)
    return Rung(
        recipe=recipe.name,
        role=role,
        budget=budget,
        flop_convention=recipe.flop_convention,
        shape=shape,
        batch_seqs=batch_seqs,
        steps=steps,
        optimizer=_scaled(plan, numbers.get(LR_MULTIPLE, 1)),
        schedule=recipe.schedule(),
        capacity_factor=recipe.capacity_factor,
        seeds=seeds,
        extrapolated_recipe=recipe.outside_range(realised, shape),
        router=router_balanced(recipe.router, names.get("balancing", recipe.router.balancing)),
        overrides=recorded,
        corpus_tokens=corpus_tokens,
    )


LR_MULTIPLE = "lr_multiple"
SHAPE_NUMBERS = tuple(field.name for field in fields(MoeShape) if field.type is int and field.name != "hidden")


def _named(recipe: AbstractRecipe, shape: MoeShape) -> dict[str, str]:
    """Return the names that an override can set, as the recipe has them; rates do not matter for them."""
    return {"balancing": recipe.router.balancing, "optimizer": recipe.optimizer(1e6, 1, shape).name}


def _decided(shape: MoeShape, batch_seqs: int, steps: int) -> dict[str, int]:
    """Return everything that an override can set."""
    tokens = steps * batch_seqs * shape.seq_len
    numbers = {name: int(getattr(shape, name)) for name in SHAPE_NUMBERS}
    return {**numbers, "batch_seqs": batch_seqs, "steps": steps, "tokens": tokens, LR_MULTIPLE: 1}


NAMED = ("balancing", "optimizer")


def _check_overrides(overrides: Mapping[str, float], names: Mapping[str, str]) -> None:
    known = {*SHAPE_NUMBERS, "batch_seqs", "steps", "tokens", LR_MULTIPLE}
    for name, text in names.items():
        if name not in NAMED:
            raise InputError(f"override {name}={text!r} must be a number.")
    for name, value in overrides.items():
        if name in NAMED:
            raise InputError(f"override {name}={value} must be a name.")
        if name not in known:
            raise InputError(f"cannot override {name!r} of a rung; known: {', '.join(sorted({*known, *NAMED}))}.")
        if name == LR_MULTIPLE:
            if not 0 < value < math.inf:
                raise InputError(f"override {name}={value} must be positive, such as 0.5.")
        elif value != int(value):
            raise InputError(f"override {name}={value} must be a whole number.")
        if value < 1 and name in {"batch_seqs", "steps", "tokens"}:
            raise InputError(f"override {name}={value} must be at least 1.")
    if {"steps", "tokens"} <= set(overrides):
        raise InputError("override steps or tokens, not both; one follows from the other.")


def _scaled(plan: OptimizerPlan, multiple: float) -> OptimizerPlan:
    if multiple == 1:
        return plan
    head = None if plan.head_lr is None else plan.head_lr * multiple
    return replace(plan, matrix_lr=plan.matrix_lr * multiple, adam_lr=plan.adam_lr * multiple, head_lr=head)


def _batch_and_steps(
    recipe: AbstractRecipe, budget: int, shape: MoeShape, overrides: Mapping[str, float]
) -> tuple[int, int]:
    flops_per_token = training_flops_per_token(shape, recipe.flop_convention)
    tokens = overrides.get("tokens", budget / flops_per_token)
    batch_seqs = int(overrides.get("batch_seqs", 0)) or recipe.batch_seqs(tokens, shape)
    batch_tokens = batch_seqs * shape.seq_len
    if "tokens" in overrides:
        return batch_seqs, max(1, (2 * int(overrides["tokens"]) + batch_tokens) // (2 * batch_tokens))
    flops_per_step = flops_per_token * batch_tokens
    return batch_seqs, int(overrides.get("steps", 0)) or max(1, (2 * budget + flops_per_step) // (2 * flops_per_step))


def size_of(recipe: AbstractRecipe, hidden: int) -> int:
    """Return the non-embedding active parameters of the recipe's shape of width `hidden`."""
    return count_params(recipe.shape(hidden)).nonembedding_active


def widths_near_optimum(recipe: AbstractRecipe, budget: int, sizes: int) -> tuple[int, ...]:
    """Return the `sizes` widths whose parameters are nearest, in ratio, to the recipe's expected optimum at `budget`.

    Raises InputError when the recipe offers fewer widths.
    """
    widths = recipe.widths_at(budget)
    if len(widths) < sizes:
        raise InputError(
            f"recipe {recipe.name} offers {len(widths)} widths at {format_flops(budget)} FLOPs, fewer than the {sizes} "
            "asked for."
        )
    target = math.log(recipe.expected_optimum(budget))
    return tuple(sorted(sorted(widths, key=lambda hidden: abs(math.log(size_of(recipe, hidden)) - target))[:sizes]))
