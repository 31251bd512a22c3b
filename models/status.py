"""Where every run of a ladder stands, and what was spent; nothing here needs JAX."""

from collections.abc import Sequence
from dataclasses import dataclass

from ladder.errors import InputError
from ladder.rung import Rung
from ladder.runs import RunStatus
from ladder.study import Study
from models.branch import branch_step, trunks
from models.record import LossReport, read_record
from models.run_files import checkpoint_paths, core_hours, step_of
from models.run_lock import read_alive

STATES = ("done", "running", "diverged", "lost", "missing")


@dataclass(frozen=True)
class RunState:
    """Where one run stands.

    Attributes:
        state: "done"; "running": a process trains it and gives signs of life; "diverged"; "lost": begun, and nobody
            trains it; "missing": not begun. Lost and missing runs are what `foretell train run` makes.
        step: steps that are safe: done, or in the newest checkpoint.
        planned_flops: FLOPs this run costs by itself: a branch's without its trunk's steps.
        spent_flops: of those, what the steps up to `step` took.
        core_hours: wall time of all attempts times the cores they had, steps that were repeated included.
        losses: spikes and the like of a run that has ended.
    """

    run_id: str
    rung: str
    seed: int
    role: str
    state: str
    step: int
    steps: int
    planned_flops: float
    spent_flops: float
    core_hours: float
    losses: LossReport | None
    note: str = ""


def run_states(study: Study, rungs: Sequence[Rung]) -> list[RunState]:
    """Return where each run of `rungs` stands, in their order.

    A record that cannot be read makes its run "lost", with the reason in `note`.
    """
    trunk_of = trunks(rungs)
    states = []
    for rung in rungs:
        for seed in rung.seeds:
            of = trunk_of.get(rung.rung_id)
            states.append(_state(study, rung, seed, branch_step(rung) if of and seed in of.seeds else 0))
    return states


def _state(study: Study, rung: Rung, seed: int, begins: int) -> RunState:
    folder, run_id = study.run(rung.run_id(seed)), rung.run_id(seed)
    found = checkpoint_paths(folder)
    step, state, losses, note = step_of(found[0]) if found else 0, "missing", None, ""
    if (folder / "record.json").exists():
        try:
            record = read_record(folder / "record.json")
            step, losses = record.steps_done, record.losses
            begins = record.branch.step if record.branch else 0
            state = "diverged" if record.status is RunStatus.DIVERGED else "done"
            if losses and losses.spikes:
                note = f"{losses.spikes} loss spikes, the worst {losses.worst_rise:+.1%} at step {losses.worst_spike}"
            if losses and losses.unrecovered:
                note += "; the loss ended well above its lowest"
        except InputError as error:
            state, note = "lost", str(error)
    elif alive := read_alive(folder):
        state, note = "running", f"process {alive.pid} on {alive.host}"
    elif (folder / "spec.json").exists():
        state = "lost"
    each = rung.compute / rung.steps
    planned, spent = each * (rung.steps - begins), each * max(0, step - begins)
    hours = core_hours(folder / "times.jsonl")
    return RunState(
        run_id, rung.name, seed, str(rung.role), state, step, rung.steps, planned, spent, hours, losses, note
    )
