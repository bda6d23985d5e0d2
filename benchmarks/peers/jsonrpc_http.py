"""JSON-RPC over HTTP with a new connection for each call: jsonrpclib-pelix, which reads and writes with orjson.

Its server speaks HTTP/1.0 and serves one connection after the other, like the standard library's XML-RPC below it.
"""

from __future__ import annotations

from _common import BACKLOG, HOST, Options, main, make_login, needs, ready

with needs("jsonrpclib-pelix", "orjson"):
    import orjson  # noqa: F401
    from jsonrpclib.SimpleJSONRPCServer import SimpleJSONRPCServer  # type: ignore[import-untyped]


def sum(a: int, b: int) -> int:
    return a + b


def ping() -> str:
    return "pong"


class Server(SimpleJSONRPCServer):  # type: ignore[misc]
    request_queue_size = BACKLOG


def serve(options: Options) -> None:
    server = Server((HOST, 0), logRequests=False)
    server.register_function(sum)
    server.register_function(make_login, "login")
    server.register_function(ping)
    ready(server.server_address[1], "jsonrpclib-pelix", "orjson")
    server.serve_forever()


if __name__ == "__main__":
    main(serve)
