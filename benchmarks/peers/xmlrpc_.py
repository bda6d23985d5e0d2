"""XML-RPC of the standard library: SimpleXMLRPCServer, which serves one connection after the other.

It speaks HTTP/1.0 unless told otherwise, so that each call has a connection of its own, as its documentation has it.
"""

from __future__ import annotations

from typing import Any
from xmlrpc.server import SimpleXMLRPCServer

from _common import BACKLOG, HOST, Options, main, make_login, ready


def sum(a: int, b: int) -> int:
    return a + b


def ping() -> str:
    return "pong"


class Server(SimpleXMLRPCServer):
    request_queue_size = BACKLOG


def serve(options: Options) -> None:
    with Server((HOST, 0), logRequests=False) as server:
        functions: dict[str, Any] = {"sum": sum, "login": make_login, "ping": ping}
        for name, function in functions.items():
            server.register_function(function, name)
        ready(server.server_address[1])
        server.serve_forever()


if __name__ == "__main__":
    main(serve)
