"""The tables of docs/reference/hints.md and of hint_table.md: each value is accepted or refused as they say."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import orjson
import pytest

from rpcstream import Codec, InvalidParams, Server
from rpcstream.codec import payloads
from rpcstream.codec.hints import hint_checker
from rpcstream.errors import InternalError, RegistrationError
from rpcstream.testing import memory_client

from ..kit.example_count import IS_THOROUGH
from . import hint_names

HERE = Path(__file__).parent
TABLES = [Path(__file__).parents[2] / "docs" / "reference" / "hints.md", HERE / "hint_table.md"]
NAMES = vars(hint_names)  # where string hints are looked up
codec = Codec()


class Row(NamedTuple):
    """A line of a table; `refused` is the reason where the hint itself is refused."""

    hint: str
    accepts: list[str]
    refuses: list[str]
    refused: str


def rows_of_the_tables() -> list[Row]:
    rows = []
    for line in "".join(table.read_text() for table in TABLES).splitlines():
        if line.startswith("| `"):
            cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            hint, *others = cells
            values = [re.findall(r"`([^`]+)`", cell) for cell in others]
            if len(values) == 2:
                rows.append(Row(hint.strip("`"), values[0], values[1], ""))
            else:
                rows.append(Row(hint.strip("`"), [], [], others[0]))
    return rows


ROWS = rows_of_the_tables()
TAKEN = [row for row in ROWS if not row.refused]
REFUSED = [row for row in ROWS if row.refused]


def evaluated(text: str) -> Any:
    return eval(text, NAMES)


def received(value: Any) -> Any:
    """What comes in where the value is sent, and there is no hint."""
    return codec.decode(payloads.parse_exactly(bytes(codec.dumps(value))))


def goes_as_an_array(row: Row, value: Any) -> bool:
    """A handler may return lists of numbers as an array."""
    return ("ndarray" in row.hint or "NDArray" in row.hint) and isinstance(value, list)


def serving(row: Row) -> Server:
    """`take` has a parameter with the hint, and `give` returns one of the row's values as a result of that kind."""
    server, hint = Server(), evaluated(row.hint)

    def take(value):  # type: ignore[no-untyped-def]
        return None

    def give(place: int):  # type: ignore[no-untyped-def]
        return evaluated([*row.accepts, *row.refuses][place])

    take.__annotations__ = {"value": hint}
    give.__annotations__["return"] = hint
    server.add(take)
    server.add(give)
    return server


def test_the_matrix_is_large_and_each_line_has_both() -> None:
    assert len(TAKEN) >= 60
    assert len(REFUSED) >= 20
    assert [row.hint for row in TAKEN if not row.accepts or not (row.refuses or row.hint == "Any")] == []


@pytest.mark.parametrize("row", TAKEN, ids=lambda row: row.hint)
async def test_parameters_and_results(row: Row) -> None:
    client_side = hint_checker(evaluated(row.hint), codec)
    async with memory_client(serving(row)) as client:
        for place, text in enumerate(row.accepts):
            await client.call("take", evaluated(text))
            await client.call("take", value=evaluated(text))
            client_side(await client.call("give", place))
        for place, text in enumerate(row.refuses, len(row.accepts)):
            value = evaluated(text)
            for args, kwargs in (([value], {}), ([], {"value": value})):
                with pytest.raises(InvalidParams) as caught:
                    await client.call("take", *args, **kwargs)
                assert caught.value.data["parameter"] == "value", text
            with pytest.raises(ValueError, match=r"."):
                client_side(received(value))
            if not goes_as_an_array(row, value):
                with pytest.raises(InternalError):
                    await client.call("give", place)
        document = await client.call("rpc.discover")
    methods = {each["name"]: each for each in document["methods"]}
    schema = methods["take"]["params"][0]["schema"]
    assert schema == methods["give"]["result"]["schema"]
    if any(word in row.hint for word in ("at.", "Meta", "Field", "PositiveInt")):
        words = "inimum|aximum|multipleOf|(in|ax)(Length|Items|Properties)|pattern|title"
        assert re.search(rf'"\w*({words}|description)"', orjson.dumps(document).decode())


def around(hint: Any) -> list[tuple[Any, Any]]:
    """Hints with this one inside, each with a function that puts a value where it belongs."""
    return [
        (list[hint], lambda value: [value]),
        (dict[str, hint], lambda value: {"key": value}),
        (tuple[int, hint], lambda value: [1, value]),
        (dataclasses.make_dataclass("D", [("part", hint)]), lambda value: {"part": value}),
        (msgspec.defstruct("S", [("part", hint)]), lambda value: {"part": value}),
        (TypedDict("T", {"part": hint}), lambda value: {"part": value}),
        (NamedTuple("N", [("part", hint)]), lambda value: [value]),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("row", TAKEN if IS_THOROUGH else TAKEN[::5], ids=lambda row: row.hint)
def test_inside_of_other_hints(row: Row) -> None:
    if row.hint == "IntOrStr":
        return  # a class with such a field would be generic
    for outer, put in around(evaluated(row.hint)):
        check = hint_checker(outer, codec)
        for text in row.accepts:
            check(received(put(evaluated(text))))
        for text in row.refuses:
            with pytest.raises(ValueError, match=r"."):
                check(received(put(evaluated(text))))


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.hint)
def test_refused_hints(row: Row) -> None:
    hint = evaluated(row.hint)

    def taking(value):  # type: ignore[no-untyped-def]
        return value

    taking.__annotations__ = {"value": hint}
    with pytest.raises(RegistrationError, match=f"^m: parameter 'value': .*{re.escape(row.refused)}"):
        Server().add(taking, name="m")
    if "AsyncIterator" not in row.hint:  # what a handler that returns one may say
        with pytest.raises(TypeError, match=re.escape(row.refused)):
            hint_checker(hint, codec)
