"""The recipes that come with the suite, by name, and those a user brings along."""

import importlib.util
import inspect
import sys
from pathlib import Path

from ladder.errors import InputError
from ladder.recipe_delphi import DelphiV2
from ladder.recipe_interface import AbstractRecipe as AbstractRecipe
from ladder.recipe_interface import OptimizerPlan as OptimizerPlan
from ladder.recipe_interface import RouterPlan as RouterPlan
from ladder.recipe_interface import Schedule as Schedule
from ladder.recipe_marin_hero import MarinHero
from ladder.recipe_marin_moe import MarinMoeMay, MarinMoeV16
from ladder.recipe_tiny import TinyCpu as TinyCpu

RECIPES: dict[str, AbstractRecipe] = {
    recipe.name: recipe for recipe in (TinyCpu(), MarinMoeV16(), MarinMoeMay(), MarinHero(), DelphiV2())
}
DECLARED = ("name", "flop_convention", "capacity_factor", "router", "fit_budgets", "held_out_budgets")


def recipe_named(name: str) -> AbstractRecipe:
    """Return the recipe called `name`, or the one in a file: ``path/to/file.py:NAME``, a recipe or a class of them.

    Raises InputError with the known names, or saying what is wrong with the file.
    """
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        return _recipe_in(Path(path), attribute)
    if name not in RECIPES:
        raise InputError(
            f"unknown recipe {name!r}; known: {', '.join(sorted(RECIPES))}; or your own as path/to/file.py:NAME."
        )
    return RECIPES[name]


def _recipe_in(path: Path, attribute: str) -> AbstractRecipe:
    if not path.is_file():
        raise InputError(f"recipe file {path} does not exist; check the path.")
    spec = importlib.util.spec_from_file_location(f"recipe_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"recipe file {path} cannot be imported; it must be a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up annotations that are text
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises is about that file
        raise InputError(f"recipe file {path} cannot be imported: {type(error).__name__}: {error}.") from error
    found = vars(module).get(attribute)
    try:
        recipe = found() if inspect.isclass(found) else found
    except TypeError as error:
        raise InputError(f"{path}:{attribute} cannot be made without arguments: {error}.") from None
    if not isinstance(recipe, AbstractRecipe):
        raise InputError(
            f"{path}:{attribute} is no recipe; make it a final subclass of ladder.recipe.AbstractRecipe, or an instance."
        )
    if missing := [item for item in DECLARED if getattr(recipe, item, None) is None]:
        raise InputError(f"{path}:{attribute} does not declare {', '.join(missing)}; see ladder.recipe.AbstractRecipe.")
    if recipe.name in RECIPES and type(recipe) is not type(RECIPES[recipe.name]):
        raise InputError(
            f"{path}:{attribute} calls itself {recipe.name!r}, a recipe of the suite; give it another name."
        )
    return recipe
