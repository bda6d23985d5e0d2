"""Binary frames over WebSocket: one binary message is one frame, whatever the frames of WebSocket are."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import AsyncClient
from rpcstream.wire.envelope import Oversize
from rpcstream.wire.frames import FrameReader

from ..kit import frame as binary_frame
from ..kit import reply, request
from ..kit.example_count import example_count
from ..kit.websocket import BINARY, CONTINUATION, PING, TEXT, frame
from ..wire.frame_model import TakesAll, seen_of
from .conftest import Serve, Served, array_at

SIZE = 5000

#: A frame of a message that goes on.
fragment = partial(frame, final=False)


def whole_frame(*payloads: bytes) -> bytes:
    """A binary frame with these payloads."""
    return binary_frame({"v": [{"$bin": number} for number in range(len(payloads))]}, *payloads)


@given(st.data())
@settings(max_examples=example_count(150), deadline=None)
def test_frames_come_through_however_they_are_cut(data: st.DataObject) -> None:
    """In any fragments, with pings between these, among text, masked or not, received in any pieces."""
    masked = data.draw(st.booleans())
    payloads = st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=4)
    stream, pings, wanted = b"", [], []
    for each in data.draw(st.lists(st.one_of(st.text(max_size=20), payloads), max_size=4)):
        if isinstance(each, str):
            stream += frame(data.draw(st.sampled_from([TEXT, BINARY])), b'"%b"' % each.encode(), masked=masked)
            wanted.append(b'"%b"' % each.encode())
            continue
        whole = whole_frame(*each)
        wanted.append((orjson.dumps({"v": [{"$bin": number} for number in range(len(each))]}) + b"\n", *each))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        for at, piece in enumerate(pieces):
            is_last = at == len(pieces) - 1
            stream += fragment(CONTINUATION if at else BINARY, piece, final=is_last, masked=masked)
            if not is_last:
                pings.append(b"ping %d" % len(pings))
                stream += frame(PING, pings[-1], masked=masked)
    step = data.draw(st.sampled_from([1, 2, 3, 7, 50, len(stream) or 1]))
    intake = TakesAll()
    reader = FrameReader(masked=masked, max_size=10_000, intake=intake)
    came, seen = [], []
    for at in range(0, len(stream), step):
        came += reader.feed(stream[at : at + step])
        seen += reader.pings
    assert list(map(seen_of, came)) == wanted
    assert seen == pings
    assert reader.fault is None
    assert not reader.partial
    assert intake.memory == 0


WHOLE = whole_frame(b"a" * 100, b"b" * 9)


@pytest.mark.parametrize("step", [3, 10_000])
@pytest.mark.parametrize(
    "parts",
    [
        [WHOLE + b"x"],
        [WHOLE, b"x"],
        [WHOLE[:-1]],
        [WHOLE[:20]],
        [b"@"],
        [b"@x 1\n"],
        [b"@12\n"],
        [b"@" + b"1 " * 4096],
    ],
)
def test_a_message_that_is_no_frame(parts: list[bytes], step: int) -> None:
    stream = b"".join(
        fragment(CONTINUATION if at else BINARY, part, final=at == len(parts) - 1) for at, part in enumerate(parts)
    )
    stream += frame(TEXT, b"1")
    reader = FrameReader(masked=True, max_size=10_000, intake=TakesAll())
    came = [each for at in range(0, len(stream), step) for each in reader.feed(stream[at : at + step])]
    assert came == []
    assert reader.fault is not None
    assert reader.fault.code == 1007


def test_what_else_may_begin_with_that_byte() -> None:
    """A text message is never a frame; and without an intake nothing is."""
    reader = FrameReader(masked=True, max_size=10_000, intake=TakesAll())
    assert reader.feed(frame(TEXT, WHOLE)) == [WHOLE]
    assert FrameReader(masked=True, max_size=10_000).feed(frame(BINARY, WHOLE)) == [WHOLE]
    stream = fragment(BINARY, b"") + fragment(CONTINUATION, b"[") + fragment(CONTINUATION, b"1]", final=True)
    assert reader.feed(stream) == [b"[1]"]


@pytest.mark.parametrize("size", [2000, 100_000])
def test_a_frame_over_the_limit(size: int) -> None:
    """It is skipped exactly."""
    reader = FrameReader(masked=True, max_size=1000, intake=TakesAll())
    stream = frame(BINARY, binary_frame(b'{"id":7}', bytes(size))) + frame(TEXT, b"1")
    came = [each for at in range(0, len(stream), 100) for each in reader.feed(stream[at : at + 100])]
    assert isinstance(came[0], Oversize)
    assert came[0].head == b'{"id":7}\n'
    assert came[1:] == [b"1"]


def message(*payloads: bytes, method: str = "total_of", id: Any = 1) -> bytes:
    """A frame of WebSocket with a call that takes this array."""
    params = [array_at(at, len(payload)) for at, payload in enumerate(payloads)]
    return frame(BINARY, binary_frame(request(method, *params, id=id), *payloads))


ONES = b"\1" * SIZE


async def test_frames_and_text_side_by_side(served: Served) -> None:
    """Who has not said that it reads frames gets text, whatever it sends; fragments may have pings between them."""
    raw = await served.websocket()
    raw.send(message(ONES), request("add", 1, 2, id=2), message(ONES, method="array", id=3), request("add", 3, 4))
    assert [await raw.reply() for _ in range(2)] == [reply(1, SIZE), reply(2, 3)]
    assert len((await raw.reply())["result"]["data"]) > SIZE
    assert (await raw.reply())["result"] == 7
    whole = binary_frame(request("total_of", array_at(0, SIZE)), ONES)
    cuts = [0, 1, 10, 100, 101, 4000, len(whole)]
    for at, (begin, end) in enumerate(itertools.pairwise(cuts)):
        raw.send(fragment(CONTINUATION if at else BINARY, whole[begin:end], final=end == len(whole)))
        raw.send(frame(PING, b"%d" % at))
        assert await raw.pong() == b"%d" % at
    assert (await raw.reply())["result"] == SIZE


@pytest.mark.parametrize("options", [{}, {"token": "open-sesame"}, {"binary": False}])
@pytest.mark.parametrize("step", [1, 10_000])
async def test_a_frame_that_ends_the_connection(serve: Serve, options: dict[str, Any], step: int) -> None:
    """One that is malformed, and any before authentication or where they are switched off."""
    rows = [message(ONES)[:60]] if options else [frame(BINARY, each) for each in (b"@x\n", WHOLE + b"x", WHOLE[:-1])]
    served = await serve(max_message_size=1000, **options)
    for broken in rows:
        raw = await served.websocket()
        raw.send(request("rpc.ping", id="before"))
        for at in range(0, len(broken), step):
            raw.send(broken[at : at + step])
            await asyncio.sleep(0)
        raw.send(request("add", 3, 4))
        before, answer = await raw.rest()
        assert before["id"] == "before"
        assert (answer["id"], answer["error"]["code"]) == (None, -32700)
        close = await raw.closed()
        assert close is not None
        assert close.code == 1007


async def test_after_authentication(serve: Serve) -> None:
    raw = await (await serve(token="open-sesame")).websocket()
    assert await raw.result("rpc.authenticate", "open-sesame") is True
    raw.send(message(ONES))
    assert (await raw.reply())["result"] == SIZE


BIG = message(bytes(800_000))


async def test_the_largest_frame_gives_way_when_all_take_too_much_memory(serve: Serve) -> None:
    served = await serve(max_message_size=1_200_000, max_held_total=1_400_000)
    first, second = await served.websocket(), await served.websocket()
    first.send(BIG[:600_000])
    await served.has_read_all()
    second.send(BIG, request("add", 1, 2, id=2))
    assert [(await second.reply())["result"] for _ in range(2)] == [0, 3]
    first.send(BIG[600_000:], request("add", 1, 2, id=2))
    error = (await first.reply())["error"]
    assert (error["code"], error["data"]["limit"]) == (-32002, 1_400_000)
    assert (await first.reply())["result"] == 3


@pytest.mark.parametrize(("client_reads", "server_reads"), [(True, True), (True, False), (False, True)])
async def test_frames_where_both_ends_want_them(serve: Serve, client_reads: bool, server_reads: bool) -> None:
    values, seen = np.arange(SIZE), []
    served = await serve(binary=server_reads)
    async with AsyncClient(
        f"ws://{served.address}/",
        binary=client_reads,
        trace=lambda way, message: seen.append((way, b" + payloads of " in message)),
    ) as client:
        assert await client.call("add", 1, 2) == 3
        assert len(seen) == 2  # connections without arrays see nothing of it
        for _ in range(3):
            assert np.array_equal(await client.call("array", values), values * 2)
    # The first call goes as text, together with the question.
    found = [seen.count((way, True)) for way in ("send", "receive")]
    assert found == ([2, 3] if client_reads and server_reads else [0, 0])
