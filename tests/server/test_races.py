"""Events at the same moment: early messages, messages during a stop, messages after the last one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, CallTimeout, Context, Limits, RpcError, Server
from rpcstream.testing import FakeTimeLoop, drop_connections, is_idle, memory_client

from ..kit import TRANSPORTS, RawPeer, UsualServer, notification, request

#: What stands for a stream among the params.
STREAM = {"$type": "stream", "id": "t"}


class Hand(RawPeer):
    """A peer in memory that says something, and hears what comes until nothing comes any more."""

    async def say(self, *messages: Any) -> list[Any]:
        self.send(*messages)
        return await self.hear()

    async def hear(self) -> list[Any]:
        for _ in range(60):
            await asyncio.sleep(0)
        return [await self.receive() for _ in range(len(self.inbox))]


def what(messages: list[Any]) -> list[Any]:
    """Items by their value, replies by their result or the code of their error."""
    found = []
    for message in messages:
        if "error" in message:
            found.append(message["error"]["code"])
        elif "result" in message:
            found.append(message["result"])
        elif message["method"] == "$/item":
            found.append(f"item {message['params']['value']}")
    return found


def make_server(**limits: Any) -> UsualServer:
    server = UsualServer(limits=Limits(**limits), drain_timeout=0.2)
    server.add(server.call_wait, name="wait_first", ordered=True)
    server.add(server.call_count, name="count_behind", ordered=True)

    @server
    async def ask_late(ctx: Context) -> None:
        await server.call_wait()
        await ctx.peer.confirm()

    return server


@asynccontextmanager
async def by_hand(server: Server) -> AsyncIterator[Hand]:
    async with TRANSPORTS["memory"].serving(server, None) as endpoint:
        hand = await endpoint.join(Hand)
        yield hand
        hand.transport.close()


@pytest.mark.parametrize("method", ["count", "count_behind"])
async def test_credit_that_comes_with_its_request_counts(method: str) -> None:
    async with by_hand(server := make_server()) as hand:
        first = [request("wait_first", id=0)] if method == "count_behind" else []
        said = await hand.say(*first, request(method, 3, stream=1), notification("$/credit", id=1, n=2))
        server.release()
        said += await hand.hear()
        assert what(said)[-4:] == ["item 0", "item 1", "item 2", None]


async def test_replies_pass_requests_that_wait_however_many_wait() -> None:
    """As many wait as are kept; and in one of these turns a handler has ended, so that there is room for one more."""
    for turns in range(6):
        async with by_hand(server := make_server(max_calls=2)) as hand:
            asked = await hand.say(request("ask", "confirm", id="a"), request("wait", "waited", id="b"))
            await hand.say(*[request("echo", "now", id=number) for number in range(2)])
            server.release()
            for _ in range(turns):
                await asyncio.sleep(0)
            hand.answer(asked[0], "confirmed")
            assert sorted(map(str, what(await hand.hear()))) == ["confirmed", "now", "now", "waited"]


@pytest.mark.parametrize(
    ("result", "expected"), [({"method": "now"}, [{"method": "now"}, "now"]), ("x" * 1000, [-32603, "now"])]
)
async def test_a_reply_that_speaks_of_methods_or_is_too_long_is_a_reply(result: Any, expected: list[Any]) -> None:
    async with by_hand(make_server(max_calls=1, max_message_size=500)) as hand:
        asked = await hand.say(request("ask", "confirm", id="a"), request("echo", "now", id="b"))
        hand.answer(asked[0], result)
        assert what(await hand.hear()) == expected


@pytest.mark.parametrize("how", ["an empty line", "a half-close"])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (request("count", 3, stream=1), ["item 0", -32800]),
        (request("total", STREAM), [-32800]),
        (request("ask", "confirm"), [-32800]),
        (request("ask_late"), [-32800]),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
async def test_whoever_ends_the_conversation_is_answered_and_nothing_is_an_error(
    how: str, asked: Any, answered: list[Any], waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with by_hand(server := make_server(max_calls=2)) as hand:
        first = [request("wait", "waited", id=id) for id in (8, 9)] if waits else []
        said = await hand.say(*first, asked, *([b""] if how == "an empty line" else []))
        if how == "a half-close":
            hand.transport.write_eof()
        said += await hand.hear()
        server.release()
        said += await hand.hear()
        assert [one for one in what(said) if one != "waited"] == answered
        assert hand.is_over
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_deadline_is_not_inherited_by_calls_that_only_waited_for_room() -> None:
    async def test() -> None:
        async with memory_client(make_server(max_calls=1), timeout=None) as client:
            asked = 0

            @client
            async def confirm() -> str:
                nonlocal asked
                asked += 1
                await asyncio.sleep(3)
                return "confirmed"

            # The second one had to wait for 3 s, and takes 3 s: more than the first one had.
            first, second = await asyncio.gather(
                client.call("ask", "confirm", timeout=1), client.call("ask", "confirm"), return_exceptions=True
            )
            assert isinstance(first, RpcError | CallTimeout)
            assert second == "confirmed"
            assert asked == 2

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(test())


def test_a_connection_does_not_inherit_the_deadline_of_the_call_that_was_first() -> None:
    async def test() -> None:
        service, gateway = UsualServer(), Server(drain_timeout=0.2)
        async with TRANSPORTS["memory"].serving(service, None) as endpoint, memory_client(gateway) as client:
            inner = AsyncClient(endpoint.join, timeout=None, reconnect=True)

            @inner.on_connect
            async def hello(server: Any) -> None:
                await server.rpc.ping()

            @gateway(timeout=2.0)
            async def forward() -> Any:
                return await inner.echo("now")

            assert await client.forward() == "now"
            await asyncio.sleep(10)  # the deadline of that handler is long over
            assert is_idle(service)
            drop_connections(service)
            await asyncio.sleep(100)
            assert inner.state == "connected"
            await inner.close()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(test())
