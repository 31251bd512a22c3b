"""The recipes that come with the suite, by name."""

from ladder.errors import InputError
from ladder.recipe_interface import AbstractRecipe as AbstractRecipe
from ladder.recipe_interface import OptimizerPlan as OptimizerPlan
from ladder.recipe_interface import Schedule as Schedule
from ladder.recipe_tiny import TinyCpu as TinyCpu

RECIPES: dict[str, AbstractRecipe] = {recipe.name: recipe for recipe in (TinyCpu(),)}


def recipe_named(name: str) -> AbstractRecipe:
    """Return the recipe called `name`; raises InputError with the known names."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; known: {', '.join(sorted(RECIPES))}.")
    return RECIPES[name]
