"""Token caches at URLs, copied once to this machine and checked by digest."""

import shutil
import tempfile
from pathlib import Path

import fsspec

from ladder.errors import InputError
from models.cache import check_digests, files_of, parse_manifest, read_manifest
from models.cache_writer import put_in_place
from models.corpus import cache_dir


def is_url(where: str) -> bool:
    """Return whether `where` names something by protocol, as ``gs://bucket/name`` does."""
    return "://" in where


def why(error: Exception) -> str:
    """Return the reason of a failed access in a few words, without its path."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def read_bytes(where: str, what: str) -> bytes:
    """Return the content of the file at a path or URL; raises InputError, which names `what` it is, if it cannot."""
    try:
        with fsspec.open(where, "rb") as file:
            data: bytes = file.read()
    except Exception as error:  # each kind of store raises its own
        raise InputError(f"{what} {where} cannot be read: {why(error)}.") from None
    return data


def local_cache(where: str) -> Path:
    """Return the folder of the token cache at a path, or of the copy here of the one at a URL.

    A copy is named by the cache's identity and made again where it is damaged. Raises InputError where no cache is
    found at the URL, and where what arrives has not the digests of its manifest.
    """
    if not is_url(where):
        return Path(where)
    copies = cache_dir() / "caches"
    copies.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".copy-", dir=copies))
    try:
        _copy(where, "manifest.json", scratch)
        manifest = parse_manifest(scratch / "manifest.json")
        home = copies / manifest.sha256[:16]
        if _is_whole(home):
            return home
        for name in files_of(manifest):
            _copy(where, name, scratch)
        try:
            check_digests(scratch, manifest)
        except InputError as error:
            raise InputError(f"{where} did not arrive as its manifest says: {error}") from None
        scratch.chmod(0o755)
        put_in_place(scratch, home, replace=home.exists())
        return home
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_whole(home: Path) -> bool:
    try:
        check_digests(home, read_manifest(home))
    except InputError:
        return False
    return True


def _copy(where: str, name: str, folder: Path) -> None:
    try:
        with fsspec.open(f"{where.rstrip('/')}/{name}", "rb") as source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except Exception as error:  # each kind of store raises its own
        raise InputError(
            f"{where.rstrip('/')}/{name} cannot be copied: {why(error)}; give the folder or URL of a token cache."
        ) from None
