"""A rung and a ladder: the frozen values, and ladder.json.

A `Rung` holds only what was decided (shape, batch, steps, rates); everything that follows from that (counts, FLOPs,
compute, identity) is computed when asked for. ladder.json shows both, and reading it recomputes and compares, so a
file whose numbers do not belong together is refused.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from ladder.counts import ParamCounts, count_params
from ladder.errors import InputError
from ladder.flops import FlopConvention, ForwardFlops, forward_flops_per_token, training_flops_per_token
from ladder.provenance import Provenance
from ladder.recipe_interface import NO_ROUTER, OptimizerPlan, RouterPlan, Schedule
from ladder.records import canonical_json, from_plain, read_json, short_hash, to_plain, write_atomic
from ladder.shape import MoeShape
from ladder.units import format_flops

SCHEMA = "ladder/1"


class Role(StrEnum):
    """What a rung is for."""

    FIT = "fit"  # laws may be fitted on it
    HELD_OUT = "held_out"  # a forecast is registered for it before it starts


@dataclass(frozen=True)
class Override:
    """A field that was set by hand: what it was set to, and what the recipe's rule gives.

    ``lr_multiple`` is the factor on all peak rates; ``balancing`` and ``optimizer`` are names; every other field is an
    integer.
    """

    field: str
    value: int | float | str
    rule: int | str


@dataclass(frozen=True)
class RecipePin:
    """A recipe by content: its name, and the digest of what it yields (see `ladder.pin`)."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Rung:
    """One planned training configuration at one budget.

    Attributes:
        recipe: name of the recipe the rung follows.
        role: fit or held out.
        budget: planned training FLOPs under `flop_convention`, exact.
        flop_convention: how the budget counts FLOPs.
        shape: the model.
        batch_seqs: sequences per optimizer step.
        steps: optimizer steps.
        optimizer: every rate resolved.
        schedule: learning-rate schedule.
        capacity_factor: slots per expert over its mean load, in training; evaluation never drops.
        seeds: one run is made for each.
        extrapolated_recipe: why the rung lies outside the recipe's range, or an empty string.
        router: how tokens choose experts.
        overrides: fields set by hand, by name, beside what the recipe's rule gives.
        corpus_tokens: distinct tokens there are to train on; 0 when not stated.
    """

    recipe: str
    role: Role
    budget: int
    flop_convention: FlopConvention
    shape: MoeShape
    batch_seqs: int
    steps: int
    optimizer: OptimizerPlan
    schedule: Schedule
    capacity_factor: float
    seeds: tuple[int, ...]
    extrapolated_recipe: str = ""
    router: RouterPlan = NO_ROUTER
    overrides: tuple[Override, ...] = ()
    corpus_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("budget", "batch_seqs", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"seeds={self.seeds} must be distinct and at least one.")

    @property
    def batch_tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.batch_seqs * self.shape.seq_len

    @property
    def tokens(self) -> int:
        """Training tokens, D."""
        return self.steps * self.batch_tokens

    @property
    def epochs(self) -> float:
        """Passes over the corpus; NaN where it is not stated."""
        return self.tokens / self.corpus_tokens if self.corpus_tokens else float("nan")

    @cached_property
    def counts(self) -> ParamCounts:
        """Parameters by group."""
        return count_params(self.shape)

    @cached_property
    def forward_flops(self) -> ForwardFlops:
        """Forward FLOPs per token by term, windows honoured where the rung's convention does."""
        windowed = self.flop_convention is FlopConvention.MATMUL_FULL_WINDOWED
        return forward_flops_per_token(self.shape, windowed=windowed)

    def training_flops(self, convention: FlopConvention) -> int:
        """Training FLOPs of the whole run under `convention`, exact."""
        return training_flops_per_token(self.shape, convention) * self.tokens

    @property
    def compute(self) -> int:
        """Realised training FLOPs under the rung's own convention, exact."""
        return self.training_flops(self.flop_convention)

    @property
    def compute_error(self) -> float:
        """Realised compute over budget, minus one."""
        return float((self.compute - self.budget) / self.budget)

    @cached_property
    def rung_id(self) -> str:
        """Identity: a short hash of what decides the result. Role, seeds and remarks are not part of it.

        Fields at their defaults are left out, so that a rung keeps its identity when the schema grows.
        """
        decided = to_plain(self, omit_defaults=True)
        for name in ("role", "seeds", "extrapolated_recipe", "overrides"):
            decided.pop(name, None)
        return short_hash(decided)

    @property
    def name(self) -> str:
        """A readable name, for display only."""
        return f"{format_flops(self.budget)}-d{self.shape.hidden}"

    def run_id(self, seed: int) -> str:
        """Identity of the run of this rung with `seed`."""
        return f"{self.rung_id}-s{seed}"

    def to_plain(self) -> dict[str, Any]:
        """Return decided and derived fields as plain data."""
        overrides = {item.field: {"value": item.value, "rule": item.rule} for item in self.overrides}
        return {**to_plain(self), "overrides": overrides, **self._derived()}

    def _derived(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "rung_id": self.rung_id,
            "name": self.name,
            "compute": self.compute,
            "compute_error": self.compute_error,
            "tokens": self.tokens,
            "batch_tokens": self.batch_tokens,
            "counts": {
                **to_plain(counts),
                "total": counts.total,
                "active": counts.active,
                "nonembedding_total": counts.nonembedding_total,
                "nonembedding_active": counts.nonembedding_active,
            },
            "forward_flops_per_token": {**to_plain(self.forward_flops), "total": self.forward_flops.total},
            "training_flops": {str(convention): self.training_flops(convention) for convention in FlopConvention},
        }

    @staticmethod
    def from_plain(data: Any, where: str) -> "Rung":
        """Return the rung in plain data; raises InputError when a derived field does not follow from the others."""
        if not isinstance(data, dict):
            raise InputError(f"{where}: expected an object, found {data!r:.80}.")
        decided = Rung.__dataclass_fields__
        plain = {key: value for key, value in data.items() if key in decided}
        if isinstance(overrides := plain.get("overrides"), dict):
            if not all(isinstance(item, dict) for item in overrides.values()):
                raise InputError(f"{where}: field overrides must hold a value and a rule for each field.")
            plain["overrides"] = [{"field": key, **item} for key, item in overrides.items()]
        rung = from_plain(Rung, plain, where)
        derived = rung._derived()
        for key, value in derived.items():
            if key not in data:
                raise InputError(f"{where}: field {key} is missing; make the file anew with `foretell ladder plan`.")
            if canonical_json(data[key]) != canonical_json(value):
                raise InputError(
                    f"{where}: field {key} is {data[key]!r:.80} but the shape, batch and steps beside it give "
                    f"{value!r:.80}; the file was edited by hand. Plan the ladder anew instead."
                )
        if unknown := sorted(set(data) - set(decided) - set(derived)):
            raise InputError(f"{where}: unknown field {unknown[0]}; remove it or check its spelling.")
        return rung


