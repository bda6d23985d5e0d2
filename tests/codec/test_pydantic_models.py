"""Models of pydantic as parameters and results: validated, written and described by pydantic."""

from __future__ import annotations

import datetime
import enum
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import pydantic
import pydantic.dataclasses
import pytest
from PIL import Image

from rpcstream import Codec, InvalidParams, Server
from rpcstream.errors import EncodeError, InternalError, RegistrationError
from rpcstream.testing import memory_client


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1, max_length=100_000)
    count: int = 1
    size: Size = Size.SMALL
    due: datetime.date | None = None
    parts: list[Item] = []


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    items: list[Item]
    note: str | None = pydantic.Field(default=None, alias="Note")


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Pet(pydantic.BaseModel):
    of: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


class Scores(pydantic.RootModel[list[int]]):
    pass


class Range(pydantic.BaseModel):
    low: int
    high: int

    @pydantic.model_validator(mode="after")
    def in_order(self) -> Range:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


@pydantic.dataclasses.dataclass
class Pair:
    left: int
    right: pydantic.PositiveInt = 1


@dataclass
class Parcel:
    order: Order
    weights: np.ndarray[Any, Any]


def serving(function: Any) -> Server:
    server = Server()
    server.add(function, name="m")
    return server


async def refused(server: Server, *args: Any) -> InvalidParams:
    async with memory_client(server) as client:
        with pytest.raises(InvalidParams) as caught:
            await client.m(*args)
    return caught.value


async def test_a_model_comes_as_a_model_and_goes_as_its_json() -> None:
    def m(order: Order) -> Order:
        assert type(order) is Order
        assert order.items[0].due == datetime.date(2026, 11, 22)
        order.note = order.items[0].size.value
        return order

    async with memory_client(serving(m)) as client:
        sent = {"items": [{"name": "a", "due": "2026-11-22", "size": "large"}]}
        back = {"name": "a", "count": 1, "size": "large", "due": "2026-11-22", "parts": []}
        assert await client.m(sent) == {"items": [back], "Note": "large"}
        order = await client.call("m", Order.model_validate(sent), returns=Order)
        assert order == Order.model_validate({**sent, "Note": "large"})


async def test_long_strings_and_large_integers_come_as_they_were_sent() -> None:
    def m(item: Item, more: list[Item]) -> list[int]:
        return [len(item.name), item.count, *[each.count for each in more]]

    async with memory_client(serving(m)) as client:
        values = ({"name": "A" * 80_000, "count": 2**70}, [{"name": "a", "count": -(2**65)}])
        assert await client.m(*values) == [80_000, 2**70, -(2**65)]
        async with client.batch() as batch:
            result = batch.m(*values)
        assert result.result() == [80_000, 2**70, -(2**65)]


async def test_results_may_be_what_a_model_is_made_of(caplog: pytest.LogCaptureFixture) -> None:
    def m(good: bool) -> Item:
        return {"name": "a"} if good else {"name": ""}  # type: ignore[return-value]

    async with memory_client(serving(m)) as client:
        assert (await client.m(True))["count"] == 1
        with pytest.raises(InternalError):
            await client.m(False)
    assert "result.name: String should have at least 1 character" in caplog.text


def test_what_pydantic_cannot_write_is_an_encode_error() -> None:
    class Anything(pydantic.BaseModel):
        value: Any

    with pytest.raises(EncodeError, match=r"Anything could not be encoded by pydantic: .*ndarray"):
        Codec().dumps(Anything(value=np.ones(3)))


