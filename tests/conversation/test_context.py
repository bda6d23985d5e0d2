"""A handler's `Context`: what it tells of the call, and calls back to the caller."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Optional

import pytest

from rpcstream import ConnectionLost, Context, InvalidParams, RpcError, Server
from rpcstream.errors import InternalError, RegistrationError

from ..kit import LogLines, Network, peer_keeping_server, until


async def first(ctx: Context, value: int) -> list[Any]:
    return [ctx.method, value]


async def by_keyword(value: int, *, here: Context) -> list[Any]:
    return [here.method, value]


async def optional(value: int, ctx: Optional[Context] = None) -> list[Any]:  # noqa: UP045
    return [ctx and ctx.method, value]


def annotated(ctx: Annotated[Context, "of this call"], value: int) -> list[Any]:
    return [ctx.method, value]


class Service:
    async def bound(self, value: int, ctx: Context | None = None) -> list[Any]:
        return [ctx and ctx.method, value]

    async def __call__(self, ctx: Context, value: int) -> list[Any]:
        return [ctx.method, value]


async def scaled(factor: int, ctx: Context, value: int) -> list[Any]:
    return [ctx.method, factor * value]


FORMS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (first, by_keyword, optional, annotated)},
    "thread": annotated,
    "bound": Service().bound,
    "callable_object": Service(),
    "partial": functools.partial(scaled, 1),
    "wrapped": functools.wraps(first)(lambda *args, **named: first(*args, **named)),
}


@pytest.mark.once
async def test_it_is_found_by_its_annotation_and_no_part_of_the_signature(network: Network) -> None:
    server = Server()
    for name, function in FORMS.items():
        server.add(function, name=name, offload="thread" if name == "thread" else None)
    async with network.client(server) as client:
        described = {each["name"]: each for each in (await client.call("rpc.discover"))["methods"]}
        for name in FORMS:
            assert await client.call(name, 7) == await client.call(name, value=7) == [name, 7]
            assert [each["name"] for each in described[name]["params"]] == ["value"]
            with pytest.raises(InvalidParams, match="'ctx' is unknown"):
                await client.call(name, value=7, ctx=None)
            with pytest.raises(InvalidParams, match="'value' is missing"):
                await client.call(name)
            with pytest.raises(InvalidParams, match="at most 1 by position, got 2"):
                await client.call(name, 1, 2)


def test_forms_that_cannot_be() -> None:
    server = Server()

    def many(*contexts: Context) -> None: ...

    with pytest.raises(RegistrationError, match=r"one function, or the Context, is for one parameter"):
        server.add(many)
    with pytest.raises(RegistrationError, match=r"neither a Context nor streams nor dependencies; use"):
        server.add(annotated, offload="process")


async def test_what_a_request_says(network: Network) -> None:
    server = Server()
    seen: list[Context] = []

    @server
    async def look(ctx: Context) -> None:
        seen.append(ctx)

    async with network.raw(server) as raw:
        for call_id in (7, "", -1):
            assert await raw.result("look", id=call_id, tenant="x", traceparent="00-1") is None
            ctx = seen.pop()
            assert (ctx.request_id, type(ctx.request_id)) == (call_id, type(call_id))
            assert dict(ctx.metadata) == {"tenant": "x", "traceparent": "00-1"}
            assert (ctx.method, ctx.deadline, ctx.remaining, ctx.cancelled) == ("look", None, None, False)
            assert ctx.check() is None
        name = raw.transport.get_extra_info("sockname")
        assert ctx.address == ctx.peer.address
        assert ctx.address == f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ctx.address
        with pytest.raises(TypeError):
            ctx.metadata["tenant"] = "y"  # type: ignore[index]
        assert await raw.result("look", id=None) is None
        raw.send({"jsonrpc": "2.0", "method": "look"})
        await until(lambda: len(seen) == 2)
        assert [each.request_id for each in seen] == [None, None]
        address = ctx.address
    assert ctx.address == address, "it is not forgotten with the connection"


def asking_server(**options: Any) -> Server:
    """`ask` and its sisters call `confirm` at the caller's end."""
    server = Server(**options)

    @server
    async def ask(question: str, ctx: Context) -> str:
        answer: str = await ctx.peer.confirm(question)
        return f"the peer says {answer}"

    @server(offload="thread")
    def ask_in_thread(question: str, ctx: Context) -> str:
        return f"the peer says {ctx.peer.confirm(question)}"

    @server(ordered=True)
    async def ask_in_order(question: str, ctx: Context) -> str:
        return f"the peer says {await ctx.peer.call('confirm', question=question)}"

    return server


