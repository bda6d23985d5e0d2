"""Middleware around calls: what it sees, what it may change, and every kind of handler inside of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import CallNext, Context, Hub, InvalidParams, MethodCall, MethodNotFound, NotPermitted, RpcError, Server
from rpcstream.errors import InternalError, RegistrationError
from rpcstream.testing import memory_client
from tests.methods import worker_functions


class Noting(Server):
    """A server whose middleware notes the begin and the end of every call, with arguments and results."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.notes: list[Any] = []
        self.middleware(self.note)

    async def note(self, call: MethodCall, call_next: CallNext) -> Any:
        self.notes.append((call.name, dict(call.arguments)))
        try:
            result = await call_next(call)
        except BaseException as error:
            self.notes.append(type(error))
            raise
        self.notes.append(result)
        return result


def add(a: int, b: int = 2, *rest: int, scale: float = 1.0, **others: int) -> float:
    return (a + b + sum(rest) + sum(others.values())) * scale


async def total(numbers: AsyncIterator[int], ctx: Context, *, start: int = 0) -> int:
    return start + sum([number async for number in numbers])


def count(n: int) -> Iterator[int]:
    yield from range(n)


async def count_later(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


def brightness(photo: Image.Image, weights: NDArray[np.float64]) -> float:
    return float(np.asarray(photo).mean() * weights.sum())


PHOTO, ONES = Image.new("L", (900, 900), 3), np.ones(2)
ADDED = {"a": 1, "b": 2, "rest": (), "scale": 1.0, "others": {}}


@pytest.mark.parametrize(
    ("function", "options", "params", "arguments", "result"),
    [
        (add, {}, [1, 2, 3], {**ADDED, "rest": (3,)}, 6),
        (add, {"offload": "thread"}, {"a": 1, "scale": 2, "x": 4}, {**ADDED, "scale": 2.0, "others": {"x": 4}}, 14),
        (add, {"ordered": True}, [1], ADDED, 3),
        pytest.param(
            *(worker_functions.add, {"offload": "process"}, [1, 2], {"a": 1, "b": 2}, 3), marks=pytest.mark.slow
        ),
        (total, {}, {"numbers": [1, 2], "start": 1}, {"numbers": ..., "start": 1}, 4),
        (brightness, {}, [PHOTO, ONES], {"photo": PHOTO, "weights": ...}, 6),
        # Of a generator all items are inside.
        *((each, {}, [3000], {"n": 3000}, list(range(3000))) for each in (count, count_later)),
    ],
)
async def test_it_sees_name_arguments_and_result(
    function: Any, options: Any, params: Any, arguments: dict[str, Any], result: Any
) -> None:
    server = Noting(processes=1)
    server.add(function, name="it", **options)
    async with memory_client(server) as client:
        call = client.it(**params) if isinstance(params, dict) else client.it(*params)
        assert await call == result
    (seen, found), noted = server.notes
    assert (seen, found.keys()) == ("it", arguments.keys())
    assert all(found[key] == value for key, value in arguments.items() if value is not ...)
    assert noted == (None if isinstance(result, list) else result)


async def test_members_of_a_batch_micro_batches_and_notifications_are_seen_one_by_one() -> None:
    server, seen = Server(), []

    @server.middleware
    async def look(call: MethodCall, call_next: CallNext) -> Any:
        seen.append((call.arguments["n"], call.context.is_notification))
        return await call_next(call)

    server.add(lambda n: n, name="number")

    @server.batched(offload=None, max_wait=0)
    def squares(n: list[int]) -> list[int]:
        return [number**2 for number in n]

    async with memory_client(server) as client:
        async with client.batch() as batch:
            results = [batch.number(1), batch.number(2)]
            batch.notify("number", 3)
        assert [each.result() for each in results] == [1, 2]
        assert await asyncio.gather(client.squares(5), client.squares(6)) == [25, 36]
    assert sorted(seen) == [(1, False), (2, False), (3, True), (5, False), (6, False)]


async def test_calls_that_reach_no_handler_and_own_methods_are_not_seen() -> None:
    server = Noting(authenticate=lambda credentials: credentials.token)

    @server
    def number(n: int) -> int:
        return n

    server.add(number, name="secret", allow="admin")
    rows = (("nothing", 1, MethodNotFound), ("number", "x", InvalidParams), ("secret", 1, NotPermitted))
    async with memory_client(server, token="guest") as client:
        for method, n, error in rows:
            with pytest.raises(error):
                await client.call(method, n)
        assert await client.call("rpc.ping") == "pong"
        await client.call("rpc.discover")
        assert server.notes == []
        assert await client.number(1) == 1
        server.add(lambda: 2, name="number", replace=True)
        assert await client.number() == 2
    assert server.notes == [("number", {"n": 1}), 1, ("number", {}), 2]


async def test_the_first_registered_is_outermost_objects_may_be_some_and_ordered_calls_keep_their_order() -> None:
    server, order = Server(), []

    class Around:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, call: MethodCall, call_next: CallNext) -> Any:
            order.append(self.name)
            await asyncio.sleep(0)
            result = await call_next(call)
            order.append(self.name.upper())
            return result

    for around in map(Around, ("first", "second")):
        assert server.middleware(around) is around
    server.add(lambda: order.append("handler"), name="work", ordered=True)
    async with memory_client(server) as client:
        await asyncio.gather(client.work(), client.work())
        with pytest.raises(RuntimeError, match="running already"):
            server.middleware(Around("late"))
    assert order == ["first", "second", "handler", "SECOND", "FIRST"] * 2


