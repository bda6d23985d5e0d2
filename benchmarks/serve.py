"""The servers that the benchmarks load, one in a process of its own: `python serve.py rpcstream|echo [CPU]`.

Prints its port. `echo` sends back whatever comes, on uvloop where there is one: no asyncio server is faster.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpcstream import Server
from rpcstream.process import loop_factory


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve_echo() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def make_server() -> Server:
    server = Server()

    @server
    def sum(a: int, b: int) -> int:
        return a + b

    @server(name="sum_later")
    async def sum_later(a: int, b: int) -> int:
        return a + b

    @server
    def echo(array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array

    return server


def main() -> None:
    if len(sys.argv) > 2 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[2])})
    if sys.argv[1] == "echo":
        with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
            runner.run(serve_echo())
    else:
        make_server().run(port=0, on_listening=lambda address: print(address.rpartition(":")[2], flush=True))


if __name__ == "__main__":
    main()
