"""Events at the same moment: early messages, messages during a stop, messages after the last one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, CallTimeout, ConnectionLost, Context, Limits, RpcError, Server
from rpcstream.backoff import Backoff
from rpcstream.peer.remote import Peer
from rpcstream.testing import FakeTimeLoop, memory_client
from rpcstream.transports.memory import join

from ..internals import client_connections, connection_table, note_sessions


class Hand(asyncio.Protocol):
    """The other end of a connection in memory, worked by hand."""

    def __init__(self) -> None:
        self._received = b""
        self.transport: Any = None
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data

    def eof_received(self) -> bool:
        self.is_closed = True
        return False

    async def say(self, *messages: Any, then: bytes = b"") -> list[Any]:
        """Send these with one write; what comes until nothing comes any more."""
        self.transport.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages) + then)
        return await self.hear()

    async def hear(self) -> list[Any]:
        for _ in range(60):
            await asyncio.sleep(0)
        received, self._received = self._received, b""
        return [json.loads(line) for line in received.splitlines() if line.strip()]


def request(method: str, *params: Any, call_id: Any = 1, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params, **members}


def word(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def reply(call_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


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


#: What stands for a stream among the params.
STREAM = {"$type": "stream", "id": "t"}


class Service:
    """A server in memory, the sessions it has made, and a gate for its handlers."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server(limits=Limits(**limits), drain_timeout=0.2)
        self.sessions = note_sessions(self.server)
        self.gate = asyncio.Event()
        self._add_methods()

    def _add_methods(self) -> None:
        server, gate = self.server, self.gate

        @server
        async def wait() -> str:
            await gate.wait()
            return "waited"

        @server(ordered=True)
        async def wait_first() -> str:
            await gate.wait()
            return "waited"

        @server
        async def count(n: int) -> AsyncIterator[int]:
            for number in range(n):
                yield number

        @server(ordered=True)
        async def count_behind(n: int) -> AsyncIterator[int]:
            for number in range(n):
                yield number

        @server
        async def total(items: AsyncIterator[int]) -> int:
            return sum([item async for item in items])

        @server
        async def double(items: AsyncIterator[int]) -> AsyncIterator[int]:
            async for item in items:
                yield 2 * item

        @server
        async def back(ctx: Context) -> Any:
            return await ctx.peer.confirm()

        @server
        async def back_late(ctx: Context) -> Any:
            await gate.wait()
            return await ctx.peer.confirm()

        @server
        def now() -> str:
            return "now"

    @asynccontextmanager
    async def by_hand(self) -> AsyncIterator[Hand]:
        async with self.server.in_memory() as accept:
            hand = Hand()
            join(hand, accept())
            yield hand
            hand.transport.close()


# -- early --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["count", "count_behind"])
async def test_credit_that_comes_with_its_request_counts(method: str) -> None:
    service = Service()
    async with service.by_hand() as hand:
        first = [request("wait_first", call_id=0)] if method == "count_behind" else []
        said = await hand.say(*first, request(method, 3, stream=1), word("$/credit", id=1, n=2))
        service.gate.set()
        said += await hand.hear()
        assert what(said)[-4:] == ["item 0", "item 1", "item 2", None]


async def test_credit_and_the_end_of_a_stream_wait_behind_their_request() -> None:
    service = Service(max_calls=1)
    async with service.by_hand() as hand:
        waiting = [request("count", 2, call_id=2, stream=0), word("$/credit", id=2, n=2)]
        assert not await hand.say(
            request("wait"), *waiting, request("total", STREAM, call_id=3), word("$/end", stream="t")
        )
        service.gate.set()
        assert what(await hand.hear()) == ["waited", "item 0", "item 1", None, 0]


async def test_a_stream_that_is_left_before_its_upload_begins_leaves_nothing() -> None:
    service = Service()
    async with memory_client(service.server) as client:
        assert await client.now() == "now"
        async with client.stream.double(iter(range(5))):
            pass
        (link,) = client_connections(client)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not link.session.streams
        assert not service.sessions[0].streams


# -- in between ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
async def test_replies_pass_requests_that_wait_however_many_wait(turns: int) -> None:
    service = Service(max_calls=2)
    async with service.by_hand() as hand:
        asked = await hand.say(request("back", call_id="a"), request("wait", call_id="b"))
        await hand.say(*[request("now", call_id=number) for number in range(2)])
        # As many wait as are kept; and in one of these turns a handler has ended, so that there is room for one more.
        service.gate.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        said = await hand.say(reply(asked[0]["id"], "confirmed"))
        assert sorted(map(str, what(said))) == ["confirmed", "now", "now", "waited"]


async def test_a_reply_that_speaks_of_methods_is_a_reply() -> None:
    service = Service(max_calls=1)
    async with service.by_hand() as hand:
        asked = await hand.say(request("back", call_id="a"), request("now", call_id="b"))
        assert what(await hand.say(reply(asked[0]["id"], {"method": "now"}))) == [{"method": "now"}, "now"]


async def test_a_reply_that_is_too_long_does_not_wait_either() -> None:
    service = Service(max_calls=2, max_message_size=500)
    async with service.by_hand() as hand:
        asked = await hand.say(request("back", call_id="a"), request("wait"), request("now", call_id="b"))
        assert what(await hand.say(reply(asked[0]["id"], "x" * 1000))) == [-32603, "now"]


async def test_replies_in_a_batch_with_requests_are_replies() -> None:
    service = Service()
    async with service.by_hand() as hand:
        asked = await hand.say(request("back", call_id="a"))
        late, right = reply(99, "to nobody"), reply(asked[0]["id"], "confirmed")
        batch, confirmed = await hand.say([late, request("now", call_id="b"), right])
        assert what(batch) == ["now"]
        assert confirmed == reply("a", "confirmed")
        assert service.sessions[0].pending.dropped == 1