async def test_arguments_results_and_errors_can_be_changed_and_a_call_refused_or_answered() -> None:
    server, begun = Server(), []

    @server.middleware
    async def change(call: MethodCall, call_next: CallNext) -> Any:
        n = call.arguments["n"]
        if n == 1:
            raise RpcError(429, "too many", {"retry_after": 2})
        if n == 2:
            return 0
        call.arguments["n"] = n + 1
        try:
            result = await call_next(call)
            return result if result is None else result + 100
        except LookupError as error:
            raise RpcError(404, f"no {error.args[0]}") from error

    @server
    async def plain(n: int) -> int:
        begun.append(n)
        if n == 10:
            raise KeyError("ada")
        return n

    server.add(plain, name="ordered", ordered=True)

    @server
    async def items(n: int) -> AsyncIterator[int]:
        begun.append(n)
        yield n

    async with memory_client(server) as client:
        for method in ("plain", "ordered"):
            with pytest.raises(RpcError, match="too many") as caught:
                await client.call(method, 1)
            assert (caught.value.code, caught.value.data) == (429, {"retry_after": 2})
            assert [await client.call(method, 2), await client.call(method, 3)] == [0, 104]
            with pytest.raises(RpcError, match="no ada"):
                await client.call(method, 9)
        with pytest.raises(RpcError, match="too many"):
            [item async for item in client.stream("items", 1)]
        assert [item async for item in client.stream("items", 3)] == await client.items(3) == [4]
    assert begun == [4, 10, 4, 10, 4, 4]


async def other_result(call: MethodCall, call_next: CallNext) -> Any:
    return str(await call_next(call))


async def other_argument(call: MethodCall, call_next: CallNext) -> Any:
    call.arguments["tenant"] = "x"
    return await call_next(call)


async def broken(call: MethodCall, call_next: CallNext) -> Any:
    raise KeyError("secret")


async def twice(call: MethodCall, call_next: CallNext) -> Any:
    await call_next(call)
    return await call_next(call)


@pytest.mark.parametrize(
    ("middleware", "said", "runs"),
    [
        (other_result, "the result is not what the return hint says", 1),
        (other_argument, r"unknown arguments: ['tenant']", 0),
        (broken, "method 'number' failed", 0),
        (twice, "call_next for 'number' twice", 1),
    ],
)
async def test_a_mistake_of_middleware_is_an_internal_error(
    middleware: Any, said: str, runs: int, caplog: pytest.LogCaptureFixture
) -> None:
    server, ran = Server(), []
    server.middleware(middleware)

    @server
    def number() -> int:
        ran.append(1)
        return 1

    async with memory_client(server) as client:
        with pytest.raises(InternalError) as caught:
            await client.number()
    assert "secret" not in str(caught.value)
    assert said in caplog.text
    assert len(ran) == runs


def test_what_is_no_middleware_is_refused() -> None:
    def plain(call: MethodCall, call_next: CallNext) -> Any: ...

    refused: list[tuple[Server, Any, str]] = [
        (Server(), plain, "plain: middleware is an async function"),
        (Hub(), twice, "a hub passes calls on without reading them"),
    ]
    for server, function, told in refused:
        with pytest.raises(RegistrationError, match=told):
            server.middleware(function)
