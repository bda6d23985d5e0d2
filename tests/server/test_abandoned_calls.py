"""Calls that are cancelled before they begin, and calls that outlive their caller: nothing is left over."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from rpcstream import Limits, Server
from rpcstream.peer.context import CallContext
from rpcstream.peer.session import Session

from ..internals import session_of, unsent_messages


def request(method: str, params: list[Any], call_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, "id": call_id}


def cancel(call_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": call_id}}


def lines(*messages: object) -> bytes:
    return b"".join(orjson.dumps(message) + b"\n" for message in messages)


def of_the_only_caller(server: Server) -> Session:
    session = session_of(server)
    return session


async def test_a_batch_has_its_place_in_the_order(connect: Callable[..., Any]) -> None:
    server, order = Server(), []

    @server(ordered=True)
    async def note(name: str) -> str:
        order.append(name)
        await asyncio.sleep(0)
        return name

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines([request("note", ["a"], 1), request("note", ["b"], 2)], request("note", ["c"], 3)))
        assert [reply["result"] for reply in await raw.reply()] == ["a", "b"]
        assert (await raw.reply())["result"] == "c"
    assert order == ["a", "b", "c"]


async def test_what_is_cancelled_before_it_begins_gives_its_streams_and_its_turn_back(
    connect: Callable[..., Any],
) -> None:
    server = Server(limits=Limits(max_calls=1))

    @server(ordered=True)
    async def total(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    async with server.listening(port=0) as address:
        raw = await connect(address)
        stream = {"$type": "stream", "id": "one"}
        await raw.send(lines(request("total", [stream], 1), cancel(1)))
        while "id" not in (reply := await raw.reply()):
            pass
        assert reply["error"]["code"] == -32800
        # Members of a batch over max_calls, which never begin.
        batch = [request("total", [{"$type": "stream", "id": str(n)}], n) for n in (2, 3)]
        await raw.send(lines([*batch, cancel(3), cancel(2)]))
        while type(reply := await raw.reply()) is not list:
            pass
        assert [member["error"]["code"] for member in reply] == [-32800, -32800]
        assert not of_the_only_caller(server).streams
        assert (await raw.call("total", [[1, 2]], 4))["result"] == 3


async def test_what_a_detached_handler_says_to_nobody_does_not_pile_up(connect: Callable[..., Any]) -> None:
    server = Server()
    begun, gone, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    sessions = []

    @server(detached=True)
    async def report(ctx: CallContext) -> None:
        sessions.append(ctx.session)
        ctx.session.add_lost_callback(gone.set)
        begun.set()
        await gone.wait()
        for n in range(100):
            ctx.progress(n)
            await asyncio.sleep(0)
        done.set()

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(request("report", [], 1)))
        await begun.wait()
        # A reset: of a connection that is closed in order, the server would not see for seconds that nobody listens.
        raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.writer.transport.abort()
        await done.wait()
        assert not unsent_messages(sessions[0])
