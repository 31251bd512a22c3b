"""Runs of a W&B project as a source table with the columns of a W&B CSV export, so that one map serves both.

Read through the official client (``wandb``, in the extra `levanter`); which server, which account and proxies are the
client's own business (``WANDB_BASE_URL``, ``wandb login``).
"""

import json
from collections.abc import Mapping
from typing import Any

from ladder.errors import InputError
from ladder.sources import Cell, Source, flat

PREFIX = "wandb:"
TIMEOUT = 60  # seconds for one request


def read_wandb(address: str) -> Source:
    """Return the runs of ``wandb:entity/project``, oldest first.

    Columns: Name, ID, State, Created, Runtime (s), Tags, User; the configuration with dotted names; the summary under
    its own names, nested ones dotted. Keys that begin with ``_wandb`` are the client's and left out.

    Raises InputError when the client is not installed, the project is not found, or the server does not answer.
    """
    path = address.removeprefix(PREFIX)
    if path.count("/") != 1 or not all(path.split("/")):
        raise InputError(f"{address!r} names no W&B project; write wandb:entity/project.")
    try:
        import wandb
    except ImportError:
        raise InputError(
            "reading from W&B needs its client; install foretell with the extra levanter, or export the project's runs "
            "as CSV and import that file."
        ) from None
    try:
        found = wandb.Api(timeout=TIMEOUT).runs(path, per_page=100, lazy=False)
        records = [_record(run) for run in found]
    except (ValueError, TypeError, OSError, wandb.errors.Error) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InputError(
            f"{address} cannot be read: {reason}. Check the project's name, the connection and `wandb login`."
        ) from None
    if not records:
        raise InputError(f"{address} has no runs; check the project's name.")
    return Source.of(address, records, json.dumps(records, sort_keys=True).encode())


def _record(run: Any) -> dict[str, Cell]:
    config = {key: value for key, value in run.config.items() if not key.startswith("_wandb")}
    summary = {key: value for key, value in _mapping(run.summary_metrics).items() if not key.startswith("_wandb")}
    own: dict[str, Cell] = {
        "Name": run.name,
        "ID": run.id,
        "State": run.state,
        "Created": run.created_at,
        "Runtime": summary.pop("_runtime", None),
        "Tags": ", ".join(run.tags),
        "User": run.user.name if run.user is not None else None,
    }
    return {**own, **flat(config), **flat(summary)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
