"""Values that are checked one by one, in Python, have a limit."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
import pydantic
import pytest

from rpcstream import Context, InvalidParams, Server
from rpcstream.errors import MessageTooLarge
from rpcstream.testing import memory_client

from .calling import bind, taking

NAN = {"$type": "float", "value": "nan"}
ARRAY = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AAAAAA=="}


@dataclasses.dataclass
class Row:
    x: float
    array: np.ndarray | None = None


class Model(pydantic.BaseModel):
    x: float


def bound(hint: Any, value: Any) -> Any:
    """The argument for a value that came in a line."""
    return bind(taking(hint), [value])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 50 values may be checked one by one."""
    monkeypatch.setattr("rpcstream.codec.codec.MAX_CHECKED", 50)


ONE_BY_ONE = [
    (list[np.ndarray], ARRAY),
    (dict[str, np.ndarray], ARRAY),
    (list[bytes], "eA=="),
    (list[Row], {"x": 1, "array": ARRAY}),
    (list[Model], {"x": 1}),
    (list[np.float32], 1.5),
    (list[float | np.ndarray], 1.5),
    (Any, ARRAY),
]


@pytest.mark.parametrize(("hint", "value"), ONE_BY_ONE, ids=lambda each: str(each)[:40])
@pytest.mark.usefixtures("few")
def test_too_many_are_refused(hint: Any, value: Any) -> None:
    def many(count: int) -> Any:
        return {str(at): value for at in range(count)} if hint == dict[str, np.ndarray] else [value] * count

    assert len(bound(hint, many(25))) == 25
    with pytest.raises(MessageTooLarge, match=r"more than 50 values .* one by one: send numbers as one"):
        bound(hint, many(51))


@pytest.mark.parametrize(
    ("hint", "values", "path"),
    [
        (list[np.float32], [1.5, True], "$[0][1]"),
        (list[np.int8], [1, 2, 128], "$[0][2]"),
        (list[np.int64], [2**63], "$[0][0]"),
        (list[complex], [1, "x"], "$[0][1]"),
        (list[float | np.ndarray], [1, "x"], "$[0][1]"),
        (list[np.float32], "x", "$[0]"),
        (dict[str, list[np.float32]], {"a": [1, None]}, "$[0][...][1]"),
        (Annotated[list[np.float32], msgspec.Meta(max_length=2)], [1, 2, 3], "$[0]"),
    ],
    ids=str,
)
def test_what_is_wrong_among_them_is_told_with_its_place(hint: Any, values: Any, path: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        bound(hint, values)
    assert caught.value.data["path"] == path


@pytest.mark.usefixtures("few")
def test_values_that_are_checked_again_are_not_counted_twice() -> None:
    def function(values: list[np.ndarray], last: float, more: int) -> Any:
        return values, last, more

    line = orjson.dumps({"params": {"values": [ARRAY] * 40, "last": NAN, "more": 0}}).replace(b":0", b":%d" % 2**70)
    values, last, more = bind(function, line)
    assert (len(values), math.isnan(last), more) == (40, True, 2**70)


@pytest.mark.usefixtures("few")
def test_what_further_parameters_take_is_checked_together() -> None:
    def function(*more: list[Row], **rest: int) -> Any:
        return rest

    assert bind(function, {str(at): at for at in range(51)})["50"] == 50
    with pytest.raises(InvalidParams) as caught:
        bind(function, [[], [{"x": 1}, {"x": "a"}]])
    assert (caught.value.data["path"], caught.value.data["parameter"]) == ("$[1][1].x", "more")


@pytest.mark.usefixtures("few")
async def test_what_callers_answer_is_counted_too() -> None:
    server = Server()

    @server
    async def ask(count: int, ctx: Context) -> int:
        try:
            return len(await ctx.peer.give(count))
        except MessageTooLarge as error:
            return -1 if "one by one" in str(error) else -2

    async with memory_client(server) as client:
        client(name="give")(lambda count: [np.zeros(1, np.float32)] * count)
        assert [await client.ask(50), await client.ask(51)] == [50, -1]


async def test_others_have_their_turn_between_items_that_take_long_to_check() -> None:
    server, turns = Server(), [0]

    def count() -> None:
        turns[-1] += 1
        asyncio.get_running_loop().call_soon(count)

    @server
    async def upload(values: AsyncIterator[list[np.ndarray]]) -> int:
        async for _ in values:
            if len(turns) == 1:
                count()
            turns.append(0)
        return min(turns[2:-1])

    async with memory_client(server) as client:
        assert await client.upload(iter([[np.zeros(1, np.float32)] * 1500] * 4)) >= 1
