"""Builds HTTP requests as bytes, sends them, and reads the responses."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import orjson

#: Seconds after which a response is overdue.
PATIENCE = 20


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [orjson.loads(line) for line in self.body.splitlines()]


def call(method: str, *params: Any, **members: Any) -> bytes:
    """A request object; `id=None` for a notification."""
    message = {"jsonrpc": "2.0", "method": method, "params": params, "id": 1, **members}
    if message["id"] is None:
        del message["id"]
    return orjson.dumps(message)


def post(body: bytes | None, *lines: str, target: str = "/", version: str = "1.1", json: bool = True) -> bytes:
    """A POST with these headers besides the usual ones; None: neither body nor length."""
    head = [f"POST {target} HTTP/{version}", "Host: 127.0.0.1", *lines]
    if json:
        head.append("Content-Type: application/json")
    if body is not None:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + (body or b"")


def get(target: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


class RawHttpConnection:
    """A connection that sends requests as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def ask(self, *parts: bytes) -> Answer:
        self.send(*parts)
        return await self.answer()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The next status line and headers."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        first, *lines = head.decode().split("\r\n")[:-2]
        assert first.startswith("HTTP/1.1 "), first
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name == "Connection" or name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
        return int(first.split()[1]), headers

    async def answer(self, *, to_head: bool = False) -> Answer:
        """The next response, whole."""
        status, headers = await self.head()
        if to_head or status in (204, 304) or status < 200:
            return Answer(status, headers, b"")
        assert ("content-length" in headers) + ("transfer-encoding" in headers) == 1
        if "content-length" in headers:
            length = int(headers["content-length"])
            return Answer(status, headers, await asyncio.wait_for(self.reader.readexactly(length), PATIENCE))
        body = b""
        while piece := await self.chunk():
            body += piece
        return Answer(status, headers, body)

    async def chunk(self) -> bytes:
        """The next chunk; empty for the last."""
        size = int((await asyncio.wait_for(self.reader.readuntil(b"\r\n"), PATIENCE)), 16)
        piece = await asyncio.wait_for(self.reader.readexactly(size + 2), PATIENCE)
        assert piece.endswith(b"\r\n")
        return piece[:-2]

    async def rest(self) -> bytes:
        """All bytes until the server closes, which it must."""
        return await asyncio.wait_for(self.reader.read(), PATIENCE)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass
