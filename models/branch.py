"""Trunks and branches: runs that are the same up to a step are trained up to there once.

With warmup, a constant rate and a decay at the end (WSD), the first steps of a short run are those of a longer one with
the same model, batch, rates and warmup steps. The longest such run is the trunk; the others go on from a permanent
checkpoint of it, taken before their decay begins. This is done only where the learning rates of all steps up to there
are equal to the last bit, so that a branch ends bit for bit as if it had been trained alone: it costs less and changes
nothing. Token counts and compute of a branch count the trunk's steps, because its loss needed them; what was spent
(`foretell train status`) counts them once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ladder.errors import InputError
from ladder.rung import Rung, read_ladder
from ladder.study import Study
from models.record import TAIL_FRACTION
from models.run_files import PERMANENT, checkpoint_paths, step_of

STEPS_TRIED = 256  # lengths of a branch tried for one whose warmup is the trunk's to the last bit


@dataclass(frozen=True)
class Trunk:
    """Where a run may begin: at the newest permanent checkpoint of another run up to `step`, in `folder`."""

    rung_id: str
    seed: int
    step: int
    folder: Path

    @property
    def run_id(self) -> str:
        """Identity of the trunk's run."""
        return f"{self.rung_id}-s{self.seed}"


@dataclass(frozen=True)
class RunOptions:
    """What decides nothing of a run's result.

    Attributes:
        keep_at: steps whose states are kept for good, besides the last one before the decay.
        keep_every: keep the state of every so many steps for good; 0 for none.
        trunk: where the run may begin.
        tracker: who is told besides metrics.jsonl: "wandb", "tensorboard" or nobody.
    """

    keep_at: tuple[int, ...] = ()
    keep_every: int = 0
    trunk: Trunk | None = None
    tracker: str = ""

    def kept_steps(self, rung: Rung) -> frozenset[int]:
        """Return the steps of `rung` whose states are kept for good; the last step is among the others."""
        every = range(self.keep_every, rung.steps, self.keep_every) if self.keep_every else ()
        return frozenset(step for step in (*self.keep_at, branch_step(rung), *every) if 0 < step < rung.steps)


def branch_step(rung: Rung) -> int:
    """Return the last step at which `rung` can leave a trunk: before its decay, and before the tail it averages over."""
    before_decay = math.floor(rung.steps * (1 - rung.schedule.decay_fraction) + 1e-9)
    return max(0, min(before_decay, rung.steps - max(1, math.ceil(rung.steps * TAIL_FRACTION))))


def _shares(rung: Rung, steps: int) -> Float[np.ndarray, " steps"]:
    """Return the shares of the peak rate of the first `steps` steps."""
    import jax  # here: most ladders have no two rungs to compare, and who plans them waits for no JAX
    import jax.numpy as jnp

    from models.schedule import ScheduleValues, rate_fraction

    by_step = jax.vmap(rate_fraction, (0, None, None))
    return np.asarray(by_step(jnp.arange(steps), jnp.int32(rung.steps), ScheduleValues.of(rung.schedule)))


def shares_trunk(rung: Rung, trunk: Rung) -> bool:
    """Whether `rung` is to the last bit as `trunk` up to its branch step, with the same seed and corpus."""
    same = replace(trunk, steps=rung.steps, schedule=rung.schedule, budget=rung.budget).rung_id == rung.rung_id
    step = branch_step(rung)
    return same and 0 < step <= branch_step(trunk) and np.array_equal(_shares(rung, step), _shares(trunk, step))


def trunks(rungs: Sequence[Rung]) -> dict[str, Rung]:
    """Return, by the identity of each rung that is a branch, its trunk: of those it shares, the one that goes furthest."""
    # Most rungs differ in more than their length; comparing what is left is cheap, comparing schedules less so.
    families: dict[object, list[Rung]] = {}
    for rung in rungs:
        families.setdefault((rung.recipe, rung.shape, rung.batch_seqs, rung.optimizer, rung.router), []).append(rung)
    found = {}
    for family in families.values():
        furthest = sorted(family, key=lambda rung: (branch_step(rung), rung.steps, rung.rung_id), reverse=True)
        for at, rung in enumerate(furthest):
            of = next((each for each in furthest[:at] if each.rung_id not in found and shares_trunk(rung, each)), None)
            if of is not None and of.rung_id != rung.rung_id:
                found[rung.rung_id] = of
    return found


