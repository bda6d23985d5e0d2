"""A WebSocket over the limit of connections is told so: by a status (tests/transports), under ASGI by a close code."""

from __future__ import annotations

from rpcstream import Limits

from ..kit import UsualServer, request
from ..kit.asgi import Driver, connected, websocket_scope


async def test_a_websocket_over_the_limit_is_closed_with_the_code_to_try_later() -> None:
    application = UsualServer(limits=Limits(max_connections=1)).asgi()
    async with application.lifespan():
        first = await connected(application)
        refused = await Driver(application, websocket_scope(), {"type": "websocket.connect"}).ended()
        assert (refused.sent[-1]["type"], refused.sent[-1]["code"]) == ("websocket.close", 1013)
        assert refused.sent[-1]["reason"] == "Server busy: 1 connections are open"
        first.text(request("add", 1, 2))
        await first.has_sent(2)
        assert first.messages[0]["result"] == 3
        first.close()
        await first.ended()
