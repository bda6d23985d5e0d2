"""A hub on a real port, and raw peers that send what no client of ours would."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from rpcstream import Limits
from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop
from rpcstream.transports.memory import join

from ..kit.nats_server import NatsServer, skip_without_program
from ..kit.websocket_adapter import connect_over_websocket
from .nats_group import Group

#: A request: id, method and params, as JSON.
CALL = '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}'

#: Seconds of real time after which a message is overdue.
PATIENCE = 15


class RawPeer:
    """A connection that sends and receives single lines.

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
        """The next line, as it came; None at the end."""
        is_real = not isinstance(asyncio.get_running_loop(), FakeTimeLoop)
        async with asyncio.timeout(PATIENCE if is_real else None):
            return await self.lines.get()

    async def hear(self) -> Any:
        """The next message, parsed with integers of any size."""
        line = await self.line()
        return None if line is None else json.loads(line)

    async def ask(self, method: str, params: Any = None, call_id: Any = "ask", **members: Any) -> Any:
        """Send a request; returns the next message."""
        self.say({"jsonrpc": "2.0", "method": method, "params": params, "id": call_id, **members})
        return await self.hear()

    async def result(self, method: str, params: Any = None) -> Any:
        """Send a request; the next message must be its result."""
        reply = await self.ask(method, params)
        assert "result" in reply, reply
        return reply["result"]

    async def code(self, method: str, params: Any = None) -> int:
        """Send a request; the next message must be its error. Returns the code."""
        reply = await self.ask(method, params)
        assert "error" in reply, reply
        return int(reply["error"]["code"])

    async def offers(self, name: str, *methods: Any) -> Any:
        return await self.result("rpc.register", {"name": name, "methods": list(methods)})

    async def silence(self) -> None:
        """Assert that nothing else comes."""
        for _ in range(3):
            assert await self.ask("rpc.ping", None, "silence") == {"jsonrpc": "2.0", "id": "silence", "result": "pong"}

    def close(self) -> None:
        self.transport.abort()


class RawWebSocketPeer(RawPeer):
    """The same over a WebSocket: each message is a frame, and may have line ends in it."""

    def say(self, *messages: Any) -> None:
        for each in messages:
            data = each.encode() if isinstance(each, str) else each if isinstance(each, bytes) else orjson.dumps(each)
            self.transport.send_message(data)


class FramePeer(RawPeer):
    """The same, but binary frames come as `Frame`, and can be sent."""

    def __init__(self) -> None:
        super().__init__()
        self._data = bytearray()
        #: Bytes that the first message has, as far as is known.
        self._needed = 0

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= self._needed and (message := self._next()) is not None:
            self._needed = 0
            if message:
                self.lines.put_nowait(message)

    def _next(self) -> bytes | None:
        """Take out the first message; None if it is not complete."""
        end = self._data.find(b"\n") + 1
        if not end:
            return None
        line = bytes(self._data[:end])
        if not line.startswith(b"@"):
            del self._data[:end]
            return line.strip()
        json_size, *sizes = map(int, line[1:].split())
        begins = [end + json_size]
        for size in sizes[:-1]:
            begins.append(begins[-1] + size + -size % 8)
        self._needed = begins[-1] + sizes[-1]
        if len(self._data) < self._needed:
            return None
        json = bytes(self._data[end : end + json_size])
        assert begins[0] % 8 == 0
        assert json.endswith(b"\n")
        payloads = [bytes(self._data[begin : begin + size]) for begin, size in zip(begins, sizes, strict=True)]
        del self._data[: self._needed]
        return Frame(json, payloads)

    def say_frame(self, message: Any, *payloads: bytes) -> None:
        """Send a message in which `{"$bin": k}` stands for each of these."""
        self.transport.write(frame_of(message, *payloads))

    async def frame(self) -> tuple[Any, list[bytes]]:
        """The next message, which must be a frame, and its payloads."""
        frame = await self.line()
        assert isinstance(frame, Frame), frame
        return json.loads(frame), frame.payloads

    async def declare(self) -> None:
        """Say that it reads frames."""
        assert await self.result("rpc.hello", {"binary": 1}) == {"binary": 1}


class Frame(bytes):
    """The JSON of a binary frame."""

    def __new__(cls, json: bytes, payloads: list[bytes]) -> Frame:
        frame = super().__new__(cls, json)
        frame.payloads = payloads
        return frame

    payloads: list[bytes]


def frame_of(message: Any, *payloads: bytes) -> bytes:
    """A binary frame with this message (JSON, or what becomes of it)."""
    text = message.encode() if isinstance(message, str) else orjson.dumps(message)
    head = f"@{len(text) + 1} {' '.join(str(len(each)) for each in payloads)}"
    head += " " * (-(len(head) + 1 + len(text) + 1) % 8) + "\n"
    padded = [each + bytes(-len(each) % 8) for each in payloads[:-1]]
    return b"".join((head.encode(), text, b"\n", *padded, payloads[-1]))


