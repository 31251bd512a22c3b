"""A real English text corpus that needs no download: the documentation inside the installed packages.

Documents are Python files of the locked NumPy, SciPy, pandas, matplotlib, statsmodels and JAX and of Python's own
library; a document's text is its docstrings, in order. Paragraphs that were seen before, anywhere, are left out by
hash. Documents are split by the hash of their path, so a document lies wholly in training, validation (for tuning)
or test (on which forecasts are made and checked). Bytes are the tokens; a zero byte ends each document.
"""

import hashlib
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ladder.errors import InputError
from ladder.records import canonical_json, sha256_bytes
from models.cache import SCHEMA
from models.cache_writer import CacheWriter

PACKAGES = ("numpy", "scipy", "pandas", "matplotlib", "statsmodels", "jax")
HELD_SHARE = 0.04  # of the documents, for validation and for test each: some 400 kB, three times what is evaluated
MIN_DOCUMENT_BYTES = 200  # shorter ones are a licence line or a stub
MIN_PARAGRAPH_BYTES = 32  # shorter paragraphs ("Returns", "Notes") repeat by nature and are kept


def cache_dir() -> Path:
    """Return the folder for what can be made again: ``$XDG_CACHE_HOME/foretell`` or ``~/.cache/foretell``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretell"


# A docstring: a triple-quoted literal that opens the file or the line after a colon. Parsing the files instead finds
# the same text and takes ten times as long.
_DOCSTRING = re.compile(
    r'''(?:\A(?:\s*\#[^\n]*\n)*\s*|:[ \t]*(?:\#[^\n]*)?\n\s*)[rRuU]?(?:"""(.*?)"""|\'{3}(.*?)\'{3})''', re.DOTALL
)


def _docstrings(path: Path) -> str:
    """Return the docstrings of a Python file, in order, blank-line separated."""
    text = path.read_bytes().decode("utf-8", "replace")
    return "\n\n".join(inspect.cleandoc(one or other) for one, other in _DOCSTRING.findall(text))


def _sources() -> list[tuple[str, Path]]:
    """Return (name, file) of every document, in a fixed order. Tests and vendored packages are left out."""
    roots = [("python", Path(sysconfig.get_path("stdlib")))]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(f"package {package} is not installed, but the corpus is made of it; run `make setup`.")
        roots.append((package, Path(spec.submodule_search_locations[0])))
    skipped = {"tests", "test", "site-packages", "_vendor", "lib2to3", "idlelib", "turtledemo", "__pycache__"}
    documents = []
    for name, root in roots:
        found = []
        for folder, below, files in os.walk(root):
            below[:] = [each for each in below if each not in skipped]
            found += [os.path.join(folder, file) for file in files if file.endswith(".py")]
        for path in sorted(found, key=lambda path: path.split(os.sep)):
            documents.append((f"{name}/{os.path.relpath(path, root).replace(os.sep, '/')}", Path(path)))
    return documents


def split_of(key: bytes) -> str:
    """Return the part, "train", "validation" or "test", of the document that `key` stands for, by the key's hash."""
    share = int.from_bytes(hashlib.sha256(key).digest()[:8]) / 2**64
    if share < HELD_SHARE:
        return "test"
    return "validation" if share < 2 * HELD_SHARE else "train"


def _without_repeats(text: str, seen: set[bytes]) -> str:
    kept = []
    for paragraph in text.split("\n\n"):
        if len(paragraph) >= MIN_PARAGRAPH_BYTES:
            digest = hashlib.blake2b(" ".join(paragraph.split()).encode("utf-8", "replace"), digest_size=12).digest()
            if digest in seen:
                continue
            seen.add(digest)
        kept.append(paragraph)
    return "\n\n".join(kept)


def _documents(progress: Callable[[int, int], None] | None) -> Iterator[tuple[str, bytes]]:
    """Yield (name, text) of every document; test and validation come first, so that training loses the repeats."""
    order = {"test": 0, "validation": 1, "train": 2}
    sources = sorted(_sources(), key=lambda source: order[split_of(source[0].encode())])
    seen: set[bytes] = set()
    for index, (name, path) in enumerate(sources, start=1):
        data = _without_repeats(_docstrings(path), seen).encode("utf-8", "replace").replace(b"\0", b"")
        if len(data) >= MIN_DOCUMENT_BYTES:
            yield name, data
        if progress and (index % 256 == 0 or index == len(sources)):
            progress(index, len(sources))


def build_corpus(progress: Callable[[int, int], None] | None = None) -> Path:
    """Return the folder of the corpus, built on first use and cached by the versions it is made of.

    `progress(done, total)` counts documents. The folder holds train.bin, validation.bin, test.bin and manifest.json.
    """
    sources = {package: importlib.metadata.version(package) for package in PACKAGES}
    sources["python"] = platform.python_version()
    # A change of these rules makes another corpus, one of the format another folder.
    code = sha256_bytes(Path(__file__).read_bytes() + SCHEMA.encode())[:8]
    home = cache_dir() / f"corpus-{sha256_bytes(canonical_json(sources))[:8]}-{code}"
    if (home / "manifest.json").exists():
        return home
    with CacheWriter(home) as writer:
        for name, data in _documents(progress):
            writer.add(split_of(name.encode()), np.frombuffer(data, np.uint8), len(data))
        writer.finish(sources)
    return home
