"""Connections over the limit are told why, in the words of their protocol."""

from __future__ import annotations

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from rpcstream import AsyncClient, Limits

from ..kit import UsualServer


async def test_a_websocket_over_the_limit_of_connections_is_refused() -> None:
    server = UsualServer(limits=Limits(max_connections=1))
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        assert await client.add(1, 2) == 3
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"ws://{address}/")
        assert caught.value.response.status_code == 503
        assert await client.add(1, 2) == 3
