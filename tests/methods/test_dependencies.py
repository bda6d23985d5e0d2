"""Parameters that functions of the server provide: how they are found, called, shared, replaced and cleaned up."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import numpy as np
import pytest

from rpcstream import (
    AsyncClient,
    CallNext,
    CallTimeout,
    Client,
    Context,
    Depends,
    InternalError,
    InvalidParams,
    Limits,
    MethodCall,
    NotPermitted,
    RegistrationError,
    RpcError,
    Server,
)
from rpcstream.testing import FakeTimeLoop, memory_client, serve_in_thread
from tests.methods import worker_functions

from ..kit import raw_peers

#: What happened, in order. Emptied before each test.
notes: list[Any] = []


@pytest.fixture(autouse=True)
def no_notes() -> None:
    notes.clear()


async def noted(what: object) -> None:
    """Wait until something was noted."""
    async with asyncio.timeout(10):
        while what not in notes:
            await asyncio.sleep(0)


class Session:
    def __init__(self, name: str) -> None:
        self.name = name


def plain_session() -> Session:
    return Session("plain")


async def async_session() -> Session:
    await asyncio.sleep(0)
    return Session("async")


def open_session() -> Iterator[Session]:
    notes.append("open")
    try:
        yield Session("opened")
    except BaseException as error:
        notes.append(type(error))
        raise
    finally:
        notes.append("closed")


async def open_async() -> AsyncIterator[Session]:
    notes.append("open")
    try:
        await asyncio.sleep(0)
        yield Session("opened async")
    except BaseException as error:
        notes.append(type(error))
        raise
    finally:
        await asyncio.sleep(0)
        notes.append("closed")


Opened = Annotated[Session, Depends(open_session)]

KINDS: dict[str, Callable[..., Any]] = {
    "plain": plain_session,
    "async": async_session,
    "opened": open_session,
    "opened async": open_async,
}


# -- where it comes from ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("handler", ["sync", "thread", "async", "ordered"])
async def test_every_kind_of_dependency_is_given_to_every_kind_of_handler(name: str, handler: str) -> None:
    server = Server()
    provided = Annotated[Session, Depends(KINDS[name])]

    def work(a: int, session: provided, b: int = 2, *rest: int, ctx: Context) -> str:
        assert ctx.method == "work"
        return f"{session.name} {a} {b} {rest}"

    @functools.wraps(work)
    async def work_async(*args: Any, **kwargs: Any) -> str:
        await asyncio.sleep(0)
        return work(*args, **kwargs)

    server.add(
        work_async if handler == "async" else work,
        name="work",
        offload="thread" if handler == "thread" else None,
        ordered=handler == "ordered",
    )
    async with memory_client(server) as client:
        assert await client.work(1) == f"{name} 1 2 ()"
        assert await client.work(1, 3, 4) == f"{name} 1 3 (4,)"
        assert await client.work(b=5, a=1) == f"{name} 1 5 ()"


async def test_places_of_context_streams_and_dependencies_do_not_matter() -> None:
    server = Server()

    @server
    async def one(
        first: Opened, ctx: Context, numbers: AsyncIterator[int], second: Annotated[Session, Depends(plain_session)]
    ) -> str:
        return f"{first.name} {ctx.method} {[number async for number in numbers]} {second.name}"

    @server
    async def other(*, scale: int = 1, second: Opened, ctx: Context, numbers: list[int]) -> str:
        return f"{scale} {second.name} {ctx.method} {numbers}"

    async with memory_client(server) as client:
        assert await client.one([1, 2]) == "opened one [1, 2] plain"
        assert await client.other(numbers=[3]) == "1 opened other [3]"


async def test_a_dependency_has_dependencies_and_the_context_and_is_shared_within_a_call() -> None:
    server = Server(authenticate=lambda credentials: credentials.token)

    def settings() -> dict[str, str]:
        notes.append("settings")
        return {"greeting": "hello"}

    async def user(ctx: Context) -> str:
        notes.append("user")
        return str(ctx.identity)

    def admin(user: Annotated[str, Depends(user)]) -> str:
        if user != "ada":
            raise NotPermitted()
        return user

    class Greeter:
        def __init__(
            self,
            user: Annotated[str, Depends(user)],
            settings: Annotated[dict[str, str], Depends(settings)],
            end: str = "!",
        ) -> None:
            self.text = f"{settings['greeting']} {user}{end}"

    @server
    def greet(
        greeter: Annotated[Greeter, Depends(Greeter)],
        admin: Annotated[str, Depends(admin)],
        settings: Annotated[dict[str, str], Depends(settings)],
    ) -> list[str]:
        return [greeter.text, admin, *settings]

    async with server.listening(port=0) as address:
        async with AsyncClient(address, token="ada") as client:
            assert await client.greet() == ["hello ada!", "ada", "greeting"]
            assert notes == ["user", "settings"]
            await client.greet()
            assert notes == ["user", "settings"] * 2
        async with AsyncClient(address, token="bob") as client:
            with pytest.raises(NotPermitted):
                await client.greet()


async def test_a_dependency_without_cache_is_called_for_each_parameter() -> None:
    server, counted = Server(), iter(range(100))

    def number() -> int:
        return next(counted)

    shared, own = Depends(number), Depends(number, use_cache=False)

    @server
    def numbers(
        a: Annotated[int, shared], b: Annotated[int, own], c: Annotated[int, own], d: Annotated[int, shared]
    ) -> list[int]:
        return [a, b, c, d]

    async with memory_client(server) as client:
        assert await client.numbers() == [0, 1, 2, 0]


async def test_context_variables_of_a_dependency_are_seen_by_handler_and_clean_up() -> None:
    server = Server()
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    async def set_tenant() -> AsyncIterator[None]:
        token = tenant.set("t1")
        async with asyncio.timeout(100):  # must be left in the task that entered it
            yield
        tenant.reset(token)
        notes.append("reset")

    @server
    async def which(_: Annotated[None, Depends(set_tenant)]) -> str:
        return tenant.get()

    async with memory_client(server) as client:
        assert await client.which() == "t1"
        await noted("reset")


async def test_sync_dependencies_of_a_thread_run_in_threads() -> None:
    server = Server()
    main = threading.get_ident()

    def opened() -> Iterator[int]:
        notes.append(threading.get_ident() != main)
        yield 1
        notes.append(threading.get_ident() != main)
        notes.append("closed")

    async def in_loop(number: Annotated[int, Depends(opened)]) -> int:
        notes.append(threading.get_ident() == main)
        return number + 1

    @server(offload="thread")
    def one(number: Annotated[int, Depends(opened)]) -> int:
        return number

    @server(offload="thread")
    def two(number: Annotated[int, Depends(in_loop)]) -> int:
        return number

    async with memory_client(server) as client:
        assert await client.one() == 1
        await noted("closed")
        assert notes == [True, True, "closed"]
        notes.clear()
        assert await client.two() == 2
        await noted("closed")
        assert notes == [True, True, True, "closed"]


# -- what callers see -------------------------------------------------------------------------------------------------


async def test_callers_do_not_see_what_is_provided() -> None:
    server = Server()

    @server
    def work(a: int, session: Opened) -> int:
        return a

    async with memory_client(server) as client:
        (described,) = [
            each for each in (await client.call("rpc.discover"))["methods"] if not each["name"].startswith("rpc.")
        ]
        assert [each["name"] for each in described["params"]] == ["a"]
        with pytest.raises(InvalidParams, match="unknown 'session'; the parameters are 'a'"):
            await client.work(a=1, session=2)
        with pytest.raises(InvalidParams, match="too many, at most 1"):
            await client.work(1, 2)
        with pytest.raises(InvalidParams, match=r"missing 'a' \("):
            await client.work()
    assert notes == []


# -- clean-up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [open_session, open_async])
async def test_clean_up_comes_after_the_reply(opened: Any) -> None:
    server = Server()
    may_end = asyncio.Event()

    async def slow_end(session: Annotated[Session, Depends(opened)]) -> AsyncIterator[Session]:
        yield session
        notes.append("waiting")
        await may_end.wait()

    @server
    async def work(session: Annotated[Session, Depends(slow_end)]) -> str:
        return session.name

    @server(name="sync")
    def work_now(session: Annotated[Session, Depends(slow_end)]) -> str:
        return session.name

    async with memory_client(server) as client:
        for method in ("work", "sync"):
            notes.clear()
            may_end.clear()
            assert (await client.call(method)).startswith("opened")
            await noted("waiting")
            assert notes == ["open", "waiting"]
            may_end.set()
            await noted("closed")
            assert notes == ["open", "waiting", "closed"]


@pytest.mark.parametrize("prefix", ["", "http://", "ws://"])
def test_the_reply_is_on_its_way_when_clean_up_begins(prefix: str) -> None:
    server = Server(slow_call=60)
    may_end = {"work": threading.Event(), "fail": threading.Event()}

    def blocks_at_its_end(ctx: Context) -> Iterator[int]:
        try:
            yield 1
        finally:
            notes.append(may_end[ctx.method].wait(20))  # in the event loop, which can send nothing meanwhile

    @server
    async def work(number: Annotated[int, Depends(blocks_at_its_end)]) -> int:
        return number

    @server
    async def fail(number: Annotated[int, Depends(blocks_at_its_end)]) -> int:
        raise RpcError(7, "no")

    with serve_in_thread(server) as address, Client(prefix + address) as client:
        assert client.work() == 1
        may_end["work"].set()
        with pytest.raises(RpcError, match="no"):
            client.fail()
        may_end["fail"].set()
    assert notes == [True, True]


async def test_an_error_of_the_handler_is_raised_in_its_dependencies() -> None:
    server = Server()

    @server
    async def fail(first: Opened, second: Annotated[Session, Depends(open_async)]) -> None:
        raise RpcError(7, "no")

    async with memory_client(server) as client:
        with pytest.raises(RpcError, match="no"):
            await client.fail()
        await asyncio.sleep(0)
        while len(notes) < 6:
            await asyncio.sleep(0)
    assert notes == ["open", "open", RpcError, "closed", RpcError, "closed"]


async def test_a_dependency_may_refuse_the_call_and_those_before_it_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()

    def refuse(session: Opened) -> int:
        raise RpcError(401, "who are you?")

    def broken(session: Opened) -> int:
        raise KeyError("secret")

    @server
    def one(number: Annotated[int, Depends(refuse)]) -> None:
        notes.append("handler")

    @server
    def two(number: Annotated[int, Depends(broken)]) -> None:
        notes.append("handler")

    async with memory_client(server) as client:
        with pytest.raises(RpcError, match="who are you") as caught:
            await client.one()
        assert caught.value.code == 401
        await noted("closed")
        assert notes == ["open", RpcError, "closed"]
        notes.clear()
        with pytest.raises(InternalError):
            await client.two()
        await noted("closed")
        assert notes == ["open", KeyError, "closed"]
    assert "method 'two' failed" in caplog.text


async def test_what_clean_up_raises_is_logged_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    def bad_end(session: Opened) -> Iterator[int]:
        yield 1
        raise ValueError("cannot commit")

    def bad_exit(session: Opened) -> Iterator[int]:
        yield 1
        raise SystemExit(3)

    async def twice(session: Opened) -> AsyncIterator[int]:
        yield 1
        yield 2

    async with memory_client(server) as client:
        for number, function in enumerate((bad_end, bad_exit, twice)):
            notes.clear()

            def work(number: Annotated[int, Depends(function)]) -> int:
                return number

            server.add(work, name=f"work{number}")
            assert await client.call(f"work{number}") == 1
            await noted("closed")
    assert "clean-up of the dependency" in caplog.text
    assert "cannot commit" in caplog.text
    assert "twice has yielded twice" in caplog.text


async def test_a_dependency_that_yields_nothing_fails_the_call(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    def nothing() -> Iterator[int]:
        yield from ()

    @server
    def work(number: Annotated[int, Depends(nothing)]) -> int:
        return number

    async with memory_client(server) as client:
        with pytest.raises(InternalError):
            await client.work()
    assert "nothing has not yielded a value" in caplog.text


@pytest.mark.parametrize("opened", [open_session, open_async])
async def test_cancelled_late_and_abandoned_calls_clean_up(opened: Any) -> None:
    server = Server()

    @server
    async def forever(session: Annotated[Session, Depends(opened)]) -> None:
        notes.append("begun")
        await asyncio.sleep(3600)

    async with memory_client(server) as client:
        with pytest.raises((CallTimeout, RpcError)):
            await client.call("forever", timeout=0.05)
        await noted("closed")
        assert notes == ["open", "begun", asyncio.CancelledError, "closed"]
        notes.clear()
        call = asyncio.ensure_future(client.forever())
        await noted("begun")
        call.cancel()
        await noted("closed")
        assert notes == ["open", "begun", asyncio.CancelledError, "closed"]
        notes.clear()
        call = asyncio.ensure_future(client.forever())
        await noted("begun")
        await client.close()
        await noted("closed")
        assert notes == ["open", "begun", asyncio.CancelledError, "closed"]
        with pytest.raises(BaseException):  # noqa: B017, PT011 (which one is not of interest here)
            await call


async def test_clean_up_waits_for_a_thread_that_a_cancelled_call_has_left() -> None:
    server = Server()
    may_end = threading.Event()

    @server(offload="thread")
    def work(session: Opened, ctx: Context) -> None:
        notes.append("begun")
        may_end.wait()
        notes.append("handler done")

    @server(offload="thread")
    def items(session: Opened) -> Iterator[int]:
        notes.append("begun")
        may_end.wait()
        notes.append("handler done")
        yield 1

    async with memory_client(server) as client:
        for method in ("work", "items"):
            notes.clear()
            may_end.clear()
            call = asyncio.ensure_future(client.call(method))
            await noted("begun")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.call("rpc.ping")
            assert notes == ["open", "begun"]
            may_end.set()
            await noted("closed")
            assert notes[:3] == ["open", "begun", "handler done"]


@pytest.mark.parametrize("kind", ["async", "sync", "thread"])
async def test_a_stream_keeps_its_dependencies_until_its_end(kind: str) -> None:
    server = Server()

    async def count_async(n: int, session: Opened) -> AsyncIterator[str]:
        for number in range(n):
            yield f"{session.name} {number}"
        notes.append("last")

    def count(n: int, session: Opened) -> Iterator[str]:
        for number in range(n):
            yield f"{session.name} {number}"
        notes.append("last")

    server.add(count_async if kind == "async" else count, name="count", offload="thread" if kind == "thread" else None)
    expected = [f"opened {number}" for number in range(40)]
    async with memory_client(server) as client:
        assert [item async for item in client.stream("count", 40)] == expected
        await noted("closed")
        assert notes == ["open", "last", "closed"]
        notes.clear()
        assert await client.count(40) == expected
        await noted("closed")
        assert notes == ["open", "last", "closed"]
        notes.clear()
        async with client.stream("count", 10**9) as items:
            assert await anext(items) == "opened 0"
        await noted("closed")
        assert "last" not in notes


async def test_replies_wait_for_clean_up_when_too_much_is_cleaned_up() -> None:
    server = Server(limits=Limits(max_calls=2))
    may_end = asyncio.Event()

    async def slow_end() -> AsyncIterator[int]:
        yield 1
        notes.append("cleaning")
        await may_end.wait()

    @server
    async def work(number: Annotated[int, Depends(slow_end)]) -> int:
        return number

    async with memory_client(server) as client:
        assert await client.work() == 1
        assert await client.work() == 1
        third = asyncio.ensure_future(client.work())
        while len(notes) < 3:
            await asyncio.sleep(0)
        await client.call("rpc.ping")
        assert not third.done()
        may_end.set()
        assert await third == 1
        assert await client.work() == 1


async def test_a_stopping_server_waits_for_clean_up() -> None:
    server = Server()

    async def slow_end() -> AsyncIterator[int]:
        yield 1
        for _ in range(50):
            await asyncio.sleep(0)
        notes.append("closed")

    @server
    async def work(number: Annotated[int, Depends(slow_end)]) -> int:
        return number

    async with memory_client(server) as client:
        assert await client.work() == 1
    assert notes == ["closed"]


def test_clean_up_that_does_not_end_is_cancelled_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(drain_timeout=0.01)

    async def endless_end() -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.sleep(3600)
        finally:
            notes.append("cancelled")

    @server
    async def work(number: Annotated[int, Depends(endless_end)]) -> int:
        return number

    async def test() -> None:
        async with memory_client(server) as client:
            assert await client.work() == 1

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(test())
    assert notes == ["cancelled"]
    assert "did not end in time, and is cancelled: 1 calls" in caplog.text


async def test_clean_up_has_all_the_time_it_wants_and_not_what_was_left_to_the_call() -> None:
    server = Server()

    @server
    async def other() -> int:
        return 1

    async with server.listening(port=0) as address, AsyncClient(address) as inner:

        async def calls_back() -> AsyncIterator[None]:
            try:
                yield
            finally:
                notes.append(await inner.other())

        @server
        async def forever(_: Annotated[None, Depends(calls_back)]) -> None:
            await asyncio.sleep(3600)

        async with AsyncClient(address) as client:
            with pytest.raises((CallTimeout, RpcError)):
                await client.call("forever", timeout=0.5)
            await noted(1)


async def test_a_second_cancel_does_not_take_the_clean_up_away() -> None:
    server, go = Server(), asyncio.Event()

    async def opened() -> AsyncIterator[None]:
        task = asyncio.current_task()
        try:
            yield
        finally:
            await go.wait()
            # Else the generator was left to the garbage collection.
            notes.append("closed" if asyncio.current_task() is task else "closed elsewhere")

    @server
    async def forever(_: Annotated[None, Depends(opened)]) -> None:
        notes.append("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            notes.append("cancelled")
            await asyncio.sleep(0.02)

    async with raw_peers(server) as connect:
        raw = await connect()
        raw.call("forever", timeout=0.1)
        await noted("begun")
        raw.cancel(1)  # and the deadline comes as well
        await noted("cancelled")
        raw.cancel(1)
        assert await raw.code() in (-32800, -32003)
        raw.close()
        go.set()
        await noted("closed")
    assert notes == ["begun", "cancelled", "closed"]


async def test_batches_and_notifications_have_dependencies_too() -> None:
    server = Server()

    @server
    async def work(n: int, session: Opened) -> str:
        notes.append(n)
        return f"{n} {session.name}"

    async with memory_client(server) as client:
        async with client.batch() as batch:
            results = [batch.work(1), batch.work(2)]
        assert [each.result() for each in results] == ["1 opened", "2 opened"]
        await client.notify("work", 3)
        await noted(3)
        while notes.count("closed") < 3:
            await asyncio.sleep(0)


async def test_middleware_is_around_dependencies_and_does_not_see_them() -> None:
    server = Server()

    @server.middleware
    async def around(call: MethodCall, call_next: CallNext) -> Any:
        notes.append(dict(call.arguments))
        call.arguments["n"] += 1
        result = await call_next(call)
        notes.append("after")
        return result

    @server
    def work(first: Opened, n: int, *rest: int, ctx: Context, last: Annotated[Session, Depends(plain_session)]) -> str:
        return f"{first.name} {n} {rest} {ctx.method} {last.name}"

    async with memory_client(server) as client:
        assert await client.work(1, 2) == "opened 2 (2,) work plain"
        await noted("closed")
    assert notes == [{"n": 1, "rest": (2,)}, "open", "after", "closed"]


# -- in tests ---------------------------------------------------------------------------------------------------------


async def test_dependencies_can_be_replaced_for_tests() -> None:
    server = Server()

    def label(session: Opened) -> str:
        return session.name

    @server
    def work(label: Annotated[str, Depends(label)]) -> str:
        return label

    def fake(ctx: Context) -> Session:
        return Session(f"fake for {ctx.method}")

    def wrong(a: int) -> Session:
        raise NotImplementedError

    async with memory_client(server) as client:
        assert await client.work() == "opened"
        server.dependency_overrides[open_session] = fake
        assert await client.work() == "fake for work"
        server.dependency_overrides[open_session] = wrong
        with pytest.raises(InternalError):
            await client.work()
        server.dependency_overrides.clear()
        assert await client.work() == "opened"


# -- mistakes ---------------------------------------------------------------------------------------------------------


def needs_a_number(number: int) -> int:
    return number


def test_what_cannot_be_provided_is_refused_at_registration() -> None:
    server = Server()

    def wrong(number: Annotated[int, Depends(needs_a_number)]) -> None: ...

    def old(session: Session = Depends(open_session)) -> None: ...  # type: ignore[assignment]  # noqa: B008

    def many(*sessions: Opened) -> None: ...

    def both(session: Annotated[Session, Depends(open_session), Depends(plain_session)]) -> None: ...

    def inside(sessions: list[Opened]) -> None: ...

    def batched(items: list[int], session: Opened) -> list[int]:
        return items

    with pytest.raises(
        RegistrationError, match=r"wrong: the dependency needs_a_number: its parameter 'number' is neith"
    ):
        server.add(wrong)
    with pytest.raises(
        RegistrationError, match=r"old: parameter 'session': a dependency stands in the hint: session: A"
    ):
        server.add(old)
    for function in (many, both):
        with pytest.raises(RegistrationError, match="one function provides a parameter"):
            server.add(function)
    with pytest.raises(RegistrationError, match="inside: parameter 'sessions'"):
        server.add(inside)
    with pytest.raises(RegistrationError, match="several calls at once, and can have no dependencies"):
        server.batched()(batched)
    with pytest.raises(RegistrationError, match=r"in another process can have neither .* nor dependencies"):
        server.add(worker_functions.needs_session, offload="process")
    with pytest.raises(TypeError, match="Depends takes a function, not 3"):
        Depends(3)  # type: ignore[arg-type]
    assert [name for name in server.methods if not name.startswith("rpc.")] == []


async def test_a_dependency_that_needs_itself_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    def first(value: Annotated[int, Depends(plain_session)]) -> int:
        return value

    def work(value: Annotated[int, Depends(first)]) -> int:
        return value

    server.add(work)
    server.dependency_overrides[plain_session] = first
    async with memory_client(server) as client:
        with pytest.raises(InternalError):
            await client.work()
    assert "first depends on itself" in caplog.text


def test_methods_of_a_client_have_none() -> None:
    client = AsyncClient("127.0.0.1:1")

    def work(session: Opened) -> None: ...

    with pytest.raises(RegistrationError, match="work: dependencies are for the methods of a server"):
        client(work)


async def test_rich_values_and_dependencies_go_together() -> None:
    server = Server()

    @server
    def total(values: np.ndarray[Any, Any], session: Opened) -> float:
        return float(values.sum())

    async with memory_client(server) as client:
        assert await client.total(np.ones(10_000)) == 10_000
