"""From the records of a study's runs to its run table."""

import pandas as pd

from ladder.errors import InputError
from ladder.records import sha256_file
from ladder.rung import Ladder, Rung
from ladder.runs import ExcludedReason, RunStatus, RunTable
from ladder.study import Study
from models.record import Evaluation, RunRecord, read_record


def collect_runs(study: Study, ladder: Ladder) -> RunTable:
    """Write and return the run table of all runs of `ladder` that have a record, one row a run and held-out text.

    The metric of text "test" is "test/loss", of the text of a domain "test/code/loss". Losses are in nats per token;
    bits per byte stand beside them. A branch counts the steps of its trunk in tokens and compute, and names the trunk in
    `trunk_id`. A diverged run keeps its rows, without a loss and
    with its reason. Raises InputError when no run has ended yet.
    """
    rows = []
    for rung in ladder.rungs:
        for seed in rung.seeds:
            path = study.run(rung.run_id(seed)) / "record.json"
            if path.exists():
                record = read_record(path)
                digest = sha256_file(path)
                texts = sorted(record.data.eval_sets, key=lambda text: (not text.startswith("validation"), text))
                rows += [_row(rung, record, text, digest) for text in texts]
    if not rows:
        raise InputError(f"no run of {study.ladder} has ended; start them with `foretell train run`.")
    table = RunTable.of(pd.DataFrame(rows), str(study.runs))
    table.save(study.runs)
    return table


def _row(rung: Rung, record: RunRecord, text: str, digest: str) -> dict[str, object]:
    counts, shape = rung.counts, rung.shape
    diverged = record.status is RunStatus.DIVERGED
    evaluation: Evaluation | None = record.evaluations.get(text)
    return {
        "run_id": record.run_id,
        "rung_id": rung.rung_id,
        "role": str(rung.role),
        "recipe": rung.recipe,
        "source": "foretell",
        "trunk_id": record.branch.run_id if record.branch else record.run_id,
        "status": str(record.status),
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "budget": float(rung.budget),
        "compute": float(rung.compute),
        "flop_convention": str(rung.flop_convention),
        "active_params": counts.active,
        "total_params": counts.total,
        "nonembedding_active_params": counts.nonembedding_active,
        "embedding_params": counts.embedding,
        "tokens": rung.tokens,
        "unique_tokens": record.data.unique_tokens,
        "tokens_per_param": rung.tokens / counts.active,
        "experts": shape.experts,
        "top_k": shape.top_k,
        "granularity": 4 * shape.hidden / shape.expert_width if shape.expert_width else None,
        "shared_experts": shape.shared_experts,
        "capacity_factor": rung.capacity_factor,
        "drop_mode": "dropless",
        "seq_len": shape.seq_len,
        "batch_seqs": rung.batch_seqs,
        "batch_tokens": rung.batch_tokens,
        "steps": rung.steps,
        "optimizer": rung.optimizer.name,
        "lr_peak": rung.optimizer.matrix_lr,
        "schedule": rung.schedule.name,
        "seed": record.seed,
        "data_mix": record.corpus_sha256,
        "tokenizer": record.data.tokenizer,
        "eval_set": record.data.eval_sets[text],
        "metric": f"{text}/loss",
        "loss_unit": "nats_per_token",
        "loss": evaluation.nats_per_token if evaluation else None,
        "loss_se": evaluation.standard_error if evaluation else None,
        "bits_per_byte": evaluation.bits_per_byte if evaluation else None,
        "eval_step": record.steps_done,
        "drop_fraction": record.drop_fraction,
        "loss_spikes": record.losses.spikes if record.losses else None,
        "tokens_per_second": record.tokens_per_second,
        "device": record.device,
        "mfu": record.peak_fraction,
        "excluded_reason": str(ExcludedReason.DIVERGED) if diverged else None,
        "provenance": digest,
    }
