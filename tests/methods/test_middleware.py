"""Middleware around calls: what it sees, what it may change, and every kind of handler inside of it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import (
    AsyncClient,
    CallNext,
    CallTimeout,
    Context,
    Credentials,
    Hub,
    InternalError,
    InvalidParams,
    MethodCall,
    MethodNotFound,
    RegistrationError,
    RpcError,
    Server,
)
from rpcstream.testing import memory_client, serve_in_thread
from tests.methods import worker_functions

from ..kit import until


def noting_server(**options: Any) -> tuple[Server, list[Any]]:
    """A server whose middleware notes the begin and the end of every call, with arguments and results."""
    server = Server(**options)
    notes: list[Any] = []

    @server.middleware
    async def note(call: MethodCall, call_next: CallNext) -> Any:
        notes.append((call.name, dict(call.arguments)))
        try:
            result = await call_next(call)
        except BaseException as error:
            notes.append(type(error))
            raise
        notes.append(result)
        return result

    return server, notes


# -- what it sees -----------------------------------------------------------------------------------------------------


async def test_middleware_sees_name_arguments_and_result() -> None:
    server, notes = noting_server()

    @server
    def add(a: int, b: int = 2, *rest: int, scale: float = 1.0, **others: int) -> float:
        return (a + b + sum(rest) + sum(others.values())) * scale

    async with memory_client(server) as client:
        assert await client.add(1) == 3
        assert await client.call("add", 1, 2, 3) == 6
        assert await client.add(a=1, scale=2, x=4) == 14
    assert notes == [
        ("add", {"a": 1, "b": 2, "rest": (), "scale": 1.0, "others": {}}),
        3.0,
        ("add", {"a": 1, "b": 2, "rest": (3,), "scale": 1.0, "others": {}}),
        6.0,
        ("add", {"a": 1, "b": 2, "rest": (), "scale": 2.0, "others": {"x": 4}}),
        14.0,
    ]


def test_middleware_sees_caller_headers_and_the_registered_method() -> None:
    def authenticate(credentials: Credentials) -> str | None:
        return credentials.token

    server = Server(authenticate=authenticate)
    seen: list[Any] = []

    @server.middleware
    async def look(call: MethodCall, call_next: CallNext) -> Any:
        context = call.context
        seen.append((context.identity, context.headers.get("x-tenant"), context.method, context.address))
        assert call.method is not None
        assert call.method.function is whoami
        return await call_next(call)

    @server(idempotent=True)
    def whoami(ctx: Context, polite: bool = False) -> str:
        return f"{ctx.identity}{'!' if polite else ''}"

    with serve_in_thread(server) as address:
        request = urllib.request.Request(
            f"http://{address}",
            b'{"jsonrpc": "2.0", "id": 1, "method": "whoami", "params": [true]}',
            {"Authorization": "Bearer ada", "Content-Type": "application/json", "X-Tenant": "t1"},
        )
        with urllib.request.urlopen(request) as response:
            assert json.loads(response.read())["result"] == "ada!"
    ((identity, tenant, method, address),) = seen
    assert (identity, tenant, method) == ("ada", "t1", "whoami")
    assert address.startswith("127.0.0.1:")


async def test_the_context_and_streams_of_a_handler_stay_its_own() -> None:
    server, notes = noting_server()

    @server
    async def total(numbers: AsyncIterator[int], ctx: Context, *, start: int = 0) -> int:
        assert ctx.method == "total"
        return start + sum([number async for number in numbers])

    async with memory_client(server) as client:

        async def numbers() -> AsyncIterator[int]:
            for number in range(100):
                yield number

        assert await client.total(numbers=numbers(), start=1) == 4951
    (name, arguments), result = notes
    assert name == "total"
    assert set(arguments) == {"numbers", "start"}
    assert result == 4951


# -- what it does -----------------------------------------------------------------------------------------------------


async def test_the_first_registered_is_outermost() -> None:
    server, order = Server(), []

    for name in ("first", "second", "third"):

        async def around(call: MethodCall, call_next: CallNext, name: str = name) -> Any:
            order.append(name)
            result = await call_next(call)
            order.append(name.upper())
            return result

        server.middleware(around)

    @server
    def work() -> None:
        order.append("handler")

    async with memory_client(server) as client:
        await client.work()
    assert order == ["first", "second", "third", "handler", "THIRD", "SECOND", "FIRST"]


async def test_arguments_and_results_can_be_changed() -> None:
    server = Server()

    @server.middleware
    async def change(call: MethodCall, call_next: CallNext) -> Any:
        if "text" in call.arguments:
            call.arguments["text"] = call.arguments["text"].strip()
            call.arguments["marks"] = ("?", "!")
        return {"value": await call_next(call)}

    @server(check_result=False)
    def say(text: str, *marks: str) -> str:
        return text + "".join(marks)

    @server(check_result=False)
    def untouched(x: int) -> int:
        return x

    async with memory_client(server) as client:
        assert await client.say("  hi ", "x") == {"value": "hi?!"}
        assert await client.untouched(1) == {"value": 1}


async def test_a_changed_result_is_checked_against_the_hint(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server.middleware
    async def change(call: MethodCall, call_next: CallNext) -> Any:
        return str(await call_next(call))

    @server
    def number() -> int:
        return 1

    async with memory_client(server) as client:
        with pytest.raises(InternalError):
            await client.number()
    assert "the result is not what the return hint says" in caplog.text


async def test_an_unknown_argument_is_a_mistake_of_the_middleware(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server.middleware
    async def add(call: MethodCall, call_next: CallNext) -> Any:
        call.arguments["tenant"] = "x"
        return await call_next(call)

    @server
    def number() -> int:
        return 1

    async with memory_client(server) as client:
        with pytest.raises(InternalError):
            await client.number()
    assert "does not have: ['tenant']" in caplog.text


async def test_a_call_can_be_refused_and_answered_without_its_handler() -> None:
    server, begun = Server(), []

    @server.middleware
    async def guard(call: MethodCall, call_next: CallNext) -> Any:
        if call.arguments.get("n") == 1:
            raise RpcError(429, "too many", {"retry_after": 2})
        return 0 if call.arguments.get("n") == 2 else await call_next(call)

    @server
    async def plain(n: int) -> int:
        begun.append(n)
        return n

    @server(ordered=True)
    async def ordered(n: int, ctx: Context) -> int:
        begun.append(n)
        return n

    @server
    async def items(n: int) -> AsyncIterator[int]:
        begun.append(n)
        yield n

    async with memory_client(server) as client:
        for method in ("plain", "ordered"):
            with pytest.raises(RpcError, match="too many") as caught:
                await client.call(method, 1)
            assert (caught.value.code, caught.value.data) == (429, {"retry_after": 2})
            assert await client.call(method, 2) == 0
            assert await client.call(method, 3) == 3
        with pytest.raises(RpcError, match="too many"):
            [item async for item in client.stream("items", 1)]
        with pytest.raises(RpcError, match="too many"):
            await client.items(1)
        assert [item async for item in client.stream("items", 3)] == [3]
        assert await client.items(3) == [3]
    assert begun == [3, 3, 3, 3]


async def test_an_exception_of_middleware_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server.middleware
    async def broken(call: MethodCall, call_next: CallNext) -> Any:
        raise KeyError("secret")

    @server
    def number() -> int:
        return 1

    async with memory_client(server) as client:
        with pytest.raises(InternalError) as caught:
            await client.number()
    assert "secret" not in str(caught.value)
    assert "method 'number' failed" in caplog.text


async def test_a_handler_runs_once_a_call(caplog: pytest.LogCaptureFixture) -> None:
    server, runs = Server(), []

    @server.middleware
    async def twice(call: MethodCall, call_next: CallNext) -> Any:
        await call_next(call)
        return await call_next(call)

    @server
    def number() -> int:
        runs.append(1)
        return 1

    async with memory_client(server) as client:
        with pytest.raises(InternalError):
            await client.number()
    assert runs == [1]
    assert "call_next for 'number' twice" in caplog.text


async def test_an_error_of_the_handler_can_be_replaced() -> None:
    server = Server()

    @server.middleware
    async def translate(call: MethodCall, call_next: CallNext) -> Any:
        try:
            return await call_next(call)
        except LookupError as error:
            raise RpcError(404, f"no {error.args[0]}") from error

    @server
    def find(name: str) -> int:
        raise KeyError(name)

    async with memory_client(server) as client:
        with pytest.raises(RpcError, match="no ada"):
            await client.find("ada")


# -- which calls ------------------------------------------------------------------------------------------------------


async def test_calls_that_reach_no_handler_and_own_methods_are_not_seen() -> None:
    server, notes = noting_server()

    @server
    def number(n: int) -> int:
        return n

    async with memory_client(server) as client:
        with pytest.raises(MethodNotFound):
            await client.nothing()
        with pytest.raises(InvalidParams):
            await client.number("x")
        assert await client.call("rpc.ping") == "pong"
        assert (await client.call("rpc.discover"))["methods"][0]["name"] == "number"
    assert notes == []


@pytest.mark.parametrize("offload", [None, "thread", "process"])
async def test_sync_handlers_run_where_they_are_to(offload: Any) -> None:
    server, notes = noting_server(processes=1)
    server.add(worker_functions.add, name="add", offload=offload)
    async with memory_client(server) as client:
        assert await client.add(1, 2) == 3
    assert notes == [("add", {"a": 1, "b": 2}), 3]


async def test_a_thread_can_call_back_while_middleware_waits() -> None:
    server, notes = noting_server()
    names: list[str] = []

    @server(offload="thread")
    def ask(ctx: Context) -> str:
        names.append(threading.current_thread().name)
        return str(ctx.peer.confirm("sure?"))

    async with memory_client(server) as client:
        client(name="confirm")(lambda question: f"yes, {question}")
        assert await client.ask() == "yes, sure?"
    assert notes == [("ask", {}), "yes, sure?"]
    assert names[0].startswith("rpcstream")


async def test_middleware_of_a_sync_handler_can_call_the_caller_back() -> None:
    server = Server()

    @server.middleware
    async def confirmed(call: MethodCall, call_next: CallNext) -> Any:
        if not await call.context.peer.confirm(call.name):
            raise RpcError(1, "not confirmed")
        return await call_next(call)

    @server
    def remove() -> bool:
        return True

    async with memory_client(server) as client:
        answers = [True, False]
        client(name="confirm")(lambda name: answers.pop(0))
        assert await client.remove() is True
        with pytest.raises(RpcError, match="not confirmed"):
            await client.remove()


@pytest.mark.parametrize("kind", ["sync", "thread", "async"])
async def test_a_stream_is_inside_with_all_its_items(kind: str) -> None:
    server, notes = noting_server()

    if kind == "async":

        @server
        async def count(n: int) -> AsyncIterator[int]:
            for number in range(n):
                yield number
            notes.append("end of items")

    else:

        @server(name="count", offload="thread" if kind == "thread" else None)
        def count_now(n: int) -> Iterator[int]:
            yield from range(n)
            notes.append("end of items")

    async with memory_client(server) as client:
        assert [item async for item in client.stream("count", 5)] == list(range(5))
        assert notes == [("count", {"n": 5}), "end of items", None]
        assert await client.count(3000) == list(range(3000))
        assert notes[3:] == [("count", {"n": 3000}), "end of items", None]


async def test_a_stream_that_is_left_ends_its_middleware() -> None:
    server, notes = noting_server()

    @server
    async def endless() -> AsyncIterator[int]:
        while True:
            yield 1
            await asyncio.sleep(0)

    async with memory_client(server) as client:
        async with client.stream("endless") as items:
            assert await anext(items) == 1
        while len(notes) < 2:
            await asyncio.sleep(0)
    assert notes == [("endless", {}), asyncio.CancelledError]


async def test_batched_handlers_have_it_around_each_item() -> None:
    server, notes = noting_server()

    @server.batched(offload=None, max_wait=0)
    def squares(numbers: list[int]) -> list[int]:
        return [number**2 for number in numbers]

    async with memory_client(server) as client:
        assert list(await asyncio.gather(client.squares(2), client.squares(3))) == [4, 9]
    assert sorted(note[1]["numbers"] for note in notes if type(note) is tuple) == [2, 3]
    assert sorted(note for note in notes if type(note) is not tuple) == [4, 9]


async def test_members_of_a_batch_and_notifications_are_seen_one_by_one() -> None:
    server, notes = noting_server()
    silent: list[bool] = []

    @server.middleware
    async def look(call: MethodCall, call_next: CallNext) -> Any:
        silent.append(call.is_notification)
        return await call_next(call)

    @server
    def number(n: int) -> int:
        return n

    async with memory_client(server) as client:
        async with client.batch() as batch:
            results = [batch.number(1), batch.number(2)]
            batch.notify("number", 3)
        assert [each.result() for each in results] == [1, 2]
        await client.notify("number", 4)
        await client.number(5)
    assert sorted(note[1]["n"] for note in notes if type(note) is tuple) == [1, 2, 3, 4, 5]
    assert sorted(silent) == [False, False, False, True, True]


async def test_ordered_calls_keep_their_order_with_their_middleware() -> None:
    server, notes = Server(), []

    @server.middleware
    async def slow(call: MethodCall, call_next: CallNext) -> Any:
        n = call.arguments["n"]
        notes.append(f"begin {n}")
        for _ in range(5 - n):
            await asyncio.sleep(0)
        result = await call_next(call)
        notes.append(f"end {n}")
        return result

    @server(ordered=True)
    def work(n: int) -> int:
        return n

    async with memory_client(server) as client:
        assert await asyncio.gather(*[client.work(n) for n in range(3)]) == [0, 1, 2]
    assert notes == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]


async def test_images_and_arrays_arrive_decoded() -> None:
    server, notes = noting_server()

    @server
    def brightness(photo: Image.Image, weights: NDArray[np.float64]) -> float:
        return float(np.asarray(photo).mean() * weights.sum())

    async with memory_client(server) as client:
        assert await client.brightness(Image.new("L", (900, 900), 3), np.ones(2)) == 6
    (_, arguments), result = notes
    assert arguments["photo"].size == (900, 900)
    assert result == 6


async def test_time_limits_and_cancels_reach_middleware() -> None:
    server, notes = noting_server()

    @server.middleware
    async def wait(call: MethodCall, call_next: CallNext) -> Any:
        await asyncio.sleep(3600)

    @server
    def number() -> int:
        return 1

    async with memory_client(server) as client:
        while not notes:  # on a busy machine the time may be over before the call has begun
            with pytest.raises((RpcError, CallTimeout)):
                await client.call("number", timeout=0.01)
        await until(lambda: len(notes) == 2)
        call = asyncio.ensure_future(client.number())
        await until(lambda: len(notes) == 3)
        call.cancel()
        await until(lambda: len(notes) == 4)
        with pytest.raises(asyncio.CancelledError):
            await call
    assert notes == [("number", {}), asyncio.CancelledError, ("number", {}), asyncio.CancelledError]


async def test_what_is_planned_for_after_the_reply_is_done() -> None:
    server, done = Server(), asyncio.Event()

    @server.middleware
    async def plan(call: MethodCall, call_next: CallNext) -> Any:
        result = await call_next(call)
        call.context.after_reply(done.set)
        return result

    @server
    def number() -> int:
        return 1

    async with memory_client(server) as client:
        assert await client.number() == 1
        await done.wait()


async def test_methods_can_be_added_and_replaced_while_the_server_runs() -> None:
    server, notes = noting_server()
    server.add(lambda: 1, name="number")
    async with memory_client(server) as client:
        assert await client.number() == 1
        server.add(lambda: 2, name="number", replace=True)
        server.add(lambda: 3, name="other")
        assert [await client.number(), await client.other()] == [2, 3]
    assert notes == [("number", {}), 1, ("number", {}), 2, ("other", {}), 3]


async def test_rights_come_before_middleware() -> None:
    server, notes = noting_server(authenticate=lambda credentials: credentials.token)

    @server(allow="admin")
    def secret() -> int:
        return 1

    async with server.listening(port=0) as address:
        async with AsyncClient(address, token="guest") as client:
            with pytest.raises(RpcError, match="permitted"):
                await client.secret()
        async with AsyncClient(address, token="admin") as client:
            assert await client.secret() == 1
    assert notes == [("secret", {}), 1]


# -- examples ---------------------------------------------------------------------------------------------------------


async def test_calls_of_one_identity_can_be_limited() -> None:
    server = Server(authenticate=lambda credentials: credentials.token)
    left = {"ada": 2, "bob": 1}

    @server.middleware
    async def limit(call: MethodCall, call_next: CallNext) -> Any:
        who = call.context.identity
        if left[who] == 0:
            raise RpcError(429, "too many calls")
        left[who] -= 1
        return await call_next(call)

    @server
    def number() -> int:
        return 1

    async with (
        server.listening(port=0) as address,
        AsyncClient(address, token="ada") as ada,
        AsyncClient(address, token="bob") as bob,
    ):
        assert [await ada.number(), await bob.number(), await ada.number()] == [1, 1, 1]
        for client in (ada, bob):
            with pytest.raises(RpcError, match="too many calls"):
                await client.number()


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_what_is_no_middleware_is_refused() -> None:
    server = Server()

    def plain(call: MethodCall, call_next: CallNext) -> Any: ...

    async def lonely(call: MethodCall) -> Any: ...

    with pytest.raises(RegistrationError, match="plain: middleware is an async function"):
        server.middleware(plain)
    with pytest.raises(RegistrationError, match="lonely: middleware takes two arguments"):
        server.middleware(lonely)  # type: ignore[type-var]
    with pytest.raises(RegistrationError, match="a hub passes calls on without reading them"):
        Hub().middleware(plain)


async def test_an_object_can_be_middleware_and_a_running_server_takes_none() -> None:
    class Counted:
        calls = 0

        async def __call__(self, call: MethodCall, call_next: CallNext) -> Any:
            self.calls += 1
            return await call_next(call)

    server, counted = Server(), Counted()
    assert server.middleware(counted) is counted
    server.add(lambda: 1, name="number")
    async with memory_client(server) as client:
        assert await client.number() == 1
        with pytest.raises(RuntimeError, match="running already"):
            server.middleware(Counted())
    assert counted.calls == 1


async def test_errors_of_notifications_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server.middleware
    async def refuse(call: MethodCall, call_next: CallNext) -> Any:
        raise RpcError(429, "too many calls")

    @server
    def number() -> int:
        return 1

    with caplog.at_level(logging.WARNING):
        async with memory_client(server) as client:
            await client.notify("number")
            await client.call("rpc.ping")
    assert "notification of 'number' failed" in caplog.text
