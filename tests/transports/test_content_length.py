"""Connections that begin with a header of the Language Server Protocol speak that framing, both ways."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from rpcstream import Context, Limits, Server


class Peer:
    """An end of a connection that reads and writes headers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def call(self, method: str, *params: Any, id: Any = 1) -> Any:
        await self.send(headed({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
        return await self.receive()

    async def receive(self) -> Any:
        """The next message; None at the end of the stream."""
        async with asyncio.timeout(20):
            head = await self._reader.readline() + await self._reader.readline()
            if not head:
                return None
            found = re.fullmatch(rb"Content-Length: (\d+)\r\n\r\n", head)
            assert found is not None, head
            return orjson.loads(await self._reader.readexactly(int(found[1])))

    def end(self) -> None:
        self._writer.write_eof()


def headed(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else orjson.dumps(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Peer]:
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Peer(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()


def service(**options: Any) -> Server:
    server = Server(**options)

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    async def ask(ctx: Context, value: Any) -> Any:
        return await ctx.peer.call("answer", value)

    @server
    async def wait() -> None:
        await asyncio.Event().wait()

    return server


async def test_calls_are_answered_in_the_same_framing() -> None:
    async with connected(service()) as peer:
        assert await peer.call("add", 1, 2) == {"jsonrpc": "2.0", "id": 1, "result": 3}
        long = "\u00e9\n" * 200_000
        assert (await peer.call("echo", long, id="b"))["result"] == long
        await peer.send(headed([{"jsonrpc": "2.0", "id": n, "method": "add", "params": [n, n]} for n in range(3)]))
        assert [reply["result"] for reply in await peer.receive()] == [0, 2, 4]


async def test_the_first_bytes_may_come_one_by_one_and_the_type_first() -> None:
    body = b'{"jsonrpc": "2.0", "id": 1,\r\n "method": "add", "params": [1, 2]}'
    head = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with connected(service()) as peer:
        for byte in head + body:
            await peer.send(bytes([byte]))
        assert (await peer.receive())["result"] == 3


async def test_a_handler_calls_back() -> None:
    async with connected(service()) as peer:
        asked = await peer.call("ask", "what?")
        assert (asked["method"], asked["params"]) == ("answer", ["what?"])
        await peer.send(headed({"jsonrpc": "2.0", "id": asked["id"], "result": "this"}))
        assert (await peer.receive())["result"] == "this"


async def test_a_call_is_cancelled() -> None:
    async with connected(service()) as peer:
        await peer.send(headed({"jsonrpc": "2.0", "id": 7, "method": "wait"}))
        await peer.send(headed({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 7}}))
        reply = await peer.receive()
        assert (reply["id"], reply["error"]["code"]) == (7, -32800)


async def test_a_token_is_the_first_message() -> None:
    async with connected(service(token="secret")) as peer:
        assert (await peer.call("add", 1, 2))["error"]["code"] == -32005
    async with connected(service(token="secret")) as peer:
        assert (await peer.call("rpc.authenticate", "secret"))["result"] is True
        assert (await peer.call("add", 1, 2))["result"] == 3


async def test_a_stranger_sends_no_more_than_strangers_may() -> None:
    async with connected(service(token="secret", limits=Limits(auth_message_size=1000))) as peer:
        reply = await peer.call("rpc.authenticate", "x" * 1000)
        assert "error" in reply


async def test_a_message_over_the_limit_is_answered_by_its_id_and_the_next_is_carried_out() -> None:
    async with connected(service(limits=Limits(max_message_size=10_000))) as peer:
        reply = await peer.call("echo", "x" * 10_000, id=5)
        assert (reply["id"], reply["error"]["code"]) == (5, -32001)
        assert (await peer.call("add", 1, 2))["result"] == 3


@pytest.mark.parametrize("body", [b"", b" ", b"{", b"{} {}", b'@2 2 {}"1"', b"\n"])
async def test_what_is_no_json_is_answered_and_the_next_is_carried_out(body: bytes) -> None:
    async with connected(service()) as peer:
        await peer.send(headed(body))
        assert (await peer.receive())["error"]["code"] in (-32700, -32600)
        assert (await peer.call("add", 1, 2))["result"] == 3


@pytest.mark.parametrize(
    "stream",
    [
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"Content-Length: 99999999999999999999999999\r\n\r\n",
        b'Content-Length: 40\r\n{"jsonrpc": "2.0", "method": "add"}',
        b"Content-Length: 2\n\n{}",
        b"Content-Length: " + b"1" * 5000,
    ],
)
async def test_a_header_that_cannot_be_read_gets_one_error_and_the_connection_closes(stream: bytes) -> None:
    async with connected(service()) as peer:
        await peer.send(stream)
        error = (await peer.receive())["error"]
        assert error["code"] == -32700
        assert error["data"]["reason"]
        assert await peer.receive() is None


async def test_a_stream_that_ends_within_a_message_is_told_so() -> None:
    async with connected(service()) as peer:
        await peer.send(b'Content-Length: 100\r\n\r\n{"jsonrpc"')
        peer.end()
        assert "ended within a message" in (await peer.receive())["error"]["data"]["reason"]
        assert await peer.receive() is None


async def test_who_sends_nothing_more_is_answered() -> None:
    async with connected(service()) as peer:
        await peer.send(headed({"jsonrpc": "2.0", "id": 1, "method": "add", "params": [1, 2]}))
        peer.end()
        assert (await peer.receive())["result"] == 3
        assert await peer.receive() is None


@pytest.mark.parametrize("begun", [b"Content-Length: 10\r\n", b"Content-Length: 10\r\n\r\n{"])
async def test_a_message_that_does_not_end_is_over_the_time_limit(begun: bytes) -> None:
    async with connected(service(limits=Limits(message_timeout=0.1))) as peer:
        await peer.send(begun)
        assert "message_timeout" in (await peer.receive())["error"]["data"]["reason"]
        assert await peer.receive() is None
