"""Messages that a handler causes after its reply come behind the reply on the wire, over every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rpcstream import Context, RpcError, Server

from ..kit import LogLines, Network, request, until


def subscriptions() -> Server:
    """Each method gives the id of a subscription and notifies about it at once, in its own way."""
    server = Server()

    def at_once(ctx: Context) -> str:
        ctx.after_reply(lambda: ctx.peer.notify.subscription("0xabc"))
        return "0xabc"

    async def awaiting(ctx: Context) -> str:
        ctx.after_reply(lambda: ctx.peer.notify.subscription("0xabc"))
        await asyncio.sleep(0)
        return "0xabc"

    def called(ctx: Context) -> str:
        ctx.after_reply(lambda: ctx.peer.notify.subscription("0xabc"))
        return "0xabc"

    def items(ctx: Context) -> Iterator[int]:
        at_once(ctx)
        yield 1

    for method in (awaiting, called, items):
        server.add(method)
    server.add(at_once, name="sync")
    server.add(at_once, name="threaded", offload="thread")
    server.add(at_once, name="ordered", ordered=True)
    return server


METHODS = ("sync", "awaiting", "threaded", "ordered", "called")
TOLD = {"jsonrpc": "2.0", "method": "subscription", "params": ["0xabc"]}


@pytest.mark.lasting
async def test_the_reply_is_on_the_wire_before_the_notification(network: Network) -> None:
    async with network.raw(subscriptions()) as raw:
        for method in METHODS:
            raw.call(method)
            assert await raw.receive_many(2) == [{"jsonrpc": "2.0", "id": 1, "result": "0xabc"}, TOLD]
            raw.send([request(method, id=1), request("awaiting", id=2), request("rpc.ping", id=3)])
            replies, *told = await raw.receive_many(3)
            assert [reply["result"] for reply in replies] == ["0xabc", "0xabc", "pong"]
            assert told == [TOLD] * 2
            raw.send({"jsonrpc": "2.0", "method": method})  # which has no reply to wait for
            assert await raw.receive() == TOLD
            await raw.silence()
        assert await raw.result("items") == [1]
        assert await raw.receive() == TOLD
        raw.call("items", stream=5)
        item, reply, last = await raw.receive_many(3)
        assert (item["method"], reply["result"], last) == ("$/item", None, TOLD)


@pytest.mark.lasting
async def test_nothing_is_done_after_a_call_that_failed_or_whose_caller_is_gone(network: Network) -> None:
    server = Server()
    called: list[str] = []
    gone, left = asyncio.Event(), asyncio.Event()

    @server
    async def fails(ctx: Context) -> None:
        ctx.after_reply(lambda: called.append("fails"))
        await asyncio.sleep(0)
        raise RpcError(7, "no")

    @server(detached=True)
    async def waits(ctx: Context) -> None:
        ctx.after_reply(lambda: called.append("waits"))
        left.set()
        await gone.wait()

    @server
    def too_long(ctx: Context) -> str:
        ctx.after_reply(lambda: called.append("too long"))
        return "x" * server.limits.max_message_size

    async with network.raw(server) as raw:
        assert await raw.code("fails") == 7
        assert await raw.code("too_long") == -32001
        raw.call("waits")
        raw.cancel(1)
        assert await raw.code() == -32800
        await raw.silence()
        left.clear()
        raw.call("waits")
        await left.wait()
        await network.lose(raw)
        gone.set()
        await network.settled()
    assert called == []


async def test_functions_are_called_in_order_and_one_that_fails_hurts_nobody(
    network: Network, errors: LogLines
) -> None:
    """Over HTTP the caller cannot be notified, but the handler may have something else to do."""
    server = Server()
    called: list[int] = []
    contexts: list[Context] = []

    @server
    async def work(ctx: Context, waits: bool) -> str:
        contexts.append(ctx)

        async def later() -> None: ...

        with pytest.raises(TypeError, match="plain function"):
            ctx.after_reply(later)
        ctx.after_reply(lambda: 1 / 0)
        for number in range(3):
            ctx.after_reply(lambda number=number: called.append(number))  # type: ignore[misc]
        if waits:
            await asyncio.sleep(0)
        return "done"

    async with network.client(server) as client:
        for waits in (False, True):
            assert await client.work(waits) == "done"
            await until(lambda: len(called) == 3)
            assert called == [0, 1, 2]
            called.clear()
        with pytest.raises(RuntimeError, match="has ended"):
            contexts[0].after_reply(lambda: None)
    errors.expect("a function that method 'work' gave to after_reply failed.*\n(.*\n)*.*ZeroDivisionError", times=2)
