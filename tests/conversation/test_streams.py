"""Streams of items as replies: credit, order, and one end for each."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rpcstream import ConnectionLost, Context, InvalidParams, Limits, Retry, RpcError, Server
from rpcstream.errors import InternalError, InvalidRequest, MessageTooLarge

from ..kit import LogLines, Network, RawPeer, UsualServer, notification, request, until

#: A generator of each kind, under these names.
KINDS = ["sync", "async", "thread"]


class Counting(UsualServer):
    """A server that counts, in every way, and what became of its generators."""

    def __init__(self) -> None:
        super().__init__()
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

        self.add(count, name="sync")
        self.add(count_async, name="async")
        self.add(count, name="thread", offload="thread")
        self.add(count, name="ordered", ordered=True)


@pytest.fixture
async def counting() -> Counting:
    return Counting()


def item(n: Any, id: Any = 1) -> dict[str, Any]:
    return notification("$/item", id=id, value=n)


def credit(n: Any, id: Any = 1) -> dict[str, Any]:
    return notification("$/credit", id=id, n=n)


@pytest.mark.parametrize("kind", KINDS)
async def test_never_more_than_was_permitted(network: Network, counting: Counting, kind: str) -> None:
    async with network.raw(counting) as raw:
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
    async with network.raw(counting) as raw:
        for permitted in (3, 1000, 2**62):
            raw.call(kind, 3, stream=permitted)
            raw.send(credit(2**62))  # more than is counted; as good as any
            assert await raw.receive_many(3) == [item(0), item(1), item(2)]
            await raw.result()
        raw.call(kind, 0, stream=0)
        await raw.result()
        for call_id in (0, "", 2**63, None):
            raw.call(kind, 3, stream=1, id=call_id)
            assert await raw.receive() == item(0, id=call_id)
            raw.send(credit(2, id=call_id))
            assert await raw.receive_many(2) == [item(1, id=call_id), item(2, id=call_id)]
            assert (await raw.reply())["id"] == call_id
        raw.send(credit(5))  # too late
        await raw.silence()


async def test_no_stream_was_asked_for(network: Network, counting: Counting) -> None:
    async with network.raw(counting) as raw:
        for kind in [*KINDS, "ordered"]:
            assert await raw.result(kind, 3) == [0, 1, 2]
            assert await raw.result(kind, 3, stream=None) == [0, 1, 2]
            assert await raw.result(kind, 0) == []
            assert (await raw.reply(kind, 3, 2))["error"] == {"code": 9, "message": "far enough", "data": 2}
            raw.send({"jsonrpc": "2.0", "method": kind, "params": [3], "stream": 3})  # a notification cannot stream
        await until(lambda: counting.closed == 20)
        await raw.silence()


async def test_streams_in_batches_and_in_the_order_of_calls(network: Network, counting: Counting) -> None:
    async with network.raw(counting) as raw:
        raw.send([request("sync", 2, id=1, stream=1), request("async", 2, id=2, stream=5), request("echo", 3, id=3)])
        items = await raw.receive_many(3)
        assert sorted(each["params"]["id"] for each in items) == [1, 2, 2]
        await raw.silence()
        raw.send([credit(1, id=1)])
        assert await raw.receive() == item(1, id=1)
        assert [each["result"] for each in await raw.receive()] == ["end", None, 3]
        raw.send(request("ordered", 2, id=1, stream=1), request("ordered", 1, id=2, stream=5))
        assert await raw.receive() == item(0, id=1)
        await raw.silence()
        raw.send(credit(1))
        assert await raw.receive() == item(1, id=1)
        assert (await raw.reply())["id"] == 1
        assert await raw.receive() == item(0, id=2)
        assert (await raw.reply())["id"] == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_items_result_and_errors(network: Network, counting: Counting, kind: str) -> None:
    async with network.client(counting) as client:
        for n in (0, 1, 16, 17, 100):
            counting.closed = 0
            stream = client.stream(kind, n)
            assert stream.result is None
            # Without items, what is returned is taken for the result of a method that does not stream.
            assert [each async for each in stream] == (list(range(n)) if n or kind == "async" else ["end"])
            assert stream.result == (None if kind == "async" else "end")
            assert [each async for each in stream] == [], "it is over"
            assert counting.closed == 1
            assert await client.call(kind, n) == list(range(n))
        for fail_at in (0, 1, 40):  # behind the items before it
            got = []
            with pytest.raises(RpcError, match="far enough") as caught:
                async for each in client.stream(kind, 50, fail_at):
                    got.append(each)
            assert (caught.value.code, caught.value.data) == (9, fail_at)
            assert got == list(range(fail_at))
        with pytest.raises(InvalidParams, match="'n'"):
            await anext(client.stream(kind))


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

    def faulty(fault: str) -> Iterator[Any]:
        yield "short"
        if fault == "fails":
            raise KeyError("secret")
        yield {"too large": "x" * 2000, "no JSON": object(), "another type": 5}[fault]

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

    begun, released = asyncio.Event(), asyncio.Event()

    @server
    async def wait() -> str:
        begun.set()
        await released.wait()
        return "released"

    async with network.client(server, limits=Limits(max_message_size=1000)) as client:
        waiting = asyncio.create_task(client.wait())  # a call beside it goes on
        await begun.wait()
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
        released.set()
        assert await waiting == "released"


async def test_a_method_that_does_not_stream_has_its_result_as_its_one_item(
    network: Network, counting: Counting
) -> None:
    async with network.client(counting) as client:
        for value in ([1, 2], []):
            stream = client.stream.echo(value)
            assert [item async for item in stream] == [value]
            assert stream.result == value
        with pytest.raises(TypeError):
            [item async for item in client.stream_request("echo", [3], returns=dict[str, int])]


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_reader_slows_its_producer_alone(network: Network, counting: Counting, kind: str) -> None:
    async with network.client(counting) as client:
        slow = client.stream(kind, 200)
        assert await anext(slow) == 0
        assert [each async for each in client.stream.sync(100)] == list(range(100))
        assert await asyncio.gather(*(client.echo(n) for n in range(50))) == list(range(50))
        produced = len(counting.made) - 100
        assert produced <= 16 + 1 + 1, "a window, what was read, and one ahead"
        assert [each async for each in slow] == list(range(1, 200))


async def _close(stream: Any) -> None:
    assert await anext(stream) == 0
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def _break(stream: Any) -> None:
    async for each in stream:
        if each == 3:
            break


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
@pytest.mark.once
@pytest.mark.parametrize("kind", [*KINDS, "stalls"])
@pytest.mark.parametrize("way", [_break, _close, _cancel, _drop_in_a_thread])
async def test_breaking_off_stops_the_generator(
    network: Network, counting: Counting, kind: str, way: Callable[[Any], Any]
) -> None:
    @counting
    async def stalls(n: int) -> AsyncIterator[int]:
        try:
            for each in range(4):
                counting.made.append(each)
                yield each
            await asyncio.Event().wait()
        finally:
            counting.closed += 1

    async with network.client(counting) as client:
        await way(client.stream(kind, 10**9))
        gc.collect()
        assert await client.echo("still there") == "still there"
        await network.finished()
        await until(lambda: counting.closed == bool(counting.made))
        made = len(counting.made)
        assert await client.echo("still there") == "still there"
        assert (len(counting.made), counting.closed) == (made, bool(made))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_connection_or_a_cancel_stops_the_generator(
    network: Network, counting: Counting, kind: str
) -> None:
    async with network.serve(counting) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.call(kind, 10**9, stream=2)
        await raw.receive_many(2)
        other.send(credit(5))  # for no stream of its own
        await other.silence()
        await raw.silence()
        raw.cancel(1)
        assert await raw.code() == -32800
        assert counting.closed == 1
        raw.send(credit(100))
        await raw.silence()
        raw.send([request(kind, 10**9, id=5, stream=2), notification("$/cancelRequest", id=5)])
        while not isinstance(message := await raw.receive(), list):
            assert message["method"] == "$/item"
        assert message[0]["error"]["code"] == -32800
        counting.closed, counting.made = 0, []
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
    async with network.raw(counting) as raw:
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


@pytest.mark.once
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
        raw.call("slow", stream=5)
        assert await raw.receive() == item(0)
        await until(lambda: steps == ["in the middle"])
        raw.cancel(1)
        assert await raw.code() == -32800
        assert steps == ["in the middle"]
        go.set()
        await until(lambda: len(steps) == 3)
        assert steps == ["in the middle", "cancelled: True", "closed"]


DEEP = b'{"jsonrpc":"2.0","method":"$/item","params":{"id":%d,"value":' + b"[" * 200 + b"]" * 200 + b"}}"

#: What a server sends for a stream of 16 items, what the reader gets of it, and the error that ends it.
WRONG: dict[str, tuple[Callable[[int], list[Any]], list[Any], type[Exception], str]] = {
    "more than was permitted": (
        lambda id: [item(n, id) for n in range(19)],
        list(range(16)),
        InvalidRequest,
        "credit",
    ),
    "no value": (lambda id: [notification("$/item", id=id)], [], InternalError, "cannot be read"),
    "no array": (lambda id: [item({"$type": "ndarray", "dtype": "<f4"}, id)], [], InternalError, "cannot be read"),
    "too deep": (lambda id: [DEEP % id], [], InternalError, "cannot be read"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_items_that_are_wrong_end_their_stream_alone(network: Network, wrong: str) -> None:
    items, expected, error, reason = WRONG[wrong]
    heard: list[Any] = []

    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        assert asked["stream"] == 16
        raw.send(*items(asked["id"]))
        heard.append(await raw.receive())
        raw.answer(asked, "late")
        raw.send(item(7, id=asked["id"]))
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        stream, got = client.stream.items(), []
        with pytest.raises(error, match=reason):
            if expected:
                got.append(await anext(stream))
                await until(lambda: heard)
            async for each in stream:
                got.append(each)
        assert got == expected
        await until(lambda: heard)
        assert heard[0]["method"] == "$/cancelRequest"
        assert await client.next() == "fine"
        assert client.replies_dropped >= 2


async def test_a_connection_that_is_lost_in_the_middle(network: Network) -> None:
    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        raw.send(item(0, id=asked["id"]), item(1, id=asked["id"]))
        raw.end()

    got = []
    async with network.scripted(script) as endpoint:
        with pytest.raises(ConnectionLost, match="'items'"):
            async for each in endpoint.client(retry=Retry(times=3, repeats="all")).stream.items():
                got.append(each)
    assert got == [0, 1], "what came before is not lost"
