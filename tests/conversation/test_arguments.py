"""Streams as arguments: iterators are sent item by item, no faster than they are read, and end with the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import ConnectionLost, Context, InvalidParams, Limits, Retry, RpcError, Server
from rpcstream.errors import CallCancelled, EncodeError, MessageTooLarge

from ..kit import Network, RawPeer, UsualServer, notification, until
from ..kit.matrix import cut_connections


class Taking(UsualServer):
    """A server that takes streams, in every way."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[Any] = []
        self.ends: list[str] = []

        @self(name="async")
        async def total(values: AsyncIterator[int], scale: int = 1) -> int:
            with self.noting():
                return scale * sum([self.see(value) async for value in values])

        @self(name="thread", offload="thread")
        def total_in_thread(values: Iterator[int], scale: int = 1) -> int:
            with self.noting():
                return scale * sum([self.see(value) for value in values])

        @self
        async def first(values: AsyncIterator[int], count: int) -> list[int]:
            return [await anext(values) for _ in range(count)]

        @self
        async def doubled(values: AsyncIterable[int]) -> AsyncIterator[int]:
            async for value in values:
                yield 2 * value

        @self
        async def hold(values: AsyncIterator[int]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.ends.append("held")

    @contextmanager
    def noting(self) -> Iterator[None]:
        self.seen.append("begun")
        try:
            yield
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("whole")

    def see(self, value: int) -> int:
        self.seen.append(value)
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


KINDS = ["async", "thread"]
FORMS: dict[str, Callable[[Source], Any]] = {"sync": Source.sync, "async": Source.asynchronous}


class OnlyIterable:
    """Has `__aiter__` and nothing else."""

    def __aiter__(self) -> AsyncIterator[int]:
        return Source(5).asynchronous()


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_iterates(network: Network, taking: Taking, kind: str) -> None:
    async with network.client(taking) as client:
        for n in (0, 16, 17, 50):
            expected = sum(range(n))
            for form in FORMS.values():
                assert await client.call(kind, form(Source(n))) == expected
                assert await client.call(kind, values=form(Source(n)), scale=2) == 2 * expected
            assert await client.call(kind, iter(range(n))) == expected
            assert await client.call(kind, map(int, "1" * n), 3) == 3 * n
            assert await client.call(kind, list(range(n))) == expected, "an array is taken as well"
        assert await client.call(kind, OnlyIterable()) == 10


@pytest.mark.lasting
async def test_both_ways_at_once_and_step_by_step(network: Network, taking: Taking) -> None:
    """What goes out may depend on what came back: nothing waits for a window to be full."""
    async with network.client(taking) as client:
        source = Source(100)
        assert [each async for each in client.stream.doubled(source.sync())] == [2 * n for n in range(100)]
        assert source.closed == 1
        assert await client.doubled(iter(range(5))) == [0, 2, 4, 6, 8]
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
    async def sums(frames: AsyncIterator[NDArray[np.float32]], others: AsyncIterator[Any] | None = None) -> Any:
        return [[frame.sum() async for frame in frames], others and [value async for value in others]]

    async with network.client(server) as client:
        expected = sum(n * n for n in range(50))
        for method in ("zipped", "zipped_in_thread"):
            arguments = {"left": Source(50).sync(), "right": Source(50).asynchronous(), "last": "x"}
            assert await client.call(method, **arguments) == [expected, "x"]
            calls = [client.call(method, list(range(50)), Source(50).asynchronous()) for _ in range(3)]
            assert await asyncio.gather(*calls) == [[expected, None]] * 3
        values: list[Any] = [2**70, {"a": [-(2**64)]}, None, b"\x00", 1j, "ü"]
        frames = [np.ones(2, np.float32), np.ones(100_000, np.float32)]
        assert await client.sums(iter(frames), iter(values)) == [[2, 100_000], values]
        assert await client.sums(iter(frames[:1])) == [[2], None]


@pytest.mark.once
@pytest.mark.lasting
async def test_where_a_stream_cannot_be_sent(network: Network, taking: Taking) -> None:
    async with network.client(taking) as client:
        with pytest.raises(EncodeError):
            await client.notify.echo(iter([1]))
        with pytest.raises(EncodeError):
            await client.echo([iter([1])])
        with pytest.raises(InvalidParams):
            await client.first([1], iter([2]))
        with pytest.raises(EncodeError):
            async with client.batch() as batch:
                batch.call("async", Source().sync())
        assert await client.echo(1) == 1


@pytest.mark.lasting
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_handler_that_is_slow_or_has_enough(
    network: Network, taking: Taking, form: Callable[[Source], Any]
) -> None:
    """It slows its producer alone."""
    untouched = Source()
    async with network.client(taking) as client:
        held = client.submit.hold(form(untouched))
        for count in (0, 1, 5, 40):
            source = Source()
            assert await client.first(form(source), count) == list(range(count))
            await until(lambda source=source: source.closed == (source.made > 0))  # type: ignore[misc]
            assert source.made <= count + 17
        assert await client.call("async", iter(range(100))) == 4950
        assert untouched.made == 0, "nothing was permitted"
        held.cancel()
        await until(lambda: taking.ends[-1:] == ["held"])


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_producer_that_fails(
    network: Network, taking: Taking, kind: str, form: Callable[[Source], Any]
) -> None:
    """Its exception is what the caller gets; the handler does not take what came before for the whole."""
    async with network.client(taking) as client:
        for failure in (KeyError("mine"), RpcError(8, "mine", object())):
            for n in (0, 40):
                taking.ends.clear()
                with pytest.raises(type(failure), match="mine"):
                    await client.call(kind, form(Source(n, fail_with=failure)))
                await until(lambda: taking.ends)
                assert taking.ends[0] != "whole"
        assert await client.echo("still there") == "still there"


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
    async with network.client(taking, limits=Limits(max_message_size=1000)) as client:
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
    async with network.serve(taking) as endpoint:
        client = endpoint.client(retry=Retry(times=3, repeats="all"))
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
        assert await client.echo("still there") == "still there"


@pytest.mark.lasting
async def test_a_handler_that_fails_or_keeps_the_stream_beyond_its_call(network: Network, taking: Taking) -> None:
    """Its producer ends; what is kept of the stream does not look like the end of a whole one."""
    kept: list[Any] = []

    async def fail(values: AsyncIterator[int]) -> None:
        kept.append(values)
        raise RpcError(7, f"{await anext(values)} was enough")

    def keep(values: Iterator[int]) -> int:
        kept.append(values)
        return next(values)

    taking.add(fail, name="fail_reading")
    taking.add(keep, offload="thread")
    async with network.client(taking) as client:
        failing, keeping = Source(), Source()
        with pytest.raises(RpcError, match="0 was enough"):
            await client.fail_reading(failing.sync())
        assert await client.keep(keeping.sync()) == 0
        await until(lambda: failing.closed == keeping.closed == 1)
        with pytest.raises(CallCancelled):
            await anext(kept[0])
        with pytest.raises(CallCancelled):
            await asyncio.to_thread(next, kept[1])


@pytest.mark.half_close
@pytest.mark.parametrize("kind", KINDS)
async def test_the_caller_says_nothing_more(network: Network, taking: Taking, kind: str) -> None:
    async with network.raw(taking) as raw:
        raw.call(kind, STREAM)
        assert await raw.receive() == granted(16)
        raw.send(item(1))
        raw.end()
        assert await raw.code() == -32800
        assert (taking.seen, taking.ends) == (["begun", 1], ["CallCancelled"])
        assert await raw.receive() is None


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
    async with network.raw(Taking(limits=Limits(stream_window=4))) as raw:
        raw.call("async", STREAM)
        await ready(raw, 4)
        raw.send(item(1))
        await raw.silence()
        raw.send(item(2))
        await ready(raw, 2)
        raw.send([item(3), item(4)])
        await ready(raw, 2)
        raw.send([item(5), end()])
        assert await raw.result() == 15


@pytest.mark.parametrize("kind", KINDS)
async def test_ends_of_every_kind(network: Network, taking: Taking, kind: str) -> None:
    async with network.raw(taking) as raw:
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
        for params in ({"stream": "s"}, {"stream": "s", "value": "x"}, {"stream": "s", "value": {"$type": "bytes"}}):
            raw.call(kind, STREAM)
            await ready(raw)
            raw.send(notification("$/item", **params))
            assert await raw.code() == -32602
        await raw.silence()


async def test_more_items_than_were_permitted(network: Network, taking: Taking) -> None:
    may_go_on = asyncio.Event()

    @taking
    async def hesitate(values: AsyncIterator[int]) -> int:
        found = await anext(values)
        await may_go_on.wait()  # no more is permitted by then, however slowly the items come
        return found + sum([each async for each in values])

    async with network.raw(taking) as raw:
        raw.call("hesitate", STREAM)
        await ready(raw)
        raw.send(*[item(n) for n in range(17)])
        await raw.silence()
        may_go_on.set()
        message = await raw.receive()
        while "method" in message:
            assert message == granted(8)
            message = await raw.receive()
        assert message["error"]["code"] == -32600
        assert "credit" in message["error"]["data"]["reason"]
        raw.send(item(1), item(2), end())
        assert await raw.result("echo", "still there") == "still there"


async def test_a_thread_is_woken_by_the_cancel(network: Network) -> None:
    """And does not take what came so far for the whole."""
    server = Server()
    seen: list[Any] = []

    @server(offload="thread")
    def store(values: Iterator[int]) -> None:
        try:
            for value in values:
                seen.append(value)  # noqa: PERF402 (one by one)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        seen.append("stored")

    async with network.raw(server) as raw:
        raw.call("store", STREAM)
        await ready(raw)
        raw.send(item(1))
        await until(lambda: seen == [1])
        raw.cancel(1)
        assert await raw.code() == -32800
        await until(lambda: len(seen) > 1)
        assert seen[1] in ("CancelledError", "CallCancelled")


async def test_a_server_that_answers_before_the_end(network: Network) -> None:
    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        token = asked["params"][0]["id"]
        raw.send(granted(3, token))
        got = [await raw.receive() for _ in range(3)]
        assert [each["params"] for each in got] == [{"stream": token, "value": n} for n in range(3)]
        raw.answer(asked, "enough")
        raw.send(granted(100, token))
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        source = Source()
        assert await client.take(source.asynchronous()) == "enough"
        await until(lambda: source.closed == 1)
        assert source.made == 3
        assert await client.next() == "fine"
