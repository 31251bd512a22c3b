"""What is known of the best size at a budget: a surface L(N, D), or a path N*(C) with the curvature about it.

Read from a fit.json, taken from a publication by name, or the recipe's own rule. A path knows one optimum a budget; a
surface also what any other allocation loses, far from the optimum too.
"""

import abc
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.counts import ParamCounts
from ladder.errors import InputError, UnusableError
from ladder.recipe import recipe_named
from ladder.recipe_interface import AbstractRecipe
from ladder.records import read_json
from ladder.rung import Ladder, Rung

FIT_SCHEMA = "fit/1"  # as fits/result.py writes it
SURFACE_LAW = "chinchilla"
# Curvature of ln L in (ln N)^2 about the optimum: median over the six budgets 1e18 to 3e20 of Marin's v16 sweep, sizes
# within 4x of the best (0.0106 to 0.0163; issue #4447). A size 1.57 times off the optimum loses 0.25 %.
V16_CURVATURE = 0.0124
SIZES: dict[str, Callable[[ParamCounts], int]] = {
    "nonembedding_active_params": lambda counts: counts.nonembedding_active,
    "active_params": lambda counts: counts.active,
    "total_params": lambda counts: counts.total,
}


class AbstractOptima(abc.ABC):
    """Which sizes are how good at a budget. `size` names the count that is N; `source` says where it comes from."""

    size: str
    source: str

    @abc.abstractmethod
    def excess(self, budget: float, sizes: Sequence[float], tokens: Sequence[float]) -> list[float]:
        """Return the share by which the loss of each size, trained on its tokens, lies above that of the best one."""

    @abc.abstractmethod
    def beyond(self, budget: float, size: float, tokens: float) -> str:
        """Return how this point lies beyond what the source was fitted to, or an empty string."""


