"""pygls (PyPI) on the other end, as it comes: its client speaks Content-Length framing with our server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import Context, Server

pytest.importorskip("pygls")

from pygls.client import JsonRPCClient
from pygls.exceptions import JsonRpcException

pytestmark = pytest.mark.tools

#: Seconds; only what fails is waited for that long.
PATIENCE = 10


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Any]:
    """Its client, connected."""
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        client = JsonRPCClient()
        await client.start_tcp(host, int(port))
        try:
            yield client
        finally:
            client.protocol.writer.close()
            await asyncio.wait_for(asyncio.gather(*client._async_tasks), PATIENCE)


async def test_calls_errors_and_notifications() -> None:
    server = Server()
    noted: asyncio.Queue[str] = asyncio.Queue()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def later(text: str) -> str:
        await asyncio.sleep(0.01)
        return text

    @server
    def note(text: str) -> None:
        noted.put_nowait(text)

    async with connected(server) as client:
        call = client.protocol.send_request_async
        assert await call("add", {"a": 1, "b": 2}) == 3
        text = "\u00e9\n\U0001f600" * 50_000
        assert await call("later", [text]) == text
        assert await asyncio.gather(*(call("add", [n, n]) for n in range(50))) == [2 * n for n in range(50)]
        with pytest.raises(JsonRpcException, match="Method not found"):
            await call("missing")
        client.protocol.notify("note", {"text": "noted"})
        assert await asyncio.wait_for(noted.get(), PATIENCE) == "noted"


async def test_a_call_is_cancelled() -> None:
    server = Server()
    began, cancelled = asyncio.Event(), asyncio.Event()

    @server
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with connected(server) as client:
        client.protocol.send_request("wait", None, msg_id="it")
        await asyncio.wait_for(began.wait(), PATIENCE)
        client.protocol.notify("$/cancelRequest", {"id": "it"})
        await asyncio.wait_for(cancelled.wait(), PATIENCE)


async def test_a_handler_calls_its_caller() -> None:
    server = Server()

    @server
    async def ask(ctx: Context, question: str) -> Any:
        return await ctx.peer.call("confirm", question=question)

    async with connected(server) as client:

        @client.feature("confirm")
        def confirm(params: Any) -> str:
            return f"{params.question} yes"

        assert await client.protocol.send_request_async("ask", {"question": "sell it?"}) == "sell it? yes"
