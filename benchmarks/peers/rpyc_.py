"""RPyC: a service with exposed methods on its ThreadedServer.

It sends numbers, text, bytes and tuples as they are and anything else as a reference, which costs a call for each use;
so the login is answered with a tuple of pairs, and arrays go as their bytes. Remote methods are looked up once. What
is longer than 3,000 bytes it compresses, which most of an array's time goes to.
"""

from __future__ import annotations

from typing import Any

from _common import (
    BACKLOG,
    HOST,
    METHODS,
    Call,
    Options,
    Result,
    load_with_threads,
    main,
    make_login,
    needs,
    ready,
)

with needs("rpyc", "numpy"):
    import numpy as np
    import rpyc  # type: ignore[import-untyped]
    from rpyc.utils.server import ThreadedServer  # type: ignore[import-untyped]


class Bench(rpyc.Service):  # type: ignore[misc]
    def exposed_sum(self, a: int, b: int) -> int:
        return a + b

    def exposed_login(self, user: str, password: str, remember: bool) -> tuple[tuple[str, Any], ...]:
        return tuple(make_login(user, password, remember).items())

    def exposed_ping(self) -> str:
        return "pong"

    def exposed_echo(self, data: bytes) -> bytes:
        return np.frombuffer(data, np.float32).tobytes()


def serve(options: Options) -> None:
    server = ThreadedServer(Bench, hostname=HOST, port=0, backlog=BACKLOG)
    ready(server.port, "rpyc")
    server.start()


def load(options: Options) -> Result:
    services = [rpyc.connect(HOST, options.port).root for _ in range(options.connections)]
    return load_with_threads(options, [make_call(service, options.topic) for service in services])


def make_call(service: Any, topic: str) -> Call:
    method: Call = getattr(service, METHODS[topic])
    if topic == "login":
        return lambda *arguments: dict(method(*arguments))
    if topic == "array":
        return lambda array: np.frombuffer(method(array.tobytes()), np.float32)
    return method


if __name__ == "__main__":
    main(serve, load, many_in_flight=False)
