"""Watches the loss of a run, step by step, for spikes and for a loss that never comes back down.

A step is high when its loss lies more than 8 robust standard deviations (1.4826 times the median absolute deviation,
of the 64 steps before it) and more than 2 % above the median of those steps: the bounds by which `fit diagnose` judges
logged lines. Two high steps in a row are a spike; one alone is an odd batch, for the loss is taken before the update.
Median and deviation do not move until half of the window is high, so that a spike cannot hide itself. What is carried
from step to step goes into the checkpoints: the verdict depends on the losses alone, not on where a run was cut.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from models.record import LossReport

WINDOW = 64
DEVIATIONS = 8.0
SMALLEST = 0.02  # of the loss: no spike on a very smooth curve
IN_A_ROW = 2
UNRECOVERED = 0.05  # last median over the lowest one: beyond what the minimum of many noisy medians explains


@dataclass(frozen=True)
class LossWatch:
    """What the losses of a run so far amount to.

    Attributes:
        recent: the last losses, at most 64, nats per token.
        spikes: spikes so far.
        first_spike, worst_spike: the step where the first began, and the highest step of any; 0 without one.
        worst_rise: loss at that step over the median before it, minus one.
        lowest_median: lowest median of 64 steps so far; 0 until there are as many.
        streak: how many high steps the last ones are.
    """

    recent: tuple[float, ...] = ()
    spikes: int = 0
    first_spike: int = 0
    worst_spike: int = 0
    worst_rise: float = 0.0
    lowest_median: float = 0.0
    streak: int = 0

    def after(self, done: int, losses: Float[np.ndarray, " n"]) -> "LossWatch":
        """Return the watch after the finite `losses` of the steps that follow the first `done` ones."""
        known = np.concatenate([np.array(self.recent, float), np.asarray(losses, float)])
        watch = replace(self, recent=tuple(float(loss) for loss in known[-WINDOW:]))
        if len(known) < WINDOW or not len(losses):
            return watch
        windows = np.lib.stride_tricks.sliding_window_view(known, WINDOW)
        medians = np.median(windows, axis=1)
        deviations = 1.4826 * np.median(np.abs(windows - medians[:, None]), axis=1)
        # The window that the carried losses fill was seen by the call before.
        lowest = float(medians[1 if len(self.recent) == WINDOW else 0 :].min())
        watch = replace(watch, lowest_median=min(lowest, self.lowest_median or lowest))
        judged = known[WINDOW:]
        rises = judged / medians[:-1] - 1
        high = judged - medians[:-1] > np.maximum(DEVIATIONS * deviations[:-1], SMALLEST * medians[:-1])
        before = done + len(losses) - len(judged)  # steps in front of the first judged one
        return watch._count(before, high, rises)

    def _count(self, before: int, high: np.ndarray, rises: Float[np.ndarray, " n"]) -> "LossWatch":
        watch, previous = self, -1
        for index in np.flatnonzero(high):
            streak = (watch.streak if index == previous + 1 else 0) + 1
            step = before + int(index) + 1
            watch, previous = replace(watch, streak=streak), int(index)
            if streak == IN_A_ROW:
                began = step - IN_A_ROW + 1
                watch = replace(watch, spikes=watch.spikes + 1, first_spike=watch.first_spike or began)
            if streak >= IN_A_ROW and rises[index] > watch.worst_rise:
                watch = replace(watch, worst_spike=step, worst_rise=float(rises[index]))
        return watch if previous == len(high) - 1 else replace(watch, streak=0)

    @property
    def unrecovered(self) -> bool:
        """Whether the median loss at the end lies 5 % or more above the lowest there was."""
        return bool(self.lowest_median) and float(np.median(self.recent)) > (1 + UNRECOVERED) * self.lowest_median

    def report(self) -> LossReport:
        """Return what stands in the record of the run."""
        last = self.recent[-1] if self.recent else None
        return LossReport(self.spikes, self.first_spike, self.worst_spike, self.worst_rise, self.unrecovered, last)
