"""Streams as arguments: iterators are sent item by item, no faster than they are read, and end with the call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import (
    CallCancelled,
    CallTimeout,
    ConnectionLost,
    Context,
    EncodeError,
    InvalidParams,
    Limits,
    MessageTooLarge,
    RegistrationError,
    RpcError,
    Server,
)
from rpcstream.testing import FakeTimeLoop

from ..kit import PATIENCE, LogLines, Network, RawPeer, notification, until
from ..kit.matrix import cut_connections


class Taking:
    """A server that takes streams, in every way."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server(**options)
        self.seen: list[Any] = []
        self.ends: list[str] = []

        async def total(values: AsyncIterator[int], scale: int = 1) -> int:
            self.seen.append("begun")
            found = 0
            try:
                async for value in values:
                    self.seen.append(value)
                    found += value
            except BaseException as error:
                self.ends.append(type(error).__name__)
                raise
            self.ends.append("whole")
            return found * scale

        def total_in_thread(values: Iterator[int], scale: int = 1) -> int:
            self.seen.append("begun")
            found = 0
            try:
                for value in values:
                    self.seen.append(value)
                    found += value
            except BaseException as error:
                self.ends.append(type(error).__name__)
                raise
            self.ends.append("whole")
            return found * scale

        server.add(total, name="async")
        server.add(total_in_thread, name="thread", offload="thread")
        server.add(total, name="ordered", ordered=True)

        @server
        async def first(values: AsyncIterator[int], count: int) -> list[int]:
            return [await anext(values) for _ in range(count)]

        @server
        async def doubled(values: AsyncIterable[int]) -> AsyncIterator[int]:
            async for value in values:
                yield 2 * value

        @server(offload="thread")
        def doubled_in_thread(values: Iterator[int]) -> Iterator[int]:
            for value in values:
                yield 2 * value

        @server
        async def hold(values: AsyncIterator[int]) -> None:
            self.seen.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                self.ends.append("held")

        @server
        def plain(value: Any) -> Any:
            return value


@pytest.fixture
async def taking() -> Taking:
    return Taking()


class Source:
    """Numbers from 0, and what became of them."""

    def __init__(self, n: int = 10**9, *, fail_with: Exception | None = None) -> None:
        self.n = n
        self.fail_with = fail_with
        self.made = 0
        self.closed = 0

    def sync(self) -> Iterator[int]:
        try:
            while self.made < self.n:
                self.made += 1
                yield self.made - 1
            if self.fail_with is not None:
                raise self.fail_with
        finally:
            self.closed += 1

    async def asynchronous(self) -> AsyncIterator[int]:
        try:
            for each in self.sync():
                yield each
        finally:
            await asyncio.sleep(0)

    async def silent(self) -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            self.closed += 1


KINDS = ["async", "thread", "ordered"]
FORMS: dict[str, Callable[[Source], Any]] = {"sync": Source.sync, "async": Source.asynchronous}


class OnlyIterable:
    """Has `__aiter__` and nothing else."""

    def __aiter__(self) -> AsyncIterator[int]:
        return Source(5).asynchronous()


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_iterates(network: Network, taking: Taking, kind: str) -> None:
    async with network.client(taking.server) as client:
        for n in (0, 1, 16, 17, 200):
            expected = sum(range(n))
            for form in FORMS.values():
                assert await client.call(kind, form(Source(n))) == expected
                assert await client.call(kind, values=form(Source(n)), scale=2) == 2 * expected
            assert await client.call(kind, iter(range(n))) == expected
            assert await client.call(kind, (each for each in range(n)), 3) == 3 * expected
            assert await client.call(kind, map(int, "1" * n)) == n
            assert await client.call(kind, list(range(n))) == expected, "an array is taken as well"
        assert await client.call(kind, OnlyIterable()) == 10


@pytest.mark.lasting
async def test_both_ways_at_once(network: Network, taking: Taking) -> None:
    async with network.client(taking.server) as client:
        for method in ("doubled", "doubled_in_thread"):
            for form in FORMS.values():
                source = Source(100)
                got = [each async for each in client.stream(method, form(source))]
                assert got == [2 * n for n in range(100)]
                assert source.closed == 1
            assert await client.call(method, iter(range(5))) == [0, 2, 4, 6, 8]