@pytest.mark.parametrize(
    ("hint", "value", "path", "reason"),
    [
        (Order, {}, ".items", "Field required"),
        (Order, {"items": [{"name": "a"}, {"name": ""}]}, ".items[1].name", "String should have at least 1 character"),
        (Order, {"items": [{"name": "a", "size": "huge"}]}, ".items[0].size", "Input should be 'small' or 'large'"),
        (Order, {"items": [], "note": "n"}, ".note", "Extra inputs are not permitted"),
        (Order, [1], "", "Input should be an object"),
        (Pet, {"of": {"kind": "cat", "lives": "many"}}, ".of.cat.lives", "Input should be a valid integer"),
        (Range, {"low": 2, "high": 1}, "", "Value error, low is above high"),
        (Scores, [1, "x"], "[1]", "Input should be a valid integer"),
        (Pair, {"left": 1, "right": 0}, ".right", "Input should be greater than 0"),
        (list[Item], [{"name": "a"}, {"name": 2}], "[1].name", "Input should be a valid string"),
        (Parcel, {"order": {"items": 1}, "weights": None}, ".order.items", "Input should be a valid array"),
    ],
)
async def test_an_error_says_where_and_why(hint: Any, value: Any, path: str, reason: str) -> None:
    def m(value):  # type: ignore[no-untyped-def]
        return None

    m.__annotations__ = {"value": hint}
    error = await refused(serving(m), value)
    assert error.data["path"] == f"$[0]{path}"
    assert error.data["parameter"] == "value"
    assert error.data["reason"].startswith(reason)


async def test_an_error_names_some_of_many_faults() -> None:
    def m(order: Order) -> None: ...

    for count, end in ((2, "; and 1 more"), (100, "; and 99 more")):
        error = await refused(serving(m), {"items": [{"name": "a", "count": "x"}] * count})
        assert end in error.data["reason"]
    error = await refused(serving(m), {"items": [{"name": "a", "count": "x"}] * 5000})
    assert error.data["reason"] == "5000 parts of it are wrong"
    error = await refused(serving(m), {"items": [], "x`y" * 1000: 1})
    assert len(error.data["path"]) < 100
    assert "`" not in error.data["path"]


async def test_rich_values_inside_of_a_model_are_refused() -> None:
    def m(item: Item, anything: Any = None) -> None: ...

    def alone(item: Item) -> None: ...

    for value in (np.ones(3), np.ones(100_000), Image.new("RGB", (2, 2)), b"x" * 200_000):
        for function in (m, alone):
            assert (await refused(serving(function), {"name": value})).data["parameter"] == "item"


class Broken(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def broken(cls, value: int) -> int:
        raise KeyError("secret")


async def test_a_fault_of_a_validator_is_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    def m(value: Broken) -> None: ...

    async with memory_client(serving(m)) as client:
        with pytest.raises(InternalError) as caught:
            await client.m({"x": 1})
    assert "secret" not in str(caught.value)
    assert "method 'm' failed" in caplog.text


class Holder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    array: np.ndarray[Any, Any]


class Unfinished(pydantic.BaseModel):
    other: "Missing"  # type: ignore[name-defined]  # noqa: F821, UP037


def test_what_has_no_schema_is_refused_at_registration() -> None:
    def holder(value: Holder) -> None: ...

    def unfinished(value: Unfinished) -> None: ...

    for handler, reason in ((holder, "JSON: .*Pass arrays and images outside"), (unfinished, "Missing")):
        with pytest.raises(RegistrationError, match=f"m: parameter 'value': .*{reason}"):
            serving(handler)


async def test_models_are_described_among_the_components() -> None:
    server = Server()

    @server
    def first(order: Order, pet: Pet | None = None) -> list[Item]:
        return []

    @server
    def second(parcel: Parcel, pair: Pair) -> Order:
        return parcel.order

    async with memory_client(server) as client:
        document: dict[str, Any] = await client.call("rpc.discover")
    components = document["components"]["schemas"]
    assert {"Order", "Item", "Size", "Pet", "Cat", "Dog", "Pair", "Parcel"} <= components.keys()
    assert components["Order"]["properties"]["items"]["items"] == {"$ref": "#/components/schemas/Item"}
    assert components["Parcel"]["properties"]["order"] == {"$ref": "#/components/schemas/Order"}
    text = orjson.dumps(document).decode()
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= components.keys()
    assert "$defs" not in text
