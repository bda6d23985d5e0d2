"""Pyro5: an object in a daemon, a thread a connection, a proxy for each connection.

Its configuration is set for speed: the fastest of its serializers, and small messages sent at once. Arrays go as their
bytes.
"""

from __future__ import annotations

from typing import Any

from _common import (
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

with needs("Pyro5", "numpy"):
    import numpy as np
    import Pyro5.api  # type: ignore[import-untyped]

Pyro5.config.SERIALIZER = "marshal"
Pyro5.config.SOCK_NODELAY = True
Pyro5.config.THREADPOOL_SIZE = 2000  # connections at once


@Pyro5.api.expose
class Bench:
    def sum(self, a: int, b: int) -> int:
        return a + b

    def login(self, user: str, password: str, remember: bool) -> dict[str, Any]:
        return make_login(user, password, remember)

    def ping(self) -> str:
        return "pong"

    def echo(self, data: bytes) -> bytes:
        return np.frombuffer(data, np.float32).tobytes()


def serve(options: Options) -> None:
    daemon = Pyro5.api.Daemon(host=HOST, port=0)
    uri = daemon.register(Bench(), "bench")
    ready(uri.port, "Pyro5")
    daemon.requestLoop()


def load(options: Options) -> Result:
    return load_with_threads(options, [make_call(options) for _ in range(options.connections)])


def make_call(options: Options) -> Call:
    proxy = Pyro5.api.Proxy(f"PYRO:bench@{HOST}:{options.port}")
    method: Call = getattr(proxy, METHODS[options.topic])

    def call(*arguments: Any) -> Any:
        proxy._pyroClaimOwnership()  # a proxy belongs to one thread; it may not be the one that made it
        return method(*arguments)

    if options.topic == "array":
        return lambda array: np.frombuffer(call(array.tobytes()), np.float32)
    return call


if __name__ == "__main__":
    main(serve, load, many_in_flight=False)