@pytest.mark.lasting
async def test_step_by_step(network: Network, taking: Taking) -> None:
    """What goes out may depend on what came back: nothing waits for a window to be full."""
    async with network.client(taking.server) as client:
        answers: asyncio.Queue[int] = asyncio.Queue()

        async def questions() -> AsyncIterator[int]:
            value = 1
            while value < 1000:
                yield value
                value = await answers.get()

        got = []
        async for each in client.stream.doubled(questions()):
            got.append(each)
            answers.put_nowait(each)
        assert got == [2**n for n in range(1, 11)]


@pytest.mark.lasting
async def test_several_in_one_call_and_values_of_every_kind(network: Network) -> None:
    server = Server()

    @server
    async def zipped(left: AsyncIterator[int], right: AsyncIterator[int], ctx: Context, *, last: Any = None) -> Any:
        return [sum([each * await anext(right) async for each in left]), last]

    @server(offload="thread")
    def zipped_in_thread(left: Iterator[int], right: Iterator[int], *, last: Any = None) -> Any:
        return [sum(one * other for one, other in zip(left, right, strict=True)), last]

    @server
    async def anything(values: AsyncIterator[Any] | None = None, *, more: AsyncIterator[NDArray[np.float32]]) -> Any:
        return [values and [value async for value in values], [[*frame.shape, frame.sum()] async for frame in more]]

    @server(offload="thread")
    def largest(frames: Iterator[NDArray[np.uint8]]) -> int:
        return max(int(frame[-1]) for frame in frames)

    async with network.client(server) as client:
        expected = sum(n * n for n in range(50))
        for method in ("zipped", "zipped_in_thread"):
            arguments = {"left": Source(50).sync(), "right": Source(50).asynchronous(), "last": "x"}
            assert await client.call(method, **arguments) == [expected, "x"]
            calls = [client.call(method, list(range(50)), Source(50).asynchronous()) for _ in range(5)]
            assert await asyncio.gather(*calls) == [[expected, None]] * 5
        frames = [np.full((2, n), n, np.float32) for n in range(3)]
        values: list[Any] = [2**70, {"a": [-(2**64)]}, None, b"\x00", 1j, "ü"]
        assert await client.anything(iter(values), more=iter(frames)) == [values, [[2, 0, 0], [2, 1, 2], [2, 2, 8]]]
        assert await client.anything(more=iter(frames[:1])) == [None, [[2, 0, 0]]]
        assert await client.largest(np.full(400_000, n, np.uint8) for n in range(20)) == 19


async def test_discovery_says_so(network: Network, taking: Taking) -> None:
    async with network.client(taking.server) as client:
        methods = {each["name"]: each for each in (await client.call("rpc.discover"))["methods"]}
        for kind in KINDS:
            schema = methods[kind]["params"][0]["schema"]
            assert schema["x-stream"] is True
            assert schema["items"] == {"type": "integer"}
        assert methods["doubled"]["x-stream"] is True


def test_handlers_that_cannot_take_one() -> None:
    server = Server()

    def inline(values: AsyncIterator[int]) -> None: ...

    def many(*values: AsyncIterator[int]) -> None: ...

    async def named(**values: AsyncGenerator[int, None]) -> None: ...

    with pytest.raises(RegistrationError, match="inline"):
        server.add(inline)
    with pytest.raises(RegistrationError, match="cannot be a stream"):
        server.add(named)
    with pytest.raises(RegistrationError, match="cannot be a stream"):
        server.add(many, offload="thread")


@pytest.mark.lasting
async def test_where_a_stream_cannot_be_sent(network: Network, taking: Taking) -> None:
    async with network.client(taking.server) as client:
        with pytest.raises(EncodeError):
            await client.notify.plain(iter([1]))
        with pytest.raises(EncodeError):
            await client.plain([iter([1])])
        with pytest.raises(InvalidParams):
            await client.first([1], iter([2]))
        source = Source()
        with pytest.raises(EncodeError):
            async with client.batch() as batch:
                batch.call("async", source.sync())
        assert await client.plain(1) == 1


