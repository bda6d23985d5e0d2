"""Hints of streams: parameters that may be left out, descriptions, and what a generator returns at its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from typing import Annotated, Any

import annotated_types as at
import pytest

from rpcstream import InternalError, InvalidParams, RegistrationError, Server
from rpcstream.testing import memory_client

from .calling import described


async def numbers(*values: int) -> AsyncIterator[int]:
    for value in values:
        yield value


async def total(items: AsyncIterator[int] | None = None) -> int | None:
    return None if items is None else sum([item async for item in items])


async def positive(items: Annotated[AsyncIterator[Annotated[int, at.Ge(0)]], "what to add"]) -> int:
    return sum([item async for item in items])


def in_thread(items: Iterator[int] | None, extra: Iterable[int] = ()) -> int | None:
    return None if items is None else next(items) + sum(extra)


async def test_a_stream_may_be_left_out_and_its_items_are_constrained() -> None:
    server = Server()
    server.add(total)
    server.add(positive)
    server.add(in_thread, offload="thread")
    async with memory_client(server) as client:
        assert [await client.total(*each) for each in ([numbers(20, 22)], [[1, 2]], [None], [])] == [42, 3, None, None]
        assert [await client.in_thread(*each) for each in ([iter([5, 6])], [[7], [1]], [None])] == [5, 8, None]
        assert await client.positive(items=numbers(1, 2)) == 3
        for method, items in (("total", 5), ("positive", numbers(1, -2)), ("positive", [1, -2])):
            with pytest.raises(InvalidParams, match=r"an integer >= 0|a list"):
                await client.call(method, items)


def test_a_stream_is_described() -> None:
    schema = described(positive)[0]["params"][0]["schema"]
    assert (schema["x-stream"], schema["description"]) == (True, "what to add")
    assert schema["items"] == {"type": "integer", "minimum": 0}
    optional = described(total)[0]["params"][0]["schema"]
    assert optional["x-stream"] is True
    assert {"type": "null"} in optional["anyOf"]


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (list[AsyncIterator[int]], "a stream inside of another hint cannot be read"),
        (AsyncIterator[int] | list[int], "a stream inside of another hint cannot be read"),
        (Annotated[AsyncIterator[int], at.MinLen(1)], "a stream as a whole cannot be 'of length >= 1'"),
        (Annotated[AsyncIterator[int] | None, at.MinLen(1)], "a stream as a whole cannot be 'of length >= 1'"),
    ],
)
def test_streams_that_could_not_be_read_are_refused(hint: Any, why: str) -> None:
    async def function(items: Any) -> None: ...

    function.__annotations__["items"] = hint
    with pytest.raises(RegistrationError, match=f"^function: parameter 'items': {why}"):
        Server().add(function)


def ends(value: Any) -> Iterator[int]:
    yield 1
    return value


async def has_no_end() -> AsyncGenerator[int, None]:
    yield 1


async def test_what_a_generator_returns_at_its_end_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.add(has_no_end)
    hints = {"ends": Generator[int, None, str], "ends_with_nothing": Generator[int, str | None, None]}
    for name, hint in {**hints, "unchecked": hints["ends"], "ends_somehow": Iterator[int]}.items():
        ends.__annotations__["return"] = hint
        server.add(ends, name=name, check_result=name != "unchecked")
    ends.__annotations__["return"] = Generator[int, str, None]
    with pytest.raises(RegistrationError, match="ends: the return value: nothing is sent into a generator"):
        Server().add(ends)

    async with memory_client(server) as client:

        async def end(name: str, *params: Any) -> Any:
            async with getattr(client.stream, name)(*params) as stream:
                assert [item async for item in stream] == [1]
                return stream.result

        assert await end("ends", "done") == "done"
        assert await end("ends_with_nothing", None) is None
        assert [await end("ends_somehow", 5), await end("unchecked", 5), await end("has_no_end")] == [5, 5, None]
        assert await client.ends(5) == [1]  # nobody is given the end there
        for name in hints:
            with pytest.raises(InternalError):
                await end(name, 5)
    assert "not what the return hint says: expected a string, got an integer" in caplog.text
