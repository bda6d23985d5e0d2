"""Binary frames as bodies of HTTP: requests and responses, what is refused, memory, and who may send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Context
from rpcstream.wire.binary_frame import HEADER_MAX

from ..kit import UsualServer, reply, request
from ..kit import frame as binary_frame
from ..kit.http import Answer, RawHttpConnection, call, chunked, post
from .conftest import Serve, array_at, usual_server

FRAME = "application/x-rpcstream"
SIZE = 5000
ONES = b"\1" * SIZE
TAKES_FRAMES = f"Accept: application/json, {FRAME}"
SAYS_SO = f"application/json, {FRAME}"


def frames_server(**options: Any) -> UsualServer:
    server = usual_server(**options)
    kept = np.ones(SIZE, np.uint8)

    @server
    async def same(values: np.ndarray) -> np.ndarray:
        return values

    @server
    async def items(values: np.ndarray, ctx: Context) -> AsyncIterator[np.ndarray]:
        ctx.progress(values)
        yield values
        yield values

    @server
    async def changing() -> np.ndarray:
        """An array that is changed as soon as it was returned."""
        asyncio.get_running_loop().call_soon(kept.fill, 2)
        return kept

    return server


async def connected(serve: Serve, **options: Any) -> RawHttpConnection:
    return await (await serve(frames_server(**options))).http()


def post_frame(body: bytes, *lines: str, kind: str = FRAME, chunks: bool = False) -> bytes:
    if chunks:
        head = post(None, "Transfer-Encoding: chunked", f"Content-Type: {kind}", *lines, json=False)
        return head + chunked(*(body[at : at + 97] for at in range(0, len(body), 97)))
    return post(body, f"Content-Type: {kind}", *lines, json=False)


def call_frame(method: str = "total_of", size: int = SIZE, **changes: Any) -> bytes:
    return binary_frame(request(method, array_at(0, size, **changes)), b"\1" * size)


def read_frame(answer: Answer) -> tuple[Any, bytes]:
    """The JSON of a response that is a frame, and its only payload."""
    assert answer.headers["content-type"] == FRAME
    head, _, rest = answer.body.partition(b"\n")
    json_size, size = map(int, head[1:].split())
    assert len(rest) == json_size + size
    assert (len(head) + 1 + json_size) % 8 == 0
    return orjson.loads(rest[:json_size]), rest[json_size:]


BIG = post_frame(call_frame(size=800_000))


async def test_frames_and_text_in_one_pipeline(serve: Serve) -> None:
    """In order, on one connection; with a frame only who asks for one is answered."""
    http = await connected(serve)
    frame = call_frame("same")
    text = {"$type": "ndarray", "dtype": "|u1", "shape": [SIZE], "data": "AQEB" * (SIZE // 3) + "AQE="}
    note = {"jsonrpc": "2.0", "method": "total_of", "params": [array_at(0, SIZE)]}
    http.send(
        post_frame(call_frame()),
        post_frame(frame, TAKES_FRAMES),
        post(call("add", 1, 2), TAKES_FRAMES),
        post_frame(frame, TAKES_FRAMES, chunks=True),
        post_frame(binary_frame(note, ONES), TAKES_FRAMES),
        post(call("same", text), TAKES_FRAMES),
    )
    answers = [await http.answer() for _ in range(6)]
    assert (answers[0].json, answers[0].headers["content-type"]) == (reply(1, SIZE), "application/json")
    assert (answers[2].json, answers[2].headers["accept-post"]) == (reply(1, 3), SAYS_SO)
    assert (answers[4].status, answers[4].body) == (200, b"")
    for at in (1, 3, 5):
        assert read_frame(answers[at]) == (reply(1, array_at(0, SIZE)), ONES)
        assert answers[at].headers["accept-post"] == SAYS_SO
    # What is changed after it was returned is sent as it was.
    for expected in (ONES, b"\2" * SIZE):
        assert read_frame(await http.ask(post(call("changing"), TAKES_FRAMES)))[1] == expected


@pytest.mark.parametrize("chunks", [True, False])
async def test_byte_by_byte(serve: Serve, chunks: bool) -> None:
    http, stream = await connected(serve), post_frame(call_frame(size=200), chunks=chunks)
    for at in range(len(stream)):
        http.send(stream[at : at + 1])
        await asyncio.sleep(0)
    assert (await http.answer()).json["result"] == 200


@pytest.mark.parametrize("accept", [None, "application/json", "*/*", "application/x-rpcstreams"])
async def test_who_does_not_ask_for_frames(serve: Serve, accept: str | None) -> None:
    lines = [] if accept is None else [f"Accept: {accept}"]
    answer = await (await connected(serve)).ask(post_frame(call_frame("same"), *lines, kind=f"{FRAME.upper()} ; v=1"))
    assert answer.json["result"]["shape"] == [SIZE]
    assert "accept-post" not in answer.headers


async def test_streams_stay_text(serve: Serve) -> None:
    http = await connected(serve)
    answer = await http.ask(post_frame(call_frame("items"), f"Accept: application/x-ndjson, {FRAME}"))
    assert answer.headers["content-type"] == "application/x-ndjson"
    *parts, last = answer.lines
    assert sorted(part["method"] for part in parts) == ["$/item", "$/item", "$/progress"]
    assert [part["params"]["value"]["shape"] for part in parts] == [[SIZE]] * 3
    assert last["result"] is None


LIMIT = 20_000

WRONG: dict[str, tuple[bytes, int, int | None]] = {
    "nothing": (b"", -32700, None),
    "a payload that stands nowhere": (binary_frame(request("total_of", 1), ONES), -32600, 1),
    "another size": (binary_frame(request("total_of", array_at(0, SIZE + 1)), ONES), -32602, 1),
    "too large": (call_frame(size=LIMIT - 100), -32001, 1),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_frame_that_is_refused(serve: Serve, what: str) -> None:
    """The connection stays."""
    frame, code, call_id = WRONG[what]
    http = await connected(serve, max_message_size=LIMIT)
    answer = await http.ask(post_frame(frame))
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, code, call_id)
    just = call_frame(size=LIMIT - 160)
    assert len(just) <= LIMIT
    assert (await http.ask(post_frame(just))).json["result"] == LIMIT - 160


TOO_LONG = call_frame(size=LIMIT + HEADER_MAX)


@pytest.mark.parametrize("chunks", [True, False])
@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        pytest.param(b"@x 1\n{}", 200, (-32700, None), id="header"),
        pytest.param(b"x", 200, (-32700, None), id="no header"),
        pytest.param(call("add", 1, 2), 200, (-32700, None), id="text"),
        pytest.param(call_frame() + b"x", 200, (-32700, None), id="longer"),
        pytest.param(call_frame()[:-1], 200, (-32700, None), id="shorter"),
        pytest.param(b"@", 200, (-32700, None), id="begun"),
        pytest.param(TOO_LONG, 413, None, id="over the limit, as of text"),
    ],
)
async def test_what_ends_the_connection(serve: Serve, body: bytes, status: int, error: Any, chunks: bool) -> None:
    http = await connected(serve, max_message_size=LIMIT)
    http.send(post_frame(body, chunks=chunks), post(call("add", 1, 2)))
    answer = await http.answer()
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    if error is None:
        assert f"{LIMIT} bytes" in answer.body.decode()
    else:
        assert (answer.json["error"]["code"], answer.json["id"]) == error
    assert await http.rest() == b""


async def test_switched_off(serve: Serve) -> None:
    http = await connected(serve, binary=False)
    answer = await http.ask(post(call("total_of", {**array_at(0, 3), "data": "AAAA"}), TAKES_FRAMES))
    assert answer.json["result"] == 0
    assert "accept-post" not in answer.headers
    answer = await http.ask(post_frame(call_frame(), TAKES_FRAMES))
    assert answer.status == 415
    assert "application/json" in answer.body.decode()


async def test_the_largest_frame_gives_way_when_all_take_too_much_memory(serve: Serve) -> None:
    served = await serve(frames_server(max_message_size=1_200_000, max_held_total=1_400_000))
    first, second = await served.http(), await served.http()
    first.send(BIG[:600_000])
    await served.has_read_all()
    assert (await second.ask(BIG)).json["result"] == 800_000
    first.send(BIG[600_000:], post(call("add", 1, 2)))
    assert (await first.answer()).json["error"]["code"] == -32002
    assert (await first.answer()).json["result"] == 3
