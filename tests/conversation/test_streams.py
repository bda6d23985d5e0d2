"""Streams of items as replies: credit, order, and one end for each."""

from __future__ import annotations

import asyncio
import difflib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import (
    ConnectionLost,
    Context,
    InternalError,
    InvalidParams,
    InvalidRequest,
    Limits,
    MessageTooLarge,
    RpcError,
    Server,
)
from rpcstream.testing import memory_client

from ..kit import LogLines, Network, RawPeer, StoppableServer, notification, request, until

#: A generator of each kind, under these names.
KINDS = ["sync", "async", "thread"]


class Counting:
    """A server that counts, in every way, and what became of its generators."""

    def __init__(self, **options: Any) -> None:
        self.server = Server(**options)
        self.made: list[Any] = []
        self.closed = 0

        def count(n: int, fail_at: int = -1) -> Iterator[int]:
            try:
                for i in range(n):
                    self.made.append(i)
                    if i == fail_at:
                        raise RpcError(9, "far enough", i)
                    yield i
            finally:
                self.closed += 1
            return "end"

        async def count_async(n: int, fail_at: int = -1) -> AsyncIterator[int]:
            try:
                for i in range(n):
                    self.made.append(i)
                    if i == fail_at:
                        raise RpcError(9, "far enough", i)
                    yield i
            finally:
                await asyncio.sleep(0)
                self.closed += 1

        self.server.add(count, name="sync")
        self.server.add(count_async, name="async")
        self.server.add(count, name="thread", offload="thread")
        self.server.add(count, name="ordered", ordered=True)

        @self.server
        def plain(value: Any) -> Any:
            return value


@pytest.fixture
async def counting() -> Counting:
    return Counting()


def item(n: Any, id: Any = 1) -> dict[str, Any]:
    return notification("$/item", id=id, value=n)


def credit(n: Any, id: Any = 1) -> dict[str, Any]:
    return notification("$/credit", id=id, n=n)


@pytest.mark.parametrize("kind", KINDS)
async def test_never_more_than_was_permitted(network: Network, counting: Counting, kind: str) -> None:
    async with network.raw(counting.server) as raw:
        raw.call(kind, 7, stream=0)
        await raw.silence()
        raw.send(credit(2))
        assert await raw.receive_many(2) == [item(0), item(1)]
        await raw.silence()
        raw.send(credit(1), credit(2))
        assert await raw.receive_many(3) == [item(2), item(3), item(4)]
        await raw.silence()
        assert len(counting.made) <= 6, "one is made ahead"
        assert not counting.closed
        raw.send(credit(2))
        assert await raw.receive_many(2) == [item(5), item(6)]
        assert await raw.result() == (None if kind == "async" else "end")
        await raw.silence()
        assert counting.closed == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_the_end_needs_no_credit_and_every_id_may_have_a_stream(
    network: Network, counting: Counting, kind: str
) -> None:
    async with network.raw(counting.server) as raw:
        for permitted in (3, 4, 1000, 2**31, 2**53, 2**62):
            raw.call(kind, 3, stream=permitted)
            raw.send(credit(2**62))  # more than is counted; as good as any
            assert await raw.receive_many(3) == [item(0), item(1), item(2)]
            await raw.result()
        raw.call(kind, 0, stream=0)
        await raw.result()
        for call_id in (0, "", "one", "1", -1, 2**63, None):
            raw.call(kind, 3, stream=1, id=call_id)
            assert await raw.receive() == item(0, id=call_id)
            raw.send(credit(2, id=call_id))
            assert await raw.receive_many(2) == [item(1, id=call_id), item(2, id=call_id)]
            assert (await raw.reply())["id"] == call_id
        raw.send(credit(5))  # too late
        await raw.silence()


