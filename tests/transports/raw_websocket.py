"""A WebSocket server and client of ours without the HTTP transport, and a raw WebSocket that sends any bytes.

The handshake is read here, so that tests of frames depend on no HTTP parser.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson

from rpcstream import AsyncClient, Server
from rpcstream.limits import Limits
from rpcstream.transports.listen import Listener
from rpcstream.transports.stream import LineStream
from rpcstream.transports.websocket import WebSocketStream
from rpcstream.wire.frames import CLOSE, PONG, TEXT, Close, FrameReader, frame
from rpcstream.wire.http_messages import Request
from rpcstream.wire.upgrade import accept_upgrade, check_response, request_upgrade

from ..internals import connection_table, limits_of, new_listener_session, start_without_listening

CONTINUATION = 0x0


def fragment(opcode: int, payload: bytes, *, final: bool = False, masked: bool = True) -> bytes:
    """A frame that ends its message only if `final`; from a server if not `masked`."""
    made = bytearray(frame(opcode, payload, masked=masked))
    made[0] = (0x80 if final else 0) | opcode
    return bytes(made)


def frame_head(opcode: int, size: int, *, final: bool = True) -> bytes:
    """The head of a client's frame of this size; its mask is zero."""
    return bytes([(0x80 if final else 0) | opcode, 0x80 | 127]) + struct.pack("!Q", size) + bytes(4)


class _Handshake(asyncio.Protocol):
    """Reads one HTTP head, then hands the connection over to the protocol that `on_head` returns."""

    def __init__(self, on_head: Callable[[bytes], WebSocketStream | None]) -> None:
        self._on_head = on_head
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, rest = self._came.partition(b"\r\n\r\n")
        stream = self._on_head(head + end) if end else None
        if stream is not None:
            self.transport.set_protocol(stream)
            stream.connection_made(self.transport)
            if rest:
                stream.data_received(rest)


class WebSocketServer:
    """A server that accepts WebSocket connections only.

    Attributes:
        streams: its connections, in the order in which they were made.
    """

    def __init__(self, server: Server, listener: Listener, trusted: ssl.SSLContext | None) -> None:
        self.streams: list[WebSocketStream] = []
        self.port = 0
        self.listener = listener
        self._server = server
        self._trusted = trusted

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"

    def accept(self) -> asyncio.Protocol:
        def on_head(head: bytes) -> WebSocketStream | None:
            first, *lines = head.decode().strip().split("\r\n")
            method, target, _ = first.split(" ")
            fields = (line.partition(":") for line in lines)
            response = accept_upgrade(
                Request(method, target, {name.lower(): value.strip() for name, _, value in fields})
            )
            handshake.transport.write(response.head(len(response.body), False) + bytes(response.body))
            if response.status == 101:
                return self._make_stream()
            handshake.transport.close()
            return None

        handshake = _Handshake(on_head)
        return handshake

    def _make_stream(self) -> WebSocketStream:
        stream = WebSocketStream(
            new_listener_session(self.listener),
            limits=self._server.limits,
            client=False,
            on_open=connection_table(self._server).opened,
            on_close=connection_table(self._server).closed,
        )
        self.streams.append(stream)
        return stream

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[AsyncClient]:
        async with AsyncClient("memory", connect=websocket_connect(self.port), **options) as client:
            yield client

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[RawWebSocket]:
        raw = RawWebSocket(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self._trusted))
        head, key = request_upgrade(f"127.0.0.1:{self.port}", "/", {})
        raw.writer.write(head)
        check_response(await raw.reader.readuntil(b"\r\n\r\n"), key)
        try:
            yield raw
        finally:
            raw.writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await raw.writer.wait_closed()


@asynccontextmanager
async def serving(
    server: Server, *, own: ssl.SSLContext | None = None, trusted: ssl.SSLContext | None = None
) -> AsyncIterator[WebSocketServer]:
    """Serve by WebSocket while the block runs; drains when it is left.

    Args:
        own, trusted: for TLS, of the server and of raw clients.
    """
    async with start_without_listening(server) as running:
        serving = WebSocketServer(server, running.listener, trusted)
        accepting = await asyncio.get_running_loop().create_server(serving.accept, "127.0.0.1", 0, ssl=own)
        serving.port = accepting.sockets[0].getsockname()[1]
        try:
            yield serving
        finally:
            accepting.close()


def websocket_connect(port: int, limits: Limits | None = None) -> Callable[[Callable[[], LineStream]], Any]:
    """The `connect` function for an `AsyncClient` that connects it by WebSocket to this port."""

    async def connect(make_stream: Callable[[], LineStream]) -> Any:
        line = make_stream()
        made: asyncio.Future[WebSocketStream] = asyncio.get_running_loop().create_future()
        question, key = request_upgrade(f"127.0.0.1:{port}", "/", {})

        def on_head(head: bytes) -> WebSocketStream:
            check_response(head, key)
            stream = WebSocketStream(line.session, limits=limits_of(line), client=True, address=line.address)
            made.set_result(stream)
            return stream

        _, handshake = await asyncio.get_running_loop().create_connection(
            lambda: _Handshake(on_head), "127.0.0.1", port
        )
        handshake.transport.write(question)
        return await made

    return connect


class _PongReader(FrameReader):
    """A frame reader that keeps the payloads of pongs."""

    def __init__(self) -> None:
        super().__init__(masked=False, max_size=1 << 40)
        self.pongs: list[bytes] = []

    def _take(self, first: int, payload: bytes, messages: list[Any]) -> None:
        if first & 0x0F == PONG:
            self.pongs.append(payload)
        super()._take(first, payload, messages)


class RawWebSocket:
    """A client's end after the handshake, which sends and receives single frames and does nothing by itself.

    Attributes:
        farewells: the params of each `$/goAway` that has come; these are no replies.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = _PongReader()
        self._inbox: list[Any] = []
        self.farewells: list[Any] = []

    def send(self, *messages: Any) -> None:
        """Objects as JSON in text frames, bytes as they are; all with one write."""
        parts = [m if isinstance(m, bytes) else frame(TEXT, orjson.dumps(m), masked=True) for m in messages]
        self.writer.write(b"".join(parts))

    def call(self, method: str, *params: Any, id: Any = 1) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": list(params)})

    def say_close(self, code: int = 1000) -> None:
        self.send(frame(CLOSE, Close(code).payload, masked=True))

    async def reply(self) -> Any:
        """The next message; None when there is none before the end."""
        while not self._inbox and await self._read():
            pass
        return self._inbox.pop(0) if self._inbox else None

    async def result(self, method: str, *params: Any) -> Any:
        self.call(method, *params)
        return (await self.reply())["result"]

    async def pong(self) -> bytes:
        """The next pong."""
        while not self._frames.pongs:
            assert await self._read()
        return self._frames.pongs.pop(0)

    async def closed(self) -> Close | None:
        """The close frame, once the connection has ended."""
        while await self._read():
            pass
        return self._frames.closed

    async def close_frame(self) -> Close:
        """The close frame, as soon as it has come."""
        while self._frames.closed is None:
            assert await self._read()
        return self._frames.closed

    async def _read(self) -> bool:
        # The other end gives up early where it is cut off while it still writes.
        try:
            data = await asyncio.wait_for(self.reader.read(1 << 20), 20)
        except ConnectionError:
            return False
        if data and self._frames.closed is None:
            for message in map(orjson.loads, self._frames.feed(data)):
                is_farewell = isinstance(message, dict) and message.get("method") == "$/goAway"
                (self.farewells if is_farewell else self._inbox).append(message)
            assert self._frames.fault is None, self._frames.fault
        return bool(data)