async def test_whoever_is_turned_away_is_told_by_the_very_id_and_replies_are_not() -> None:
    service = Service(max_calls=2)
    async with service.by_hand() as hand:
        asked, other = await hand.say(request("back", call_id="a"), request("back", call_id="b"))
        await hand.say(request("now", call_id="c"), request("now", call_id="d"))  # as many as are kept
        big, late = request("now", call_id=2**70), reply(99, "to nobody")
        mixed = [late, request("now", call_id=7), reply(asked["id"], "confirmed")]
        said = await hand.say(big, mixed)
        busy, (of_batch,), confirmed, *others = said
        assert (busy["id"], busy["error"]["code"]) == (2**70, -32002)
        assert (of_batch["id"], of_batch["error"]["code"]) == (7, -32002)
        assert confirmed == reply("a", "confirmed")
        assert what(others) == ["now", "now"]
        assert what(await hand.say(reply(other["id"], "confirmed"))) == ["confirmed"]
        assert service.sessions[0].pending.dropped == 1


# -- behind the last word -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["an empty line", "a half-close"])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (request("count", 3, stream=1), ["item 0", -32800]),
        (request("total", STREAM), [-32800]),
        (request("back"), [-32800]),
        (request("back_late"), [-32800]),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
async def test_whoever_ends_the_conversation_is_answered_and_nothing_is_an_error(
    how: str, asked: Any, answered: list[Any], waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(max_calls=2)
    async with service.by_hand() as hand:
        first = [request("wait", call_id=8), request("wait", call_id=9)] if waits else []
        said = await hand.say(*first, asked, then=b"\n" if how == "an empty line" else b"")
        if how == "a half-close":
            hand.transport.write_eof()
        said += await hand.hear()
        service.gate.set()
        said += await hand.hear()
        assert [one for one in what(said) if one != "waited"] == answered
        assert hand.is_closed
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_no_call_is_made_to_a_peer_that_says_nothing_more() -> None:
    service = Service()
    async with service.by_hand() as hand:
        await hand.say(request("wait"))
        peer = Peer(service.sessions[0])
        hand.transport.write_eof()
        await hand.hear()
        with pytest.raises(ConnectionLost, match="has closed its sending half"):
            await peer.confirm()
        with pytest.raises(ConnectionLost, match="has closed its sending half"):
            peer.stream.count(3)
        peer.notify.goodbye()
        assert (await hand.hear())[0]["method"] == "goodbye"


async def test_a_call_that_waited_until_its_peer_reads_fails_when_that_is_gone() -> None:
    service = Service(write_buffer=1000)
    async with service.by_hand() as hand:
        peer = Peer(service.sessions[0])
        hand.transport.pause_reading()
        for _ in range(40):
            peer.notify.fill("x" * 100)
        await hand.hear()
        assert service.sessions[0].write_gate.stalled
        call = asyncio.ensure_future(peer.confirm())
        await hand.hear()
        service.sessions[0].abort("the test says so")
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(call, 5)
        assert not service.sessions[0].pending


async def test_a_vanished_peer_shows_when_something_is_written() -> None:
    service = Service()
    async with service.by_hand() as hand:
        await hand.say(request("wait"))
        hand.transport.close()
        await hand.hear()
        assert service.sessions[0].running.handlers  # it may have been a half-close
        connection_table(service.server).check_timeouts()
        await hand.hear()
        assert not service.sessions[0].running.handlers


# -- what is one call's alone ---------------------------------------------------------------------------------------


def run_in_fake_time(test: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(test())


def test_a_deadline_is_not_inherited_by_calls_that_only_waited_for_room() -> None:
    async def test() -> None:
        service = Service(max_calls=1)
        async with memory_client(service.server, timeout=None) as client:
            asked = 0

            @client
            async def confirm() -> str:
                nonlocal asked
                asked += 1
                await asyncio.sleep(3)
                return "confirmed"

            limited = client.call("back", timeout=5)
            first, second = await asyncio.gather(limited, client.call("back"), return_exceptions=True)
            assert first == second == "confirmed"
            # The second one had to wait for 3 s, and takes 3 s: more than the first one had.
            first, second = await asyncio.gather(
                client.call("back", timeout=1), client.call("back"), return_exceptions=True
            )
            assert isinstance(first, RpcError | CallTimeout)
            assert second == "confirmed"
            assert asked == 4

    run_in_fake_time(test)


def test_a_connection_does_not_inherit_the_deadline_of_the_call_that_was_first() -> None:
    async def test() -> None:
        service, gateway = Service(), Server(drain_timeout=0.2)

        async def connect(make_stream: Callable[[], Any]) -> Any:
            stream = make_stream()
            join(stream, accept())
            return stream

        @gateway(timeout=2.0)
        async def forward() -> Any:
            return await inner.now()

        async with service.server.in_memory() as accept, memory_client(gateway) as client:
            backoff = Backoff(first=1.0, longest=1.0)
            inner = AsyncClient("inner", connect=connect, timeout=None, reconnect=backoff)

            @inner.on_connect
            async def hello(server: Peer) -> None:
                await server.now()

            assert await client.forward() == "now"
            await asyncio.sleep(10)  # the deadline of that handler is long over
            service.sessions[-1].abort("the test says so")
            await asyncio.sleep(10)
            assert inner.state == "connected"
            await inner.close()

    run_in_fake_time(test)
