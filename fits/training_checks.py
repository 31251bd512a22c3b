"""Facts about the runs of a fit that no residual shows: how they ended, what they lack, which cells are missing."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.findings import Finding, Verdict
from ladder.errors import InputError
from ladder.rung import read_ladder
from ladder.study import Study
from ladder.units import format_percent

EARLY = 0.999  # of the planned steps: an evaluation before it is one of a run that has not ended
TOKENS_OFF = 0.01  # relative difference of tokens and steps x batch that is no rounding
BUDGET_OFF = 0.02  # relative difference of realised compute and budget that is worth saying
LR_OFF = 0.2  # difference of a run's last over peak learning rate from the median of all runs
SPIKE = 8.0  # robust standard deviations of the logged loss around its running median; and
SPIKE_SIZE = 0.02  # of the loss, so that a very smooth curve is not called spiky
WINDOW = 9  # logged lines of the running median
LATE = 0.8  # share of the steps after which a spike spoils the run's last loss
TOLD = ("seed", "schedule", "lr_peak", "steps", "batch_tokens", "eval_step", "data_mix", "tokenizer", "eval_set")
FAILED = ("diverged", "unfinished")


def table_findings(frame: pd.DataFrame) -> list[Finding]:
    """Return what the run table says of runs that were cut short, miscounted, or evaluated with dropped tokens."""
    found = []
    for row in frame.to_dict("records"):
        run = str(row["run_id"])
        if row["eval_step"] < EARLY * row["steps"]:
            message = (
                f"{run} was evaluated at step {row['eval_step']:.0f} of {row['steps']:.0f}, before its rate had fallen"
            )
            found.append(Finding("annealing", run, Verdict.FLAG, message))
        counted = row["steps"] * row["batch_tokens"]
        if abs(row["tokens"] / counted - 1) > TOKENS_OFF:
            message = f"{run}: tokens are {format_percent(row['tokens'] / counted - 1)} off steps x batch"
            found.append(Finding("tokens", run, Verdict.FLAG, message))
        off = row["compute"] / row["budget"] - 1
        if abs(off) > BUDGET_OFF:
            found.append(
                Finding("budget_match", run, Verdict.NOTE, f"{run}: compute is {format_percent(off)} off its budget")
            )
        if row["drop_mode"] == "drops":
            message = f"{run} was evaluated with dropped tokens, which counts the router's capacity as model quality"
            found.append(Finding("drops", run, Verdict.FLAG, message))
    return found


def missing_findings(table: pd.DataFrame, frame: pd.DataFrame, study: Study | None) -> list[Finding]:
    """Return the cells without a usable run, and the columns that the runs of the fit do not state.

    Arguments:
        table: all rows of the metric.
        frame: the rows that entered.
        study: where a ladder.json may say what was planned.
    """
    found = []
    names = table["rung_id"].fillna(table["run_id"])
    entered = set(names[table["run_id"].isin(frame["run_id"])])
    lost = table.assign(cell=names)[~names.isin(entered) & table["excluded_reason"].notna()]
    for cell, rows in lost.groupby("cell"):
        reasons = sorted(set(rows["excluded_reason"]))
        if set(reasons) & set(FAILED):
            message = f"rung {cell} has no usable run ({', '.join(reasons)}): the fit does not see that such runs fail"
            found.append(Finding("missing_cell", str(cell), Verdict.FLAG, message))
    others = sorted(set(lost["excluded_reason"]) - set(FAILED))
    for reason in others:
        count = int(lost.loc[lost["excluded_reason"] == reason, "cell"].nunique())
        found.append(Finding("missing_cell", reason, Verdict.NOTE, f"{count} rungs stay out of the fit as {reason}"))
    if study is not None and study.ladder.is_file():
        held = set(table["rung_id"].dropna())
        for rung in read_ladder(study.ladder).fit_rungs:
            if rung.rung_id not in held:
                message = f"rung {rung.name} ({rung.rung_id}) was planned and has no row"
                found.append(Finding("missing_cell", rung.rung_id, Verdict.FLAG, message))
    empty = [f"{c} ({int(frame[c].isna().sum())} of {len(frame)} runs)" for c in TOLD if frame[c].isna().any()]
    if empty:
        message = "not stated: " + ", ".join(empty) + "; what they would show is not checked"
        found.append(Finding("missing_column", "columns", Verdict.NOTE, message))
    if not frame["rung_id"].dropna().duplicated().any():
        message = "no rung was repeated, so seed noise is inferred from residuals, which hold the law's misfit too"
        found.append(Finding("missing_column", "seeds", Verdict.NOTE, message))
    return found


def curve_findings(runs: Sequence[str], study: Study | None) -> list[Finding]:
    """Return what metrics.jsonl of the runs shows: loss spikes, and learning rates that ended unlike the others'.

    Lines hold step, loss and lr, as the trainer writes them; runs without the file are counted in one note. Raises
    InputError naming the file and line when one is damaged.
    """
    if study is None:
        return []
    found, ends = [], {}
    for run in runs:
        path = study.run(run) / "metrics.jsonl"
        if not path.is_file():
            continue
        steps, losses, rates = _curve(path)
        if len(steps) < 2 * WINDOW:
            continue
        ends[run] = float(rates[-1] / np.nanmax(rates)) if np.isfinite(rates).any() else np.nan
        found += spikes(run, steps, losses)
    shares = np.array(list(ends.values()))
    usual = float(np.nanmedian(shares)) if np.isfinite(shares).any() else np.nan
    for run, share in ends.items():
        if abs(share - usual) > LR_OFF:
            message = (
                f"{run} ended at {format_percent(share, signed=False)} of its peak learning rate, the median run at "
                f"{format_percent(usual, signed=False)}"
            )
            found.append(Finding("annealing", run, Verdict.FLAG, message))
    if usual > 0.5:
        message = (
            f"the median run ended at {format_percent(usual, signed=False)} of its peak rate: nothing was annealed"
        )
        found.append(Finding("annealing", "runs", Verdict.NOTE, message))
    if ends and len(ends) < len(runs):
        message = (
            f"{len(runs) - len(ends)} of {len(runs)} runs have no metrics.jsonl of use; their curves are not checked"
        )
        found.append(Finding("missing_column", "metrics.jsonl", Verdict.NOTE, message))
    return found


def spikes(run: str, steps: Float[np.ndarray, " lines"], losses: Float[np.ndarray, " lines"]) -> list[Finding]:
    """Return one finding when the loss of a run jumps in the second half: a flag where it is late, else a note.

    A jump is 8 robust standard deviations above the running median of nine lines, and 2 % of the loss.
    """
    late = steps > steps[-1] / 2
    y = np.log(losses)
    padded = np.pad(y, WINDOW // 2, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)
    off = y - smooth
    sd = 1.4826 * float(np.median(np.abs(off[late] - np.median(off[late]))))
    high = late & (off > max(SPIKE * sd, SPIKE_SIZE))
    if not high.any():
        return []
    worst = int(np.argmax(np.where(high, off, -np.inf)))
    verdict = Verdict.FLAG if steps[high].max() > LATE * steps[-1] else Verdict.NOTE
    message = f"{run}: training loss jumps by {format_percent(float(off[worst]))} at step {steps[worst]:.0f} of {steps[-1]:.0f}"
    return [Finding("spike", run, verdict, message, float(off[worst]))]


def _curve(path: Path) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    rows = []
    for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            line = json.loads(text)
            rows.append((float(line["step"]), float(line.get("loss", np.nan)), float(line.get("lr", np.nan))))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path}: line {number} is no line of metrics (step, loss, lr); it is damaged.") from None
    values = np.array(rows, dtype=float).reshape(-1, 3)
    values = values[np.isfinite(values[:, 1]) & (values[:, 1] > 0)]
    return values[:, 0], values[:, 1], values[:, 2]
