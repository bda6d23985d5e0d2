"""The provider of the measured methods: a server by itself, or a client of a hub.

`real` is rpcstream's own, `bare` the least that can answer a call: on uvloop, parsed and written by orjson, with no
checks. As a program of its own (`_provider.py --port …`) it is a client of the hub at that port, and says when it has
registered. With `--clients` there are so many besides it, each with methods of its own, that only answer the
hub's pings.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any, cast

from _common import BACKLOG, HOST, Options, allow_many_files, needs, ready

with needs("rpcstream", "uvloop", "orjson"):
    import numpy as np
    import orjson
    import uvloop
    from numpy.typing import NDArray

    from rpcstream import AsyncClient, Server

PACKAGES = ("rpcstream", "uvloop", "orjson", "msgspec", "numpy")
METHODS_OF_EACH = 10


def echo_text(text: str) -> str:
    return text


def echo_array(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return array


METHODS: tuple[Callable[..., Any], ...] = (echo_text, echo_array)


class Bare(asyncio.Protocol):
    """Answers each request with its first parameter.

    Args:
        registration: the params of `rpc.register`, for a client of a hub; None for a server.
        on_registered: called with the reply to it.
    """

    def __init__(
        self,
        registration: dict[str, Any] | None = None,
        on_registered: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._registration = registration
        self._on_registered = on_registered
        self._pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._registration is not None:
            self._say({"jsonrpc": "2.0", "id": 0, "method": "rpc.register", "params": self._registration})

    def data_received(self, data: bytes) -> None:
        start = 0
        while (end := data.find(b"\n", start) + 1) > 0:
            self._pieces.append(data[start:end])
            self._take(orjson.loads(b"".join(self._pieces)))
            self._pieces.clear()
            start = end
        if start < len(data):
            self._pieces.append(data[start:])

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            params = message.get("params") or [None]
            self._say({"jsonrpc": "2.0", "id": message["id"], "result": params[0]})
        elif self._on_registered is not None:
            self._on_registered(message)

    def _say(self, message: dict[str, Any]) -> None:
        self._transport.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))


# -- as a server ------------------------------------------------------------------------------------------------


def serve_real(on_listening: Callable[[int], None]) -> None:
    server = Server()
    for method in METHODS:
        server.add(method)
    server.run(host=HOST, port=0, on_listening=lambda address: on_listening(int(address.rpartition(":")[2])))


def serve_bare(on_listening: Callable[[int], None]) -> None:
    async def listen() -> None:
        server = await asyncio.get_running_loop().create_server(Bare, HOST, 0, backlog=BACKLOG)
        on_listening(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(listen())


# -- as a client of a hub -----------------------------------------------------------------------------------------


async def offer_real(port: int) -> AsyncClient:
    client = AsyncClient(f"{HOST}:{port}", name="provider")
    for method in METHODS:
        client(method)
    await client.offer()
    return client


async def offer_bare(port: int, name: str, methods: list[str]) -> asyncio.BaseTransport:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[dict[str, Any]] = loop.create_future()
    registration = {"name": name, "methods": methods}
    transport, _ = await loop.create_connection(lambda: Bare(registration, answered.set_result), HOST, port)
    reply = await answered
    if "error" in reply:
        raise RuntimeError(f"the hub did not register {name}: {reply['error']}")
    return transport


async def offer(options: Options) -> None:
    """Offer the methods at the hub until the process is ended."""
    kept: list[Any] = []
    if options.kind == "real":
        kept.append(await offer_real(options.port))
    else:
        kept.append(await offer_bare(options.port, "provider", [method.__name__ for method in METHODS]))
    for number in range(options.clients):
        methods = [f"method_{number}_{place}" for place in range(METHODS_OF_EACH)]
        kept.append(await offer_bare(options.port, f"client-{number}", methods))
    ready(options.port, *PACKAGES)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", choices=["real", "bare"], default="real")
    parser.add_argument("--clients", type=int, default=0)
    allow_many_files()
    uvloop.run(offer(parser.parse_args()))
