"""Sweeps around one rung at its compute: seeds, learning rate, batch, and the axes of sparsity, one at a time.

They show whether a recipe's rule is tuned where a law will lean on it, before the law is fitted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

from ladder.errors import InputError
from ladder.pin import pin_recipe
from ladder.provenance import provenance
from ladder.recipe_interface import AbstractRecipe
from ladder.rung import Ladder, Rung
from ladder.sizing import LR_MULTIPLE, make_rung
from ladder.units import format_flops

SEEDS = "seeds"
MAX_SEEDS = 1000
MAX_VALUE = 1e6  # of any axis: multiples and numbers beyond it are slips


def _lr(rung: Rung, multiple: float) -> Mapping[str, float]:
    return {LR_MULTIPLE: multiple}


def _batch(rung: Rung, multiple: float) -> Mapping[str, float]:
    return {"batch_seqs": _whole("batch", multiple, rung.batch_seqs * multiple)}


def _experts(rung: Rung, experts: float) -> Mapping[str, float]:
    return {"experts": _whole("experts", experts, experts)}


def _top_k(rung: Rung, top_k: float) -> Mapping[str, float]:
    return {"top_k": _whole("top_k", top_k, top_k)}


def _granularity(rung: Rung, multiple: float) -> Mapping[str, float]:
    """Return experts that many times narrower and more numerous; parameters and active width stay."""
    shape = rung.shape
    return {
        "expert_width": _whole("granularity", multiple, shape.expert_width / multiple),
        "experts": _whole("granularity", multiple, shape.experts * multiple),
        "top_k": _whole("granularity", multiple, shape.top_k * multiple),
    }


def _shared_share(rung: Rung, share: float) -> Mapping[str, float]:
    """Return shared and routed widths with this share of the active expert width shared; their sum stays.

    Rounded to the grain of the rung's own widths, at most 128.
    """
    shape = rung.shape
    if not 0 <= share < 1:
        raise InputError(f"shared_share={share:g} must be at least 0 and below 1.")
    if shape.latent_width:
        raise InputError("shared_share compares widths that read the same stream; experts in a latent do not.")
    active = shape.top_k * shape.expert_width + shape.shared_experts * shape.shared_width
    grain = gcd(shape.expert_width, shape.shared_width, 128) if shape.shared_width else gcd(shape.expert_width, 128)
    routed = grain * round((1 - share) * active / (shape.top_k * grain))
    number = max(1, shape.shared_experts) if share else 0
    shared = (active - shape.top_k * routed) // number if number else 0
    if routed < 1 or (share and shared < 1):
        raise InputError(f"shared_share={share:g} leaves no width to one side of rung {rung.name}; use another share.")
    return {"expert_width": routed, "shared_experts": number, "shared_width": shared}


def _whole(axis: str, asked: float, value: float) -> int:
    if value < 1 or value != int(value):
        raise InputError(f"{axis}={asked:g} gives {value:g}, which is no positive whole number; use another value.")
    return int(value)


AXES: dict[str, Callable[[Rung, float], Mapping[str, float]]] = {
    "lr": _lr,  # multiples of all peak rates
    "batch": _batch,  # multiples of the batch; rates follow the recipe's rule for it
    "experts": _experts,
    "top_k": _top_k,
    "granularity": _granularity,  # multiples of the rung's
    "shared_share": _shared_share,
}
SPARSITY = ("experts", "top_k", "granularity", "shared_share")
NAMED = ("balancing", "optimizer")  # axes whose values are names


def plan_around(
    recipe: AbstractRecipe, rung: Rung, axes: Mapping[str, Sequence[float | str]], runs: int | None = None
) -> Ladder:
    """Return `rung` and, for each value of each axis, the rung that differs in it alone, at the same compute.

    Axes: ``seeds`` (one value, how many runs of the rung itself); ``lr`` and ``batch`` (multiples); ``experts``,
    ``top_k`` (numbers); ``granularity`` (multiples: expert width divided, experts and top-k multiplied by it);
    ``shared_share`` (share of the active expert width that is shared); ``balancing`` and ``optimizer`` (names). The
    budget is the rung's and tokens follow from it, so a larger top-k trains on less. Values that give the rung itself
    add nothing. Another optimizer is planned at every multiple of ``lr`` as well, since rates do not carry over.

    Arguments:
        runs: how many runs, seeds counted from 0, to make of every rung of the sweep.

    Raises InputError for an unknown axis, a value that gives no whole shape, and a sparsity axis of a dense rung.
    """
    if not axes:
        raise InputError(f"say what to vary: {', '.join((SEEDS, *AXES, *NAMED))}; such as lr=0.5,1,2.")
    by_hand = {item.field: item.value for item in rung.overrides if item.field != "hidden"}
    asked = _numbers(SEEDS, axes.get(SEEDS, (len(rung.seeds) if runs is None else runs,)))
    if len(asked) != 1:
        raise InputError("seeds takes one value, how many runs to make of the rung itself, such as seeds=3.")
    if not 1 <= asked[0] <= MAX_SEEDS:
        raise InputError(f"seeds={asked[0]:g} must be from 1 to {MAX_SEEDS}.")
    own = tuple(range(_whole(SEEDS, asked[0], asked[0])))
    centre = make_rung(recipe, rung.budget, rung.shape.hidden, overrides=by_hand, corpus_tokens=rung.corpus_tokens)
    if centre.rung_id != rung.rung_id:
        raise InputError(
            f"rung {rung.name} ({rung.rung_id}) does not follow from recipe {recipe.name}; a sweep around it would "
            "vary more than was asked. Plan it anew."
        )
    found = {centre.rung_id: replace(centre, seeds=own)}
    for axis, values in axes.items():
        if axis == SEEDS:
            continue
        for change in _changes(rung, axis, values, axes.get("lr", ())):
            made = make_rung(
                recipe,
                rung.budget,
                rung.shape.hidden,
                seeds=tuple(range(runs or 1)),
                overrides={**by_hand, **change},
                corpus_tokens=rung.corpus_tokens,
            )
            found.setdefault(made.rung_id, made)
    if len(found) == 1 and len(own) == len(rung.seeds):
        raise InputError("no value gives anything but the rung itself; name others, such as lr=0.5,2.")
    remark = (
        f"A sweep around {rung.name} ({rung.rung_id}) at {format_flops(rung.budget)} FLOPs. Keep it in a study of its "
        "own: a law fitted to mistuned rungs bends."
    )
    return Ladder("sweep", tuple(found.values()), provenance(), (pin_recipe(recipe),), (remark,))


def _changes(
    rung: Rung, axis: str, values: Sequence[float | str], rates: Sequence[float | str]
) -> Iterator[Mapping[str, float | str]]:
    """Yield what each value of an axis overrides."""
    if axis in NAMED:
        if axis == "balancing" and rung.shape.dense:
            raise InputError(f"{axis} cannot be varied: rung {rung.name} is dense.")
        for name in values:
            if not isinstance(name, str):
                raise InputError(f"{axis}={name:g} must be a name.")
            other = axis == "optimizer" and name != rung.optimizer.name
            for rate in _numbers("lr", rates) if other and rates else (1.0,):
                yield {axis: name} if rate == 1 else {axis: name, **_lr(rung, rate)}
        return
    if axis not in AXES:
        raise InputError(f"unknown axis {axis!r}; known: {', '.join((SEEDS, *AXES, *NAMED))}.")
    if axis in SPARSITY and rung.shape.dense:
        raise InputError(f"{axis} cannot be varied: rung {rung.name} is dense.")
    for value in _numbers(axis, values):
        if not (0 < value <= MAX_VALUE or (axis == "shared_share" and value == 0)):
            raise InputError(f"{axis}={value:g} must be positive and at most {MAX_VALUE:g}.")
        yield AXES[axis](rung, value)


def _numbers(axis: str, values: Sequence[float | str]) -> list[float]:
    for value in values:
        if isinstance(value, str):
            raise InputError(f"{axis}={value} must be a number.")
    return [float(value) for value in values]