ASKING = ["ask", "ask_in_thread", "ask_in_order"]


@pytest.mark.lasting
@pytest.mark.parametrize("method", ASKING)
async def test_a_handler_calls_back(network: Network, method: str) -> None:
    server = asking_server()
    server.add(lambda a, b: a + b, name="add")
    async with network.client(server) as client:

        @client
        async def confirm(question: str, ctx: Context) -> str:
            return f"{question} is {await ctx.peer.add(1, 2)}"

        assert await client.call(method, "it") == "the peer says it is 3"
        answers = await asyncio.gather(*(client.call(method, str(n)) for n in range(20)))
        assert answers == [f"the peer says {n} is 3" for n in range(20)]
        async with client.batch() as batch:
            calls = [batch.call(each, each) for each in ASKING]
        assert [each.result() for each in calls] == [f"the peer says {each} is 3" for each in ASKING]


@pytest.mark.parametrize("method", ASKING)
async def test_the_call_back_on_the_wire(network: Network, method: str) -> None:
    """The peer uses the very id that our call back has, for calls of its own and as an answer to nothing."""
    async with network.raw(asking_server()) as raw:
        raw.call(method, "one", id=1)
        asked = await raw.receive()
        assert (asked["method"], asked["params"]) in (("confirm", ["one"]), ("confirm", {"question": "one"}))
        if method != "ask_in_order":
            raw.call(method, "two", id=asked["id"] + 1)
            other = await raw.receive()
            raw.answer(other, "second")
            assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "result": "the peer says second"}
        raw.answer({"id": str(asked["id"])}, "forged")
        raw.answer({"id": float(asked["id"])}, "forged")
        raw.answer({"id": asked["id"] == 1}, "forged")
        await raw.silence()
        raw.answer(asked, "first")
        raw.answer(asked, "twice")
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 1, "result": "the peer says first"}
        await raw.silence()


@pytest.mark.lasting
async def test_twenty_levels_deep(network: Network) -> None:
    server = Server(threads=12)

    @server(offload="thread")
    def down(n: int, ctx: Context) -> list[int]:
        return [n, *ctx.peer.up(n - 1)] if n else [0]

    async with network.client(server) as client:

        @client
        async def up(n: int, ctx: Context) -> list[int]:
            return [n, *(await ctx.peer.down(n - 1))] if n else [0]

        assert await client.down(20) == list(range(20, -1, -1))


@pytest.mark.lasting
async def test_notifications_streams_and_progress_of_the_peer(network: Network) -> None:
    server = Server()
    seen: list[Any] = []

    @server(offload="thread")
    def use(ctx: Context) -> None:
        ctx.peer.notify.note("one")
        ctx.peer.notify("note", text="two")
        stream = ctx.peer.stream.count(100)
        assert sum(stream) == 4950
        assert stream.result == "end"
        with ctx.peer.stream.count(10**9) as stream:
            assert [next(stream) for _ in "123"] == [0, 1, 2]
        assert ctx.peer.total(iter(range(100)), on_progress=seen.append) == 4950

    async with network.client(server) as client:

        @client
        def note(text: str) -> None:
            seen.append(text)

        @client
        def count(n: int) -> Iterator[int]:
            try:
                yield from range(n)
            finally:
                seen.append("closed")
            return "end"

        @client
        async def total(values: AsyncIterator[int], ctx: Context) -> int:
            found = sum([value async for value in values])
            ctx.progress(found)
            return found

        assert await client.use() is None
        await until(lambda: len(seen) == 5)
        assert (seen[:2], seen.count("closed"), seen.count(4950)) == (["one", "two"], 2, 1)


