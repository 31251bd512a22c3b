"""How a run begins and ends on disk: spec.json before the first step, record.json after the last."""

import math
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp

from ladder.errors import InputError
from ladder.provenance import provenance, utc_now
from ladder.records import canonical_json, read_json, to_plain, write_atomic
from ladder.rung import Rung
from ladder.runs import RunStatus
from models.data import Corpus
from models.loss_watch import LossWatch
from models.record import RECORD_SCHEMA, Branch, DataUse, Evaluation, RunRecord, spec_digest
from models.train import TrainState, tail_steps

SPEC_SCHEMA = "run-spec/1"


def start_run(folder: Path, rung: Rung, seed: int, corpus_sha256: str) -> tuple[str, str]:
    """Write spec.json where there is none and return the run's digest and first start; another run is refused."""
    # What decides the result, without remarks and without what only this ladder says of the rung.
    decided = {"rung_id": rung.rung_id, "seed": seed, "corpus_sha256": corpus_sha256}
    path = folder / "spec.json"
    if path.exists():
        there = read_json(path, SPEC_SCHEMA)
        found = {key: there.get("rung", {}).get(key) if key == "rung_id" else there.get(key) for key in decided}
        if found != decided:
            differs = next(key for key in decided if found[key] != decided[key])
            raise InputError(
                f"{folder} holds another run: its {differs} is {found[differs]}, asked for is {decided[differs]}. Use "
                "another study folder, or remove this one."
            )
    else:
        there = {"schema": SPEC_SCHEMA, "rung": rung.to_plain(), "seed": seed, "corpus_sha256": corpus_sha256}
        # Written before the first step and kept over kills: a forecast must precede the first start, not the last.
        there["started_at"] = utc_now()
        write_atomic(path, canonical_json(there))
    return spec_digest(rung.rung_id, seed, corpus_sha256), str(there["started_at"])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run came to.

    Attributes:
        state: after the last step made.
        evaluations: by held-out text; empty where the run diverged.
        tokens_per_second, first_seconds: of steps, and of the first dispatch, which compiles.
        peak_flops: of all devices together, FLOP/s; None where it is not known.
        watch: what the losses of the run amount to.
        branch: where it left another run, if it did.
    """

    state: TrainState
    evaluations: dict[str, Evaluation]
    started_at: str
    spec_sha256: str
    tokens_per_second: float | None
    first_seconds: float
    device: str
    peak_flops: float | None
    watch: LossWatch
    branch: Branch | None = None


def record_of(rung: Rung, seed: int, corpus: Corpus, outcome: Outcome) -> RunRecord:
    """Return the record of a run: finished where it was evaluated and every loss is finite, else diverged."""
    state, mixture, evaluations = outcome.state, corpus.mixture, outcome.evaluations
    finite = bool(evaluations) and all(math.isfinite(each.nats_per_token) for each in evaluations.values())
    tail, speed = int(tail_steps(jnp.int32(rung.steps))), outcome.tokens_per_second
    achieved = speed * rung.compute / rung.tokens if speed else None
    return RunRecord(
        run_id=rung.run_id(seed),
        rung_id=rung.rung_id,
        seed=seed,
        status=RunStatus.FINISHED if finite else RunStatus.DIVERGED,
        steps_done=int(state.step),
        started_at=outcome.started_at,
        finished_at=utc_now(),
        evaluations=evaluations if finite else {},
        train_loss=float(state.tail_loss) / tail if finite else None,
        drop_fraction=float(state.tail_drops) / tail if finite else None,
        tokens_per_second=speed,
        flops_per_second=achieved,
        peak_fraction=achieved / outcome.peak_flops if achieved and outcome.peak_flops else None,
        first_chunk_seconds=outcome.first_seconds,
        device=outcome.device,
        corpus_sha256=mixture.sha256,
        data=DataUse(
            mixture.tokenizer, mixture.unique_tokens(rung), mixture.epochs_of(rung), mixture.documents, corpus.eval_sets
        ),
        spec_sha256=outcome.spec_sha256,
        provenance=provenance(seed),
        losses=outcome.watch.report(),
        branch=outcome.branch,
    )


def write_record(folder: Path, record: RunRecord) -> None:
    """Write record.json, once, at the end of a run."""
    write_atomic(folder / "record.json", canonical_json({"schema": RECORD_SCHEMA, **to_plain(record)}))
