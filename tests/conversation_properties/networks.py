"""Raw peers, and the two networks that connect them: memory, and TCP on this machine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from rpcstream import Server

from ..kit.memory import join
from .reference_model import ConnectionModel


class RawPeer(asyncio.Protocol):
    """Sends what it is told to send, and keeps what it receives.

    Attributes:
        asked: the requests that the other end has made and that were not answered, and those that were.
        replies: how many came for each id (its type and the id itself), and what they said.
        credit: items that the other end permitted for each stream.
        was_left: the other end closed the connection although nothing had been done to it.
    """

    def __init__(self, connection: ConnectionModel) -> None:
        self.connection = connection
        self.asked: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.replies: dict[tuple[str, Any], list[dict[str, Any]]] = {}
        self.items: Counter[str] = Counter()
        self.credit: Counter[str] = Counter()
        self.is_open = False
        self.has_ended = False
        self.was_left = False
        self._transport: Any = None
        self._partial = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)  # which keeps integers of any size
            for one in message if isinstance(message, list) else [message]:
                self.hear(one)

    def eof_received(self) -> bool:
        self._is_left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._is_left()

    def _is_left(self) -> None:
        self.was_left = self.was_left or not self.connection.was_touched
        self.connection.touch()

    def hear(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            call_id = message["id"]
            self.replies.setdefault((type(call_id).__name__, call_id), []).append(message)
        elif "id" in message:
            self.asked.append(message)
        elif method == "$/item":
            self.items[str(message["params"].get("id"))] += 1
        elif method == "$/credit":
            self.credit[str(message["params"].get("stream"))] += message["params"]["n"]

    def say(self, *texts: str) -> None:
        """Send these messages, with one write."""
        if self.is_open and not self.has_ended:
            self._transport.write("".join(f"{text}\n" for text in texts).encode())

    def end(self, how: str) -> None:
        """End what is sent: "half" (a half-close), "empty" (an empty line), "close" or "abort"."""
        if not self.is_open or (self.has_ended and how in ("half", "empty")):
            return
        self.connection.touch()
        self.has_ended = True
        if how == "half":
            self._transport.write_eof()
        elif how == "empty":
            self._transport.write(b"\n")
        elif how == "close":
            self._transport.close()
        else:
            self._transport.abort()

    def read(self, wanted: bool) -> None:
        """Resume or pause reading."""
        if self.is_open and not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()


class MemoryNetwork:
    """Connections in memory, without a port."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self._accept = await self._stack.enter_async_context(self._server.in_memory())

    async def close(self) -> None:
        await self._stack.aclose()

    async def connect(self, near: asyncio.Protocol) -> str:
        """Connect a protocol to the server; returns the address that the server sees."""
        join(near, self._accept())
        return "unix://memory"

    async def join(self, near: asyncio.Protocol, far: RawPeer) -> None:
        """Connect a protocol to a raw peer."""
        join(near, far)


class TcpNetwork:
    """Connections over TCP."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self._address = await self._stack.enter_async_context(self._server.listening(port=0))

    async def close(self) -> None:
        await self._stack.aclose()

    async def connect(self, near: asyncio.Protocol) -> str:
        host, _, port = self._address.rpartition(":")
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: near, host, int(port))
        transport.write(b" ")  # or the server would wait to see what will be spoken
        return "{}:{}".format(*transport.get_extra_info("sockname"))

    async def join(self, near: asyncio.Protocol, far: RawPeer) -> None:
        joining = asyncio.get_running_loop().create_task(self._joined(near, far))
        try:
            await asyncio.shield(joining)
        except asyncio.CancelledError:  # the other end is there all the same, and must see the end
            joining.add_done_callback(lambda task: task.result().abort())
            raise

    async def _joined(self, near: asyncio.Protocol, far: RawPeer) -> Any:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: far, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(lambda: near, *listening.sockets[0].getsockname())
        while not far.is_open:
            await asyncio.sleep(0)
        listening.close()
        return transport
