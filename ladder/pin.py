"""Recipes pinned by content: what a recipe yields, as a digest, and the check that a ladder still follows from it."""

from typing import Any

from ladder.counts import count_params
from ladder.errors import VerificationError
from ladder.recipe_interface import AbstractRecipe
from ladder.records import canonical_json, sha256_bytes, to_plain
from ladder.rung import RecipePin

PROBE_RATIOS = (2.0, 20.0, 200.0)  # tokens per parameter at which batch and optimizer are asked for
DIGITS = 12  # of rates: the last digits of a power differ between machines


def pin_recipe(recipe: AbstractRecipe) -> RecipePin:
    """Return the pin of `recipe`: the digest of its answers to a fixed set of questions.

    They are its constants, the shape of every width, batch and optimizer at three token ratios each, and the
    allowed widths and expected optimum at its default budgets. Comments and layout of its code do not matter.
    """
    return RecipePin(recipe.name, sha256_bytes(canonical_json(_answers(recipe))))


def _answers(recipe: AbstractRecipe) -> dict[str, Any]:
    budgets = (*recipe.fit_budgets, *recipe.held_out_budgets)
    answers = {
        "name": recipe.name,
        "flop_convention": str(recipe.flop_convention),
        "capacity_factor": recipe.capacity_factor,
        "router": to_plain(recipe.router, omit_defaults=True),
        "schedule": to_plain(recipe.schedule(), omit_defaults=True),
        "budgets": list(budgets),
        "optima": [recipe.expected_optimum(budget) for budget in budgets],
        "allowed": [list(recipe.widths_at(budget)) for budget in budgets],
        "widths": [_sized(recipe, hidden) for hidden in recipe.widths()],
    }
    return dict(_rounded(answers))


def _sized(recipe: AbstractRecipe, hidden: int) -> dict[str, Any]:
    shape = recipe.shape(hidden)
    probes = []
    for ratio in PROBE_RATIOS:
        tokens = ratio * count_params(shape).nonembedding_active
        batch = recipe.batch_seqs(tokens, shape)
        optimizer = to_plain(recipe.optimizer(tokens, batch, shape), omit_defaults=True)
        probes.append({"batch": batch, "optimizer": optimizer, "outside": recipe.outside_range(tokens, shape)})
    return {"shape": to_plain(shape, omit_defaults=True), "probes": probes}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def check_pin(pin: RecipePin, recipe: AbstractRecipe, where: str) -> None:
    """Raise VerificationError when `recipe` no longer yields what `pin` recorded."""
    if pin.name == recipe.name and pin_recipe(recipe) != pin:
        raise VerificationError(
            f"{where}: planned under another recipe that was also called {pin.name} (digest {pin.sha256[:12]}, now "
            f"{pin_recipe(recipe).sha256[:12]}). Its rungs stand as they are, but cannot be derived again; give the "
            "changed recipe a new name, or plan anew."
        )