def make_branch(trunk: Rung, seed: int, step: int, decay_fraction: float) -> Rung:
    """Return the rung that leaves `trunk` at `step` and decays over the last `decay_fraction` of its steps.

    It is at most 256 steps longer than it would have to be, so that its warmup equals the trunk's to the last bit.
    Raises InputError where the trunk itself decays before `step`, or warms up after it.
    """
    plan = trunk.schedule
    last = branch_step(trunk)
    if not 0 < step <= last:
        raise InputError(f"rung {trunk.name} can be left at steps 1 to {last}, before its decay, not at step {step}.")
    if not 0 < decay_fraction < 1 or step < plan.warmup_fraction * trunk.steps:
        raise InputError(
            f"a branch at step {step} with a decay of {decay_fraction:g} of its steps cannot be made: the decay must be "
            f"a share between 0 and 1, and the trunk warms up until step {plan.warmup_fraction * trunk.steps:.0f}."
        )
    shortest = math.ceil(step / (1 - decay_fraction) - 1e-9)
    for steps in range(shortest, shortest + STEPS_TRIED):
        warmup = np.float32(plan.warmup_fraction * trunk.steps / steps)
        for fraction in (warmup, np.nextafter(warmup, np.float32(0)), np.nextafter(warmup, np.float32(1))):
            if float(fraction) + decay_fraction > 1:
                continue
            schedule = replace(plan, warmup_fraction=float(fraction), decay_fraction=decay_fraction)
            rung = replace(trunk, steps=steps, schedule=schedule, seeds=(seed,))
            if branch_step(rung) >= step and shares_trunk(rung, trunk):
                return replace(rung, budget=rung.compute)
    raise InputError(f"rung {trunk.name} has no branch at step {step} with its very warmup; take another step.")


def check_kept(folder: Path, step: int, run_id: str) -> None:
    """Raise InputError, naming the nearest, where the run in `folder` has passed `step` without keeping its state."""
    there = [step_of(path) for path in checkpoint_paths(folder)]
    kept = [step_of(path) for path in checkpoint_paths(folder, PERMANENT)]
    if step in kept or max(there, default=0) < step:
        return
    nearest = f"the nearest is at step {min(kept, key=lambda at: abs(at - step))}" if kept else "it has kept none"
    raise InputError(
        f"run {run_id} keeps no permanent checkpoint at step {step}; {nearest}. Branch from there, or train with "
        "`--keep-every` next time."
    )


def add_branches(study: Study, run_id: str, steps: Sequence[int], decay_fraction: float | None) -> list[Rung]:
    """Add to the ladder of `study` a branch of the run at each of `steps` and return them, each with the run's seed.

    They decay over `decay_fraction` of their steps, by default as the trunk does. Raises InputError where the run is not
    of the ladder, has passed a step without keeping it, or cannot be left there.
    """
    ladder = read_ladder(study.ladder)
    runs = {rung.run_id(seed): (rung, seed) for rung in ladder.rungs for seed in rung.seeds}
    if run_id not in runs:
        raise InputError(f"{study.ladder} has no run {run_id}; `foretell train status` names them.")
    trunk, seed = runs[run_id]
    decay = trunk.schedule.decay_fraction if decay_fraction is None else decay_fraction
    added = [make_branch(trunk, seed, step, decay) for step in steps]
    for step in steps:
        check_kept(study.run(run_id), step, run_id)
    rungs = {rung.rung_id: rung for rung in ladder.rungs}
    for rung in added:
        there = rungs.get(rung.rung_id)
        seeds = (*there.seeds, seed) if there and seed not in there.seeds else (there or rung).seeds
        rungs[rung.rung_id] = replace(there or rung, seeds=seeds)
    replace(ladder, rungs=tuple(rungs.values())).save(study.ladder)
    return added
