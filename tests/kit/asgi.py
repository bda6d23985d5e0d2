"""The side of an ASGI server, in memory: a test gives the events of a client, and sees those of the application."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from .messages import request as call
from .waiting import until

__all__ = ["Driver", "call", "connected", "get", "http_scope", "post", "websocket_scope"]


class Driver:
    """One connection of an ASGI application.

    Attributes:
        sent: the events of the application.
        asked: how often it has called `receive`.
        writable: cleared by a test while the client does not read: then `send` waits.
        task: the application.
    """

    def __init__(self, application: Any, scope: dict[str, Any], *events: dict[str, Any]) -> None:
        self.sent: list[Any] = []
        self.asked = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.is_gone = False
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        for event in events:
            self.give(event)
        self.task = asyncio.ensure_future(application(scope, self._receive, self._send))

    def give(self, event: dict[str, Any]) -> None:
        self._inbox.put_nowait(event)

    def body(self, body: bytes, *, more: bool = False) -> None:
        self.give({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self.is_gone = True
        self.give({"type": "http.disconnect"})

    def text(self, message: Any) -> None:
        text = message if isinstance(message, str) else orjson.dumps(message).decode()
        self.give({"type": "websocket.receive", "text": text})

    def close(self, code: int = 1000) -> None:
        self.give({"type": "websocket.disconnect", "code": code})

    async def _receive(self) -> Any:
        self.asked += 1
        return await self._inbox.get()

    async def _send(self, event: Any) -> None:
        await self.writable.wait()
        if self.is_gone:
            raise OSError("the client is gone")
        self.sent.append(event)

    async def ended(self) -> Driver:
        """Wait until the application has returned."""
        async with asyncio.timeout(20):
            await self.task
        return self

    async def has_sent(self, count: int) -> list[Any]:
        """Wait until this many events were sent."""
        await until(lambda: len(self.sent) >= count or self.task.done())
        assert len(self.sent) >= count, self.sent
        return self.sent

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(event["body"] for event in self.sent[1:])

    @property
    def json(self) -> Any:
        return orjson.loads(self.content)

    @property
    def messages(self) -> list[Any]:
        """Messages of a WebSocket: JSON decoded, frames as bytes."""
        found = [event for event in self.sent if event["type"] == "websocket.send"]
        return [orjson.loads(each["text"]) if "text" in each else each["bytes"] for each in found]


def http_scope(method: str = "POST", path: str = "/", root: str = "", **headers: str) -> dict[str, Any]:
    """The scope of a request, as Starlette gives it to what is mounted at `root`."""
    given = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if method == "POST":
        given = {"content-type": "application/json", "transfer-encoding": "chunked", **given}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root + path.partition("?")[0],
        "raw_path": (root + path.partition("?")[0]).encode(),
        "query_string": path.partition("?")[2].encode(),
        "root_path": root,
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
        "client": ("127.0.0.1", 50412),
        "server": ("127.0.0.1", 80),
    }


def websocket_scope(path: str = "/", *, subprotocols: tuple[str, ...] = (), denial: bool = True, **headers: str) -> Any:
    scope = http_scope("GET", path, **headers)
    extensions = {"websocket.http.response": {}} if denial else {}
    return {**scope, "type": "websocket", "scheme": "ws", "subprotocols": subprotocols, "extensions": extensions}


async def post(application: Any, body: Any, *, path: str = "/", root: str = "", **headers: str) -> Driver:
    """Send a call in one piece, and wait for the end of the response."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    driver = Driver(application, http_scope("POST", path, root, **headers))
    driver.body(data)
    return await driver.ended()


async def get(application: Any, path: str, *, root: str = "", method: str = "GET", **headers: str) -> Driver:
    driver = Driver(application, http_scope(method, path, root, **headers))
    driver.body(b"")
    return await driver.ended()


async def connected(application: Any, **options: Any) -> Driver:
    """A WebSocket that was accepted."""
    driver = Driver(application, websocket_scope(**options), {"type": "websocket.connect"})
    assert (await driver.has_sent(1))[0]["type"] == "websocket.accept"
    return driver