@dataclass(frozen=True)
class Ladder:
    """An ordered set of rungs, planned together.

    Attributes:
        name: what kind of plan it is.
        rungs: by budget, then size.
        provenance: how the file came to be.
        recipes: the recipes by content, so that a later derivation under the same name is the same or is refused.
        remarks: what the plan has to say about itself, such as an optimum that is not bracketed.
    """

    name: str
    rungs: tuple[Rung, ...]
    provenance: Provenance = field(compare=False)
    recipes: tuple[RecipePin, ...] = ()
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ids = [rung.rung_id for rung in self.rungs]
        if len(set(ids)) != len(ids):
            twice = next(rung for rung in self.rungs if ids.count(rung.rung_id) > 1)
            raise InputError(f"rung {twice.name} stands twice in ladder {self.name!r}; use seeds for repetitions.")

    @property
    def recipe_names(self) -> tuple[str, ...]:
        """Names of the recipes its rungs follow, each once."""
        return tuple(dict.fromkeys(rung.recipe for rung in self.rungs))

    @property
    def fit_rungs(self) -> tuple[Rung, ...]:
        """Rungs on which laws may be fitted."""
        return tuple(rung for rung in self.rungs if rung.role is Role.FIT)

    @property
    def held_out_rungs(self) -> tuple[Rung, ...]:
        """Rungs kept for the check of a forecast."""
        return tuple(rung for rung in self.rungs if rung.role is Role.HELD_OUT)

    def rung(self, rung_id: str) -> Rung:
        """Return the rung with this id; raises InputError when there is none."""
        for rung in self.rungs:
            if rung.rung_id == rung_id:
                return rung
        raise InputError(f"ladder {self.name!r} has no rung {rung_id!r}.")

    def to_json(self) -> bytes:
        """Return the canonical bytes of ladder.json."""
        rungs = [rung.to_plain() for rung in self.rungs]
        return canonical_json(
            {
                "schema": SCHEMA,
                "name": self.name,
                "rungs": rungs,
                "recipes": {pin.name: pin.sha256 for pin in self.recipes},
                "remarks": list(self.remarks),
                "provenance": to_plain(self.provenance),
            }
        )

    def save(self, path: Path) -> None:
        """Write ladder.json atomically."""
        write_atomic(path, self.to_json())


def read_ladder(path: Path) -> Ladder:
    """Return the ladder in `path`; raises InputError naming file, rung and field when it cannot be trusted."""
    data = read_json(path, SCHEMA)
    if not isinstance(data.get("rungs"), list) or not isinstance(data.get("name"), str):
        raise InputError(f"{path}: expected a `name` and a list `rungs`; make it anew with `foretell ladder plan`.")
    rungs = tuple(Rung.from_plain(rung, f"{path}: rungs.{index}") for index, rung in enumerate(data["rungs"]))
    provenance = from_plain(Provenance, data.get("provenance"), f"{path}: provenance")
    pins, remarks = data.get("recipes", {}), data.get("remarks", [])
    if not isinstance(pins, dict) or not all(isinstance(digest, str) for digest in pins.values()):
        raise InputError(f"{path}: recipes must name a digest for each recipe; plan the ladder anew.")
    if not isinstance(remarks, list) or not all(isinstance(remark, str) for remark in remarks):
        raise InputError(f"{path}: remarks must be a list of texts; plan the ladder anew.")
    recipes = tuple(RecipePin(name, digest) for name, digest in pins.items())
    return Ladder(data["name"], rungs, provenance, recipes, tuple(remarks))
