"""Raw connections to servers: for bytes of any kind, of line streams or of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, Self

import orjson

#: Bytes of the longest line that a raw connection reads.
LIMIT = 256 * 1024 * 1024


class RawConnection:
    """A socket to a server, for bytes of any kind.

    Attributes:
        farewells: the params of each `$/goAway` that has come; no other function gives these.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.farewells: list[Any] = []

    @classmethod
    async def open(cls, address: str, *, tls: ssl.SSLContext | None = None) -> Self:
        """Connect to a server: "host:port" or "unix:///path", with anything like "tls://" before it."""
        if address.startswith("unix://"):
            return cls(*await asyncio.open_unix_connection(address.removeprefix("unix://"), limit=LIMIT))
        host, _, port = address.rpartition("//")[2].rpartition(":")
        return cls(*await asyncio.open_connection(host.strip("[]"), int(port), limit=LIMIT, ssl=tls))

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def reply(self) -> Any:
        """The next message, parsed; None at the end of the stream."""
        while True:
            line = await asyncio.wait_for(self.reader.readline(), 20)
            message = orjson.loads(line) if line else None
            if not self._is_farewell(message):
                return message

    async def ask(self, line: bytes | str) -> Any:
        await self.send((line.encode() if isinstance(line, str) else line) + b"\n")
        return await self.reply()

    async def call(self, method: str, params: Any = None, call_id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params, "id": call_id}
        return await self.ask(orjson.dumps(message))

    async def rest(self) -> list[Any]:
        """All replies until the server closes."""
        lines = (await asyncio.wait_for(self.reader.read(), 20)).splitlines()
        return [message for message in map(orjson.loads, lines) if not self._is_farewell(message)]

    def _is_farewell(self, message: Any) -> bool:
        is_one = isinstance(message, dict) and message.get("method") == "$/goAway"
        if is_one:
            self.farewells.append(message["params"])
        return is_one

    async def is_over(self) -> bool:
        """Wait until the server closes, or the connection is lost; what comes until then is dropped."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass
        return True

    def end(self) -> None:
        """Say that nothing more will be sent."""
        self.writer.write_eof()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass
