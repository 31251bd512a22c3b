"""Command `foretell train tokenize`: a token cache from files of text, built once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder.units import format_count, format_duration

if TYPE_CHECKING:
    from models.cache import Manifest

MEGABYTE = 10**6


class _Lines:
    """Says on stderr how far a cache is: over and over on one line of a terminal, a line per tenth elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._label, self._tenth, self._start, self._shown = quiet, "", 0, 0.0, 0.0

    def report(self, label: str, done: int, total: int) -> None:
        """Take how many of the bytes of the sources have been read."""
        if self._quiet:
            return
        now = time.monotonic()
        if label != self._label:
            self._label, self._tenth, self._start = label, 0, now
        share = done / total if total else 1.0
        terminal = sys.stderr.isatty()
        due = now - self._shown > 0.2 or done == total if terminal else int(10 * share) > self._tenth
        if not due or not share:
            return
        self._tenth, self._shown, spent = int(10 * share), now, now - self._start
        left = format_duration(spent / share * (1 - share))
        text = (
            f"{label}: {100 * share:.0f} % of {total / MEGABYTE:.1f} MB, {format_duration(spent)} so far, {left} left"
        )
        print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal and done == total:
            print(file=sys.stderr)


def _text(home: Path, manifest: Manifest, built: bool) -> str:
    from models.cache import SPLITS

    lines = [f"{'Built' if built else 'Already there:'} {home}, {manifest.vocab_size} tokens in the vocabulary."]
    for name in SPLITS:
        split = manifest.splits[name]
        size = f"{split.bytes / MEGABYTE:.2f} MB, {split.bytes / split.tokens:.2f} bytes a token"
        lines.append(f"  {name:<10} {split.documents:,} documents, {format_count(split.tokens)} tokens, {size}")
    if manifest.left_out:
        lines.append(f"  {manifest.left_out:,} documents are left out, since they are empty or stand in it already.")
    return "\n".join(lines)


def tokenize_command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="JSON Lines or text, plain or .gz; paths, URLs, patterns with *."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the cache.", metavar="DIR")],
    tokenizer: Annotated[
        str, typer.Option(help="bytes, bpe (trained on the training text), or a tokenizer.json.")
    ] = "bytes",
    vocab_size: Annotated[int | None, typer.Option(help="Entries of the tokenizer to train.")] = None,
    validation: Annotated[
        list[str] | None, typer.Option(help="Held-out sources; without them 4 % of the documents, by hash.")
    ] = None,
    test: Annotated[list[str] | None, typer.Option(help="The same for the text forecasts are made on.")] = None,
    field: Annotated[str, typer.Option(help="Field of a JSON line that holds the text.")] = "text",
    separator: Annotated[
        str | None, typer.Option(help="Token of the tokenizer.json that ends documents; default: the usual names.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Number the tokens of texts once, for `foretell train run --corpus DIR`; a cache that is there is not built again.

    A folder of a Levanter cache is a source too. Caches go together in a mixture file, see docs/training-data.md.

    Example: foretell train tokenize "code/*.jsonl.gz" --tokenizer bpe --vocab-size 4096 -o caches/code
    """
    from ladder.records import to_plain
    from models.documents import find_sources
    from models.tokenize_corpus import tokenize
    from models.tokenize_reader import Request

    request = Request(
        find_sources(sources),
        find_sources(validation or []),
        find_sources(test or []),
        tokenizer,
        vocab_size,
        separator,
        field,
    )
    manifest, built = tokenize(request, out, _Lines(quiet=quiet).report)
    if as_json:
        typer.echo(json.dumps({"cache": str(out), "built": built, **to_plain(manifest)}))
    else:
        typer.echo(_text(out, manifest, built))
