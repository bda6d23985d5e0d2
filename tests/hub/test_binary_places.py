"""Whatever JSON a binary frame has: what goes on has each payload in the very place where every reader saw it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, Frame
from ..kit.example_count import example_count
from .conftest import HubPeer


def written(parts: list[tuple[str, bool]]) -> str:
    """A string of these parts, of which some are written with escapes."""
    texts = [
        "".join(f"\\u{ord(c):04x}" for c in part) if escaped and part < "\uffff" else json.dumps(part)[1:-1]
        for part, escaped in parts
    ]
    return f'"{"".join(texts)}"'


blanks = st.sampled_from(["", "", "", " ", "\n", "\t\r"])
fragments = st.sampled_from([*'"{}[:01 \\\n\0$', "$bin", "bin", "u0024", "$type", "data", "é", "😀"])
words = st.sampled_from(["$bin", "x$bin", "a", "b"])
strings = st.one_of(
    st.tuples(words, st.booleans()).map(lambda part: written([part])),
    st.lists(st.tuples(fragments, st.booleans()), max_size=6).map(written),
)
scalars = st.one_of(st.sampled_from(["-1", "0", "1", "2", "null", "true", "0.5"]), strings)


def values(places: st.SearchStrategy[str], names: st.SearchStrategy[str] = strings) -> st.SearchStrategy[str]:
    def joined(parts: st.SearchStrategy[str], brackets: str) -> st.SearchStrategy[str]:
        padded = st.tuples(blanks, parts, blanks).map("".join)
        return st.lists(padded, max_size=4).map(lambda found: f"{brackets[0]}{','.join(found)}{brackets[1]}")

    def inside(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        members = st.tuples(names, blanks, st.just(":"), blanks, inner).map("".join)
        return st.one_of(joined(inner, "[]"), joined(members, "{}"))

    return st.recursive(scalars | places, inside, max_leaves=12)


def place(number: int | str) -> st.SearchStrategy[str]:
    """The place of this payload."""
    return st.tuples(blanks, st.booleans(), blanks).map(
        lambda how: f"{{{how[0]}{written([('$bin', how[1])])}{how[2]}:{number}{how[0]}}}"
    )


def payload(number: int) -> bytes:
    return bytes([number + 1]) * (5 + number)


def seen(text: bytes | str, *, first: bool, filled: list[bytes] | None = None) -> Any:
    """How a parser reads JSON that takes the first, or the last, of several members with one name.

    Args:
        filled: what stands in the place of `{"$bin": k}`, in base64.
    """

    def members(pairs: list[tuple[str, Any]]) -> Any:
        found: dict[str, Any] = dict(reversed(pairs) if first else pairs)
        if filled is not None and list(found) == ["$bin"] and type(found["$bin"]) is int:
            return base64.b64encode(filled[found["$bin"]]).decode()
        return found

    return json.loads(text, object_pairs_hook=members)


Passing = Callable[[str, int], tuple[Frame, bytes] | None]


@pytest.fixture(scope="module")
def passing() -> Iterator[Passing]:
    """What came of a frame with these params to a client that reads frames, and to one that reads text.

    None if it was refused.
    """
    serving = TRANSPORTS["memory"].serving(Hub(ping_interval=None, keepalive_timeout=None), None)

    async def begin() -> list[HubPeer]:
        there = await serving.__aenter__()
        caller, *others = [await there.join(HubPeer) for _ in range(3)]
        await others[0].declare()
        for name, peer in zip(("frames", "texts"), others, strict=True):
            await peer.offers(name, {"name": "m", "shared": True})
        return [caller, *others]

    async def pass_on(params: str, payloads: list[bytes]) -> tuple[Frame, bytes] | None:
        caller, frames, texts = peers
        for name in ("frames", "texts"):
            caller.send_frame(f'{{"jsonrpc":"2.0","method":"{name}.m","id":1,"params":{params}}}', *payloads)
        caller.call("rpc.ping", id="end")
        answers = []
        while (answer := await caller.receive())["id"] != "end":
            answers.append(answer["error"]["code"])
        if answers:
            assert answers == [-32600, -32600]
            assert not frames.inbox
            assert not texts.inbox
            return None
        frame, text = [await each.receive_bytes() for each in (frames, texts)]
        assert isinstance(frame, Frame)
        assert text is not None
        for each, came in ((frames, frame), (texts, text)):
            each.answer(json.loads(came))
            await caller.receive()
        return frame, text

    async def end() -> None:
        for peer in peers:
            peer.close()
        await serving.__aexit__(None, None, None)

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        peers = runner.run(begin())
        yield lambda params, count: runner.run(pass_on(params, [payload(number) for number in range(count)]))
        runner.run(end())


@settings(max_examples=example_count(30))
@given(st.data(), st.integers(1, 2), st.booleans())
def test_all_readers_see_the_same_before_and_behind_the_hub(
    passing: Passing, data: st.DataObject, count: int, with_all: bool
) -> None:
    params = data.draw(st.lists(values(st.integers(0, count).flatmap(place)), max_size=4))
    params += [data.draw(place(number)) for number in range(count)] if with_all else []
    text = f"[{','.join(params)}]"
    if (found := passing(text, count)) is None:
        return
    frame, line = found
    own = [payload(number) for number in range(count)]
    for first in (False, True):
        expected = seen(text, first=first, filled=own)
        assert seen(line, first=first)["params"] == expected
        assert seen(frame, first=first, filled=frame.payloads)["params"] == expected


others = st.lists(values(st.nothing(), strings.filter(lambda name: json.loads(name) != "$bin")), max_size=3)


@settings(max_examples=example_count(30))
@given(others, others, place(1), place(0))
def test_data_of_users_is_no_reason_to_refuse_a_frame(
    passing: Passing, before: list[str], behind: list[str], one: str, zero: str
) -> None:
    """As long as no name is `$bin`."""
    rest = f"[{','.join(behind)}]"
    found = passing(f'[{",".join([*before, one])},{{"data":{zero},"x":{rest}}}]', 2)
    assert found is not None
    assert found[0].payloads == [payload(1), payload(0)]
    came = json.loads(found[0])["params"][len(before) :]
    assert came == [{"$bin": 0}, {"data": {"$bin": 1}, "x": json.loads(rest)}]
