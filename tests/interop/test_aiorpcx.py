"""aiorpcX (PyPI) on the other end: its client with our server, our client with its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, InvalidParams, MethodNotFound, RpcError, Server

pytestmark = pytest.mark.tools

aiorpcx = pytest.importorskip("aiorpcx")


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def test_its_client_calls_our_server() -> None:
    server = Server()
    notified: list[Any] = []

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def later(text: str) -> str:
        await asyncio.sleep(0.01)
        return text

    @server
    def note(value: Any) -> None:
        notified.append(value)

    async with server.listening(port=0) as address, aiorpcx.connect_rs(*split(address)) as session:
        assert await session.send_request("add", [1, 2]) == 3
        assert await session.send_request("add", {"a": 1, "b": 2}) == 3
        assert await asyncio.gather(*(session.send_request("later", [str(n)]) for n in range(20))) == [
            str(n) for n in range(20)
        ]
        await session.send_notification("note", ["hello"])
        with pytest.raises(aiorpcx.RPCError) as caught:
            await session.send_request("add", ["x", 2])
        assert caught.value.code == -32602
        with pytest.raises(aiorpcx.RPCError) as caught:
            await session.send_request("missing")
        assert caught.value.code == -32601
        async with session.send_batch() as batch:
            batch.add_request("add", [1, 1])
            batch.add_notification("note", ["in a batch"])
            batch.add_request("later", ["x"])
        assert batch.results == (2, "x")
    assert notified == ["hello", "in a batch"]


class Session(aiorpcx.RPCSession):  # type: ignore[misc, name-defined]
    notified: list[Any]

    async def handle_request(self, request: Any) -> Any:
        async def add(a: int, b: int) -> int:
            return a + b

        async def later(text: str) -> str:
            await asyncio.sleep(0.01)
            return text

        async def note(value: Any) -> None:
            Session.notified.append(value)

        handlers = {"add": add, "later": later, "note": note}
        return await aiorpcx.handler_invocation(handlers.get(request.method), request)()


@asynccontextmanager
async def its_server() -> AsyncIterator[str]:
    Session.notified = []
    server = await aiorpcx.serve_rs(Session, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}"
    finally:
        server.close()
        await server.wait_closed()


async def test_our_client_calls_its_server() -> None:
    async with its_server() as address:
        async with AsyncClient(address) as client:
            assert await client.add(1, 2) == 3
            assert await client.add(a=1, b=2) == 3
            assert await asyncio.gather(*(client.later(str(n)) for n in range(20))) == [str(n) for n in range(20)]
            await client.notify.note("hello")
            with pytest.raises(InvalidParams):
                await client.add(1)
            with pytest.raises(MethodNotFound):
                await client.missing()
            async with client.batch() as batch:
                first, missing, second = batch.add(1, 1), batch.missing(), batch.later("x")
            assert (first.result(), second.result()) == (2, "x")
            with pytest.raises(RpcError):
                missing.result()
        assert Session.notified == ["hello"]
