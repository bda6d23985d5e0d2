"""Authentication over WebSocket: by the handshake, or by the first call as browsers have to."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rpcstream import Context, Limits, Server

LIMITS = Limits(auth_timeout=0.2, auth_message_size=1000)


@pytest.fixture
def server() -> Server:
    server = Server(token="secret", limits=LIMITS)

    @server
    def who(ctx: Context, text: str = "") -> Any:
        return [ctx.identity, len(text)]

    return server


def call(method: str, *params: Any) -> str:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).decode()


async def test_the_handshake_tells(server: Server) -> None:
    async with server.listening(port=0) as address:
        headers = {"Authorization": "Bearer secret"}
        async with connect(f"ws://{address}/", additional_headers=headers) as socket:
            await socket.send(call("who", "x" * 5000))
            assert orjson.loads(await socket.recv())["result"] == ["token", 5000]


async def test_a_wrong_token_in_the_handshake(server: Server) -> None:
    async with server.listening(port=0) as address:
        with pytest.raises(InvalidStatus) as raised:
            await connect(f"ws://{address}/", additional_headers={"Authorization": "Bearer wrong"})
        assert raised.value.response.status_code == 401


async def test_the_first_call_tells(server: Server) -> None:
    async with server.listening(port=0) as address, connect(f"ws://{address}/") as socket:
        await socket.send(call("who"))
        assert orjson.loads(await socket.recv())["error"]["code"] == -32005
        await socket.send(call("rpc.authenticate", "secret"))
        assert orjson.loads(await socket.recv())["result"] is True
        await socket.send(call("who", "x" * 5000))
        assert orjson.loads(await socket.recv())["result"] == ["token", 5000]


async def test_nobody_sends_much_before(server: Server) -> None:
    """As on the line stream: a message that is too long is skipped, and answered with an error."""
    async with server.listening(port=0) as address, connect(f"ws://{address}/") as socket:
        await socket.send(call("who", "x" * 5000))
        reply = orjson.loads(await socket.recv())
        assert (reply["error"]["code"], reply["id"], reply["error"]["data"]["limit"]) == (-32001, 1, 1000)
        await socket.send(call("rpc.authenticate", "x" * 1000))
        assert orjson.loads(await socket.recv())["error"]["code"] == -32001
        await socket.send(call("rpc.authenticate", "secret"))
        assert orjson.loads(await socket.recv())["result"] is True
        await socket.send(call("who", "x" * 5000))
        assert orjson.loads(await socket.recv())["result"] == ["token", 5000]


async def test_nobody_waits_for_long_before(server: Server) -> None:
    async with server.listening(port=0) as address, connect(f"ws://{address}/") as socket:
        assert orjson.loads(await socket.recv())["error"]["code"] == -32005
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert server.counters.closed_for_limits == 1
