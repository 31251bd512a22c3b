"""What is known of a run while it goes and after it: values without JAX, for who watches and who collects."""

from dataclasses import dataclass
from pathlib import Path

from ladder.provenance import Provenance
from ladder.records import from_plain, read_json
from ladder.runs import RunStatus

RECORD_SCHEMA = "run/1"


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


def read_record(path: Path) -> RunRecord:
    """Return the record in `path`; raises InputError where it is damaged."""
    data = read_json(path, RECORD_SCHEMA)
    return from_plain(RunRecord, {key: data[key] for key in data if key != "schema"}, str(path))