@pytest.mark.lasting
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_slow_consumer_slows_its_producer_alone(
    network: Network, taking: Taking, form: Callable[[Source], Any]
) -> None:
    source, untouched = Source(), Source()
    async with network.client(taking.server) as client:
        calls = [client.submit.first(form(source), 1), client.submit.hold(form(untouched))]
        assert await calls[0] == [0]
        assert source.made <= 17
        assert source.closed == 1
        for n in range(30):
            assert await client.plain(n) == n
        assert await client.call("async", iter(range(100))) == 4950
        assert untouched.made == 0, "nothing was permitted"
        calls[1].cancel()
        await until(lambda: taking.ends[-1:] == ["held"])


@pytest.mark.lasting
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_handler_that_has_enough(network: Network, taking: Taking, form: Callable[[Source], Any]) -> None:
    async with network.client(taking.server) as client:
        for count in (0, 1, 5, 40):
            source = Source()
            assert await client.first(form(source), count) == list(range(count))
            await until(lambda source=source: source.closed == (source.made > 0))  # type: ignore[misc]
            assert source.made <= count + 17
        assert await client.plain("still there") == "still there"


@pytest.mark.lasting
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_handler_that_fails(network: Network, form: Callable[[Source], Any], errors: LogLines) -> None:
    server = Server()

    @server
    async def fails(values: AsyncIterator[int], code: int) -> None:
        async for value in values:
            if value == 3:
                raise RpcError(code, "three") if code else KeyError("three")

    async with network.client(server) as client:
        for code in (7, 0):
            source = Source()
            with pytest.raises(RpcError) as caught:
                await client.fails(form(source), code)
            assert caught.value.code == (code or -32603)
            await until(lambda source=source: source.closed == 1)  # type: ignore[misc]
    errors.expect("method 'fails' failed")


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_producer_that_fails(
    network: Network, taking: Taking, kind: str, form: Callable[[Source], Any]
) -> None:
    """Its exception is what the caller gets; the handler does not take what came before for the whole."""
    async with network.client(taking.server) as client:
        for failure in (KeyError("mine"), RpcError(7, "mine"), RpcError(8, "mine", object())):
            for n in (0, 1, 40):
                taking.ends.clear()
                with pytest.raises(type(failure), match="mine"):
                    await client.call(kind, form(Source(n, fail_with=failure)))
                await until(lambda: taking.ends)
                assert taking.ends[0] != "whole"
        assert await client.plain("still there") == "still there"


#: An item that cannot be sent, or that the server does not take; and what the caller gets.
WRONG: list[tuple[Any, type[Exception], str]] = [
    (object(), EncodeError, "."),
    ("x" * 2000, MessageTooLarge, "the client's limit is 1000"),
    ("no number", InvalidParams, "expected an integer, got a string"),
]


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wrong", "error", "reason"), WRONG)
async def test_a_wrong_item_ends_the_call(
    network: Network, taking: Taking, kind: str, wrong: Any, error: type[Exception], reason: str
) -> None:
    async with network.client(taking.server, limits=Limits(max_message_size=1000)) as client:
        with pytest.raises(error, match=reason):
            await client.call(kind, iter([1, wrong, 2]))
        if error is InvalidParams:
            with pytest.raises(InvalidParams, match=reason):
                await client.call(kind, [1, wrong])
            assert taking.seen == ["begun", 1], "of an array it is known before"
        await until(lambda: taking.ends)
        assert taking.ends[0] != "whole"


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["the caller gives up", "the connection is lost"])
async def test_a_call_that_ends_while_its_producer_is_silent(
    network: Network, taking: Taking, kind: str, how: str
) -> None:
    async with network.serve(taking.server) as endpoint:
        client = endpoint.client(retries=3)
        source = Source()
        call = client.submit(kind, source.silent())
        await until(lambda: taking.seen == ["begun", 0])
        if how == "the caller gives up":
            call.cancel()
        else:
            cut_connections()
            with pytest.raises(ConnectionLost):
                await call  # not repeated: what was sent of the stream is gone
        await until(lambda: source.closed == 1 and taking.ends)
        assert taking.ends[0] != "whole"
        assert await client.plain("still there") == "still there"


