"""What is known of a run while it goes and after it: values without JAX, for who watches and who collects."""

from dataclasses import dataclass
from pathlib import Path

from ladder.provenance import Provenance
from ladder.records import canonical_json, from_plain, read_json, sha256_bytes
from ladder.runs import RunStatus

RECORD_SCHEMA = "run/1"
TAIL_FRACTION = 0.1  # drops and training loss are averaged over this last share of the steps


@dataclass(frozen=True)
class Evaluation:
    """A loss on one held-out text.

    Attributes:
        nats_per_token: mean cross-entropy.
        standard_error: of that mean, over windows taken as independent.
        bits_per_byte: the same in bits over the bytes of the predicted text; see `models.evaluate.evaluate`.
        windows: windows of S predictions.
    """

    nats_per_token: float
    standard_error: float
    bits_per_byte: float
    windows: int


@dataclass(frozen=True)
class Progress:
    """Where a run stands: steps done in this process count towards `tokens_per_second`."""

    run_id: str
    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class LossReport:
    """What `models.loss_watch` saw in the losses of all steps, those of a trunk included.

    Attributes:
        spikes: how many there were.
        first_spike, worst_spike: steps; 0 without one.
        worst_rise: of the loss over the median before it.
        unrecovered: whether the loss ended well above where it had been.
        last_finite: the last finite loss, nats per token; for a diverged run the step after it had none.
    """

    spikes: int
    first_spike: int
    worst_spike: int
    worst_rise: float
    unrecovered: bool
    last_finite: float | None


@dataclass(frozen=True)
class Branch:
    """Where a run began, if not at its first step: at a permanent checkpoint of another run, its trunk.

    The steps up to there were made once, by the trunk; `compute` of the rung counts them, for the loss needed them.
    """

    run_id: str
    step: int


@dataclass(frozen=True)
class DataUse:
    """The text of a run.

    Attributes:
        tokenizer: "bytes", or the digest of its tokenizer.json.
        unique_tokens: distinct tokens it trains on.
        epochs: passes over the training text of each domain; "corpus" is one used alone.
        documents: "packed" where attention crosses their separators, else "separate".
        eval_sets: identity of each held-out text.
    """

    tokenizer: str
    unique_tokens: int
    epochs: dict[str, float]
    documents: str
    eval_sets: dict[str, str]


@dataclass(frozen=True)
class RunRecord:
    """The outcome of a run.

    Attributes:
        status: finished, or diverged when a loss was not finite; then there are no evaluations.
        evaluations: by text, "validation" and "test"; with domains those are means, and each has its own, "test/code".
        train_loss, drop_fraction: means over the last tenth of the steps; None where it was not reached.
        tokens_per_second: of step time, compilation and evaluation excluded.
        flops_per_second: achieved, by the rung's convention.
        peak_fraction: achieved over the float32 matrix-product speed measured on the same core, or None.
        first_chunk_seconds: time of the first dispatch, which holds the compilation.
        spec_sha256: digest of spec.json.
        losses: spikes and the like; None in records of before they were watched.
        branch: the trunk the run branched from, or None.
    """

    run_id: str
    rung_id: str
    seed: int
    status: RunStatus
    steps_done: int
    started_at: str
    finished_at: str
    evaluations: dict[str, Evaluation]
    train_loss: float | None
    drop_fraction: float | None
    tokens_per_second: float | None
    flops_per_second: float | None
    peak_fraction: float | None
    first_chunk_seconds: float
    device: str
    corpus_sha256: str
    data: DataUse
    spec_sha256: str
    provenance: Provenance
    losses: LossReport | None = None
    branch: Branch | None = None


def read_record(path: Path) -> RunRecord:
    """Return the record in `path`; raises InputError where it is damaged."""
    data = read_json(path, RECORD_SCHEMA)
    return from_plain(RunRecord, {key: data[key] for key in data if key != "schema"}, str(path))


def spec_digest(rung_id: str, seed: int, corpus_sha256: str) -> str:
    """Return the digest of what decides a run's result, which ties checkpoints and record to it."""
    return sha256_bytes(canonical_json({"rung_id": rung_id, "seed": seed, "corpus_sha256": corpus_sha256}))
