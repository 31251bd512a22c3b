"""The public benchmark sets as fit rows and held-out rows, by the splits of ../shared/data/README.md.

A set is a list of cases; a case is one ladder cut at one place. Rows hold compute (FLOPs, or what else is scaled),
loss and, where it varies, size (N), tokens and budget. Held-out rows may carry the published forecast made from the
same or fewer runs. Replicate seeds of a held-out configuration are one target: the mean of its runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["compute", "size", "tokens", "budget", "loss", "rung", "published"]


@dataclass(frozen=True)
class Case:
    """Rows to fit and rows to predict (columns `COLUMNS`, missing values NaN); `name` tells the cut."""

    name: str
    fit: pd.DataFrame
    held_out: pd.DataFrame


def rows(frame: pd.DataFrame, **columns: str) -> pd.DataFrame:
    """Return `frame` with the columns of a case, named from its own; absent ones are NaN."""
    found = {name: frame[column] for name, column in columns.items()}
    return pd.DataFrame(found).reindex(columns=COLUMNS).astype(dict.fromkeys(COLUMNS, float)).reset_index(drop=True)


def rnsl_extrapolation(data: Path) -> Iterator[Case]:
    """92 learning curves with the benchmark's own split; `compute` is examples or tokens seen."""
    frame = pd.read_csv(data / "rnsl_extrapolation/benchmark.csv")
    frame = frame.drop_duplicates(["domain", "task", "model", "seen_examples"], keep="last")
    for (domain, task, model), curve in frame.groupby(["domain", "task", "model"]):
        part = {
            split: rows(curve[curve["split"] == split], compute="seen_examples", loss="loss")
            for split in ("train", "test")
        }
        yield Case(f"{domain}/{task}/{model}", part["train"], part["test"])


def marin_moe(data: Path) -> Iterator[Case]:
    """The v16 IsoFLOP runs cut at 1e19 and above; best runs of larger budgets and the 1e23 run are predicted.

    N is not recorded: compute / (6 D) stands for it, which differs from it by a slowly varying factor.
    """
    frame = pd.read_csv(data / "marin_moe/isoflop_v16_runs.csv")
    frame = frame[frame["superseded_by_v2"] == 0]
    frame = frame.assign(
        size=frame["budget_flops_nonlmhead"] / (6 * frame["tokens"]), budget=frame["budget_flops_nonlmhead"]
    )
    table = rows(
        frame, compute="budget_flops_nonlmhead", size="size", tokens="tokens", budget="budget", loss="paloma_macro_loss"
    )
    published = pd.read_csv(data / "marin_moe/v16_leave_future_out.csv")
    budgets = sorted(table["budget"].unique())
    largest = pd.DataFrame({"compute": [1e23], "loss": [2.234]})
    for cut in (1e19, 3e19, 1e20, 3e20):
        fit = table[table["budget"] <= cut]
        best = table[table["budget"] > cut].sort_values("loss").drop_duplicates("budget").sort_values("budget")
        held = pd.concat([best[["compute", "loss"]], largest], ignore_index=True)
        known = published[published["n_budgets_in_fit"] == budgets.index(cut) + 1]
        made = dict(zip(known["budget_flops"].astype(float), known["predicted_paloma_macro"], strict=True))
        held = held.assign(published=[made.get(compute, np.nan) for compute in held["compute"]])
        yield Case(f"up to {cut:.0e}", fit, held.reindex(columns=COLUMNS))


def _routed(data: Path) -> pd.DataFrame:
    frame = pd.read_csv(data / "clark_routed_lm/final.csv")
    return frame[frame["main_grid"] == 1]


def clark_routed_lm(data: Path) -> Iterator[Case]:
    """Each router and number of experts: the ladder below 1e9 active parameters predicts the 1.3B class."""
    for (router, experts), group in _routed(data).groupby(["router_type", "experts"]):
        table = rows(group, compute="flops", loss="loss").assign(small=group["params_active"].to_numpy() < 1e9)
        fit, held = table[table["small"]], table[~table["small"]]
        if len(held):
            yield Case(f"{router}/{experts} experts", fit[COLUMNS], held[COLUMNS])


def delphi(data: Path) -> Iterator[Case]:
    """Delphi v2 cut at each budget from 3e19; best runs of larger budgets and the 1e21, 1e22, 1e23 runs."""
    frame = pd.read_csv(data / "delphi/isoflop_runs.csv")
    frame = frame[frame["suite"] == "delphi_v2_adamh_v6"]
    table = rows(frame, compute="total_flops", size="params", tokens="tokens", budget="budget_flops", loss="loss")
    large = pd.read_csv(data / "delphi/heldout_runs.csv")
    large = large[(large["suite"] == "delphi_v2_adamh_v6") & (large["role"] == "held_out")]
    means = large.groupby("budget_flops", as_index=False)[["total_flops", "loss"]].mean()
    made = {1e21: 2.746, 1e22: 2.5265, 1e23: 2.350}  # implied by the published residuals, delphi/forecasts.csv
    for cut in (3e19, 9e19, 1.8e20, 3e20):
        fit = table[table["budget"] <= cut]
        best = table[table["budget"] > cut].sort_values("loss").drop_duplicates("budget").sort_values("budget")
        top = rows(means, compute="total_flops", loss="loss")
        top = top.assign(published=[made[b] if cut == 3e20 else np.nan for b in means["budget_flops"]])
        yield Case(f"up to {cut:.1e}", fit, pd.concat([best[["compute", "loss"]], top]).reindex(columns=COLUMNS))


