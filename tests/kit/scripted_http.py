"""HTTP servers that follow a script, and so can send what a real server would not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import orjson


class Request:
    """A request that a client has sent."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.line = first
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = body
        #: None of a binary frame.
        self.message: Any = orjson.loads(body) if body and not body.startswith(b"@") else None

    @property
    def id(self) -> Any:
        return self.message["id"]


class ScriptedHttpConnection:
    """The server's end of one connection: reads requests, sends any bytes."""

    def __init__(self, sock: Any) -> None:
        self.socket = sock
        self._buffer = b""

    def read(self) -> Request | None:
        """The next request; None when the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        length = Request(head, b"").headers.get("content-length", "0")
        while len(self._buffer) < int(length):
            if not self._more():
                return None
        body, self._buffer = self._buffer[: int(length)], self._buffer[int(length) :]
        return Request(head, body)

    def _more(self) -> bool:
        data = self.socket.recv(1 << 20)
        self._buffer += data
        return bool(data)

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, request: Request, result: Any) -> None:
        self.say(answered(reply(request.id, result)))

    def serve(self) -> None:
        """Answer with the params until the client closes."""
        while (request := self.read()) is not None:
            self.answer(request, request.message.get("params"))


def reply(call_id: Any, result: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": result})


def item(call_id: Any, value: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": "$/item", "params": {"id": call_id, "value": value}}) + b"\n"


def answered(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


#: The head of an answer whose end is the end of the connection.
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"


class CountedConnections:
    """A script that counts connections, and runs another script on each."""

    def __init__(self, script: Callable[[ScriptedHttpConnection, int], None]) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.total = self.open = self.most = 0

    def __call__(self, line: Any) -> None:
        with self._lock:
            self.total += 1
            self.open += 1
            self.most = max(self.most, self.open)
            number = self.total
        try:
            self._script(ScriptedHttpConnection(line.socket), number)
        finally:
            with self._lock:
                self.open -= 1
