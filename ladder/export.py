"""A ladder in the formats of others: one flat table, and Levanter training configs of the dense rungs."""

import io
import json
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from ladder.records import write_atomic
from ladder.rung import Ladder, Rung


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested plain data as one row, names joined by dots; lists become JSON text."""
    row: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            row |= flat(value, f"{prefix}{key}.")
        else:
            row[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return row


def save_table(ladder: Ladder, path: Path, *, force: bool = False) -> None:
    """Write one row per rung, every decided and derived field a column, as .csv, .parquet or .json, atomically.

    Integers beyond 2^63 stand as text, so that none loses a digit. Raises InputError for another suffix, and for a
    file that exists unless `force`.
    """
    import pandas as pd

    _check_free(path, force)
    rows = [flat({key: value for key, value in rung.to_plain().items() if key != "overrides"}) for rung in ladder.rungs]
    big = {key for row in rows for key, value in row.items() if isinstance(value, int) and abs(value) >= 2**63}
    frame = pd.DataFrame([{k: str(v) if k in big else v for k, v in row.items()} for row in rows])
    buffer = io.BytesIO()
    match path.suffix:
        case ".csv":
            frame.to_csv(buffer, index=False)
        case ".parquet":
            frame.to_parquet(buffer, index=False)
        case ".json":
            frame.to_json(buffer, orient="records", double_precision=15)
        case other:
            raise InputError(f"{path}: cannot write {other or 'a file without suffix'}; use .csv, .parquet or .json.")
    write_atomic(path, buffer.getvalue())


def levanter_config(rung: Rung, seed: int) -> dict[str, Any]:
    """Return the Levanter `train_lm` config of a dense rung; data, tracker and checkpoints are left to the user.

    Raises InputError for a rung with experts, which Levanter's `train_lm` models cannot express as they are here,
    and for an optimizer other than AdamH.
    """
    shape, plan = rung.shape, rung.optimizer
    if not shape.dense or plan.name != "adamh":
        raise InputError(
            f"{rung.name} has experts or an optimizer other than AdamH; Levanter configs are written for dense AdamH "
            "rungs only, such as those of delphi-v2."
        )
    return {
        "model": {
            "type": "qwen3",
            "max_seq_len": shape.seq_len,
            "hidden_dim": shape.hidden,
            "intermediate_dim": shape.shared_width,
            "num_layers": shape.layers,
            "num_heads": shape.heads,
            "num_kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "rope": {"type": "llama3"},
        },
        "optimizer": {
            "type": "adamH",
            "learning_rate": plan.matrix_lr,
            "adam_lr": plan.adam_lr,
            "beta1": plan.beta1,
            "beta2": plan.beta2,
            "epsilon": plan.epsilon,
            "max_grad_norm": plan.clip_norm,
            "weight_decay": plan.weight_decay,
            "lr_schedule": rung.schedule.decay,
            "warmup": rung.schedule.warmup_fraction,
            "decay": rung.schedule.decay_fraction,
            "min_lr_ratio": rung.schedule.final_fraction,
        },
        "trainer": {
            "seed": seed,
            "train_batch_size": rung.batch_seqs,
            "num_train_steps": rung.steps,
            "mp": "p=f32,c=bfloat16",
        },
        "train_seq_len": shape.seq_len,
        "z_loss_weight": plan.z_loss,
    }


def save_levanter(ladder: Ladder, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write one config per run, named by its run id, as JSON, which is YAML; return the paths."""
    configs = {
        folder / f"{rung.run_id(seed)}.yaml": levanter_config(rung, seed)
        for rung in ladder.rungs
        for seed in rung.seeds
    }
    for path in configs:
        _check_free(path, force)
    for path, config in configs.items():
        write_atomic(path, (json.dumps(config, indent=2) + "\n").encode())
    return tuple(configs)


def _check_free(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise InputError(f"{path} exists; name another, or replace it with --force.")
