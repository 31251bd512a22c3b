"""A W&B server on this machine for tests: hand-built GraphQL answers in the shape the client 0.31 asks for.

Nothing was recorded from the real service; field names and the form of `config` (``{"key": {"value": ...}}``, as JSON
text) and `summaryMetrics` (JSON text) follow the client's own query and parser in wandb/apis/public/runs.py.
"""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

PAGE = 2


def node(name: str, state: str, config: dict[str, Any], summary: dict[str, Any], ident: str) -> dict[str, Any]:
    """Return one run as the server states it."""
    wrapped = {key: {"desc": None, "value": value} for key, value in {**config, "_wandb": {"version": 1}}.items()}
    return {
        "projectId": "7",
        "id": f"UnVuOnYxOnt{ident}",
        "tags": ["ladder"],
        "name": ident,
        "displayName": name,
        "sweepName": None,
        "state": state,
        "config": json.dumps(wrapped),
        "group": "ladder",
        "jobType": None,
        "commit": None,
        "readOnly": False,
        "createdAt": "2026-03-04T04:17:22Z",
        "heartbeatAt": "2026-03-05T12:01:22Z",
        "description": "",
        "notes": None,
        "systemMetrics": "{}",
        "summaryMetrics": json.dumps(summary),
        "historyLineCount": 3,
        "user": {"name": "a", "username": "a"},
        "historyKeys": None,
    }


@contextlib.contextmanager
def serve(nodes: Sequence[dict[str, Any]] | None) -> Iterator[str]:
    """Serve the runs of one project in pages of two, no project at all with None; the value is the server's address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(answer(body["query"], body.get("variables") or {}))

        def reply(self, data: dict[str, Any]) -> None:
            content = json.dumps({"data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    def answer(query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "query Runs" not in query:
            viewer = {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer, "serverInfo": None}
        if nodes is None:
            return {"project": None}
        start = int(variables.get("cursor") or 0)
        page = nodes[start : start + PAGE]
        edges = [{"node": each, "cursor": str(start + index)} for index, each in enumerate(page, 1)]
        info = {"endCursor": str(start + len(page)), "hasNextPage": start + PAGE < len(nodes)}
        project = {"internalId": "7", "runCount": len(nodes), "readOnly": False}
        return {"project": {**project, "runs": {"edges": edges, "pageInfo": info}}}

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
