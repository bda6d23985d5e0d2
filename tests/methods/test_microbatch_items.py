"""From the hints of a batched handler to the signature of one call, and from calls to the handler's arguments."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import annotated_types
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Codec, RegistrationError, Shape
from rpcstream.codec.fields import expanded
from rpcstream.methods.microbatch_items import ItemSignature, WrongResults
from rpcstream.methods.signature import Signature

Floats = NDArray[np.float32]
#: What that is an alias of, since numpy 2.5.
Plain: Any = expanded(Floats)


def handler(hint: Any, *, returns: Any = inspect.Parameter.empty, default: Any = inspect.Parameter.empty) -> Any:
    """A function of one parameter `x` with this hint."""

    def function(x: Any) -> Any: ...

    function.__annotations__ = {"x": hint} | ({} if returns is inspect.Parameter.empty else {"return": returns})
    function.__defaults__ = None if default is inspect.Parameter.empty else (default,)
    return function


def of_one(hint: Any, **more: Any) -> inspect.Signature:
    """The signature for one item; it is checked that it can be registered."""
    items = ItemSignature(handler(hint, **more), method="it")
    Signature(items.of_one(lambda values: None, handler), method="it", codec=Codec())  # type: ignore[arg-type, return-value]
    return items.signature


def refused(function: Callable[..., Any]) -> str:
    """The text of the error."""
    with pytest.raises(RegistrationError) as caught:
        ItemSignature(function, method="it")
    return str(caught.value)


# -- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "item"),
    [
        (list[str], str),
        (Sequence[str], str),
        (typing.List[int], int),  # noqa: UP006
        (typing.Sequence[int], int),
        (list, Any),
        (Sequence, Any),
        (list[list[float]], list[float]),
        (list[int | None], int | None),
        (list[Floats], Floats),
        (list[Image.Image], Image.Image),
        (Annotated[list[str], "texts"], Annotated[str, "texts"]),
        (np.ndarray, np.ndarray),
        (Floats, Plain),
        (Annotated[Floats, Shape(None, 224, 224, 3)], Annotated[Plain, Shape(224, 224, 3)]),
        (Annotated[Floats, Shape(None, ...)], Annotated[Plain, Shape(...)]),
        (Annotated[Floats, Shape(..., 3)], Annotated[Plain, Shape(..., 3)]),
        (Annotated[Floats, Shape(None, None)], Annotated[Plain, Shape(None)]),
        (Annotated[Floats, Shape(None)], np.float32),
        (Annotated[np.ndarray, Shape(None)], np.generic),
        (Annotated[NDArray[Any], Shape(None)], np.generic),
        (np.ndarray[tuple[int, int], np.dtype[np.float32]], np.ndarray[tuple[int], np.dtype[np.float32]]),
        (np.ndarray[tuple[int, Literal[3]], np.dtype[Any]], np.ndarray[tuple[Literal[3]], np.dtype[Any]]),
        (np.ndarray[tuple[int], np.dtype[np.int64]], np.int64),
        (np.ndarray[tuple[int], np.dtype[np.int64] | np.dtype[np.float64]], np.int64 | np.float64),
        (np.ndarray[tuple[int, ...], np.dtype[np.int64]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]),
    ],
    ids=str,
)
def test_a_list_is_its_items_and_an_array_its_rows(hint: Any, item: Any) -> None:
    assert of_one(hint).parameters["x"].annotation == item


@pytest.mark.parametrize(
    "hint",
    [str, dict[str, int], tuple[str, ...], Iterable[str], list[str] | None, np.float32, Any, None, "list[nobody]"],
    ids=str,
)
def test_what_is_neither_list_nor_array_is_refused(hint: Any) -> None:
    assert refused(handler(hint)).startswith("it: parameter 'x': ")


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (Annotated[Floats, Shape(8, 3)], "no batch has a fixed size"),
        (np.ndarray[tuple[Literal[8], int], np.dtype[Any]], "no batch has a fixed size"),
        (Annotated[Floats, Shape()], "no dimension for the batch"),
        (np.ndarray[tuple[()], np.dtype[Any]], "no dimension for the batch"),
        (Annotated[list[str], msgspec.Meta(max_length=3)], "put it there"),
        (Annotated[list[str], annotated_types.MinLen(2)], "put it there"),
        (Annotated[Floats, annotated_types.MinLen(2)], "put it there"),
        (Annotated[Floats, Shape(None, 3), annotated_types.Predicate(len)], "put it there"),
    ],
    ids=str,
)
def test_what_is_said_of_the_batch_itself_is_refused(hint: Any, why: str) -> None:
    assert why in refused(handler(hint))


def test_every_parameter_needs_a_hint() -> None:
    def some(texts: list[str], scale) -> list[str]: ...  # type: ignore[no-untyped-def]

    def none() -> list[str]: ...

    def rest(texts: list[str], *more: list[str]) -> list[str]: ...

    def named(texts: list[str], **more: list[str]) -> list[str]: ...

    assert "'scale': it needs a hint" in refused(some)
    assert "needs a parameter" in refused(none)
    assert "'more': a batched handler takes no further arguments" in refused(rest)
    assert "'more': a batched handler takes no further arguments" in refused(named)


def test_a_default_is_that_of_a_batch_of_one() -> None:
    assert of_one(list[float], default=[1.5]).parameters["x"].default == 1.5
    assert of_one(Sequence[float | None], default=(None,)).parameters["x"].default is None
    row = of_one(Annotated[Floats, Shape(None, 2)], default=np.ones((1, 2), np.float32)).parameters["x"].default
    assert row.tolist() == [1, 1]
    for hint, default in [
        (list[float], 1.5),
        (list[float], None),
        (list[str], "x"),
        (list[float], []),
        (list[float], [1, 2]),
        (Floats, [1.5]),
        (Floats, np.float32(1)),
        (Floats, np.ones((2, 2))),
    ]:
        assert "'x': its default must be that of a batch of one" in refused(handler(hint, default=default))


# -- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (list[str], str),
        (Sequence[str], str),
        (tuple[str, ...], str),
        (list, Any),
        (Any, Any),
        (object, Any),
        (list[float | ValueError], float),
        (list[float | Exception | None], float | None),
        (list[Any | Exception], Any),
        (Floats, np.float32 | Plain),
        (np.ndarray, np.generic | np.ndarray),
        (Annotated[Floats, Shape(None, 512)], Annotated[Plain, Shape(512)]),
        (Annotated[Floats, Shape(None)], np.float32),
        (inspect.Parameter.empty, Any),
    ],
    ids=str,
)
def test_a_return_hint_is_that_of_one_result(hint: Any, result: Any) -> None:
    assert of_one(list[int], returns=hint).return_annotation == result


@pytest.mark.parametrize("hint", [None, str, tuple[int, str], dict[str, int], Iterable[int]], ids=str)
def test_a_return_hint_that_is_no_list_is_refused(hint: Any) -> None:
    assert refused(handler(list[int], returns=hint)).startswith("it: the return value: ")


@pytest.mark.parametrize(
    ("returned", "shared_out"),
    [
        ([1, 2], [1, 2]),
        ((1, None), [1, None]),
        (np.array([1.5, 2.5]), [1.5, 2.5]),
        (np.array(["a", None], object), ["a", None]),
    ],
    ids=str,
)
def test_results_are_shared_out(returned: Any, shared_out: list[Any]) -> None:
    assert ItemSignature.results(returned, 2) == shared_out


def test_rows_of_arrays_and_of_what_can_be_one_are_results() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.eye(2)

    for returned in (np.eye(2), Tensor()):
        assert [row.tolist() for row in ItemSignature.results(returned, 2)] == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    "returned",
    [None, 5, "ab", b"ab", {1: 2, 3: 4}, {1, 2}, (x for x in "ab"), [], [1], [1, 2, 3], np.ones((3, 2)), np.array(2)],
    ids=lambda returned: type(returned).__name__,
)
def test_what_is_not_one_result_for_each_item_is_refused(returned: Any) -> None:
    with pytest.raises(WrongResults, match="2"):
        ItemSignature.results(returned, 2)


def test_an_array_that_cannot_be_made_is_no_internal_riddle() -> None:
    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("the device is gone")

    with pytest.raises(TypeError, match="the device is gone"):
        ItemSignature.results(Broken(), 2)


# -- one call, many calls -------------------------------------------------------------------------------------------


def score(a: list[str], /, b: Annotated[Floats, Shape(None, 2)], *, c: Sequence[float] = (0.5,)) -> list[float]:
    """How much."""
    return [0.0]


async def values_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    async def call(values: Any) -> Any:
        return values

    return await ItemSignature(function, method="it").of_one(call, function)(*args, **kwargs)


async def test_the_function_of_one_item_looks_like_the_handler() -> None:
    async def call(values: Any) -> Any: ...

    single = ItemSignature(score, method="it").of_one(call, score)
    assert inspect.iscoroutinefunction(single)
    assert (single.__name__, single.__doc__, single.__module__) == ("score", "How much.", __name__)
    assert single.__annotations__ == {"a": str, "b": Annotated[Plain, Shape(2)], "c": float, "return": float}
    kinds = [parameter.kind for parameter in inspect.signature(single).parameters.values()]
    assert kinds == [parameter.kind for parameter in inspect.signature(score).parameters.values()]


async def test_the_values_of_a_call_stand_in_the_order_of_the_parameters() -> None:
    assert await values_of(score, "a", "b") == ("a", "b", 0.5)
    assert await values_of(score, "a", "b", c=2.0) == ("a", "b", 2.0)
    assert await values_of(handler(list[int], default=[7])) == (7,)


def test_what_a_partial_has_already_is_no_parameter() -> None:
    def with_model(model: object, texts: list[str]) -> list[str]: ...

    assert str(ItemSignature(functools.partial(with_model, object()), method="it").signature) == "(texts: str) -> str"


def test_lists_are_lists_and_arrays_are_stacked() -> None:
    items = ItemSignature(score, method="it")
    rows = [np.full(2, number, np.float32) for number in range(3)]
    (names, stack), named = items.together([(f"n{n}", row, n / 2) for n, row in enumerate(rows)])
    assert names == ["n0", "n1", "n2"]
    assert stack.dtype == np.float32
    assert stack.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert named == {"c": [0.0, 0.5, 1.0]}
    stack[:] = 9
    assert rows[0].tolist() == [0, 0], "what callers sent is still there for a second try"


def test_numbers_are_stacked_to_one_dimension() -> None:
    items = ItemSignature(handler(Annotated[Floats, Shape(None)]), method="it")
    (stack,), _ = items.together([(np.float32(1),), (np.float32(2),)])
    assert (stack.dtype, stack.tolist()) == (np.dtype("f4"), [1, 2])


def test_only_what_is_stacked_makes_kinds() -> None:
    items = ItemSignature(score, method="it")
    one, same = ("a", np.zeros(2, "f4"), 1.0), ("b", np.ones(2, "f4"), 2.0)
    others = [("a", np.zeros(3, "f4"), 1.0), ("a", np.zeros(2, "f8"), 1.0), ("a", np.zeros((2, 1), "f4"), 1.0)]
    assert items.kind(one) == items.kind(same)
    assert len({items.kind(each) for each in (one, *others)}) == 4
    floats, strings = (ItemSignature(handler(hint), method="it") for hint in (list[Floats], list[str]))
    assert floats.kind(one) == strings.kind(same)


def test_hints_may_be_strings_of_local_names() -> None:
    class Local(msgspec.Struct):
        x: int

    def function(points: list[Local]) -> list[Local]: ...

    signature = ItemSignature(function, method="it", namespace=locals()).signature
    assert signature.parameters["points"].annotation is Local
    assert signature.return_annotation is Local
