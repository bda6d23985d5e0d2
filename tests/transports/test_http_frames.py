"""Binary frames as bodies of HTTP: requests and responses, what is refused, memory, and who may send them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Context
from rpcstream.wire.binary_frame import HEADER_MAX

from ..kit import UsualServer, request
from ..kit import frame as binary_frame
from ..kit.http import Answer, RawHttpConnection, call, chunked, post
from .conftest import Serve, Served, usual_server
from .raw_frames import array_at

FRAME = "application/x-rpcstream"
SIZE = 5000
ONES = b"\1" * SIZE
TAKES_FRAMES = f"Accept: application/json, {FRAME}"
SAYS_SO = f"application/json, {FRAME}"


def frames_server(**options: Any) -> UsualServer:
    server = usual_server(**options)
    kept = np.ones(SIZE, np.uint8)

    @server
    def same(values: np.ndarray) -> np.ndarray:
        return values

    @server
    async def later(values: np.ndarray) -> np.ndarray:
        await asyncio.sleep(0)
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


@asynccontextmanager
async def connected(serve: Serve, count: int = 1, **options: Any) -> AsyncIterator[list[RawHttpConnection]]:
    """Connections to a server that runs meanwhile."""
    served = await serve(frames_server(**options))
    yield [await served.http() for _ in range(count)]


def post_frame(body: bytes, *lines: str, kind: str = FRAME) -> bytes:
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


# -- requests and responses -----------------------------------------------------------------------------------------


async def test_a_frame_is_answered_with_text(serve: Serve) -> None:
    """With a frame only who asks for one; who does not see nothing new in the responses."""
    async with connected(serve) as [http]:
        answer = await http.ask(post_frame(call_frame()))
        assert answer.json == {"jsonrpc": "2.0", "id": 1, "result": SIZE}
        assert answer.headers["content-type"] == "application/json"
        assert "accept-post" not in answer.headers
        answer = await http.ask(post_frame(call_frame("same")))
        assert answer.json["result"]["shape"] == [SIZE]
        assert len(answer.json["result"]["data"]) > SIZE


@pytest.mark.parametrize("method", ["same", "later"])
@pytest.mark.parametrize("is_frame", [True, False])
async def test_a_response_that_is_a_frame(serve: Serve, method: str, is_frame: bool) -> None:
    async with connected(serve) as [http]:
        values = {"$type": "ndarray", "dtype": "|u1", "shape": [SIZE], "data": "AQEB" * (SIZE // 3) + "AQE="}
        body = call_frame(method) if is_frame else call(method, values)
        answer = await http.ask(post_frame(body, TAKES_FRAMES, kind=FRAME if is_frame else "application/json"))
        assert read_frame(answer) == ({"jsonrpc": "2.0", "id": 1, "result": array_at(0, SIZE)}, ONES)
        assert answer.headers["accept-post"] == SAYS_SO
        answer = await http.ask(post(call("add", 1, 2), TAKES_FRAMES))
        assert answer.json["result"] == 3
        assert answer.headers["accept-post"] == SAYS_SO


async def test_frames_and_text_in_one_pipeline(serve: Serve) -> None:
    """In order, on one connection; bodies with a length and in chunks."""
    frame = call_frame("same")
    parts = [
        post(call("add", 1, 1)),
        post_frame(frame, TAKES_FRAMES),
        post(call("add", 1, 2), TAKES_FRAMES),
        post(None, "Transfer-Encoding: chunked", f"Content-Type: {FRAME}", json=False),
        chunked(frame[:1], frame[1:100], frame[100:]),
        post_frame(frame, TAKES_FRAMES),
        post(call("add", 1, 3)),
    ]
    async with connected(serve) as [http]:
        http.send(*parts)
        answers = [await http.answer() for _ in range(6)]
        assert [answers[at].json["result"] for at in (0, 2, 5)] == [2, 3, 4]
        assert [read_frame(answers[at])[1] for at in (1, 4)] == [ONES, ONES]
        assert answers[3].json["result"]["shape"] == [SIZE]


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_byte_by_byte(serve: Serve, is_chunked: bool) -> None:
    frame = binary_frame(request("total_of", array_at(0, 40)), b"\1" * 40)
    if is_chunked:
        head = post(None, "Transfer-Encoding: chunked", f"Content-Type: {FRAME}", json=False)
        stream = head + chunked(*(frame[at : at + 3] for at in range(0, len(frame), 3)))
    else:
        stream = post_frame(frame)
    async with connected(serve) as [http]:
        for at in range(len(stream)):
            http.send(stream[at : at + 1])
            await asyncio.sleep(0)
        assert (await http.answer()).json["result"] == 40


async def test_expectation_and_http_1_0(serve: Serve) -> None:
    async with connected(serve, 2) as [http, old]:
        frame = call_frame()
        head = post_frame(frame, "Expect: 100-continue").removesuffix(frame)
        assert (await http.ask(head)).status == 100
        assert (await http.ask(frame)).json["result"] == SIZE
        answer = await old.ask(
            post(call_frame("same"), TAKES_FRAMES, f"Content-Type: {FRAME}", version="1.0", json=False)
        )
        assert read_frame(answer)[1] == ONES
        assert await old.rest() == b""


async def test_streams_stay_text(serve: Serve) -> None:
    async with connected(serve) as [http]:
        answer = await http.ask(post_frame(call_frame("items"), f"Accept: application/x-ndjson, {FRAME}"))
        assert answer.headers["content-type"] == "application/x-ndjson"
        *parts, last = answer.lines
        assert sorted(part["method"] for part in parts) == ["$/item", "$/item", "$/progress"]
        assert [part["params"]["value"]["shape"] for part in parts] == [[SIZE]] * 3
        assert last["result"] is None
        answer = await http.ask(post_frame(call_frame("items"), TAKES_FRAMES))
        json = answer.body
        if answer.headers["content-type"] == FRAME:  # as one array: items that come at once are attached
            head, _, rest = answer.body.partition(b"\n")
            json = rest[: int(head[1:].split()[0])]
        assert [item["shape"] for item in orjson.loads(json)["result"]] == [[SIZE], [SIZE]]


async def test_a_notification(serve: Serve) -> None:
    async with connected(serve) as [http]:
        message = {"jsonrpc": "2.0", "method": "total_of", "params": [array_at(0, SIZE)]}
        answer = await http.ask(post_frame(binary_frame(message, ONES), TAKES_FRAMES))
        assert (answer.status, answer.body) == (200, b"")


async def test_what_is_changed_after_it_was_returned_is_sent_as_it_was(serve: Serve) -> None:
    async with connected(serve) as [http]:
        assert read_frame(await http.ask(post(call("changing"), TAKES_FRAMES)))[1] == ONES
        assert read_frame(await http.ask(post(call("changing"), TAKES_FRAMES)))[1] == b"\2" * SIZE


@pytest.mark.parametrize(
    "accept", ["application/json", "*/*", f"{FRAME};q=0, application/json", "application/x-rpcstreams"]
)
async def test_who_does_not_ask_for_frames(serve: Serve, accept: str) -> None:
    async with connected(serve) as [http]:
        answer = await http.ask(post_frame(call_frame("same"), f"Accept: {accept}", kind=f"{FRAME.upper()} ; v=1"))
        assert answer.json["result"]["shape"] == [SIZE]
        assert "accept-post" not in answer.headers


# -- what is refused ------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[bytes, int, int | None]] = {
    "a payload that stands nowhere": (binary_frame(request("total_of", 1), ONES), -32600, 1),
    "a payload that stands twice": (binary_frame(request("add", {"$bin": 0}, {"$bin": 0}), ONES), -32600, 1),
    "a batch": (binary_frame([request("total_of", array_at(0, SIZE))], ONES), -32600, None),
    "another size": (binary_frame(request("total_of", array_at(0, SIZE + 1)), ONES), -32602, 1),
    "an unknown method": (binary_frame(request("none", array_at(0, SIZE)), ONES), -32601, 1),
    "too large": (call_frame(size=20_000 - 100), -32001, 1),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_frame_that_is_refused(serve: Serve, what: str) -> None:
    """The connection stays."""
    frame, code, call_id = WRONG[what]
    async with connected(serve, max_message_size=20_000) as [http]:
        http.send(post_frame(frame), post_frame(call_frame()))
        answer = await http.answer()
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, code, call_id)
        assert (await http.answer()).json["result"] == SIZE


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"@x 1\n{}", id="header"),
        pytest.param(b"x", id="no header"),
        pytest.param(call("add", 1, 2), id="text"),
        pytest.param(call_frame() + b"x", id="longer"),
        pytest.param(call_frame()[:-1], id="shorter"),
        pytest.param(b"@", id="begun"),
    ],
)
async def test_a_malformed_frame(serve: Serve, body: bytes, is_chunked: bool) -> None:
    """Answered with -32700, and the connection ends."""
    async with connected(serve) as [http]:
        if is_chunked:
            http.send(post(None, "Transfer-Encoding: chunked", f"Content-Type: {FRAME}", json=False), chunked(body))
        else:
            http.send(post_frame(body))
        http.send(post(call("add", 1, 2)))
        answer = await http.answer()
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32700, None)
        assert answer.headers["connection"] == "close"
        assert await http.rest() == b""


async def test_an_empty_body(serve: Serve) -> None:
    async with connected(serve) as [http]:
        answer = await http.ask(post_frame(b""))
        assert (answer.status, answer.json["error"]["code"]) == (200, -32700)
        assert (await http.ask(post(call("add", 1, 2)))).json["result"] == 3


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_over_the_limit(serve: Serve, is_chunked: bool) -> None:
    """As of text: 413; the header of a frame is not counted."""
    limit = 20_000
    async with connected(serve, 2, max_message_size=limit) as [http, other]:
        just = call_frame(size=limit - 160)
        assert len(just) <= limit
        assert (await other.ask(post_frame(just))).json["result"] == limit - 160
        frame = call_frame(size=limit + HEADER_MAX)
        if is_chunked:
            http.send(post(None, "Transfer-Encoding: chunked", f"Content-Type: {FRAME}", json=False), chunked(frame))
        else:
            http.send(post_frame(frame))
        answer = await http.answer()
        assert answer.status == 413
        assert f"{limit} bytes" in answer.body.decode()


async def test_a_frame_that_announces_more_than_its_body(serve: Serve) -> None:
    async with connected(serve, max_message_size=1000) as [http]:
        answer = await http.ask(post_frame(b"@60 20000\n" + orjson.dumps(request("add", 1, 2)).ljust(60)))
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32001, 1)


async def test_not_authenticated(serve: Serve) -> None:
    """401 comes first, whatever the body is."""
    async with connected(serve, 2, token="open-sesame") as [http, other]:
        answer = await http.ask(post_frame(call_frame()))
        assert answer.status == 401
        answer = await other.ask(post_frame(call_frame("same"), "Authorization: Bearer open-sesame", TAKES_FRAMES))
        assert read_frame(answer)[1] == ONES


async def test_switched_off(serve: Serve) -> None:
    async with connected(serve, binary=False) as [http]:
        answer = await http.ask(post_frame(call_frame(), TAKES_FRAMES))
        assert answer.status == 415
        assert "application/json" in answer.body.decode()
        answer = await http.ask(post(call("total_of", zeros_as_text()), TAKES_FRAMES))
        assert answer.json["result"] == 0
        assert "accept-post" not in answer.headers


def zeros_as_text() -> dict[str, Any]:
    return {"$type": "ndarray", "dtype": "|u1", "shape": [3], "data": "AAAA"}


async def test_a_coding_of_the_body(serve: Serve) -> None:
    async with connected(serve) as [http]:
        answer = await http.ask(post_frame(zlib.compress(call_frame()), "Content-Encoding: deflate"))
        assert answer.status == 415


@pytest.mark.parametrize("origin", ["https://good.example", "https://bad.example"])
async def test_pages_of_other_sites(serve: Serve, origin: str) -> None:
    """A browser asks before it sends such a body, and is told whether that page may; the call is checked, too."""
    is_good = origin == "https://good.example"
    asks = [f"Origin: {origin}", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type"]
    async with connected(serve, 2, origins=["https://good.example"]) as [http, other]:
        head = "\r\n".join(["OPTIONS / HTTP/1.1", "Host: 127.0.0.1", *asks, "", ""])
        http.send(head.encode())
        if is_good:
            status, headers = await http.head()
            assert status == 204
            assert "Content-Type" in headers["access-control-allow-headers"]
        else:
            assert (await http.answer()).status == 403
        answer = await other.ask(post_frame(call_frame("same"), f"Origin: {origin}", TAKES_FRAMES))
        if is_good:
            assert read_frame(answer)[1] == ONES
            assert answer.headers["access-control-allow-origin"] == origin
        else:
            assert answer.status == 403


# -- memory ---------------------------------------------------------------------------------------------------------


async def holding_memory(serve: Serve) -> tuple[Served, RawHttpConnection]:
    """A frame takes most of the memory that there is for messages, and its rest does not come."""
    served = await serve(frames_server(max_message_size=1_200_000, max_held_total=1_400_000))
    first = await served.http()
    first.send(BIG[:600_000])
    await served.has_read_all()
    return served, first


@pytest.mark.parametrize("cut", [700_000, None])
@pytest.mark.parametrize("behind", [b"", b"x"])
async def test_frames_wait_for_memory(serve: Serve, cut: int | None, behind: bytes) -> None:
    """What all payloads under way take is bounded: a body waits, in part or whole, with the requests behind it."""
    served, first = await holding_memory(serve)
    second = await served.http()
    big = post_frame(call_frame(size=800_000) + behind)
    second.send(big[:cut])
    await served.has_read_all()
    if cut:
        second.send(big[cut:])
    second.send(post(call("add", 1, 2)), BIG)
    await served.has_read_all()
    assert served.server.stats()["requests"] == 60  # the pings
    assert (await first.ask(BIG[600_000:])).json["result"] == 800_000
    if behind:
        assert (await second.answer()).json["error"]["code"] == -32700
    else:
        assert [(await second.answer()).json["result"] for _ in range(3)] == [800_000, 3, 800_000]


async def test_a_client_that_is_gone_gives_its_memory_back(serve: Serve) -> None:
    served, first = await holding_memory(serve)
    await first.close()
    assert (await (await served.http()).ask(BIG)).json["result"] == 800_000
