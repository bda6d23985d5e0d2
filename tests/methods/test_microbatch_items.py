"""From the hints of a batched handler to the signature of one call, and from calls to the handler's arguments."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import annotated_types
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import RegistrationError, Server, Shape
from rpcstream.testing import memory_client

from .calling import document_of

Floats = NDArray[np.float32]
Numbers = Annotated[Floats, Shape(None)]
ONES = np.ones(1, np.float32)


def handler(hint: Any, *, returns: Any = inspect.Parameter.empty, default: Any = inspect.Parameter.empty) -> Any:
    """A function of one parameter `x` with this hint."""

    def function(x: Any) -> Any:
        return [*x] if isinstance(x, list) else x

    function.__annotations__ = {"x": hint} | ({} if returns is inspect.Parameter.empty else {"return": returns})
    function.__defaults__ = None if default is inspect.Parameter.empty else (default,)
    return function


async def assert_alike(batched: Any, single: Any) -> None:
    """A batched handler is described as a function of one item."""
    server = Server()
    server.batched(name="batched")(batched)
    server.add(single, name="single")
    methods = (await document_of(server))["methods"]
    both = [(methods[name]["params"], methods[name]["result"]) for name in ("batched", "single")]
    assert both[0] == both[1]


def refused(function: Callable[..., Any]) -> str:
    with pytest.raises(RegistrationError) as caught:
        Server().batched(name="it")(function)
    return str(caught.value)


@pytest.mark.parametrize(
    ("hint", "item"),
    [
        (Sequence[str], str),
        (list, Any),
        (list[Floats], Floats),
        (Annotated[list[str], "texts"], Annotated[str, "texts"]),
        (np.ndarray, np.ndarray),
        (Floats, Floats),
        (Annotated[Floats, Shape(None, 224, 3)], Annotated[Floats, Shape(224, 3)]),
        (Annotated[Floats, Shape(..., 3)], Annotated[Floats, Shape(..., 3)]),
        (Annotated[Floats, Shape(None)], np.float32),
        (Annotated[np.ndarray, Shape(None)], np.generic),
        (np.ndarray[tuple[int, int], np.dtype[np.float32]], np.ndarray[tuple[int], np.dtype[np.float32]]),
        (np.ndarray[tuple[int], np.dtype[np.int64] | np.dtype[np.float64]], np.int64 | np.float64),
        (np.ndarray[tuple[int, ...], np.dtype[np.int64]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]),
    ],
    ids=str,
)
async def test_a_list_is_its_items_and_an_array_its_rows(hint: Any, item: Any) -> None:
    await assert_alike(handler(hint), handler(item))


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (tuple[str, ...], str),
        (Any, Any),
        (list[float | Exception | None], float | None),
        (Floats, np.float32 | Floats),
        (np.ndarray, np.generic | np.ndarray),
        (Annotated[Floats, Shape(None, 512)], Annotated[Floats, Shape(512)]),
        (Annotated[Floats, Shape(None)], np.float32),
    ],
    ids=str,
)
async def test_a_return_hint_is_that_of_one_result(hint: Any, result: Any) -> None:
    await assert_alike(handler(list[int], returns=hint), handler(int, returns=result))


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        *((each, "must be list") for each in (str, tuple[str, ...], Iterable[str], list[str] | None, np.float32, Any)),
        ("list[nobody]", "nobody"),
        (Annotated[Floats, Shape(8, 3)], "no batch has a fixed size"),
        (np.ndarray[tuple[Literal[8], int], np.dtype[Any]], "no batch has a fixed size"),
        (Annotated[Floats, Shape()], "no dimension for the batch"),
        (np.ndarray[tuple[()], np.dtype[Any]], "no dimension for the batch"),
        (Annotated[list[str], msgspec.Meta(max_length=3)], "put it there"),
        (Annotated[Floats, Shape(None, 3), annotated_types.Predicate(len)], "put it there"),
    ],
    ids=str,
)
def test_what_is_not_said_of_items_is_refused(hint: Any, why: str) -> None:
    assert re.match(f"it: parameter 'x': .*{why}", refused(handler(hint)), re.DOTALL)
    if why == "must be list":
        returns = tuple[int, str] if hint == tuple[str, ...] else dict if hint is Any else hint
        assert refused(handler(list[int], returns=returns)).startswith("it: the return value: ")


def test_every_parameter_needs_a_hint() -> None:
    def some(texts: list[str], scale) -> list[str]: ...  # type: ignore[no-untyped-def]

    def none() -> list[str]: ...

    def rest(texts: list[str], *more: list[str]) -> list[str]: ...

    assert "'scale': it needs a hint" in refused(some)
    assert "needs a parameter" in refused(none)
    assert "'more': a batched handler takes no further arguments" in refused(rest)


async def test_a_default_is_that_of_a_batch_of_one() -> None:
    row = np.ones((1, 2), np.float32)
    for hint, default, expected in [
        (list[float], [1.5], 1.5),
        (Sequence[float | None], (None,), None),
        (Annotated[Floats, Shape(None, 2)], row, [1, 1]),
    ]:
        server = Server()
        server.batched(name="it", max_wait=0)(handler(hint, default=default))
        async with memory_client(server) as client:
            result = await client.it()
        assert (result.tolist() if isinstance(result, np.ndarray) else result) == expected
    rows: list[tuple[Any, Any]] = [
        (list[float], 1.5),
        (list[float], [1, 2]),
        (Floats, [1.5]),
        (Floats, np.ones((2, 2))),
    ]
    for hint, default in rows:
        assert "'x': its default must be that of a batch of one" in refused(handler(hint, default=default))


async def test_calls_become_lists_and_stacks() -> None:
    seen: list[Any] = []

    def score(a: list[str], /, b: Annotated[Floats, Shape(None, 2)], *, c: Numbers = ONES) -> list[float]:
        """How much."""
        seen.append((a, b.tolist(), str(b.dtype), c.tolist()))
        return [0.0] * len(a)

    def single(a: str, /, b: Annotated[Floats, Shape(2)], *, c: np.float32 = ONES[0]) -> float:
        """How much."""
        return 0.0

    await assert_alike(score, single)
    server = Server()
    server.batched(max_wait=0)(score)
    async with memory_client(server) as client:
        calls = [client.score("n0", np.zeros(2, "f4")), client.call("score", a="n1", b=np.ones(2, "f4"), c=2.0)]
        assert await asyncio.gather(*calls) == [0.0, 0.0]
    assert seen == [(["n0", "n1"], [[0, 0], [1, 1]], "float32", [1.0, 2.0])]
