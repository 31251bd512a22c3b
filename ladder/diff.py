"""What differs between two rungs or two ladders, and which of it makes a law of the one say nothing of the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from ladder.records import to_plain
from ladder.rung import Ladder, Rung, read_ladder

# Fields that are the same at every rung of a ladder and at its target, or a law fitted on the one is no law of the
# other. Sizes, batches and rates follow from a recipe's rule at each size and are shown without alarm.
LOUD = (
    *("recipe", "flop_convention", "capacity_factor", "router.", "schedule.", "optimizer.name", "optimizer.muon"),
    *("optimizer.clip_norm", "optimizer.z_loss", "optimizer.weight_decay", "shape.experts", "shape.top_k"),
    *("shape.shared_experts", "shape.vocab_size", "shape.seq_len", "shape.gated_norm_rank", "shape.embedding_norm"),
    *("shape.short_conv", "shape.attention."),
)
FOLLOWS_SIZE = {"shape.attention.global_kv_heads"}
ABSENT = None  # of a field that only one side has, such as what MuonH needs besides a rate


@dataclass(frozen=True)
class Difference:
    """One field whose values differ; `loud` where a law does not carry over it."""

    field: str
    first: Any
    second: Any
    loud: bool


@dataclass(frozen=True)
class Matched:
    """Two rungs that stand for each other (same budget and width) and differ."""

    name: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class LadderDiff:
    """Two ladders, or a rung and a ladder.

    Attributes:
        only_first, only_second: names of rungs without a counterpart.
        alike: how many rungs are the same.
        matched: pairs that stand for each other and differ.
        families: fields that no ladder may mix, with the values that occur on each side.
    """

    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    alike: int
    matched: tuple[Matched, ...]
    families: tuple[Difference, ...]


def fields_of(rung: Rung) -> dict[str, Any]:
    """Return the decided fields of `rung` and the counts that follow, names joined by dots."""
    plain = to_plain(rung)
    for name in ("extrapolated_recipe", "overrides"):
        plain.pop(name)
    counts = rung.counts
    return {
        **_flat(plain),
        "tokens": rung.tokens,
        "compute": rung.compute,
        "active_params": counts.active,
        "total_params": counts.total,
        "nonembedding_active_params": counts.nonembedding_active,
    }


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            row |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            row[prefix + key] = value
    return row


def is_loud(field: str) -> bool:
    """Return whether a law does not carry over a change of `field`."""
    return field.startswith(LOUD) and field not in FOLLOWS_SIZE


def diff_rungs(first: Rung, second: Rung) -> tuple[Difference, ...]:
    """Return every field in which two rungs differ, the loud ones first, otherwise in the order of the rung."""
    a, b = fields_of(first), fields_of(second)
    found = [
        Difference(name, a.get(name, ABSENT), b.get(name, ABSENT), is_loud(name))
        for name in dict.fromkeys((*a, *b))
        if a.get(name, ABSENT) != b.get(name, ABSENT)
    ]
    if bool(first.shape.latent_width) != bool(second.shape.latent_width):
        found = [Difference(d.field, d.first, d.second, d.loud or d.field == "shape.latent_width") for d in found]
    return tuple(sorted(found, key=lambda item: not item.loud))


def diff_ladders(first: Ladder, second: Ladder) -> LadderDiff:
    """Return how two ladders differ; rungs stand for each other by id, or by budget and width."""
    ids = {rung.rung_id for rung in first.rungs} & {rung.rung_id for rung in second.rungs}
    rest = [[rung for rung in ladder.rungs if rung.rung_id not in ids] for ladder in (first, second)]
    partners: dict[tuple[int, int], Rung] = {}
    for rung in rest[1]:
        partners.setdefault((rung.budget, rung.shape.hidden), rung)
    pairs = []
    for rung in rest[0]:
        partner = partners.pop((rung.budget, rung.shape.hidden), None)
        if partner is not None:
            pairs.append((rung, partner))
    pairs += [
        (rung, second.rung(rung.rung_id))
        for rung in first.rungs
        if rung.rung_id in ids and diff_rungs(rung, second.rung(rung.rung_id))
    ]
    paired = {id(rung) for pair in pairs for rung in pair}
    unpaired = [tuple(rung.name for rung in side if id(rung) not in paired) for side in rest]
    return LadderDiff(
        only_first=unpaired[0],
        only_second=unpaired[1],
        alike=len(ids) - sum(a.rung_id in ids for a, _ in pairs),
        matched=tuple(Matched(a.name, diff_rungs(a, b)) for a, b in pairs),
        families=_families(first, second),
    )


def _families(first: Ladder, second: Ladder) -> tuple[Difference, ...]:
    """Return the loud fields whose values differ between the ladders, and recipes of one name but two contents."""
    sides = [_values(ladder.rungs) for ladder in (first, second)]
    found = [
        Difference(name, sides[0].get(name, ()), sides[1].get(name, ()), True)
        for name in dict.fromkeys((*sides[0], *sides[1]))
        if sides[0].get(name, ()) != sides[1].get(name, ())
    ]
    pins = {pin.name: pin.sha256 for pin in first.recipes}
    found += [
        Difference(f"content of recipe {pin.name}", (pins[pin.name][:12],), (pin.sha256[:12],), True)
        for pin in second.recipes
        if pins.get(pin.name, pin.sha256) != pin.sha256
    ]
    return tuple(found)


def _values(rungs: Sequence[Rung]) -> dict[str, tuple[Any, ...]]:
    values: dict[str, dict[Any, None]] = {}
    for rung in rungs:
        for name, value in fields_of(rung).items():
            if is_loud(name):
                values.setdefault(name, {})[value] = None
        values.setdefault("experts in a latent", {})[bool(rung.shape.latent_width)] = None
    return {name: tuple(sorted(found, key=repr)) for name, found in values.items()}


def read_side(text: str) -> tuple[Ladder, Rung | None]:
    """Return the ladder named by `text` and, for ``LADDER:RUNG``, the rung of it with that id or name.

    Raises InputError when the ladder cannot be read, or holds no such rung or several of that name.
    """
    if Path(text).exists() or ":" not in text:
        return read_ladder(Path(text)), None
    path, _, which = text.rpartition(":")
    ladder = read_ladder(Path(path))
    found = [rung for rung in ladder.rungs if which in (rung.rung_id, rung.name)]
    if len(found) != 1:
        known = ", ".join(rung.name for rung in ladder.rungs)
        raise InputError(f"{path} holds {len(found)} rungs called {which!r}; name one by its id, or one of {known}.")
    return ladder, found[0]
