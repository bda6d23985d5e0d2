"""Granian: HTTP in Rust, one worker with one thread. Only the page, by an application of its own interface, RSGI.

Its static files would need no Python, but granian 2.8.7 sends them in chunks, which the load generator does not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _common import BACKLOG, HOST, PAGE, PAGE_PATH, PAGE_TYPE, Options, free_port, main, needs, ready_when_open

with needs("granian", "uvloop"):
    import uvloop  # noqa: F401
    from granian import Granian
    from granian.constants import Interfaces, Loops

HEAD = [("content-type", PAGE_TYPE)]


async def app(scope: Any, protocol: Any) -> None:
    if scope.path == PAGE_PATH:
        protocol.response_bytes(200, HEAD, PAGE)
    else:
        protocol.response_empty(404, [])


def serve(options: Options) -> None:
    port = free_port()
    server = Granian(
        f"{Path(__file__).stem}:app",
        address=HOST,
        port=port,
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        backlog=BACKLOG,
        log_enabled=False,
    )
    ready_when_open(port, "granian", "uvloop")
    server.serve()


if __name__ == "__main__":
    main(serve)