@pytest.mark.lasting
@pytest.mark.parametrize("method", ASKING)
async def test_an_error_of_the_peer_is_not_the_handlers_answer(network: Network, errors: LogLines, method: str) -> None:
    server = asking_server()

    @server
    async def catch(ctx: Context) -> list[Any]:
        with pytest.raises(RpcError) as caught:
            await ctx.peer.confirm("now")
        error = caught.value
        assert error.address == ctx.peer.address
        return [type(error).__name__, error.code, error.message, error.data, error.method]

    async with network.client(server) as client:
        with pytest.raises(InternalError):
            await client.call(method, "now")
        errors.expect("Method not found")

        @client
        def confirm(question: str) -> str:
            raise RpcError(77, "not today", {"secret": question})

        with pytest.raises(InternalError) as caught:
            await client.call(method, "now")
        assert caught.value.data is None
        assert "not today" not in str(caught.value)
        assert await client.catch() == ["RpcError", 77, "not today", {"secret": "now"}, "confirm"]
    errors.expect(rf"method '{method}' failed")


async def test_a_connection_that_is_lost_meanwhile(network: Network) -> None:
    """A handler that goes on sees the loss of its call back at once, and every further one fails at once."""
    server = Server()
    seen: list[Any] = []

    @server(detached=True, offload="thread")
    def ask(ctx: Context) -> None:
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="'confirm'"):
                ctx.peer.confirm()
        with pytest.raises(ConnectionLost):
            next(ctx.peer.stream.count())
        seen.append(ctx.peer.is_connected)

    async with network.raw(server) as raw:
        raw.call("ask")
        assert (await raw.receive())["method"] == "confirm"
        raw.close()
        await until(lambda: seen == [False])


@pytest.mark.lasting
async def test_a_sync_handler_in_the_event_loop_cannot_wait(network: Network, errors: LogLines) -> None:
    server = Server()

    @server
    def ask(ctx: Context) -> str:
        answer: str = ctx.peer.confirm("now")
        return answer

    @server
    def asks(ctx: Context) -> Iterator[str]:
        yield ctx.peer.confirm("now")

    async with network.client(server) as client:

        @client
        def confirm(question: str) -> str:
            raise AssertionError("it was called")

        with pytest.raises(InternalError):
            await client.ask()
        with pytest.raises(InternalError):
            await anext(client.stream.asks())
        assert await client.call("rpc.ping") == "pong"
    errors.expect(r"(?s)RuntimeError: a blocking call in the event loop .* make the handler async, or offload", times=2)


@pytest.mark.lasting
async def test_the_peer_may_be_kept_beyond_the_call(network: Network) -> None:
    server, kept = peer_keeping_server()

    async with network.serve(server) as endpoint:
        client = endpoint.client()

        @client
        def confirm(question: str) -> str:
            return f"yes, {question}"

        await client.hello()
        await client.hello_in_thread()
        peer, blocking = kept
        assert await peer.confirm("later") == "yes, later"
        assert await asyncio.to_thread(blocking.confirm, "later still") == "yes, later still"
        assert peer.is_connected
        await client.close()
        await until(lambda: not network.open_connections)
        assert not peer.is_connected
        with pytest.raises(ConnectionLost, match="'confirm'"):
            peer.notify.confirm("too late")
        with pytest.raises(ConnectionLost, match="'confirm'"):
            await peer.confirm("too late")
        with pytest.raises(ConnectionLost, match="'confirm'"):
            await asyncio.to_thread(blocking.confirm, "too late")