@pytest.mark.fake_time
async def test_the_callers_time_is_over(network: Network, taking: Taking, fake_time: FakeTimeLoop) -> None:
    async with network.client(taking.server, timeout=5) as client:
        source = Source()
        with pytest.raises(CallTimeout):
            await client.call("async", source.silent())
        assert fake_time.time() == 5
        await until(lambda: source.closed == 1 and taking.ends)
        assert taking.ends == ["CancelledError"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_caller_is_gone(network: Network, taking: Taking, kind: str) -> None:
    async with network.raw(taking.server) as raw:
        raw.call(kind, STREAM)
        assert await raw.receive() == granted(16)
        raw.send(item(1))
        await until(lambda: taking.seen == ["begun", 1])
        await network.lose(raw)
        await until(lambda: taking.ends)
        assert taking.ends[0] != "whole"


@pytest.mark.half_close
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_caller_says_nothing_more(network: Network, taking: Taking, kind: str) -> None:
    async with network.raw(taking.server) as raw:
        raw.call(kind, STREAM)
        assert await raw.receive() == granted(16)
        raw.send(item(1))
        raw.end()
        assert await raw.code() == -32800
        assert taking.seen == ["begun", 1]
        assert taking.ends == ["CallCancelled"]
        assert await raw.receive() is None


@pytest.mark.lasting
async def test_a_stream_that_is_kept_beyond_its_call(network: Network) -> None:
    server = Server()
    kept: list[Any] = []

    @server
    async def keep(values: AsyncIterator[int]) -> int:
        kept.append(values)
        return await anext(values)

    @server(offload="thread")
    def keep_in_thread(values: Iterator[int]) -> int:
        kept.append(values)
        return next(values)

    async with network.client(server) as client:
        assert await client.keep(Source().sync()) == 0
        assert await client.keep_in_thread(Source().sync()) == 0
        with pytest.raises(CallCancelled):
            await anext(kept[0])
        with pytest.raises(CallCancelled):
            await asyncio.to_thread(next, kept[1])
        assert await client.call("rpc.ping") == "pong"


STREAM = {"$type": "stream", "id": "s"}


def item(value: Any, stream: Any = "s") -> dict[str, Any]:
    return notification("$/item", stream=stream, value=value)


def end(stream: Any = "s", **members: Any) -> dict[str, Any]:
    return notification("$/end", stream=stream, **members)


def granted(n: int, stream: str = "s") -> dict[str, Any]:
    return notification("$/credit", stream=stream, n=n)


async def ready(raw: RawPeer, n: int = 16) -> None:
    assert await raw.receive() == granted(n)


async def test_credit_as_it_is_told(network: Network) -> None:
    taking = Taking(limits=Limits(stream_window=4))
    async with network.raw(taking.server) as raw:
        raw.call("async", STREAM)
        await ready(raw, 4)
        raw.send(item(1))
        await raw.silence()
        raw.send(item(2))
        await ready(raw, 2)
        raw.send(item(3), item(4))
        await ready(raw, 2)
        raw.send(item(5), end())
        assert await raw.result() == 15


@pytest.mark.parametrize("kind", KINDS)
async def test_ends_of_every_kind(network: Network, taking: Taking, kind: str) -> None:
    async with network.raw(taking.server) as raw:
        raw.call(kind, STREAM)
        await ready(raw)
        raw.send(end())
        assert await raw.result() == 0
        raw.call(kind, STREAM)
        await ready(raw)
        raw.send(item(1), end(error=None), end(), end(error={"code": 5, "message": "late"}), item(2))
        assert await raw.result() == 1
        raw.call(kind, STREAM)
        await ready(raw)
        raw.send(item(1), end(error={"code": 5, "message": "broke off", "data": [1]}), end())
        assert (await raw.reply())["error"] == {"code": 5, "message": "broke off", "data": [1]}
        for odd in ("x", {}, [], 7, {"code": "5"}):
            raw.call(kind, STREAM)
            await ready(raw)
            raw.send(end(error=odd))
            assert await raw.code() == -32603
        await raw.silence()


async def test_a_name_that_is_taken(network: Network, taking: Taking) -> None:
    async with network.raw(taking.server) as raw:
        raw.call("async", STREAM, id=1)
        await ready(raw)
        assert await raw.code("async", STREAM, id=2) == -32602
        assert await raw.code("thread", STREAM, id=3) == -32602
        raw.send(item(7), end())
        assert await raw.result() == 7
        raw.call("thread", STREAM, id=2)
        await ready(raw)
        raw.send(item(8), end())
        assert await raw.result() == 8


@pytest.mark.one_read
async def test_a_name_that_is_used_twice_in_one_call(network: Network) -> None:
    server = Server()

    @server
    async def two(left: AsyncIterator[int], right: AsyncIterator[int]) -> list[list[int]]:
        return [[each async for each in left], [each async for each in right]]

    async with network.raw(server) as raw:
        assert await raw.code("two", STREAM, STREAM) == -32602
        await network.settled()
        raw.call("two", STREAM, {**STREAM, "id": "t"})
        await ready(raw)
        raw.send(item(2), end(), item(3, "t"))
        assert await raw.code() == -32600, "an item of t came before it was permitted"
        raw.call("two", [1], {**STREAM, "id": "t"})
        assert await raw.receive() == granted(16, "t")
        raw.send(item(4, "t"), end("t"))
        assert await raw.result() == [[1], [4]]


@pytest.mark.parametrize("kind", KINDS)
async def test_more_items_than_were_permitted(network: Network, kind: str) -> None:
    server = Server()
    may_go_on, may_go_on_in_thread = asyncio.Event(), threading.Event()

    async def hesitate(values: AsyncIterator[int]) -> int:
        found = await anext(values)
        await may_go_on.wait()  # no more is permitted by then, however slowly the items come
        return found + sum([each async for each in values])

    def hesitate_in_thread(values: Iterator[int]) -> int:
        found = next(values)
        may_go_on_in_thread.wait(PATIENCE)
        return found + sum(values)

    server.add(hesitate, name="async")
    server.add(hesitate_in_thread, name="thread", offload="thread")
    server.add(hesitate, name="ordered", ordered=True)

    @server
    def plain(value: Any) -> Any:
        return value

    async with network.raw(server) as raw:
        raw.call(kind, STREAM)
        await ready(raw)
        raw.send(*[item(n) for n in range(17)])
        await raw.silence()
        may_go_on.set()
        may_go_on_in_thread.set()
        message = await raw.receive()
        while "method" in message:
            assert message == granted(8)
            message = await raw.receive()
        assert message["error"]["code"] == -32600
        assert "credit" in message["error"]["data"]["reason"]
        raw.send(item(1), item(2), end())
        assert await raw.result("plain", "still there") == "still there"


@pytest.mark.parametrize("kind", KINDS)
async def test_items_that_are_none(network: Network, taking: Taking, kind: str) -> None:
    async with network.raw(taking.server) as raw:
        for odd in ({"stream": "s"}, {"stream": "s", "value": "x"}, {"stream": "s", "value": {"$type": "bytes"}}):
            raw.call(kind, STREAM)
            await ready(raw)
            raw.send(notification("$/item", **odd))
            assert await raw.code() == -32602


async def test_items_within_a_batch(network: Network, taking: Taking) -> None:
    async with network.raw(taking.server) as raw:
        raw.call("async", STREAM)
        await ready(raw)
        raw.send([item(1), item(2), end()])
        assert await raw.result() == 3


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_thread_is_woken_by_the_cancel(network: Network, is_busy: bool) -> None:
    """And does not take what came so far for the whole."""
    server = Server()
    go = threading.Event()
    seen: list[Any] = []

    @server(offload="thread")
    def store(values: Iterator[int]) -> None:
        try:
            for value in values:
                seen.append(value)
                assert not is_busy or go.wait(20)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        seen.append("stored")

    async with network.raw(server) as raw:
        raw.call("store", STREAM)
        await ready(raw)
        raw.send(item(1), *[item(2)] * is_busy)
        await until(lambda: seen == [1])
        raw.cancel(1)
        assert await raw.code() == -32800
        go.set()
        await until(lambda: len(seen) > 1)
        await asyncio.sleep(0)
        assert seen[-1] in ("CancelledError", "CallCancelled")
        assert "stored" not in seen


async def test_a_server_that_answers_before_the_end(network: Network) -> None:
    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        token = asked["params"][0]["id"]
        raw.send(notification("$/credit", stream=token, n=3))
        got = [await raw.receive() for _ in range(3)]
        assert [each["params"] for each in got] == [{"stream": token, "value": n} for n in range(3)]
        raw.answer(asked, "enough")
        raw.send(notification("$/credit", stream=token, n=100))
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        source = Source()
        assert await client.take(source.asynchronous()) == "enough"
        await until(lambda: source.closed == 1)
        assert source.made == 3
        assert await client.next() == "fine"