class RunningHub:
    """A hub that listens on a port, and the peers that are connected to it."""

    def __init__(self, hub: Hub, address: str) -> None:
        self.hub = hub
        self.address = address
        self.peers: list[RawPeer] = []

    @property
    def where(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def peer(self) -> RawPeer:
        """Connect a peer that sends lines."""
        host, port = self.where
        _, peer = await asyncio.get_running_loop().create_connection(_RawPeerProtocol, host, port)
        self.peers.append(peer.peer)
        return peer.peer

    async def frame_peer(self, *, declares: bool = True) -> FramePeer:
        """Connect a peer that sends lines and frames; it gets frames if it `declares` that it reads them."""
        peer = FramePeer()
        await asyncio.get_running_loop().create_connection(lambda: _RawPeerProtocol(peer), *self.where)
        self.peers.append(peer)
        if declares:
            await peer.declare()
        return peer

    async def websocket_peer(self) -> RawPeer:
        """Connect a peer over WebSocket."""
        host, port = self.where
        peer: RawPeer = await connect_over_websocket(RawWebSocketPeer, f"ws://{self.address}/", host=host, port=port)
        self.peers.append(peer)
        return peer

    async def post(self, body: bytes | str, **headers: str) -> bytes:
        """Send a POST; returns the body of the answer."""
        data = body.encode() if isinstance(body, str) else body
        reader, writer = await asyncio.open_connection(*self.where)
        headers = {"Content_Type": "application/json", **headers}
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST / HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\n"
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


class _RawPeerProtocol(asyncio.Protocol):
    def __init__(self, peer: RawPeer | None = None) -> None:
        self.peer = RawPeer() if peer is None else peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.peer.data_received(data)

    def eof_received(self) -> bool:
        return self.peer.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.peer.connection_lost(error)


OpenHub = Callable[..., Awaitable[RunningHub]]

#: Called with a hub in memory, and a function that connects a peer to it.
Main = Callable[[Hub, Callable[[], RawPeer]], Awaitable[None]]


@pytest.fixture
def with_hub() -> Callable[..., None]:
    """`with_hub(main, …)` runs `main(hub, connect)` with a hub in memory, in a loop whose time jumps."""

    def run(main: Main, **options: Any) -> None:
        async def running() -> None:
            hub = Hub(drain_timeout=5, **options)
            async with hub.in_memory() as accept:
                peers: list[RawPeer] = []

                def connect() -> RawPeer:
                    lines = _RawPeerProtocol()
                    join(lines, accept())
                    peers.append(lines.peer)
                    return lines.peer

                await main(hub, connect)
                for peer in peers:
                    peer.close()

        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(running())

    return run


@pytest.fixture
async def open_hub() -> AsyncIterator[OpenHub]:
    """`running_hub = await open_hub(Hub(…))`; closed after the test, when no client, name or route may be left."""
    async with AsyncExitStack() as stack:

        async def open_one(hub: Hub | None = None, **options: Any) -> RunningHub:
            limits = Limits(**options) if options else Limits()
            hub = hub if hub is not None else Hub(limits=limits, drain_timeout=5)
            running_hub = RunningHub(hub, await stack.enter_async_context(hub.listening(port=0)))
            stack.push_async_callback(_end, running_hub)
            return running_hub

        yield open_one


async def _end(running_hub: RunningHub) -> None:
    for peer in running_hub.peers:
        peer.close()
    directory = running_hub.hub.directory
    await running_hub.until(lambda: not directory.members)
    assert not directory.by_name
    assert not directory.routes
    assert not len(running_hub.hub.topics)


@pytest.fixture
async def running_hub(open_hub: OpenHub) -> RunningHub:
    return await open_hub()


def filled(text: str, *values: Any) -> str:
    """Fill in `%s` and `%d`, since JSON has braces of its own."""
    return text % values


async def provider_and_caller(running_hub: RunningHub, *methods: Any) -> tuple[RawPeer, RawPeer]:
    provider, caller = await running_hub.peer(), await running_hub.peer()
    await provider.offers("p", *(methods or ("work",)))
    return provider, caller


async def asked_of(provider: RawPeer, caller: RawPeer, call_id: str = "1", params: str = "[1]") -> Any:
    """The id that a call has at its provider."""
    caller.say(CALL % (call_id, "work", params))
    return (await provider.hear())["id"]


async def stall(running_hub: RunningHub, slow: RawPeer, other: RawPeer) -> None:
    """Have a registered peer stop reading until the hub has noticed that."""
    slow.transport.pause_reading()
    client = running_hub.hub.directory.by_name["p"]
    text = filled('{"jsonrpc":"2.0","method":"work","params":["%s"]}', "x" * 500_000)
    while client.is_flowing:
        other.say(text)
        await asyncio.sleep(0.001)
    for _ in range(3):  # all that was said has come
        assert await other.ask("rpc.ping", None, "silence") is not None


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """A NATS server for all tests of one process: each has a group of its own."""
    pytest.importorskip("nats")
    skip_without_program()
    with NatsServer() as server:
        yield server


@pytest.fixture
async def group(nats: NatsServer, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """Hubs that join one group; at the end nothing is left in them."""
    async with AsyncExitStack() as stack:
        group = Group(nats.url, secrets.token_hex(8), stack)
        yield group
    for hub in group.hubs:
        assert not hub.directory.members
        assert not hub.directory.routes
        assert not hub.directory.elsewhere
        assert hub.directory.cost_elsewhere == hub.directory.offered_elsewhere == 0
        assert not len(hub.topics)


@pytest.fixture
async def nats_client(nats: NatsServer) -> AsyncIterator[Any]:
    from ..kit.plain_nats import plain_client

    async with plain_client(nats.url) as client:
        yield client
