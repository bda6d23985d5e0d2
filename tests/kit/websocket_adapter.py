"""Carries the lines of a raw peer over a WebSocket, one frame for each line, with the `websockets` library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.uri import parse_uri


class WebSocketAdapter(asyncio.Protocol):
    """The protocol of a WebSocket connection; hands over to `lines` once the handshake is done.

    Args:
        url: that of the server, at a client; None at a server.
    """

    def __init__(self, lines: asyncio.Protocol, url: str | None = None) -> None:
        self.lines = lines
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frames: ClientProtocol | ServerProtocol
        self._frames = ServerProtocol(max_size=None) if url is None else ClientProtocol(parse_uri(url), max_size=None)
        self._parts: list[bytes] = []
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if isinstance(self._frames, ClientProtocol):
            self._frames.send_request(self._frames.connect())
            self.flush()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            self._take(event)
        self.flush()
        if isinstance(self._frames, ServerProtocol) and self._frames.close_expected():
            self._transport.close()  # the server's part, once both have said goodbye

    def _take(self, event: Any) -> None:
        if isinstance(event, Request):
            assert isinstance(self._frames, ServerProtocol)
            self._frames.send_response(self._frames.accept(event))
            self._open()
        elif isinstance(event, Response):
            assert event.status_code == 101, event
            self._open()
        elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._parts.append(bytes(event.data))
            if event.fin:
                message, self._parts = b"".join(self._parts), []
                self.lines.data_received(message + b"\n")

    def _open(self) -> None:
        self.flush()
        self.lines.connection_made(_LineTransport(self, self._transport))
        if not self.opened.done():
            self.opened.set_result(None)

    def eof_received(self) -> bool:
        self.lines.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the handshake was not finished"))
        self.lines.connection_lost(exc)

    def say(self, line: bytes) -> None:
        try:
            line.decode()
        except UnicodeDecodeError:
            self._frames.send_binary(line)
        else:
            self._frames.send_text(line)

    def send_text(self, message: bytes) -> None:
        self._frames.send_text(message)
        self.flush()

    def flush(self) -> None:
        """With one write, as lines are."""
        self._transport.write(b"".join(self._frames.data_to_send()))


class _LineTransport:
    """The transport as `lines` sees it: each line written is a frame."""

    def __init__(self, adapter: WebSocketAdapter, transport: Any) -> None:
        self._adapter = adapter
        self._transport = transport
        self._rest = b""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._adapter.say(line)
        self._adapter.flush()

    def send_message(self, message: bytes) -> None:
        """Send one frame of text, in which there may be line ends."""
        self._adapter.send_text(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def connect_over_websocket(make: Callable[[], Any], url: str, **where: Any) -> Any:
    """Connect a line protocol to a WebSocket server."""
    lines = make()
    _, adapter = await asyncio.get_running_loop().create_connection(lambda: WebSocketAdapter(lines, url), **where)
    await adapter.opened
    return lines