async def test_no_stream_was_asked_for(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        for kind in [*KINDS, "ordered"]:
            assert await raw.result(kind, 3) == [0, 1, 2]
            assert await raw.result(kind, 3, stream=None) == [0, 1, 2]
            assert await raw.result(kind, 0) == []
            assert (await raw.reply(kind, 3, 2))["error"] == {"code": 9, "message": "far enough", "data": 2}
        assert counting.closed == 16


async def test_credit_is_for_a_stream_of_the_same_connection(network: Network, counting: Counting) -> None:
    async with network.serve(counting.server) as endpoint:
        one, other = await endpoint.raw(), await endpoint.raw()
        one.call("sync", 2, stream=0)
        other.call("async", 2, stream=0)
        other.send(credit(1))
        assert await other.receive() == item(0)
        await one.silence()
        one.cancel(1)
        assert await one.code() == -32800
        await other.silence()
        other.send(credit(1))
        assert await other.receive() == item(1)
        await other.result()


async def test_members_of_a_batch_may_stream(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        raw.send([request("sync", 2, id=1, stream=1), request("async", 2, id=2, stream=5), request("plain", 3, id=3)])
        items = await raw.receive_many(3)
        assert sorted(each["params"]["id"] for each in items) == [1, 2, 2]
        await raw.silence()
        raw.send([credit(1, id=1)])
        assert await raw.receive() == item(1, id=1)
        assert [each["result"] for each in await raw.receive()] == ["end", None, 3]


async def test_a_notification_cannot_stream(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        for kind in KINDS:
            raw.send({"jsonrpc": "2.0", "method": kind, "params": [3], "stream": 3})
        await until(lambda: counting.closed == 3)
        await raw.silence()


async def test_it_keeps_its_place_in_the_order(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        raw.send(request("ordered", 2, id=1, stream=1), request("ordered", 1, id=2, stream=5))
        assert await raw.receive() == item(0, id=1)
        await raw.silence()
        raw.send(credit(1))
        assert await raw.receive() == item(1, id=1)
        assert (await raw.reply())["id"] == 1
        assert await raw.receive() == item(0, id=2)
        assert (await raw.reply())["id"] == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_items_and_result(network: Network, counting: Counting, kind: str) -> None:
    async with network.client(counting.server) as client:
        for n in (0, 1, 15, 16, 17, 33, 300):
            counting.closed = 0
            stream = client.stream(kind, n)
            assert "not started" in repr(stream)
            assert stream.result is None
            assert [each async for each in stream] == list(range(n))
            assert stream.result == (None if kind == "async" else "end")
            assert [each async for each in stream] == [], "it is over"
            assert "ended" in repr(stream)
            assert counting.closed == 1
            assert await client.call(kind, n) == list(range(n))


@pytest.mark.lasting
async def test_rich_items(network: Network) -> None:
    server = Server()
    picture = Image.new("RGB", (5, 4), (1, 2, 3))
    values: list[Any] = [2**64, -(2**100), [10**30, {"a": 2**65}], None, "ü\u2028", 1.5, {}, True, b"\x00\xff", 1 + 2j]

    @server
    async def arrays() -> AsyncIterator[NDArray[np.float32]]:
        for n in range(3):
            yield np.full((2, n), n, np.float32)

    @server
    def anything() -> Iterator[Any]:
        yield from [*values, picture]

    @server(offload="thread")
    def large(n: int) -> Iterator[NDArray[np.uint8]]:
        for each in range(n):
            yield np.full(300_000, each, np.uint8)

    async with network.client(server) as client:
        got = [each async for each in client.stream.arrays()]
        assert [(each.shape, each.dtype.str) for each in got] == [((2, n), "<f4") for n in range(3)]
        *got, last = [each async for each in client.stream.anything()]
        assert (got, last.tobytes()) == (values, picture.tobytes())
        assert [int(each[-1]) async for each in client.stream.large(20)] == list(range(20))


def faulty(fault: str) -> Iterator[Any]:
    yield "short"
    if fault == "fails":
        raise KeyError("secret")
    yield {"too large": "x" * 2000, "no JSON": object(), "another type": 5}[fault]


#: What is wrong with the second item, what its reader is told, and what is logged.
FAULTS: dict[str, tuple[type[Exception], str, str]] = {
    "too large": (MessageTooLarge, "the server's limit is 1000", ""),
    "no JSON": (InternalError, "^((?!secret).)*$", "method 'faulty' failed"),
    "another type": (InternalError, "^((?!secret).)*$", "the result is not what the return hint says"),
    "fails": (InternalError, "^((?!secret).)*$", "(?s)method 'faulty' failed.*KeyError: 'secret'"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_item_that_is_none_ends_its_stream(network: Network, errors: LogLines, fault: str) -> None:
    error, told, logged = FAULTS[fault]
    server = Server(limits=Limits(max_message_size=1000))

    def typed(fault: str) -> Iterator[str]:
        yield from faulty(fault)

    server.add(typed if fault == "another type" else faulty, name="faulty")
    async with network.client(server) as client:
        stream = client.stream.faulty(fault)
        assert await anext(stream) == "short"
        with pytest.raises(error, match=told):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await client.call("rpc.ping") == "pong"
    errors.expect(logged, times=bool(logged))


async def test_an_item_that_its_reader_does_not_take(network: Network) -> None:
    server = Server()
    closed: list[str] = []

    @server
    def texts() -> Iterator[str]:
        try:
            yield "short"
            yield "x" * 2000
            yield "short again"
        finally:
            closed.append("closed")

    async with network.client(server, limits=Limits(max_message_size=1000)) as client:
        stream = client.stream.texts()
        assert await anext(stream) == "short"
        with pytest.raises(MessageTooLarge, match="the client's limit is 1000"):
            await anext(stream)
        with pytest.raises(TypeError, match="'texts'"):
            await anext(client.stream.texts(returns=float))
        async with client.stream.texts(returns=str) as stream:
            assert await anext(stream) == "short"
        await until(lambda: len(closed) == 3)
        assert await client.call("rpc.ping") == "pong"


async def test_generators_in_another_process() -> None:
    server = Server(processes=1)
    server.add(difflib.unified_diff, name="diff", offload="process")
    old, new = ["a", "b", "c"], ["a", "c", "d"]
    lines = list(difflib.unified_diff(old, new, "old", "new"))
    async with memory_client(server) as client:
        assert [each async for each in client.stream.diff(old, new, "old", "new")] == lines
        assert await client.diff(old, new, "old", "new") == lines
        async for each in client.stream.diff(old, new, "old", "new"):
            assert each == lines[0]
            break
        assert await client.call("rpc.ping") == "pong"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_comes_behind_the_items_before_it(network: Network, counting: Counting, kind: str) -> None:
    async with network.client(counting.server) as client:
        for fail_at in (0, 1, 40):
            got = []
            with pytest.raises(RpcError, match="far enough") as caught:
                async for each in client.stream(kind, 50, fail_at):
                    got.append(each)
            assert (caught.value.code, caught.value.data) == (9, fail_at)
            assert got == list(range(fail_at))
        assert counting.closed == 3


async def test_wrong_arguments_of_a_stream(network: Network, counting: Counting) -> None:
    async with network.client(counting.server) as client:
        for kind in KINDS:
            with pytest.raises(InvalidParams, match="'n'"):
                await anext(client.stream(kind))
        assert counting.made == []


@pytest.mark.parametrize("value", [3, [1, 2], [], None])
async def test_a_method_that_does_not_stream_has_its_result_as_its_one_item(
    network: Network, counting: Counting, value: Any
) -> None:
    async with network.client(counting.server) as client:
        stream = client.stream.plain(value)
        assert [item async for item in stream] == [value]
        assert stream.result == value
        with pytest.raises(TypeError):
            [item async for item in client.stream_request("plain", [value], returns=dict[str, int])]


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_reader_slows_its_producer_alone(network: Network, counting: Counting, kind: str) -> None:
    async with network.client(counting.server) as client:
        slow = client.stream(kind, 1000)
        assert await anext(slow) == 0
        for n in range(50):
            assert await client.plain(n) == n
        assert [each async for each in client.stream.sync(100)] == list(range(100))
        assert await asyncio.gather(*(client.plain(n) for n in range(50))) == list(range(50))
        produced = len(counting.made) - 100
        assert produced <= 16 + 1 + 1, "a window, what was read, and one ahead"
        assert [each async for each in slow] == list(range(1, 1000))


async def _close(stream: Any) -> None:
    assert await anext(stream) == 0
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def _leave(stream: Any) -> None:
    async with stream:
        async for each in stream:
            if each == 3:
                return


async def _break(stream: Any) -> None:
    async for each in stream:
        if each == 3:
            break


async def _open_only(stream: Any) -> None:
    async with stream:
        pass


async def _cancel(stream: Any) -> None:
    async def read() -> None:
        async for _ in stream:
            begun.set()
            await asyncio.sleep(0)

    begun = asyncio.Event()
    reading = asyncio.ensure_future(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def _drop_in_a_thread(stream: Any) -> None:
    assert await anext(stream) == 0
    held = [stream]
    del stream
    await asyncio.to_thread(held.clear)


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", [_break, _close, _leave, _open_only, _cancel, _drop_in_a_thread])
async def test_breaking_off_stops_the_generator(
    network: Network, counting: Counting, kind: str, way: Callable[[Any], Any]
) -> None:
    async with network.client(counting.server) as client:
        await way(client.stream(kind, 10**9))
        gc.collect()
        assert await client.plain("still there") == "still there"
        await network.finished()
        await until(lambda: counting.closed == bool(counting.made))
        made = len(counting.made)
        assert await client.plain("still there") == "still there"
        assert (len(counting.made), counting.closed) == (made, bool(made))


async def test_a_stream_that_was_never_begun(network: Network, counting: Counting) -> None:
    async with network.client(counting.server) as client:
        stream = client.stream.sync(10)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        client.stream.sync(10)
        assert await client.plain(1) == 1
        assert counting.made == []


async def test_cancelling_the_reader_of_a_stream_without_items(network: Network, counting: Counting) -> None:
    @counting.server
    async def stalls() -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            counting.closed += 1

    async with network.client(counting.server) as client:
        await _cancel(client.stream.stalls())
        gc.collect()
        await until(lambda: counting.closed == 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_connection_stops_the_generator(network: Network, counting: Counting, kind: str) -> None:
    async with network.serve(counting.server) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.call(kind, 10**9, stream=3)
        await raw.receive_many(3)
        await network.lose(raw)
        await network.finished()
        await until(lambda: counting.closed == 1)
        await other.silence()
        assert counting.made in ([0, 1, 2], [0, 1, 2, 3])


@pytest.mark.half_close
@pytest.mark.parametrize("kind", KINDS)
async def test_a_peer_that_says_nothing_more_permits_nothing_more(
    network: Network, counting: Counting, kind: str
) -> None:
    """The items that were permitted still come; then the call ends without an error."""
    async with network.raw(counting.server) as raw:
        raw.send(request(kind, 2, id=1, stream=2), request(kind, 10, id=2, stream=3))
        raw.end()
        messages = await raw.rest()
        for call_id, count in (1, 2), (2, 3):
            items = [each for each in messages if each.get("params", {}).get("id") == call_id]
            assert items == [item(n, call_id) for n in range(count)]
        replies = {each["id"]: each for each in messages if "id" in each}
        assert "result" in replies[1]
        assert replies[2]["error"]["code"] == -32800
        assert counting.closed == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_on_the_wire(network: Network, counting: Counting, kind: str) -> None:
    async with network.raw(counting.server) as raw:
        raw.call(kind, 10**9, stream=2)
        await raw.receive_many(2)
        raw.cancel(1)
        assert await raw.code() == -32800
        assert counting.closed == 1
        raw.send(credit(100))
        await raw.silence()
        raw.send([request(kind, 10**9, id=5, stream=2), notification("$/cancelRequest", id=5)])
        while not isinstance(message := await raw.receive(), list):
            assert message["method"] == "$/item"
        assert message[0]["error"]["code"] == -32800


async def test_a_thread_in_the_middle_of_a_step(network: Network) -> None:
    """It cannot be interrupted, and is closed when that step is done: once, and not before."""
    server = Server()
    go = threading.Event()
    steps: list[str] = []

    @server(offload="thread")
    def slow(ctx: Context) -> Iterator[int]:
        try:
            yield 0
            steps.append("in the middle")
            assert go.wait(20)
            steps.append(f"cancelled: {ctx.cancelled}")
            yield 1
            steps.append("never")
        finally:
            steps.append("closed")

    async with network.raw(server) as raw:
        for lose in (False, True):
            go.clear()
            steps.clear()
            raw.call("slow", stream=5)
            assert await raw.receive() == item(0)
            await until(lambda: steps == ["in the middle"])
            if lose:
                await network.lose(raw)
                await network.finished()
            else:
                raw.cancel(1)
                assert await raw.code() == -32800
            assert steps == ["in the middle"]
            go.set()
            await until(lambda: len(steps) == 3)
            assert steps == ["in the middle", "cancelled: True", "closed"]


async def test_a_thread_that_waits_for_its_turn(network: Network) -> None:
    """Broken off while the step has no thread yet: the step is not run, the generator is closed all the same."""
    server = Server(threads=1)
    go = threading.Event()
    steps: list[str] = []

    @server(offload="thread")
    def items() -> Iterator[int]:
        try:
            for n in range(10):
                steps.append(f"made {n}")
                yield n
        finally:
            steps.append("closed")

    @server(offload="thread")
    def block() -> None:
        steps.append("blocked")
        assert go.wait(20)

    async with network.raw(server) as raw:
        raw.call("items", stream=0)
        await until(lambda: steps == ["made 0"])
        raw.call("block", id=2)
        await until(lambda: steps == ["made 0", "blocked"])
        raw.send(credit(1))
        assert await raw.receive() == item(0)
        await raw.silence()
        raw.cancel(1)
        await raw.silence()
        go.set()
        replies = {each["id"]: each for each in await raw.receive_many(2)}
        assert replies[1]["error"]["code"] == -32800
        assert steps == ["made 0", "blocked", "closed"]


async def test_an_error_while_closing(network: Network, errors: LogLines) -> None:
    server = Server()

    def bad() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise KeyError("while closing")

    server.add(bad, name="sync")
    server.add(bad, name="thread", offload="thread")
    async with network.raw(server) as raw:
        for kind in ("sync", "thread"):
            raw.call(kind, stream=1)
            assert await raw.receive() == item(1)
            raw.cancel(1)
            assert await raw.code() in (-32603, -32800)
        await raw.silence()
    errors.expect("while closing", times=2)


async def test_drain_lets_streams_end(network: Network, counting: Counting) -> None:
    async with StoppableServer(network, counting.server) as stopping:
        client = stopping.endpoint.client()
        stream = client.stream("async", 100)
        assert await anext(stream) == 0
        stopping.stop()
        await network.draining()
        assert [each async for each in stream] == list(range(1, 100))


async def test_more_items_than_were_permitted(network: Network) -> None:
    heard: list[Any] = []

    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        raw.send(*[item(n, id=asked["id"]) for n in range(asked["stream"] + 3)])
        heard.append(await raw.receive())
        raw.answer(asked, "late")
        raw.send(item(7, id=asked["id"]))
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        stream = client.stream.many()
        got = []
        with pytest.raises(InvalidRequest, match="credit"):
            await anext(stream)
            await until(lambda: heard)
            async for each in stream:
                got.append(each)
        assert got == list(range(1, 16))
        assert heard[0]["method"] == "$/cancelRequest"
        assert await client.next() == "fine"
        assert client.replies_dropped >= 2


@pytest.mark.parametrize("broken", [{}, {"value": {"$type": "ndarray", "dtype": "<f4"}}, {"value": "deep"}])
async def test_an_item_that_cannot_be_read(network: Network, broken: dict[str, Any]) -> None:
    heard: list[Any] = []

    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        if broken.get("value") == "deep":
            start = b'{"jsonrpc":"2.0","method":"$/item","params":{"id":%d,"value":' % asked["id"]
            raw.send(start + b"[" * 200 + b"]" * 200 + b"}}")
        else:
            raw.send(notification("$/item", id=asked["id"], **broken))
        heard.append(await raw.receive())
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        with pytest.raises(InternalError, match="cannot be read"):
            await anext(client.stream.items())
        await until(lambda: heard)
        assert heard[0]["method"] == "$/cancelRequest"
        assert await client.next() == "fine"


async def test_a_connection_that_is_lost_in_the_middle(network: Network) -> None:
    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        raw.send(item(0, id=asked["id"]), item(1, id=asked["id"]))
        raw.end()

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        got = []
        with pytest.raises(ConnectionLost, match="'items'"):
            async for each in client.stream.items():
                got.append(each)
        assert got == [0, 1]
