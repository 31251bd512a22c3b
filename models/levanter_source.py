"""Levanter's token caches as a source of documents, through Levanter itself (extra `levanter`), imported when used."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Integer

from ladder.errors import InputError

LEDGER = "shard_ledger.json"  # what makes a folder a cache (levanter/store/cache.py of marin-levanter 0.2.227)
ROWS_AT_ONCE = 256


def levanter_documents(
    folder: str, take: Callable[[bytes], None], field: str = "input_ids"
) -> Iterator[tuple[Integer[np.ndarray, " _"], str]]:
    """Yield (tokens, where it stands) of every document of a TreeCache, while `take` gets the tokens.

    Raises InputError where Levanter is not installed, and where the cache is unfinished or is none of token numbers.
    """
    try:
        from levanter.store.cache import TreeCache
    except ImportError:
        raise InputError(
            f"reading the Levanter cache {folder} needs Levanter; install foretell with the extra levanter."
        ) from None
    try:
        cache = TreeCache.load(folder, {field: np.zeros(0, np.int32)})
        rows = len(cache)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder} cannot be read as a Levanter cache with {field}: {reason}.") from None
    for first in range(0, rows, ROWS_AT_ONCE):
        batch = cache.get_batch_sync(slice(first, min(rows, first + ROWS_AT_ONCE)))
        for number, row in enumerate(batch, start=first):
            tokens = np.asarray(row[field])
            take(tokens.astype("<i8").tobytes())
            yield tokens, f"{folder} document {number + 1}"
