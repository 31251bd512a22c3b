"""A small synthetic study for the tests of reports: a real ladder, run rows from a known law, metrics of every run."""

import dataclasses
import functools
import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from fits.fit import fit
from fits.spec import FLOOR_INTEGRATED, FitSpec
from forecasts.check import check
from forecasts.draft import draft
from forecasts.register import register
from forecasts.registry import registry
from ladder.generate import plan_isoflop
from ladder.provenance import Resource, utc_now
from ladder.recipe import recipe_named
from ladder.rung import Ladder, Rung
from ladder.runs import RunTable
from ladder.study import Study

BUDGETS = (3 * 10**10, 65 * 10**9, 14 * 10**10, 3 * 10**11)
TARGET_BUDGET = 3 * 10**12
TEST, VALIDATION = "test/loss", "validation/loss"
FITS = (FLOOR_INTEGRATED, "power-law-floor", "power-law", "chinchilla")
SEED_SD = 0.006  # relative, about what the tiny ladder has


def plan() -> Ladder:
    """Return the ladder of the default demo."""
    return plan_isoflop(
        recipe_named("tiny-cpu"),
        list(BUDGETS),
        sizes=4,
        held_out=[TARGET_BUDGET],
        held_out_seeds=2,
        replicates={BUDGETS[1]: 2},
    )


def true_loss(rung: Rung) -> float:
    """Return the noiseless loss in nats per byte: E + A/N^alpha + B/D^beta with non-embedding active N."""
    n, d = rung.counts.nonembedding_active, rung.tokens
    return 1.15 + 17.5 / math.pow(n, 0.4) + 101.0 / math.pow(d, 0.4)


def run_rows(rung: Rung, seed: int, started_at: str, finished_at: str, shift: float = 0.0) -> list[dict[str, object]]:
    """Return the rows of one finished run, one a metric; `shift` is a relative error of the true law."""
    noise = np.random.default_rng([seed, rung.budget % 97, rung.shape.hidden]).normal()
    loss = true_loss(rung) * math.exp(SEED_SD * noise + shift)
    counts, shape = rung.counts, rung.shape
    row = {
        "run_id": rung.run_id(seed),
        "rung_id": rung.rung_id,
        "role": str(rung.role),
        "recipe": rung.recipe,
        "source": "synthetic",
        "status": "finished",
        "started_at": started_at,
        "finished_at": finished_at,
        "budget": float(rung.budget),
        "compute": float(rung.compute),
        "flop_convention": str(rung.flop_convention),
        "active_params": float(counts.active),
        "total_params": float(counts.total),
        "nonembedding_active_params": float(counts.nonembedding_active),
        "embedding_params": float(counts.embedding),
        "tokens": float(rung.tokens),
        "tokens_per_param": rung.tokens / counts.active,
        "experts": float(shape.experts),
        "top_k": float(shape.top_k),
        "seq_len": float(shape.seq_len),
        "batch_seqs": float(rung.batch_seqs),
        "batch_tokens": float(rung.batch_tokens),
        "steps": float(rung.steps),
        "seed": float(seed),
        "eval_set": "test:" + "ab" * 32,
        "tokenizer": "bytes",
        "loss_unit": "nats_per_token",
        "eval_step": float(rung.steps),
        "drop_fraction": 0.004,
        "device": "cpu",
    }
    return [{**row, "metric": TEST, "loss": loss}, {**row, "metric": VALIDATION, "loss": loss * 0.996}]


