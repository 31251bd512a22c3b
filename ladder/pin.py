"""Recipes pinned by content: what a recipe yields, as a digest, and the check that a ladder still follows from it."""

from typing import Any

from ladder.counts import count_params
from ladder.errors import VerificationError
from ladder.recipe_interface import AbstractRecipe
from ladder.records import canonical_json, sha256_bytes, to_plain
from ladder.rung import Ladder, RecipePin, Rung
from ladder.sizing import make_rung

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
    return dict(rounded(answers))


def _sized(recipe: AbstractRecipe, hidden: int) -> dict[str, Any]:
    shape = recipe.shape(hidden)
    probes = []
    for ratio in PROBE_RATIOS:
        tokens = ratio * count_params(shape).nonembedding_active
        batch = recipe.batch_seqs(tokens, shape)
        optimizer = to_plain(recipe.optimizer(tokens, batch, shape), omit_defaults=True)
        probes.append({"batch": batch, "optimizer": optimizer, "outside": recipe.outside_range(tokens, shape)})
    return {"shape": to_plain(shape, omit_defaults=True), "probes": probes}


def rounded(value: Any) -> Any:
    """Return plain data with every float cut to twelve significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def check_derivation(ladder: Ladder, recipe: AbstractRecipe, where: str) -> int:
    """Return how many rungs of `ladder` follow from `recipe`, each having been derived again.

    Raises VerificationError when `recipe` is not the one the ladder was planned under although it has its name, or
    when a rung comes out differently.
    """
    pin = pin_recipe(recipe)
    recorded = {known.name: known for known in ladder.recipes}.get(recipe.name)
    if recorded is not None and recorded != pin:
        raise VerificationError(
            f"{where}: planned under another recipe that was also called {pin.name} (digest {recorded.sha256[:12]}, now "
            f"{pin.sha256[:12]}). Its rungs stand as they are, but cannot be derived again; give the changed recipe a "
            "new name, or plan anew."
        )
    rungs = [rung for rung in ladder.rungs if rung.recipe == recipe.name]
    for rung in rungs:
        by_hand = {item.field: item.value for item in rung.overrides if item.field != "hidden"}
        again = make_rung(recipe, rung.budget, rung.shape.hidden, overrides=by_hand, corpus_tokens=rung.corpus_tokens)
        if _decisions(again) != _decisions(rung):
            raise VerificationError(
                f"{where}: rung {rung.name} ({rung.rung_id}) does not follow from recipe {recipe.name}, which gives "
                f"{again.rung_id}; what was set by hand belongs in its overrides. Plan it anew."
            )
    return len(rungs)


def _decisions(rung: Rung) -> Any:
    kept = to_plain(rung, omit_defaults=True)
    for name in ("role", "seeds", "overrides"):
        kept.pop(name, None)
    return rounded(kept)
