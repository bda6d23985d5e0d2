"""Whatever JSON a binary frame has: what goes on has each payload in the very place where every reader saw it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rpcstream.codec import payloads
from rpcstream.hub import passthrough
from rpcstream.wire.binary_frame import parts_of_frame
from rpcstream.wire.buffers import AttachedMessage, Encoded


@dataclass(frozen=True)
class Place:
    """Where payload `number` stands."""

    number: int


@dataclass(frozen=True)
class Object:
    """An object as its members are written, of which several may have one name."""

    members: list[tuple[str, Any]]


#: What strings and names are made of: all that a place is written with.
FRAGMENTS = [
    "$bin",
    "$",
    "bin",
    '"',
    "{",
    "}",
    "[",
    ":",
    "0",
    "1",
    " ",
    "\\",
    "\n",
    "\x00",
    "u0024",
    "$type",
    "data",
    "é",
    "😀",
]
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


def seen(text: bytes, *, first: bool, filled: list[bytes] | None = None) -> Any:
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


def received(text: bytes, count: int) -> tuple[Any, payloads.FrameLine] | None:
    """The message of a frame, with its payloads; None if it was refused."""
    frame = payloads.read_frame(text, tuple(len(payload(number)) for number in range(count)), None, "server")
    if frame.refusal is not None:
        assert frame.refusal.code == -32600
        return None
    message, line = frame.content
    for number, view in enumerate(line.take_memory()):
        view[:] = payload(number)
    return message, line


def sent(message: Encoded) -> tuple[bytes, list[bytes]]:
    """What is sent to an end that reads frames: JSON, and payloads."""
    if not isinstance(message, AttachedMessage):
        return bytes(message), []
    parts_of_frame(message)
    return message.json, [bytes(each) for each in message.payloads]


@given(st.data())
def test_all_readers_see_the_same_before_and_behind_the_hub(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 2))
    params = data.draw(st.lists(values(st.integers(0, count).map(Place)), max_size=4))
    params += [Place(number) for number in range(count)] if data.draw(st.booleans()) else []
    text = Writer(data).write(params)
    line = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{text}}}\n'.encode()
    found = received(line, count)
    if found is None:
        return
    message, frame_line = found
    out = passthrough.request(frame_line, message, 7, b'"m"')
    there, beside = sent(out)
    own = [payload(number) for number in range(count)]
    for first in (False, True):
        expected = seen(text.encode(), first=first, filled=own)
        assert seen(bytes(out), first=first)["params"] == expected
        assert seen(there, first=first, filled=beside)["params"] == expected


@given(st.data())
def test_data_of_users_is_no_reason_to_refuse_a_frame(data: st.DataObject) -> None:
    """As long as no name is `$bin`."""
    others = st.lists(values(st.nothing()), max_size=3).filter(lambda found: not _has_name(found))
    before, behind = data.draw(others), data.draw(others)
    text = Writer(data).write([*before, Place(1), Object([("data", Place(0)), ("x", behind)])])
    found = received(f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{text}}}\n'.encode(), 2)
    assert found is not None
    there, beside = sent(passthrough.request(found[1], found[0], 7, b'"m"'))
    assert beside == [payload(1), payload(0)]
    assert json.loads(there)["params"][len(before) :] == [
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
