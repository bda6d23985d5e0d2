"""WebSocket frames as bytes, and a client's end of a connection that sends and receives single ones."""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Any, NamedTuple

import orjson

from .messages import request

#: Seconds after which what is waited for is overdue.
PATIENCE = 20

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

#: The headers of a request for a WebSocket, and the answer that the RFC has for its key.
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ACCEPTED = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, first: int | None = None) -> bytes:
    """A frame; of a message that goes on if not `final`; `first` is its first byte, whatever it says."""
    start = bytes([(0x80 if final else 0) | opcode if first is None else first])
    size, mark = len(payload), 0x80 if masked else 0
    if size < 126:
        head = start + bytes([mark | size])
    elif size < 1 << 16:
        head = start + bytes([mark | 126]) + struct.pack("!H", size)
    else:
        head = start + bytes([mark | 127]) + struct.pack("!Q", size)
    if not masked:
        return head + payload
    mask = b"\x5a\xa5\x0f\xf0"
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return head + mask + (int.from_bytes(payload, "little") ^ key).to_bytes(size, "little")


def frame_head(opcode: int, size: int, *, final: bool = True) -> bytes:
    """The head alone of a client's frame of this size; its mask is zero."""
    return bytes([(0x80 if final else 0) | opcode, 0x80 | 127]) + struct.pack("!Q", size) + bytes(4)


def fragments(opcode: int, *pieces: bytes) -> bytes:
    """One message in these pieces."""
    last = len(pieces) - 1
    return b"".join(frame(CONTINUATION if at else opcode, each, final=at == last) for at, each in enumerate(pieces))


class Close(NamedTuple):
    """A close frame; the code 1005 if it has none."""

    code: int
    reason: str


class RawWebSocket:
    """A client's end after the handshake, which sends and receives single frames and does nothing by itself.

    Attributes:
        farewells: the params of each `$/goAway` that has come; these are no replies.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.farewells: list[Any] = []
        self._inbox: list[Any] = []
        self._pongs: list[bytes] = []
        self._close: Close | None = None

    @classmethod
    async def open(cls, address: str, *lines: str, path: str = "/", tls: ssl.SSLContext | None = None) -> RawWebSocket:
        """Connect to a server at "host:port", with these headers besides the usual ones."""
        host, _, port = address.rpartition("//")[2].rpartition(":")
        raw = cls(*await asyncio.open_connection(host, int(port), ssl=tls))
        head = "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *UPGRADE, *lines, "", ""])
        raw.writer.write(head.encode())
        answer = await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert ACCEPTED.encode() in answer
        return raw

    def send(self, *messages: Any) -> None:
        """Objects as JSON in text frames, bytes as they are; all with one write."""
        parts = [m if isinstance(m, bytes) else frame(TEXT, orjson.dumps(m)) for m in messages]
        self.writer.write(b"".join(parts))

    def call(self, method: str, *params: Any, id: Any = 1) -> None:
        self.send(request(method, *params, id=id))

    def abort(self) -> None:
        self.writer.transport.abort()

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
        while not self._pongs:
            assert await self._read()
        return self._pongs.pop(0)

    async def close_frame(self) -> Close:
        """The close frame, as soon as it has come."""
        while self._close is None:
            assert await self._read()
        return self._close

    async def closed(self) -> Close | None:
        """The close frame, once the connection has ended."""
        while await self._read():
            pass
        return self._close

    async def rest(self) -> list[Any]:
        """All messages until the connection ends."""
        while await self._read():
            pass
        found, self._inbox = self._inbox, []
        return found

    async def _read(self) -> bool:
        """Read one frame; False at the end. A server sends whole messages, and masks none."""
        # The other end gives up early where it is cut off while it still writes.
        try:
            first, size = await self._exactly(2)
            if size >= 126:
                size = int.from_bytes(await self._exactly(2 if size == 126 else 8), "big")
            payload = await self._exactly(size)
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        assert self._close is None, "something came behind the close frame"
        if first == 0x80 | PONG:
            self._pongs.append(payload)
        elif first == 0x80 | CLOSE:
            self._close = Close(int.from_bytes(payload[:2], "big") if payload else 1005, payload[2:].decode())
        elif first != 0x80 | PING:
            assert first in (0x80 | TEXT, 0x80 | BINARY), first
            message = orjson.loads(payload)
            is_farewell = isinstance(message, dict) and message.get("method") == "$/goAway"
            (self.farewells if is_farewell else self._inbox).append(message)
        return True

    async def _exactly(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), PATIENCE)