@dataclass(frozen=True)
class Surface(AbstractOptima):
    """L = E + A/N^alpha + B/D^beta. `sizes` and `tokens` are the ranges it was fitted to."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float
    size: str
    source: str
    sizes: tuple[float, float]
    tokens: tuple[float, float]

    def loss(self, size: float, tokens: float) -> float:
        """Return the loss of `size` parameters on `tokens` tokens."""
        return float(self.E + self.A * size**-self.alpha + self.B * tokens**-self.beta)

    def tokens_for(self, size: float, loss: float) -> float:
        """Return the tokens on which `size` parameters reach `loss`; infinite where they never do."""
        left = loss - self.E - self.A * size**-self.alpha
        return float((self.B / left) ** (1 / self.beta)) if left > 0 else math.inf

    def excess(self, budget: float, sizes: Sequence[float], tokens: Sequence[float]) -> list[float]:
        """Return each loss over the smallest of them, minus one."""
        losses = [self.loss(n, d) for n, d in zip(sizes, tokens, strict=True)]
        return [loss / min(losses) - 1 for loss in losses]

    def beyond(self, budget: float, size: float, tokens: float) -> str:
        """Return which of N and D lies outside the fitted range, or an empty string."""
        parts = (("N", size, self.sizes), ("D", tokens, self.tokens))
        return ", ".join(f"{name}={x:.3g} (fitted {r[0]:.2g} to {r[1]:.2g})" for name, x, r in parts if _outside(x, r))


@dataclass(frozen=True)
class OptimumPath(AbstractOptima):
    """N*(C) as a function of the budget, ln L rising by `curvature` (ln N/N*)^2 about it. C as the recipe counts it."""

    optimum: Callable[[int], float]
    curvature: float
    size: str
    source: str
    budgets: tuple[float, float]

    def excess(self, budget: float, sizes: Sequence[float], tokens: Sequence[float]) -> list[float]:
        """Return exp(curvature x (ln N/N*)^2) of each size over the smallest, minus one; tokens do not matter."""
        best = self.optimum(int(budget))
        logs = [self.curvature * math.log(n / best) ** 2 for n in sizes]
        return [math.expm1(log - min(logs)) for log in logs]

    def beyond(self, budget: float, size: float, tokens: float) -> str:
        """Return whether the budget lies outside the fitted range, or an empty string."""
        low, high = self.budgets
        return f"C={budget:.3g} (fitted {low:.2g} to {high:.2g})" if _outside(budget, self.budgets) else ""


def _outside(x: float, range_: tuple[float, float]) -> bool:
    return not range_[0] * (1 - 1e-9) <= x <= range_[1] * (1 + 1e-9)


def ludziejewski(experts: int) -> Surface:
    """Return the joint MoE law of Ludziejewski et al. (2025, arXiv 2502.05172, table 3) at this number of experts.

    L = a E^d N^(alpha + gamma ln E) + b E^omega D^(beta + zeta ln E) + c with their saturated E; N active with
    embeddings. Fitted at 1 to 32 experts, top-1, up to 2.7B active parameters, at most 400 tokens each.
    """
    start, most = 2.0732, 290.4521
    saturated = 1 / (1 / (max(experts, 1) - 1 + 1 / (1 / start - 1 / most)) + 1 / most)
    log = math.log(saturated)
    beyond = "" if experts <= 32 else f", carried to {experts} experts"
    return Surface(
        E=1.3637,
        A=35.91 * saturated**-0.2285,
        alpha=0.1889 - 0.0098 * log,
        B=35.98 * saturated**0.5529,
        beta=0.1775 + 0.0259 * log,
        size="active_params",
        source=f"ludziejewski2025 (MoE, 1 to 32 experts, top-1{beyond})",
        sizes=(1e7, 2.7e9),
        tokens=(1e9, 1.3e11),
    )


_CHINCHILLA_RANGE = ((7e7, 1.6e10), (5e9, 5e11))
HOFFMANN = Surface(1.69, 406.4, 0.34, 410.7, 0.28, "active_params", "hoffmann2022 (dense, rounded)", *_CHINCHILLA_RANGE)
BESIROGLU = Surface(
    1.8172, 482.01, 0.3478, 2085.43, 0.3658, "active_params", "besiroglu2024 (dense)", *_CHINCHILLA_RANGE
)
_WRITTEN = re.compile(r"^([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?\* ?C ?\^ ?([0-9]+(?:\.[0-9]+)?)$", re.IGNORECASE)
PUBLISHED = ("recipe", "hoffmann2022", "besiroglu2024", "ludziejewski2025")


def optima_named(text: str, recipe: AbstractRecipe) -> AbstractOptima:
    """Return what `text` names: the path of a fit.json, one of `PUBLISHED`, or a published N*(C) as ``0.0109*C^0.535``.

    ``recipe`` is the recipe's own rule. A path that is written out counts N without embeddings and C as the recipe does.

    Raises InputError for anything else, and for a fit that counts FLOPs otherwise than the recipe; UnusableError for a
    fit that did not converge.
    """
    match text:
        case "recipe":
            budgets = (*recipe.fit_budgets, *recipe.held_out_budgets)
            span = (float(min(budgets)), float(max(recipe.fit_budgets)))
            source = f"the rule of recipe {recipe.name}, with the curvature of Marin's v16 sweep"
            return OptimumPath(recipe.expected_optimum, V16_CURVATURE, "nonembedding_active_params", source, span)
        case "hoffmann2022":
            return HOFFMANN
        case "besiroglu2024":
            return BESIROGLU
        case "ludziejewski2025":
            return ludziejewski(recipe.shape(recipe.widths()[0]).experts)
    if written := _WRITTEN.match(text.strip()):
        coefficient, exponent = float(written[1]), float(written[2])
        if not (0 < coefficient < math.inf and 0 < exponent < 1):
            raise InputError(
                f"{text!r} is no path of sizes: its coefficient is positive, its exponent between 0 and 1."
            )
        source = f"N* = {text.strip()} as given, with the curvature of Marin's v16 sweep"
        size = "nonembedding_active_params"
        return OptimumPath(lambda c: coefficient * c**exponent, V16_CURVATURE, size, source, (0.0, math.inf))
    if not text.endswith(".json"):
        raise InputError(
            f"{text!r} is no known optimum; use {', '.join(PUBLISHED)}, N*(C) as '0.0109*C^0.535', or the path of a fit.json."
        )
    return _from_fit(Path(text), recipe)


def _from_fit(path: Path, recipe: AbstractRecipe) -> AbstractOptima:
    data = read_json(path, FIT_SCHEMA)
    if data.get("status") != "converged":
        raise UnusableError(
            f"{path}: the fit is {data.get('status')}, not converged; fit it anew before planning by it."
        )
    if data.get("recipe") and data["recipe"] != recipe.name:
        raise InputError(
            f"{path} was fitted to runs of recipe {data['recipe']}, the plan is for {recipe.name}; plan for that one."
        )
    try:
        if data["spec"]["law"] == SURFACE_LAW:
            return _fitted_surface(data, str(path))
        if data["isoflop"] is not None:
            return _fitted_path(data, recipe, str(path))
        law = data["spec"]["law"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: the fit lacks {error}; it is damaged, fit it anew.") from None
    raise InputError(
        f"{path}: a fit of {law} says nothing of the best size; give one of {SURFACE_LAW}, or one whose optima were read "
        "from IsoFLOP profiles."
    )


def _fitted_surface(data: dict[str, Any], where: str) -> Surface:
    theta = {item["name"]: float(item["estimate"]) for item in data["param_estimates"]}
    size, ranges = data["spec"]["size_column"], data["fit_range"]
    low, high = ranges[size]
    return Surface(
        **{name: theta[name] for name in ("E", "A", "alpha", "B", "beta")},
        size=size,
        source=f"{where} ({data['spec']['law']})",
        sizes=(float(low), float(high)),
        tokens=(float(ranges["tokens"][0]), float(ranges["tokens"][1])),
    )


def _fitted_path(data: dict[str, Any], recipe: AbstractRecipe, where: str) -> OptimumPath:
    if data["flop_convention"] != str(recipe.flop_convention):
        raise InputError(
            f"{where} counts FLOPs under {data['flop_convention']}, recipe {recipe.name} under {recipe.flop_convention}; "
            "an optimum at a budget of the one is none at a budget of the other. Convert the run table, fit, plan."
        )
    profiles = [p for p in data["isoflop"]["profiles"] if p["parabola"] and p["optimum"] and p["optimum"]["size"]]
    profiles = [p for p in profiles if not p["optimum"]["raw_minimum"]]
    if len(profiles) < 2:
        raise InputError(f"{where} has {len(profiles)} IsoFLOP vertices; a path needs two budgets or more.")
    x = [math.log(float(p["optimum"]["compute"])) for p in profiles]
    y = [math.log(float(p["optimum"]["size"])) for p in profiles]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    curvatures = sorted(float(p["parabola"][2]) / float(p["optimum"]["loss"]) for p in profiles)
    return OptimumPath(
        optimum=lambda budget: math.exp(mean_y + slope * (math.log(budget) - mean_x)),
        curvature=curvatures[len(curvatures) // 2],
        size=data["isoflop"]["size_column"],
        source=f"{where} (N* ~ C^{slope:.3f} through {len(profiles)} IsoFLOP vertices)",
        budgets=(math.exp(min(x)), math.exp(max(x))),
    )


def nearest_optima(ladder: Ladder) -> tuple[Rung, ...]:
    """Return, for each budget of `ladder`, the rung whose size is nearest, in ratio, to its recipe's expected optimum.

    Raises InputError when a recipe is not known by its name.
    """
    best: dict[int, tuple[float, Rung]] = {}
    for rung in ladder.rungs:
        expected = recipe_named(rung.recipe).expected_optimum(rung.budget)
        distance = abs(math.log(rung.counts.nonembedding_active / expected))
        if rung.budget not in best or distance < best[rung.budget][0]:
            best[rung.budget] = distance, rung
    return tuple(rung for _, rung in best.values())