def write_metrics(study: Study, rung: Rung, seed: int) -> None:
    """Write a metrics.jsonl like the trainer's: a falling training loss and router health, every few steps."""
    lines = []
    for step in np.unique(np.linspace(1, rung.steps, 40).astype(int)):
        fraction = step / rung.steps
        loss = true_loss(rung) + (5.545 - true_loss(rung)) * math.exp(-5 * math.sqrt(fraction))
        lines.append(
            {
                "step": int(step),
                "loss": loss,
                "drop_fraction": 0.02 * (1 - 0.7 * fraction),
                "max_load": 1.5 - 0.2 * fraction,
            }
        )
    folder = study.run(rung.run_id(seed))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_fit_runs(study: Study, ladder: Ladder) -> RunTable:
    """Write ladder.json, the run table of all fit rungs (one run diverged) and their metrics; return the table."""
    ladder.save(study.ladder)
    rows = []
    for index, rung in enumerate(ladder.fit_rungs):
        for seed in rung.seeds:
            rows += run_rows(
                rung, seed, f"2026-01-01T00:{index:02d}:00.000000Z", f"2026-01-01T00:{index:02d}:30.000000Z"
            )
            write_metrics(study, rung, seed)
    diverged = next(rung for rung in ladder.fit_rungs if len(rung.seeds) > 1).run_id(2)
    for row in rows:
        if row["run_id"] == diverged:
            row.update(status="diverged", excluded_reason="diverged", loss=math.nan)
    table = RunTable.of(pd.DataFrame(rows))
    table.save(study.runs)
    return table


def write_held_out_runs(
    study: Study, ladder: Ladder, started_at: str, finished_at: str, shift: float = 0.0
) -> RunTable:
    """Add the held-out runs to the run table and return it."""
    (rung,) = ladder.held_out_rungs
    rows = []
    for seed in rung.seeds:
        rows += run_rows(rung, seed, started_at, finished_at, shift)
        write_metrics(study, rung, seed)
    table = RunTable.of(pd.concat([pd.read_parquet(study.runs), pd.DataFrame(rows)], ignore_index=True))
    table.save(study.runs)
    return table


def write_fits(study: Study, runs: RunTable) -> None:
    """Fit the policy and its baselines as the demo does, with few resamples."""
    for name in FITS:
        spec = dataclasses.replace(FitSpec.of(name, TEST), resamples=0 if name == FLOOR_INTEGRATED else 40)
        fit(spec, runs, inputs=(Resource.of(study.runs, study.root),)).save(study.fit(name))


def register_target(study: Study, ladder: Ladder) -> str:
    """Register a forecast of the held-out rung and return its id."""
    (rung,) = ladder.held_out_rungs
    forecast = draft(
        study,
        ladder,
        rung,
        TEST,
        main=FITS[0],
        comparators=FITS[1:],
        title=f"Test loss of {rung.name}, a run of ten times the largest fitted budget",
        authors=["A. Author", "B. Author"],
        claimed_error=0.01,
        latest="2100-01-01",
        rationale="A synthetic study: the losses are those of a known law with noise.",
    )
    return register(study, forecast).forecast_id


def resolve(study: Study, ladder: Ladder, shift: float = 0.0) -> None:
    """Add the held-out runs, started now, and check the forecast; a `shift` of the true loss makes it miss."""
    write_held_out_runs(study, ladder, utc_now(), utc_now(), shift)
    (entry,) = registry(study)
    check(study, entry.forecast_id)


def checked_study(folder: Path, shift: float = 0.0) -> tuple[Study, str]:
    """Return a study with one forecast that has been checked, and the forecast's id."""
    study, forecast_id = open_study(folder)
    resolve(study, plan(), shift)
    return study, forecast_id


def open_study(folder: Path) -> tuple[Study, str]:
    """Return a study in `folder` with one registered forecast whose target has not started, and the forecast's id.

    It is made once a process and copied: fitting and registering take seconds.
    """
    template, forecast_id = _template()
    shutil.copytree(template.name, folder)
    return Study(folder), forecast_id


@functools.cache
def _template() -> tuple[tempfile.TemporaryDirectory[str], str]:
    place = tempfile.TemporaryDirectory()
    study, ladder = Study(Path(place.name)), plan()
    write_fits(study, write_fit_runs(study, ladder))
    return place, register_target(study, ladder)
