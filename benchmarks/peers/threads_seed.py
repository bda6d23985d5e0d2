"""JSON-RPC on newlines as in many a first version: blocking sockets, a thread a connection, the standard library's
json, functions called with whatever came.

An empty line ends the connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

from _common import BACKLOG, HOST, Options, main, make_login, ready


def sum(a: int, b: int) -> int:
    return a + b


def ping() -> str:
    return "pong"


METHODS: dict[str, Callable[..., Any]] = {"sum": sum, "login": make_login, "ping": ping}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    reply = {"jsonrpc": "2.0", "id": request.get("id")}
    try:
        function, params = METHODS[request["method"]], request.get("params") or []
        result = function(**params) if isinstance(params, dict) else function(*params)
    except Exception as error:
        return reply | {"error": {"code": -32603, "message": repr(error)}}
    return reply | {"result": result}


class Connection(StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while line := self.rfile.readline().strip():
            self.wfile.write((json.dumps(answer(json.loads(line))) + "\n").encode())


class Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = BACKLOG


def serve(options: Options) -> None:
    with Server((HOST, 0), Connection) as server:
        ready(server.server_address[1])
        server.serve_forever()


if __name__ == "__main__":
    main(serve)
