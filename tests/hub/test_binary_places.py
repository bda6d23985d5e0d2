"""Whatever JSON a binary frame has: what goes on has each payload in the very place where every reader saw it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, Frame
from .conftest import HubPeer


@dataclass(frozen=True)
class Place:
    """Where payload `number` stands."""

    number: int


@dataclass(frozen=True)
class Object:
    """An object as its members are written, of which several may have one name."""

    members: list[tuple[str, Any]]


#: What strings and names are made of: all that a place is written with.
FRAGMENTS = [*'"{}[:01 \\\n\0$', "$bin", "bin", "u0024", "$type", "data", "é", "😀"]
texts = st.one_of(
    st.sampled_from(["$bin", "x$bin", "a", "b"]), st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
)
scalars = st.one_of(st.integers(-1, 2), st.none(), st.booleans(), texts, st.floats(0, 2))


def values(places: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars | places,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.lists(st.tuples(texts, inner), max_size=3).map(Object)),
        max_leaves=12,
    )


class Writer:
    """Writes a value in one of the many ways of JSON."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def write(self, value: Any) -> str:
        if isinstance(value, list):
            return f"{self._blank()}[{','.join(map(self.write, value)) or self._blank()}]{self._blank()}"
        if isinstance(value, Object):
            members = [f"{self._string(name)}:{self.write(member)}" for name, member in value.members]
            return f"{self._blank()}{{{','.join(members) or self._blank()}}}{self._blank()}"
        if isinstance(value, Place):
            return self.write(Object([("$bin", value.number)]))
        return f"{self._blank()}{self._string(value) if isinstance(value, str) else json.dumps(value)}{self._blank()}"

    def _blank(self) -> str:
        return self._data.draw(st.sampled_from(["", "", "", " ", "\n", "\t\r"]))

    def _string(self, text: str) -> str:
        if self._data.draw(st.booleans()):
            return self._blank() + json.dumps(text, ensure_ascii=False) + self._blank()
        numbered = self._data.draw(st.sets(st.sampled_from(text or "x")))
        written = [f"\\u{ord(c):04x}" if c in numbered and ord(c) < 0x10000 else json.dumps(c)[1:-1] for c in text]
        return f'{self._blank()}"{"".join(written)}"{self._blank()}'


def payload(number: int) -> bytes:
    return bytes([number + 1]) * (5 + number)


def seen(text: bytes | str, *, first: bool, filled: list[bytes] | None = None) -> Any:
    """How a parser reads JSON that takes the first, or the last, of several members with one name.

    Args:
        filled: what stands in the place of `{"$bin": k}`, in base64.
    """

    def members(pairs: list[tuple[str, Any]]) -> Any:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if not (first and name in found):
                found[name] = value
        if filled is not None and list(found) == ["$bin"] and type(found["$bin"]) is int:
            return base64.b64encode(filled[found["$bin"]]).decode()
        return found

    return json.loads(text, object_pairs_hook=members)


class Passing:
    """A hub in memory that passes each frame on to a client that reads frames, and to one that reads text."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=FakeTimeLoop)
        self._stack = AsyncExitStack()
        self._runner.run(self._begin())

    async def _begin(self) -> None:
        hub = Hub(ping_interval=None, keepalive_timeout=None)
        there = await self._stack.enter_async_context(TRANSPORTS["memory"].serving(hub, None))
        self.caller, self.frames, self.texts = [await there.join(HubPeer) for _ in range(3)]
        await self.frames.declare()
        await self.frames.offers("frames", {"name": "m", "shared": True})
        await self.texts.offers("texts", {"name": "m", "shared": True})

    def passed_on(self, params: str, count: int) -> tuple[Frame, bytes] | None:
        """What came to each of the two; None if the frame was refused."""
        return self._runner.run(self._pass_on(params, [payload(number) for number in range(count)]))

    async def _pass_on(self, params: str, payloads: list[bytes]) -> tuple[Frame, bytes] | None:
        for name in ("frames", "texts"):
            self.caller.send_frame(f'{{"jsonrpc":"2.0","method":"{name}.m","id":1,"params":{params}}}', *payloads)
        self.caller.call("rpc.ping", id="end")
        answers = []
        while (answer := await self.caller.receive())["id"] != "end":
            answers.append(answer["error"]["code"])
        if answers:
            assert answers == [-32600, -32600]
            assert not self.frames.inbox
            assert not self.texts.inbox
            return None
        frame, text = [await each.receive_bytes() for each in (self.frames, self.texts)]
        assert isinstance(frame, Frame)
        for each, came in ((self.frames, frame), (self.texts, text)):
            each.answer(json.loads(came))
            await self.caller.receive()
        return frame, text

    def close(self) -> None:
        for peer in (self.caller, self.frames, self.texts):
            peer.close()
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def passing() -> Iterator[Passing]:
    passing = Passing()
    yield passing
    passing.close()


@given(st.data())
def test_all_readers_see_the_same_before_and_behind_the_hub(passing: Passing, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 2))
    params = data.draw(st.lists(values(st.integers(0, count).map(Place)), max_size=4))
    params += [Place(number) for number in range(count)] if data.draw(st.booleans()) else []
    text = Writer(data).write(params)
    found = passing.passed_on(text, count)
    if found is None:
        return
    frame, line = found
    own = [payload(number) for number in range(count)]
    for first in (False, True):
        expected = seen(text, first=first, filled=own)
        assert seen(line, first=first)["params"] == expected
        assert seen(frame, first=first, filled=frame.payloads)["params"] == expected


@given(st.data())
def test_data_of_users_is_no_reason_to_refuse_a_frame(passing: Passing, data: st.DataObject) -> None:
    """As long as no name is `$bin`."""
    others = st.lists(values(st.nothing()), max_size=3).filter(lambda found: not _has_name(found))
    before, behind = data.draw(others), data.draw(others)
    found = passing.passed_on(Writer(data).write([*before, Place(1), Object([("data", Place(0)), ("x", behind)])]), 2)
    assert found is not None
    assert found[0].payloads == [payload(1), payload(0)]
    assert json.loads(found[0])["params"][len(before) :] == [
        {"$bin": 0},
        {"data": {"$bin": 1}, "x": json.loads(_plain(behind))},
    ]


def _has_name(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_name, value))
    return isinstance(value, Object) and any(name == "$bin" or _has_name(member) for name, member in value.members)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_plain, value))}]"
    if isinstance(value, Object):
        return "{" + ",".join(f"{json.dumps(name)}:{_plain(member)}" for name, member in value.members) + "}"
    return json.dumps(value)
