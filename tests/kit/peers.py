"""One raw peer for every transport: it sends what a test wants, and does nothing by itself."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rpcstream import Server
from rpcstream.testing import FakeTimeLoop

from .messages import Frame, MessageReader, as_bytes, frame, notification, parsed, reply, request
from .waiting import PATIENCE
from .websocket_adapter import connect_over_websocket


class RawPeer(asyncio.Protocol):
    """One end of a connection that sends and receives single messages and does nothing by itself.

    Attributes:
        inbox: messages that have come and were not asked for yet, as bytes; binary frames as `Frame`.
        farewells: the params of each `$/goAway` that has come; these are not in the inbox.
        is_over: the other end says nothing more.
    """

    def __init__(self, on_open: Callable[[RawPeer], object] = lambda raw: None) -> None:
        self.inbox: deque[bytes] = deque()
        self.farewells: list[Any] = []
        self.is_over = False
        self.transport: Any = None
        self._on_open = on_open
        self._reader = MessageReader()
        self._news: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, address: str, *, tls: ssl.SSLContext | None = None) -> RawPeer:
        """Connect: "host:port", "tls://host:port", "unix:///path", "ws://host:port/" or "wss://host:port/"."""
        return await open_peer(address, cls, tls=tls)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if b'"$/goAway"' in message[:80]:
                self.farewells.append(parsed(message)["params"])
            else:
                self.inbox.append(message)
        self._rouse()

    def eof_received(self) -> bool:
        self.is_over = True
        self._rouse()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        self._rouse()

    def _rouse(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def write(self, data: bytes) -> None:
        """These very bytes, with no line end behind them."""
        self.transport.write(data)

    def send(self, *messages: Any) -> None:
        """Objects and arrays as JSON, bytes and texts as they are; a line each, all with one write."""
        self.transport.write(b"\n".join((*map(as_bytes, messages), b"")))

    def send_frame(self, message: Any, *payloads: bytes) -> None:
        """A binary frame; `{"$bin": k}` in the message stands for the k-th payload."""
        self.transport.write(frame(message, *payloads))

    def call(self, method: str, *params: Any, id: Any = 1, **members: Any) -> None:
        self.send(request(method, *params, id=id, **members))

    def cancel(self, id: Any) -> None:
        self.send(notification("$/cancelRequest", id=id))

    def answer(self, asked: dict[str, Any], result: Any = None) -> None:
        self.send(reply(asked["id"], result))

    def end(self) -> None:
        """Say that nothing more will be said: by half a close, or by an empty line where there is none."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.write(b"\n")

    def close(self) -> None:
        self.transport.abort()

    async def receive_bytes(self) -> bytes | None:
        """The next message as it came, without its line end; None at the end. Fake time goes on meanwhile."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE if not isinstance(loop, FakeTimeLoop) else None):
            while not self.inbox and not self.is_over:
                self._news = loop.create_future()
                await self._news
        return self.inbox.popleft() if self.inbox else None

    async def receive(self) -> Any:
        """The next message, parsed; None at the end."""
        message = await self.receive_bytes()
        return None if message is None else parsed(message)

    async def receive_many(self, count: int) -> list[Any]:
        return [await self.receive() for _ in range(count)]

    async def receive_frame(self) -> tuple[Any, list[bytes]]:
        """The next message, which must be a binary frame, and its payloads."""
        found = await self.receive_bytes()
        assert isinstance(found, Frame), found
        return parsed(found), found.payloads

    async def rest(self) -> list[Any]:
        """All messages until the other end closes."""
        found = []
        while (message := await self.receive()) is not None:
            found.append(message)
        return found

    async def ask(self, message: Any) -> Any:
        """Send a message; returns the next one that comes."""
        self.send(message)
        return await self.receive()

    async def reply(self, *params: Any, **options: Any) -> Any:
        """The next message, which must be a reply; with arguments: to this call."""
        if params:
            self.call(*params, **options)
        message = await self.receive()
        assert message is not None
        assert "method" not in message, message
        return message

    async def result(self, *params: Any, **options: Any) -> Any:
        reply = await self.reply(*params, **options)
        assert "result" in reply, reply
        return reply["result"]

    async def code(self, *params: Any, **options: Any) -> int:
        """The code of the error that comes next."""
        reply = await self.reply(*params, **options)
        assert "error" in reply, reply
        code: int = reply["error"]["code"]
        return code

    async def silence(self) -> None:
        """Nothing comes although the other end had its turns: three questions later there are three answers only."""
        for turn in ("silence 1", "silence 2", "silence 3"):
            self.call("rpc.ping", id=turn)
            message = await self.receive()
            assert message == {"jsonrpc": "2.0", "id": turn, "result": "pong"}, message


async def open_peer(address: str, make: Callable[[], Any] = RawPeer, *, tls: ssl.SSLContext | None = None) -> Any:
    """Connect the protocol that a function makes to a server, by any address of line streams or WebSockets."""
    from .certificates import client_side

    loop = asyncio.get_running_loop()
    scheme, _, rest = address.rpartition("://")
    if scheme == "unix":
        return (await loop.create_unix_connection(make, rest))[1]
    if scheme in ("tls", "wss"):
        tls = tls or client_side()
    host, _, port = rest.partition("/")[0].rpartition(":")
    where = {"host": host.strip("[]"), "port": int(port), "ssl": tls}
    if scheme in ("ws", "wss"):
        return await connect_over_websocket(make, address, **where)
    return (await loop.create_connection(make, **where))[1]


@asynccontextmanager
async def raw_peers(
    server: Server, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Callable[..., Awaitable[RawPeer]]]:
    """Run a server, and give a function that connects raw peers to it; they end with the block.

    Args:
        tls: for the connections, but for those that are made with `connect(in_clear=True)`.
    """
    opened: list[RawPeer] = []

    async def connect(*, in_clear: bool = False) -> RawPeer:
        plain = address.rpartition("://")[2]
        opened.append(await open_peer(plain, tls=None if in_clear else tls))
        return opened[-1]

    async with asyncio.timeout(60), server.listening(port=0) as address:
        try:
            yield connect
        finally:
            for each in opened:
                each.close()
