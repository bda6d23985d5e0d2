"""A hub on a real port, and raw connections to it that say what no client of ours would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from rpcstream import Limits
from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop

from ..websocket_adapter import connect_over_websocket

#: A request: id, method and params, as JSON.
CALL = '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}'

#: Seconds of real time after which what must come has not.
PATIENCE = 15


class Peer:
    """One connection, line by line.

    Attributes:
        lines: as they came, without their ends.
    """

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.transport: Any = None
        self._parts: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for line in whole:
            line, self._parts = b"".join((*self._parts, line)), []
            if line.strip():
                self.lines.put_nowait(line)
        self._parts.append(rest)

    def eof_received(self) -> bool:
        self.lines.put_nowait(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lines.put_nowait(None)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def say(self, *messages: Any) -> None:
        """Text and bytes as they are, anything else as JSON; each as a line (a frame, over a WebSocket)."""
        for each in messages:
            data = each.encode() if isinstance(each, str) else each if isinstance(each, bytes) else orjson.dumps(each)
            self.transport.write(data + b"\n")

    async def line(self) -> bytes | None:
        """What comes next, as it is; None at the end."""
        is_real = not isinstance(asyncio.get_running_loop(), FakeTimeLoop)
        async with asyncio.timeout(PATIENCE if is_real else None):
            return await self.lines.get()

    async def hear(self) -> Any:
        """What comes next, read with integers of any size."""
        line = await self.line()
        return None if line is None else json.loads(line)

    async def ask(self, method: str, params: Any = None, call_id: Any = "ask", **members: Any) -> Any:
        """What comes next, once this was asked."""
        self.say({"jsonrpc": "2.0", "method": method, "params": params, "id": call_id, **members})
        return await self.hear()

    async def result(self, method: str, params: Any = None) -> Any:
        """The result, which must be one and come next."""
        reply = await self.ask(method, params)
        assert "result" in reply, reply
        return reply["result"]

    async def code(self, method: str, params: Any = None) -> int:
        """The error's code, which must be one and come next."""
        reply = await self.ask(method, params)
        assert "error" in reply, reply
        return int(reply["error"]["code"])

    async def offers(self, name: str, *methods: Any) -> Any:
        return await self.result("rpc.register", {"name": name, "methods": list(methods)})

    async def silence(self) -> None:
        """Nothing else has come, nor does it."""
        for _ in range(3):
            assert await self.ask("rpc.ping", None, "silence") == {"jsonrpc": "2.0", "id": "silence", "result": "pong"}

    def close(self) -> None:
        self.transport.abort()


class FramedPeer(Peer):
    """The same over a WebSocket, where a message may have line ends in it: what is said is one frame each."""

    def say(self, *messages: Any) -> None:
        for each in messages:
            data = each.encode() if isinstance(each, str) else each if isinstance(each, bytes) else orjson.dumps(each)
            self.transport._adapter._frames.send_text(data)
            self.transport._adapter.flush()


class Place:
    """A hub that is listening."""

    def __init__(self, hub: Hub, address: str) -> None:
        self.hub = hub
        self.address = address
        self.peers: list[Peer] = []

    @property
    def where(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def peer(self) -> Peer:
        """A connection that speaks lines."""
        host, port = self.where
        _, peer = await asyncio.get_running_loop().create_connection(_Lines, host, port)
        self.peers.append(peer.peer)
        return peer.peer

    async def framed(self) -> Peer:
        """One that speaks WebSocket."""
        host, port = self.where
        peer: Peer = await connect_over_websocket(FramedPeer, f"ws://{self.address}/", host=host, port=port)
        self.peers.append(peer)
        return peer

    async def post(self, body: bytes | str, **headers: str) -> bytes:
        """What HTTP answers to this body."""
        data = body.encode() if isinstance(body, str) else body
        reader, writer = await asyncio.open_connection(*self.where)
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST / HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}{more}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
        finally:
            writer.close()
        return answer.partition(b"\r\n\r\n")[2]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.002)


class _Lines(asyncio.Protocol):
    def __init__(self) -> None:
        self.peer = Peer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.peer.data_received(data)

    def eof_received(self) -> bool:
        return self.peer.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.peer.connection_lost(error)


Open = Callable[..., Awaitable[Place]]


@pytest.fixture
async def open_hub() -> AsyncIterator[Open]:
    """`place = await open_hub(Hub(…))`; with the test everything is closed, and nothing may be left then."""
    async with AsyncExitStack() as stack:

        async def open_one(hub: Hub | None = None, **options: Any) -> Place:
            limits = Limits(**options) if options else Limits()
            hub = hub if hub is not None else Hub(limits=limits, drain_timeout=5)
            place = Place(hub, await stack.enter_async_context(hub.listening(port=0)))
            stack.push_async_callback(_end, place)
            return place

        yield open_one


async def _end(place: Place) -> None:
    for peer in place.peers:
        peer.close()
    directory = place.hub.directory
    await place.until(lambda: not directory.members)
    assert not directory.by_name
    assert not directory.routes
    assert not len(place.hub.topics)


@pytest.fixture
async def place(open_hub: Open) -> Place:
    return await open_hub()


def filled(text: str, *values: Any) -> str:
    """A text with values in the places of its `%s` and `%d`: JSON has braces of its own."""
    return text % values


async def provider_and_caller(place: Place, *methods: Any) -> tuple[Peer, Peer]:
    provider, caller = await place.peer(), await place.peer()
    await provider.offers("p", *(methods or ("work",)))
    return provider, caller


async def asked_of(provider: Peer, caller: Peer, call_id: str = "1", params: str = "[1]") -> Any:
    """The id that a call has at its provider."""
    caller.say(CALL % (call_id, "work", params))
    return (await provider.hear())["id"]


async def stall(place: Place, slow: Peer, other: Peer) -> None:
    """Have a registered peer stop reading until the hub has noticed that."""
    slow.transport.pause_reading()
    client = place.hub.directory.by_name["p"]
    text = filled('{"jsonrpc":"2.0","method":"work","params":["%s"]}', "x" * 500_000)
    while client.is_flowing:
        other.say(text)
        await asyncio.sleep(0.001)
    for _ in range(3):  # all that was said has come
        assert await other.ask("rpc.ping", None, "silence") is not None
