"""A limit: a page answered from prepared bytes, head and all, by the least that is still HTTP on uvloop.

httptools parses what comes; of that the path is looked up, and whether the connection is kept. Several requests in one
packet are answered in one write. It knows no limits, no time-outs and no other headers.
"""

from __future__ import annotations

import asyncio
from typing import cast

from _common import BACKLOG, HOST, PAGE, PAGE_PATH, PAGE_TYPE, Options, main, needs, ready

with needs("httptools", "uvloop"):
    import httptools
    import uvloop


def response(status: str, kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


ANSWERS = {PAGE_PATH.encode(): response("200 OK", PAGE_TYPE, PAGE)}
NOT_FOUND = response("404 Not Found", "text/plain", b"not found")
BAD_REQUEST = response("400 Bad Request", "text/plain", b"bad request")


class Responder(asyncio.Protocol):
    """An asyncio protocol, and the callbacks of the httptools parser."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._answers: list[bytes] = []
        self._keeps = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._answers.append(BAD_REQUEST)
            self._keeps = False
        if self._answers:
            self._transport.write(self._answers[0] if len(self._answers) == 1 else b"".join(self._answers))
            self._answers.clear()
        if not self._keeps:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path += url  # it may come in pieces

    def on_message_complete(self) -> None:
        if self._keeps:
            self._answers.append(ANSWERS.get(self._path, NOT_FOUND))
            self._keeps = self._parser.should_keep_alive()
        self._path = b""


def serve(options: Options) -> None:
    async def listen() -> None:
        server = await asyncio.get_running_loop().create_server(Responder, HOST, 0, backlog=BACKLOG)
        ready(server.sockets[0].getsockname()[1], "httptools", "uvloop")
        await server.serve_forever()

    uvloop.run(listen())


if __name__ == "__main__":
    main(serve)
