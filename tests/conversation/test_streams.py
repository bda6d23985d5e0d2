"""Streams of items as replies: credit, order, and one end for each."""

from __future__ import annotations

import asyncio
import difflib
import gc
import json
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


# -- credit, on the wire --------------------------------------------------------------------------------------------


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
async def test_the_end_needs_no_credit(network: Network, counting: Counting, kind: str) -> None:
    async with network.raw(counting.server) as raw:
        for permitted in (3, 4, 1000, 2**31, 2**53, 2**62):
            raw.call(kind, 3, stream=permitted)
            raw.send(credit(2**62))  # more than is counted; as good as any
            assert await raw.receive_many(3) == [item(0), item(1), item(2)]
            await raw.result()
            raw.call(kind, 0, stream=permitted)
            await raw.result()
        raw.call(kind, 0, stream=0)
        await raw.result()


async def test_odd_numbers_of_items(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        for odd in (-1, 1.5, "3", True, False, [], {}, 1e30, "", -(2**62)):
            for kind in KINDS:
                assert await raw.code(kind, 3, stream=odd) == -32600
        assert counting.made == []


async def test_no_stream_was_asked_for(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        for kind in [*KINDS, "ordered"]:
            assert await raw.result(kind, 3) == [0, 1, 2]
            assert await raw.result(kind, 3, stream=None) == [0, 1, 2]
            assert await raw.result(kind, 0) == []
            assert (await raw.reply(kind, 3, 2))["error"] == {"code": 9, "message": "far enough", "data": 2}
        assert counting.closed == 16


async def test_a_method_that_has_no_items(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        assert await raw.result("plain", 5, stream=3) == 5
        assert await raw.code("missing", stream=3) == -32601
        raw.send(credit(3))
        await raw.silence()


@pytest.mark.parametrize("kind", KINDS)
async def test_credit_that_means_nothing(network: Network, counting: Counting, kind: str) -> None:
    odd: list[Any] = [
        {"id": 1, "n": 0},
        {"id": 1, "n": -5},
        {"id": 1, "n": True},
        {"id": 1, "n": 1.5},
        {"id": 1, "n": "1"},
        {"id": 1, "n": None},
        {"id": 1, "n": [1]},
        {"id": 1},
        {"n": 1},
        {"id": "1", "n": 1},
        {"id": 1.0, "n": 1},
        {"id": True, "n": 1},
        {"id": [1], "n": 1},
        {"id": 2, "n": 1},
        {"id": None, "n": 1},
        {"stream": "1", "n": 1},
        {"stream": 1, "n": 1},
        {"stream": "id 1", "n": 1},
        {"stream": "", "id": 1, "n": 1},
        {"id": "id 1", "n": 1},
        [],
        [1, 1],
        [{"id": 1, "n": 1}],
        None,
    ]
    async with network.raw(counting.server) as raw:
        raw.send(credit(5))  # too early: there is no such stream yet
        raw.call(kind, 2, stream=0)
        for params in odd:
            raw.send({"jsonrpc": "2.0", "method": "$/credit", "params": params})
        raw.send({"jsonrpc": "2.0", "method": "$/credit"}, {"method": "$/credit", "params": {"id": 1, "n": 1}})
        await raw.silence()
        raw.send({"jsonrpc": "2.0", "id": 5, "method": "$/credit", "params": {"id": 1, "n": 1}})
        assert await raw.code() == -32601
        raw.send(credit(2))
        assert await raw.receive_many(2) == [item(0), item(1)]
        await raw.result()
        raw.send(credit(5))  # too late
        await raw.silence()


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


async def test_every_id_may_have_a_stream(network: Network, counting: Counting) -> None:
    async with network.raw(counting.server) as raw:
        for call_id in (0, "", "one", "1", -1, 2**63, None):
            raw.call("async", 3, stream=1, id=call_id)
            assert await raw.receive() == item(0, id=call_id)
            raw.send(credit(2, id=call_id))
            assert await raw.receive_many(2) == [item(1, id=call_id), item(2, id=call_id)]
            assert await raw.receive() == {"jsonrpc": "2.0", "id": call_id, "result": None}


async def test_ids_that_are_not_exact(network: Network, counting: Counting) -> None:
    """They are echoed as they came; but nothing could be permitted or cancelled by such a name."""
    async with network.raw(counting.server) as raw:
        for call_id in (b"1.5", b"1e2", b"18446744073709551616", b"-9223372036854775809"):
            head = b'{"jsonrpc":"2.0","id":' + call_id
            raw.send(head + b',"method":"async","params":[3],"stream":1}')
            reply = await raw.receive()
            assert (reply["id"], reply["error"]["code"]) == (json.loads(call_id), -32600)
            assert "id" in reply["error"]["data"]["reason"]
            raw.send(head + b',"method":"async","params":[3]}')
            assert await raw.result() == [0, 1, 2]


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


# -- as clients read it ---------------------------------------------------------------------------------------------


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


async def test_any_window(network: Network, counting: Counting) -> None:
    async with network.serve(counting.server) as endpoint:
        for window in (1, 2, 3, 100):
            client = endpoint.client(limits=Limits(stream_window=window))
            assert [each async for each in client.stream.sync(250)] == list(range(250))


@pytest.mark.lasting
async def test_rich_items(network: Network) -> None:
    server = Server()
    picture = Image.new("RGB", (5, 4), (1, 2, 3))

    @server
    async def arrays() -> AsyncIterator[NDArray[np.float32]]:
        for n in range(3):
            yield np.full((2, n), n, np.float32)

    @server
    def pictures() -> Iterator[Image.Image]:
        yield picture
        yield picture.rotate(90, expand=True)

    @server
    def anything() -> Iterator[Any]:
        yield from VALUES

    @server(offload="thread")
    def large(n: int) -> Iterator[NDArray[np.uint8]]:
        for each in range(n):
            yield np.full(300_000, each, np.uint8)

    values: list[Any] = [2**64, -(2**100), [10**30, {"a": 2**65}], None, "ü\u2028", 1.5, {}, True, b"\x00\xff", 1 + 2j]
    VALUES = values
    async with network.client(server) as client:
        got = [each async for each in client.stream.arrays()]
        assert [(each.shape, each.dtype.str) for each in got] == [((2, n), "<f4") for n in range(3)]
        got = [each async for each in client.stream.pictures()]
        assert [each.size for each in got] == [(5, 4), (4, 5)]
        assert got[0].tobytes() == picture.tobytes()
        assert [each async for each in client.stream.anything()] == values
        assert [int(each[-1]) async for each in client.stream.large(20)] == list(range(20))


async def test_the_type_of_items(network: Network, errors: LogLines) -> None:
    server = Server()
    closed: list[str] = []

    @server
    def wrong(n: int) -> Iterator[int]:
        yield from range(n)
        yield "no number"  # type: ignore[misc]

    @server
    async def floats() -> AsyncIterator[float]:
        try:
            while True:
                yield 1
        finally:
            closed.append("floats")

    async with network.client(server) as client:
        got = []
        with pytest.raises(InternalError):
            async for each in client.stream.wrong(3):
                got.append(each)
        assert got == [0, 1, 2]
        async with client.stream.floats(returns=float) as stream:
            assert type(await anext(stream)) is float
        with pytest.raises(TypeError, match="'floats'"):
            await anext(client.stream.floats(returns=str))
        await until(lambda: closed == ["floats"] * 2)
    errors.expect("the result is not what the return hint says")


async def test_an_item_that_is_too_large(network: Network, errors: LogLines) -> None:
    server = Server(limits=Limits(max_message_size=1000))

    @server
    def texts(size: int) -> Iterator[str]:
        yield "short"
        yield "x" * size

    async with network.client(server) as client:
        assert len([each async for each in client.stream.texts(800)][1]) == 800
        got = []
        with pytest.raises(MessageTooLarge, match="the server's limit is 1000"):
            async for each in client.stream.texts(2000):
                got.append(each)
        assert got == ["short"]


async def test_an_item_that_is_too_large_for_its_reader(network: Network) -> None:
    server = Server()
    closed: list[str] = []

    @server
    def texts(size: int) -> Iterator[str]:
        try:
            yield "short"
            yield "x" * size
            yield "short again"
        finally:
            closed.append("closed")

    async with network.client(server, limits=Limits(max_message_size=1000)) as client:
        got = []
        with pytest.raises(MessageTooLarge, match="the client's limit is 1000"):
            async for each in client.stream.texts(2000):
                got.append(each)
        assert got == ["short"]
        await until(lambda: closed)
        assert await client.call("rpc.ping") == "pong"


async def test_an_item_that_cannot_be_written(network: Network, errors: LogLines) -> None:
    server = Server()

    @server
    def odd() -> Iterator[Any]:
        yield 1
        yield object()

    async with network.client(server) as client:
        got = []
        with pytest.raises(InternalError):
            async for each in client.stream.odd():
                got.append(each)
        assert got == [1]
    errors.expect("method 'odd' failed")


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


# -- errors ---------------------------------------------------------------------------------------------------------


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


async def test_a_failure_is_logged_and_not_told(network: Network, errors: LogLines) -> None:
    server = Server()

    @server
    async def fails() -> AsyncIterator[int]:
        yield 1
        raise KeyError("secret")

    async with network.client(server) as client:
        stream = client.stream.fails()
        assert await anext(stream) == 1
        with pytest.raises(InternalError) as caught:
            await anext(stream)
        assert "secret" not in str(caught.value)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    errors.expect("(?s)method 'fails' failed.*KeyError: 'secret'")


async def test_wrong_arguments_of_a_stream(network: Network, counting: Counting) -> None:
    async with network.client(counting.server) as client:
        for kind in KINDS:
            with pytest.raises(InvalidParams, match="'n'"):
                await anext(client.stream(kind))
        assert counting.made == []


# -- reading slowly -------------------------------------------------------------------------------------------------


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


async def test_fifty_streams_and_as_many_calls(network: Network, counting: Counting) -> None:
    async with network.client(counting.server) as client:

        async def read(kind: str, n: int) -> list[int]:
            got = []
            async for each in client.stream(kind, n):
                got.append(each)
                if n % 3 == 0:
                    await asyncio.sleep(0)
            return got

        async def ask(n: int) -> list[int]:
            return [await client.plain(each) for each in range(n)]

        streams = [read([*KINDS, "sync"][n % 4], 2 * n) for n in range(50)]
        results = await asyncio.gather(*streams, *(ask(n) for n in range(50)))
        assert results[:50] == [list(range(2 * n)) for n in range(50)]
        assert results[50:] == [list(range(n)) for n in range(50)]
        assert counting.closed == 50


@pytest.mark.backpressure
async def test_a_peer_that_permits_much_and_reads_nothing(network: Network) -> None:
    """It holds a bounded part of what the generator could make."""
    server = Server(limits=Limits(write_buffer=100_000, write_timeout=None))
    made: list[int] = []

    @server
    def blocks() -> Iterator[str]:
        for n in range(10**6):
            made.append(n)
            yield "x" * 10_000

    async with network.serve(server) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.transport.pause_reading()
        raw.call("blocks", stream=2**31)
        before = -1
        while len(made) != before:
            before = len(made)
            for _ in range(30):
                assert await other.result("rpc.ping") == "pong"
        assert 0 < len(made) < 3000, "30 MB in all the buffers on the way"
        raw.close()
        await until(lambda: not network.served[0].running.handlers)


# -- breaking off ---------------------------------------------------------------------------------------------------


async def _break(stream: Any) -> None:
    async for each in stream:
        if each == 3:
            break


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


async def _fail(stream: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        async with stream:
            async for each in stream:
                _ = 1 / (3 - each)


async def _open_only(stream: Any) -> None:
    async with stream:
        pass


async def _drop(stream: Any) -> None:
    assert await anext(stream) == 0
    del stream


WAYS = [_break, _close, _leave, _fail, _open_only, _drop]


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
async def test_breaking_off_stops_the_generator(
    network: Network, counting: Counting, kind: str, way: Callable[[Any], Any]
) -> None:
    async with network.client(counting.server) as client:
        await way(client.stream(kind, 10**9))
        assert await client.plain("still there") == "still there"
        await until(lambda: not network.served[0].running.handlers and counting.closed == bool(counting.made))
        made = len(counting.made)
        assert made <= 40
        assert await client.plain("still there") == "still there"
        assert (len(counting.made), counting.closed) == (made, bool(made))


async def test_a_stream_that_was_never_begun(network: Network, counting: Counting) -> None:
    async with network.client(counting.server) as client:
        stream = client.stream.sync(10)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        del stream
        client.stream.sync(10)
        assert await client.plain(1) == 1
        assert counting.made == []


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_its_reader_stops_the_generator(network: Network, counting: Counting, kind: str) -> None:
    server = counting.server

    @server
    async def stalls() -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            counting.closed += 1

    async with network.client(server) as client:

        async def read(name: str, *args: Any) -> None:
            async for _ in client.stream(name, *args):
                await asyncio.sleep(0)

        for name, args in ("stalls", ()), (kind, (10**9,)):
            counting.closed = 0
            reading = asyncio.ensure_future(read(name, *args))
            for _ in range(20):
                await client.plain(1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            del reading
            await until(lambda: counting.closed == 1)
        assert await client.plain("still there") == "still there"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_connection_stops_the_generator(network: Network, counting: Counting, kind: str) -> None:
    async with network.serve(counting.server) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.call(kind, 10**9, stream=3)
        await raw.receive_many(3)
        await network.lose(raw)
        await until(lambda: counting.closed == 1 and not network.served[0].running.handlers)
        await other.silence()
        assert counting.closed == 1
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
        messages = []
        while (message := await raw.receive()) is not None:
            messages.append(message)
        assert [each for each in messages if each.get("params", {}).get("id") == 1] == [item(0, 1), item(1, 1)]
        assert [each for each in messages if each.get("params", {}).get("id") == 2] == [item(n, 2) for n in range(3)]
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
        messages = [await raw.receive()]
        while not isinstance(messages[-1], list):
            messages.append(await raw.receive())
        assert messages[-1][0]["error"]["code"] == -32800


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
                await until(lambda: not network.served[0].running.handlers)
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

    async def bad_async() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise KeyError("while closing")

    server.add(bad, name="sync")
    server.add(bad_async, name="async")
    server.add(bad, name="thread", offload="thread")
    async with network.raw(server) as raw:
        for kind in KINDS:
            raw.call(kind, stream=1)
            assert await raw.receive() == item(1)
            raw.cancel(1)
            assert await raw.code() in (-32603, -32800)
        await raw.silence()
    errors.expect("while closing", times=3)


async def test_drain_lets_streams_end(network: Network, counting: Counting) -> None:
    async with StoppableServer(network, counting.server) as stopping:
        client = stopping.endpoint.client()
        stream = client.stream("async", 100)
        assert await anext(stream) == 0
        stopping.stop()
        await until(lambda: network.served[0].is_draining)
        assert [each async for each in stream] == list(range(1, 100))


# -- a server that does not keep to the rules -----------------------------------------------------------------------


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


async def test_items_that_belong_nowhere(network: Network) -> None:
    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        plain = await raw.receive()
        for odd in (99, "1", None, True, float(asked["id"]), [asked["id"]], plain["id"]):
            raw.send(item("odd", id=odd))
        for params in ({}, [], None, {"value": 1}, {"stream": "s", "value": 1}, {"stream": asked["id"], "value": 1}):
            raw.send({"jsonrpc": "2.0", "method": "$/item", "params": params})
            raw.send({"jsonrpc": "2.0", "method": "$/end", "params": params})
        raw.send(item("right", id=asked["id"]))
        raw.answer(plain, "plain")
        raw.answer(asked, "end")
        raw.send(item("too late", id=asked["id"]))
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        stream = client.stream.items()
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert await client.plain() == "plain"
        assert await reading == "right"
        assert [each async for each in stream] == []
        assert stream.result == "end"
        assert await client.next() == "fine"


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


async def test_a_stream_that_is_dropped_in_another_thread(network: Network, counting: Counting) -> None:
    async with network.client(counting.server) as client:
        streams = [client.stream.sync(10**6)]
        assert await anext(streams[0]) == 0
        await asyncio.to_thread(streams.clear)
        gc.collect()
        await until(lambda: counting.closed == 1)


# -- methods that do not stream -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, [1, 2], [], None, "text"])
async def test_a_method_that_does_not_stream_has_its_result_as_its_one_item(
    network: Network, counting: Counting, value: Any
) -> None:
    async with network.client(counting.server) as client:
        stream = client.stream.plain(value)
        assert [item async for item in stream] == [value]
        assert stream.result == value
        assert [item async for item in stream] == []
        with pytest.raises(TypeError):
            [item async for item in client.stream_request("plain", [value], returns=dict[str, int])]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_without_items_has_none(network: Network, counting: Counting, kind: str) -> None:
    async with network.client(counting.server) as client:
        stream = getattr(client.stream, kind)(0)
        assert [item async for item in stream] == []
        assert stream.result == (None if kind == "async" else "end")
