"""gevent's pywsgi: WSGI in Python, a greenlet a connection, no log. Only the page.

gevent 26.9.0 sends the head and the body of a response one after the other and leaves the kernel to wait for the
first to be acknowledged: 44 ms for each response. That is no limit of the server's, so here it is told not to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from _common import BACKLOG, HOST, PAGE, PAGE_PATH, PAGE_TYPE, Options, main, needs, ready

with needs("gevent"):
    from gevent.pywsgi import WSGIServer
    from gevent.socket import IPPROTO_TCP, TCP_NODELAY

HEAD = [("Content-Type", PAGE_TYPE), ("Content-Length", str(len(PAGE)))]


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] != PAGE_PATH:
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    start_response("200 OK", HEAD)
    return [PAGE]


def serve(options: Options) -> None:
    server = WSGIServer((HOST, 0), app, backlog=BACKLOG, log=None)
    server.start()
    server.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # each connection has it from the listener
    ready(server.server_port, "gevent")
    server.serve_forever()


if __name__ == "__main__":
    main(serve)
