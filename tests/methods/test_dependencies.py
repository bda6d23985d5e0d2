"""Parameters that functions of the server provide: how they are found, called, shared, replaced and cleaned up."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from rpcstream import AsyncClient, CallNext, Context, Depends, InvalidParams, MethodCall, RpcError, Server
from rpcstream.errors import InternalError, RegistrationError
from rpcstream.testing import FakeTimeLoop, drop_connections, memory_client
from tests.methods import worker_functions

from ..kit import raw_peers, until

#: What happened, in order. Emptied before each test.
notes: list[Any] = []


@pytest.fixture(autouse=True)
def no_notes() -> None:
    notes.clear()


async def noted(what: object) -> None:
    await until(lambda: what in notes)


def plain() -> str:
    return "plain"


async def awaited() -> str:
    await asyncio.sleep(0)
    return "awaited"


def opened() -> Iterator[str]:
    notes.append("open")
    try:
        yield "opened"
    except BaseException as error:
        notes.append(type(error))
        raise
    finally:
        notes.append("closed")


async def opened_later() -> AsyncIterator[str]:
    notes.append("open")
    try:
        await asyncio.sleep(0)
        yield "opened later"
    except BaseException as error:
        notes.append(type(error))
        raise
    finally:
        await asyncio.sleep(0)
        notes.append("closed")


Plain, Awaited = Annotated[str, Depends(plain)], Annotated[str, Depends(awaited)]
Opened, OpenedLater = Annotated[str, Depends(opened)], Annotated[str, Depends(opened_later)]


@pytest.mark.parametrize("handler", ["sync", "thread", "async", "ordered"])
async def test_every_kind_of_handler_is_given_every_kind_of_dependency(handler: str) -> None:
    """Also in batches; and nobody else sees them: no caller, no document and no middleware."""
    server, seen = Server(), []

    @server.middleware
    async def look(call: MethodCall, call_next: CallNext) -> Any:
        seen.append(dict(call.arguments))
        return await call_next(call)

    def work(o: Opened, a: int, p: Plain, *rest: int, ctx: Context, w: Awaited, l: OpenedLater) -> str:  # noqa: E741
        return f"{ctx.method} {a} {rest} {p}, {w}, {o}, {l}"

    @functools.wraps(work)
    async def work_later(*args: Any, **kwargs: Any) -> str:
        await asyncio.sleep(0)
        return work(*args, **kwargs)

    options: dict[str, Any] = {"thread": {"offload": "thread"}, "ordered": {"ordered": True}}.get(handler, {})
    server.add(work_later if handler == "async" else work, name="work", **options)
    given = "plain, awaited, opened, opened later"
    async with memory_client(server) as client:
        assert await client.work(1, 4) == f"work 1 (4,) {given}"
        async with client.batch() as batch:
            results = [batch.work(a=1), batch.work(2)]
        assert [each.result() for each in results] == [f"work {a} () {given}" for a in (1, 2)]
        assert seen[0] == {"a": 1, "rest": (4,)}
        with pytest.raises(InvalidParams, match="'o' is unknown"):
            await client.work(a=1, o="x")
        methods = {each["name"]: each for each in (await client.call("rpc.discover"))["methods"]}
        assert [each["name"] for each in methods["work"]["params"]] == ["a", "rest"]
        await client.notify("work", 3)
        await until(lambda: notes.count("closed") == 8)


async def test_a_dependency_has_dependencies_and_the_context_and_is_shared_within_a_call() -> None:
    server = Server()

    async def method(ctx: Context) -> str:
        notes.append("method")
        return str(ctx.method)

    Method = Annotated[str, Depends(method)]

    class Greeter:
        def __init__(self, method: Method, end: str = "!") -> None:
            self.text = f"hello {method}{end}"

    @server
    def greet(greeter: Annotated[Greeter, Depends(Greeter)], method: Method) -> list[str]:
        return [greeter.text, method]

    async with memory_client(server) as client:
        assert await client.greet() == ["hello greet!", "greet"]
        assert notes == ["method"]


async def test_sync_ones_of_a_thread_run_in_threads_async_ones_in_the_loop_and_context_variables_are_seen() -> None:
    server, main = Server(), threading.get_ident()
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    def in_thread() -> Iterator[bool]:
        yield threading.get_ident() != main
        notes.append(threading.get_ident() != main)

    async def in_loop(before: Annotated[bool, Depends(in_thread)]) -> AsyncIterator[list[bool]]:
        token = tenant.set("t1")
        async with asyncio.timeout(100):  # must be left in the task that entered it
            yield [before, threading.get_ident() == main]
        tenant.reset(token)
        notes.append("reset")

    @server(offload="thread")
    def work(found: Annotated[list[bool], Depends(in_loop)]) -> list[Any]:
        return [*found, tenant.get()]

    async with memory_client(server) as client:
        assert await client.work() == [True, True, "t1"]
        await noted(True)
    assert notes == ["reset", True]


async def test_a_failed_commit_is_the_callers_error_and_middleware_sees_it(caplog: pytest.LogCaptureFixture) -> None:
    """Clean-up ends before the reply; an exception that a dependency swallows is the error all the same."""
    server = Server()

    @server.middleware
    async def look(call: MethodCall, call_next: CallNext) -> Any:
        try:
            return await call_next(call)
        except RpcError as error:
            notes.append(error.code)
            raise

    async def transaction(fails: bool = True) -> AsyncIterator[int]:
        try:
            yield 1
        except RpcError:
            return
        await asyncio.sleep(0)
        raise RpcError(9, "cannot commit")

    @server
    def work(session: Opened, number: Annotated[int, Depends(transaction)], breaks: bool = False) -> int:
        if breaks:
            raise RpcError(7, "no")
        return number

    async with raw_peers(server) as connect:
        raw = await connect()
        assert await raw.code("work") == 9
        assert notes == ["open", RpcError, "closed", 9]
        assert await raw.code("work", True) == 7
        assert notes[4:] == ["open", "closed", 7]


def refuses(session: Opened) -> int:
    raise RpcError(401, "who?")


def breaks(session: Opened) -> int:
    raise KeyError("secret")


def bad_end(session: Opened) -> Iterator[int]:
    yield 1
    raise ValueError("cannot commit")


def exits_at_its_end(session: Opened) -> Iterator[int]:
    yield 1
    raise SystemExit(3)


async def twice(session: Opened) -> AsyncIterator[int]:
    yield 1
    yield 2


@pytest.mark.parametrize(
    ("function", "answer", "said"),
    [
        (refuses, 401, ""),
        (breaks, -32603, "method 'work' failed"),
        (bad_end, -32603, "cannot commit"),
        (exits_at_its_end, -32603, "method 'work' failed"),
        (twice, -32603, "generator didn't stop"),
    ],
)
async def test_what_a_dependency_raises_before_and_after_the_call_and_those_before_it_are_closed(
    function: Any, answer: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()

    def work(number: Annotated[int, Depends(function)]) -> int:
        notes.append("handler")
        return number

    server.add(work)
    async with raw_peers(server) as connect:
        reply = await (await connect()).reply("work")
        assert reply["error"]["code"] == answer
        assert "closed" in notes
    assert ("handler" in notes) is (function not in (refuses, breaks))
    assert said in caplog.text
    assert said or not caplog.text


@pytest.mark.parametrize(("dependency", "offload"), [(opened, None), (opened_later, None), (opened, "thread")])
async def test_calls_that_fail_or_are_given_up_say_so_to_their_dependencies(dependency: Any, offload: Any) -> None:
    """A thread that such a call has left is waited for, before the reply."""
    server, may_end = Server(), threading.Event()

    def hold(session: Annotated[str, Depends(dependency)]) -> None:
        notes.append("begun")
        may_end.wait(20)
        notes.append("handler done")

    async def hold_in_loop(session: Annotated[str, Depends(dependency)]) -> None:
        notes.append("begun")
        await asyncio.sleep(3600)

    @server(offload=offload)
    def fail(session: Annotated[str, Depends(dependency)]) -> None:
        raise RpcError(7, "no")

    server.add(hold if offload else hold_in_loop, name="hold", offload=offload)
    async with raw_peers(server) as connect:
        other = await connect()
        assert await other.code("fail") == 7
        await noted("closed")
        assert notes == ["open", RpcError, "closed"]
        for how, code in (("cancel", -32800), ("time", -32003), ("loss", None)):
            notes.clear()
            may_end.clear()
            raw = await connect()
            raw.call("hold", **({"timeout": 0.1} if how == "time" else {}))
            await noted("begun")
            if how == "cancel":
                raw.cancel(1)
            elif how == "loss":
                drop_connections(server)
            if offload:
                await asyncio.sleep(0.15)
                assert how == "loss" or await other.result("rpc.ping") == "pong"
                assert "closed" not in notes
                may_end.set()
            assert code is None or await raw.code() == code
            await noted("closed")
            done = ["handler done"] if offload else []
            assert notes == ["open", "begun", *done, asyncio.CancelledError, "closed"]


@pytest.mark.parametrize("kind", ["async", "sync", "thread"])
async def test_a_stream_keeps_its_dependencies_until_its_end(kind: str) -> None:
    server = Server()

    def count(n: int, session: Opened) -> Iterator[str]:
        for number in range(n):
            yield f"{session} {number}"
        notes.append("last")

    async def count_later(n: int, session: Opened) -> AsyncIterator[str]:
        for each in count(n, session):
            yield each

    server.add(count_later if kind == "async" else count, name="count", offload="thread" if kind == "thread" else None)
    async with memory_client(server) as client:
        for is_stream in (True, False):
            notes.clear()
            items = [item async for item in client.stream("count", 40)] if is_stream else await client.count(40)
            assert items == [f"opened {number}" for number in range(40)]
            await noted("closed")
            assert notes == ["open", "last", "closed"]
        notes.clear()
        async with client.stream("count", 10**9) as stream:
            assert await anext(stream) == "opened 0"
        await noted("closed")
        assert "last" not in notes


def test_a_stopping_server_waits_for_clean_up_as_long_as_for_calls(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(drain_timeout=10)

    async def slow_end() -> AsyncIterator[int]:
        yield 1
        notes.append("cleaning")
        try:
            await asyncio.sleep(9)
            notes.append("still there")
            await asyncio.sleep(3600)
        finally:
            notes.append("cancelled")

    def work(number: Annotated[int, Depends(slow_end)]) -> int:
        return number

    server.add(work)

    async def call() -> None:
        async with memory_client(server) as client:
            call = client.submit.work()
            await noted("cleaning")
        assert call.exception() is not None

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(call())
    assert notes == ["cleaning", "still there", "cancelled"]
    assert "1 connections had not finished in time; methods at work: 'work'" in caplog.text


async def test_clean_up_has_all_the_time_it_wants_and_no_second_cancel_takes_it_away() -> None:
    """Its calls do not inherit what was left to the call."""
    server = Server()

    async def calls_back(ctx: Context) -> AsyncIterator[None]:
        task = asyncio.current_task()
        try:
            yield
        finally:
            notes.append(await ctx.peer.call("other"))
            # Else the generator was left to the garbage collection.
            notes.append("closed" if asyncio.current_task() is task else "closed elsewhere")

    @server
    async def forever(_: Annotated[None, Depends(calls_back)]) -> None:
        notes.append("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            notes.append("cancelled")
            await asyncio.sleep(0.02)

    async with raw_peers(server) as connect:
        raw = await connect()
        raw.call("forever", timeout=20)
        for seen in ("begun", "cancelled"):
            await noted(seen)
            raw.cancel(1)
        asked = await raw.receive()
        assert "timeout" not in asked
        raw.cancel(1)
        raw.answer(asked, "answered")
        assert await raw.code() == -32800
    assert notes == ["begun", "cancelled", "answered", "closed"]


def nothing() -> Iterator[int]:
    yield from ()


def of_itself(value: Plain) -> str:
    return value


def needs_a_number(number: int) -> int:
    return number


async def test_dependencies_can_be_replaced_for_tests_and_mistakes_fail_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.add(of_itself, name="work")
    async with memory_client(server) as client:
        assert await client.work() == "plain"
        server.dependency_overrides[plain] = lambda: "replaced"
        assert await client.work() == "replaced"
        for wrong, said in (
            (nothing, "generator didn't yield"),
            (of_itself, "of_itself depends on itself"),
            (needs_a_number, "its parameter 'number' is neither"),
        ):
            server.dependency_overrides[plain] = wrong
            with pytest.raises(InternalError):
                await client.work()
            assert said in caplog.text
        server.dependency_overrides.clear()
        assert await client.work() == "plain"


def test_what_cannot_be_provided_is_refused_at_registration() -> None:
    server, client = Server(), AsyncClient("127.0.0.1:1")

    def wrong(number: Annotated[int, Depends(needs_a_number)]) -> None: ...

    def old(session: str = Depends(opened)) -> None: ...  # type: ignore[assignment]

    def inside(sessions: list[Opened]) -> None: ...

    rows: list[tuple[Any, Any, str]] = [
        (server.add, wrong, "wrong: the dependency needs_a_number: its parameter 'number' is neither"),
        (server.add, old, "old: parameter 'session': write a dependency in the hint: session: A"),
        (server.add, inside, "inside: parameter 'sessions'"),
        (server.batched(), of_itself, "it must be list"),
        (server(offload="process"), worker_functions.needs_session, "in another process can have neither .* nor dep"),
        (client, of_itself, "of_itself: dependencies are for the methods of a server"),
    ]
    for add, function, told in rows:
        with pytest.raises(RegistrationError, match=told):
            add(function)
    with pytest.raises(TypeError, match="Depends takes a function, not 3"):
        Depends(3)  # type: ignore[arg-type]
    assert [name for name in server.methods if not name.startswith("rpc.")] == []