def chinchilla_epoch(data: Path) -> Iterator[Case]:
    """The digitised runs, without the five outliers of Besiroglu et al.: below a cut, predicted from three times it."""
    frame = pd.read_csv(data / "chinchilla_epoch/runs.csv")
    frame = frame[frame["besiroglu_outlier"] == 0]
    table = rows(frame, compute="flops", size="params", tokens="tokens", loss="loss")
    for cut in (3e19, 1e20, 3e20):
        yield Case(f"up to {cut:.0e}", table[table["compute"] <= cut], table[table["compute"] >= 3 * cut])


def isoflop_collection(data: Path) -> Iterator[Case]:
    """Each experiment without the source's outliers: all but the top budget predict it, and Marin's larger runs."""
    frame = pd.read_csv(data / "isoflop_collection/runs.csv")
    marin = pd.read_csv(data / "isoflop_collection/marin_dense_raw.csv")
    marin = marin[marin["kind"] == "validation_optimal"]
    for name, group in frame[frame["outlier"] == 0].groupby("experiment"):
        table = rows(group, compute="flops", size="params", tokens="tokens", budget="flops", loss="loss")
        top = table["budget"].max()
        fit, held = table[table["budget"] < top], table[table["budget"] == top]
        larger = marin[(marin["corpus"] == str(name).split("__")[1]) & (marin["flops"] > 1.02 * top)]
        held = pd.concat(
            [held, rows(larger, compute="flops", size="params", tokens="tokens", loss="loss_paloma_macro")]
        )
        yield Case(str(name), fit, held)


def gadre_overtraining(data: Path) -> Iterator[Case]:
    """C4 loss: the authors' five training points a corpus, or all runs below 1e9, predict its 6.9B and M = 640 runs."""
    frame = pd.read_csv(data / "gadre_overtraining/runs.csv")
    small = frame["params"] < 1e9
    points = small & (frame["tokens_per_param"] == 20) | (frame["params"] < 2e7) & (frame["tokens_per_param"] == 320)
    table = rows(frame, compute="flops_6nd", size="params", tokens="tokens", loss="loss_c4_val")
    for corpus in ("c4_original", "rpj", "rw_original"):
        here = frame["corpus"] == corpus
        held = here & (frame["split"] == "test")
        yield Case(f"{corpus}: published points", table[here & points], table[here & held])
        yield Case(f"{corpus}: all below 1e9", table[here & small], table[here & held])


def steplaw(data: Path) -> Iterator[Case]:
    """Minima of the dense (N, D) cells: 13 smaller predict the four largest; of each MoE shape: three D predict one."""
    frame = pd.read_csv(data / "steplaw/dense.csv")
    frame = frame[frame["is_cell_best"] == 1]
    table = rows(frame, compute="flops_6nd", size="params", tokens="tokens", loss="loss")
    test = frame["split"].to_numpy() == "test"
    yield Case("dense", table[~test], table[test])
    frame = pd.read_csv(data / "steplaw/moe.csv")
    for arch, group in frame[frame["is_cell_best"] == 1].groupby("arch"):
        table = rows(group, compute="flops_6nd", loss="loss")
        test = group["split"].to_numpy() == "test"
        yield Case(f"MoE {arch}", table[~test], table[test])


def gemstones(data: Path) -> Iterator[Case]:
    """Cooled-down checkpoints of models below 1.5e9 parameters predict those of the larger ones."""
    frame = pd.read_csv(data / "gemstones/runs.csv")
    frame = frame[frame["phase"] == "cool_end"]
    table = rows(frame, compute="flops_6nd", size="params", tokens="tokens", loss="loss")
    yield Case("cool_end", table[table["size"] < 1.5e9], table[table["size"] >= 1.5e9])


def datablations(data: Path) -> Iterator[Case]:
    """Runs of at most four epochs (repetition costs nearly nothing until then): the top decile of compute is predicted."""
    frame = pd.read_csv(data / "datablations/final_losses.csv")
    test = frame["split"] == "test"
    frame = frame.assign(rung=frame.groupby(["params", "tokens", "unique_tokens"]).ngroup())
    few = frame["epochs"] <= 4.0
    cut = frame.loc[test, "flops_6nd"].min()
    fit = rows(frame[few & (frame["flops_6nd"] < cut)], **_DATABLATIONS)
    held = frame[few & (frame["flops_6nd"] >= cut)]
    means = held.groupby(["params", "tokens", "unique_tokens"], as_index=False)[["flops_6nd", "loss", "rung"]].mean()
    yield Case("at most four epochs", fit, rows(means, **_DATABLATIONS))


_DATABLATIONS = {"compute": "flops_6nd", "size": "params", "tokens": "tokens", "loss": "loss", "rung": "rung"}

SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    maker.__name__: maker
    for maker in (
        rnsl_extrapolation,
        marin_moe,
        clark_routed_lm,
        delphi,
        chinchilla_epoch,
        isoflop_collection,
        gadre_overtraining,
        steplaw,
        gemstones,
        datablations,
    )
}
