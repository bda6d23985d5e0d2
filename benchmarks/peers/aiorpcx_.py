"""aiorpcX: JSON-RPC 2.0 on newlines, an RPCSession for each connection, its limits lifted, on uvloop.

Without that, a session is slowed down and then closed for what it has cost. All its handlers are coroutines.
"""

from __future__ import annotations

import asyncio
from typing import Any

from _common import BACKLOG, HOST, Options, main, make_login, needs, ready

with needs("aiorpcX", "uvloop"):
    import aiorpcx  # type: ignore[import-untyped]
    import uvloop


async def sum(a: int, b: int) -> int:
    return a + b


async def login(user: str, password: str, remember: bool) -> dict[str, Any]:
    return make_login(user, password, remember)


async def ping() -> str:
    return "pong"


HANDLERS = {"sum": sum, "sum_later": sum, "login": login, "ping": ping}


class Session(aiorpcx.RPCSession):  # type: ignore[misc]
    cost_hard_limit = 0  # none
    initial_concurrent = 10_000  # requests at work on one connection

    def default_framer(self) -> Any:
        return aiorpcx.NewlineFramer(max_size=0)

    async def handle_request(self, request: Any) -> Any:
        return await aiorpcx.handler_invocation(HANDLERS.get(request.method), request)()


async def listen() -> None:
    server = await aiorpcx.serve_rs(Session, HOST, 0, backlog=BACKLOG)
    ready(server.sockets[0].getsockname()[1], "aiorpcX", "uvloop")
    await asyncio.Event().wait()


def serve(options: Options) -> None:
    uvloop.run(listen())


if __name__ == "__main__":
    main(serve)
