"""zerorpc: methods of an object over ZeroMQ and msgpack, on gevent. Arrays go as their bytes.

With hundreds of connections pyzmq's layer for gevent says on standard error that it missed events; answers stay right.
"""

from __future__ import annotations

from typing import Any

from _common import (
    HOST,
    METHODS,
    Call,
    Options,
    Result,
    Tally,
    free_port,
    main,
    make_login,
    make_workers,
    needs,
    ready,
    work,
)

with needs("zerorpc", "numpy"):
    import gevent  # type: ignore[import-untyped]
    import numpy as np
    import zerorpc  # type: ignore[import-untyped]


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
    port = free_port()
    server = zerorpc.Server(Bench())
    server.bind(f"tcp://{HOST}:{port}")
    ready(port, "zerorpc", "pyzmq", "gevent")
    server.run()


def load(options: Options) -> Result:
    workers = make_workers(options, [make_call(options) for _ in range(options.connections)])
    tally = Tally(options)
    gevent.joinall([gevent.spawn(work, worker, tally) for worker in workers], raise_error=True)
    return tally.result()


def make_call(options: Options) -> Call:
    client = zerorpc.Client(f"tcp://{HOST}:{options.port}")
    method: Call = getattr(client, METHODS[options.topic])
    if options.topic == "array":
        return lambda array: np.frombuffer(method(array.tobytes()), np.float32)
    return method


if __name__ == "__main__":
    main(serve, load)
