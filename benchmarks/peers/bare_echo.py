"""A limit: sends received bytes back, on uvloop, without parsing or checks. No asyncio server answers sooner."""

from __future__ import annotations

import asyncio
from typing import cast

from _common import BACKLOG, HOST, Options, main, needs, ready

with needs("uvloop"):
    import uvloop


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def serve(options: Options) -> None:
    async def listen() -> None:
        server = await asyncio.get_running_loop().create_server(Echo, HOST, 0, backlog=BACKLOG)
        ready(server.sockets[0].getsockname()[1], "uvloop")
        await server.serve_forever()

    uvloop.run(listen())


if __name__ == "__main__":
    main(serve)
