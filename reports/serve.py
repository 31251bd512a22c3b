"""A static file server for looking at reports on the machine they were built on; it listens on 127.0.0.1 only."""

import functools
import http.server
from collections.abc import Callable
from pathlib import Path

from ladder.errors import InputError

HOST = "127.0.0.1"


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing; errors reach the browser."""


def server_for(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of the files in `folder`, bound but not running; port 0 takes any that is free.

    Raises InputError when the folder does not exist or the port is taken.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; build a report first with `foretell report build ID`.")
    handler = functools.partial(_QuietHandler, directory=str(folder))
    try:
        return http.server.ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error}); choose another with --port.") from None


def serve_folder(folder: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve `folder` until interrupted, after calling `announce` with the address."""
    with server_for(folder, port) as server:
        announce(f"http://{HOST}:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
