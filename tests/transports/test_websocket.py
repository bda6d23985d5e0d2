"""WebSocket with well-behaved peers: the handshake, frames, and conversations with other libraries."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as foreign_connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as foreign_serve
from websockets.exceptions import ConnectionClosedOK, InvalidStatus

from rpcstream import AsyncClient, ConnectionLost
from rpcstream.wire.frames import BINARY, TEXT, FrameReader, frame, head, masked_parts
from rpcstream.wire.http_messages import Request
from rpcstream.wire.upgrade import UpgradeRefusedError, accept_upgrade, check_response, request_upgrade

from ..kit import notification, reply, until
from ..kit.example_count import example_count
from ..kit.websocket import ACCEPTED
from .conftest import Serve, Served

GOOD = {
    "host": "localhost",
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}


def asked(method: str = "GET", body: bytes = b"", http10: bool = False, **changes: str | None) -> Request:
    changed = {name.replace("_", "-"): value for name, value in changes.items()}
    headers = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    return Request(method, "/", headers, body, is_http10=http10)


# -- the handshake --------------------------------------------------------------------------------------------------


def test_the_example_of_the_specification() -> None:
    response = accept_upgrade(asked())
    assert response.status == 101
    assert dict(response.headers) == {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": ACCEPTED,
    }
    assert len(response.body) == 0


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("jsonrpc", "jsonrpc"),
        ("chat, jsonrpc-2.0 ,jsonrpc", "jsonrpc-2.0"),
        ("chat, superchat", None),
        ("JSONRPC", None),
        (None, None),
    ],
)
def test_a_subprotocol_is_chosen_among_those_that_were_offered(offered: str | None, chosen: str | None) -> None:
    response = accept_upgrade(asked(sec_websocket_protocol=offered))
    assert response.status == 101
    assert dict(response.headers).get("Sec-WebSocket-Protocol") == chosen


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (asked("POST"), 405, "GET"),
        (asked(http10=True), 400, "HTTP/1.1"),
        (asked(upgrade=None), 400, "Upgrade"),
        (asked(upgrade="h2c"), 400, "Upgrade"),
        (asked(connection=None), 400, "Connection"),
        (asked(connection="keep-alive"), 400, "Connection"),
        (asked(sec_websocket_key=None), 400, "Key"),
        (asked(sec_websocket_key="c2hvcnQ="), 400, "Key"),
        (asked(sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ=!"), 400, "Key"),
        (asked(sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ=="), 400, "Key"),
        (asked(sec_websocket_key="\xe4" * 24), 400, "Key"),
        (asked(sec_websocket_version=None), 426, "13"),
        (asked(sec_websocket_version="8"), 426, "13"),
        (asked(body=b"GET / HTTP/1.1"), 400, "body"),
        (asked(content_length="5"), 400, "body"),
        (asked(transfer_encoding="chunked"), 400, "body"),
    ],
)
def test_what_is_no_request_for_a_websocket(request_: Request, status: int, text: str) -> None:
    response = accept_upgrade(request_)
    assert response.status == status
    assert text in response.text
    assert dict(response.headers).get("Sec-WebSocket-Version") == ("13" if status == 426 else None)
    assert dict(response.headers).get("Allow") == ("GET" if status == 405 else None)


def test_a_length_of_zero_is_no_body() -> None:
    assert accept_upgrade(asked(content_length="0")).status == 101


def test_both_sides_of_the_handshake_fit_together() -> None:
    question, key = request_upgrade("localhost:8545", "/rpc?x=1", {"Authorization": "Bearer x"})
    first, *lines = question.decode().removesuffix("\r\n\r\n").split("\r\n")
    assert first == "GET /rpc?x=1 HTTP/1.1"
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert headers["host"] == "localhost:8545"
    assert headers["authorization"] == "Bearer x"
    response = accept_upgrade(Request("GET", "/rpc?x=1", headers))
    check_response(response.head(0, True), key)
    assert request_upgrade("localhost", "/", {})[1] != key


@pytest.mark.parametrize(
    ("host", "path", "headers"),
    [
        ("localhost\r\nX: 1", "/", {}),
        ("localhost", "/\r\nX: 1", {}),
        ("localhost", "/ HTTP/1.1", {}),
        ("localhost", "rpc", {}),
        ("localhost", "/ä", {}),
        ("localhost", "/", {"X": "1\r\nY: 2"}),
        ("localhost", "/", {"X\r\nY": "1"}),
        ("localhost", "/", {"X Y": "1"}),
        ("localhost", "/", {"": "1"}),
        ("localhost", "/", {"sec-websocket-KEY": "1"}),
    ],
)
def test_what_cannot_be_asked(host: str, path: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"header|path"):
        request_upgrade(host, path, headers)


ANSWER = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive\r\nConnection: upgrade\r\n"
    f"Sec-WebSocket-Accept: {ACCEPTED}\r\n\r\n"
)


def test_an_answer_of_another_server() -> None:
    check_response(ANSWER.encode(), GOOD["sec-websocket-key"])


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (ANSWER.replace("101 Switching Protocols", "401 Unauthorized"), 401, "401 Unauthorized"),
        (ANSWER.replace("101 Switching Protocols", "200"), 200, "200"),
        (ANSWER.replace(ACCEPTED, "AAAA"), 101, "Sec-WebSocket-Accept"),
        (ANSWER.replace("Sec-WebSocket-Accept", "X-Accept"), 101, "Sec-WebSocket-Accept"),
        (ANSWER.replace("Upgrade: WebSocket", "Upgrade: h2c"), 101, "other than WebSocket"),
        (ANSWER.replace("Connection: upgrade", "Connection: close"), 101, "other than WebSocket"),
        (ANSWER.replace("Upgrade: ", "Upgrade "), 101, "malformed header"),
        (ANSWER.replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), 101, "not offered"),
        (ANSWER.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n"), 101, "not offered"),
        ('{"jsonrpc": "2.0"}', None, "not HTTP"),
        ("", None, "not HTTP"),
        ("\xff\xfe", None, "not HTTP"),
    ],
)
def test_an_answer_that_is_none(answer: str, status: int | None, text: str) -> None:
    with pytest.raises(UpgradeRefusedError, match=text) as caught:
        check_response(answer.encode("latin-1"), GOOD["sec-websocket-key"])
    assert caught.value.status == status


# -- frames ---------------------------------------------------------------------------------------------------------

MESSAGES = [b"", b"1", b"x" * 125, b"y" * 126, b"z" * 65535, b"z" * 65536, "schön 🌻".encode(), b"q" * 100_000]


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [1, 2, 7, 65536, 1 << 20])
def test_messages_come_through_however_they_are_cut(masked: bool, size: int) -> None:
    stream = b"".join(frame(TEXT, message, masked=masked) for message in MESSAGES)
    reader = FrameReader(masked=masked, max_size=100_000)
    came = [message for at in range(0, len(stream), size) for message in reader.feed(stream[at : at + size])]
    assert came == MESSAGES
    assert {type(message) for message in came} == {bytes}
    assert not reader.partial
    assert reader.fault is None


@given(st.data())
@settings(max_examples=example_count(200), deadline=None)
def test_fragments_with_pings_between_them(data: st.DataObject) -> None:
    masked = data.draw(st.booleans())
    kinds = st.sampled_from([TEXT, BINARY])
    messages = data.draw(
        st.lists(st.tuples(kinds, st.lists(st.text(max_size=200), min_size=1, max_size=5)), max_size=5)
    )
    stream, pings = b"", []
    for kind, texts in messages:
        whole = "".join(texts).encode()
        # Cut anywhere, in the middle of a character, too.
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        for at, piece in enumerate(pieces):
            is_last = at == len(pieces) - 1
            written = bytearray(frame(0 if at else kind, piece, masked=masked))
            written[0] = (0x80 if is_last else 0) | (0 if at else kind)
            stream += written
            if not is_last:
                pings.append(b"ping %d" % len(pings))
                stream += frame(0x9, pings[-1], masked=masked)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = FrameReader(masked=masked, max_size=10_000)
    came, seen = [], []
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        came += reader.feed(stream[a:b])
        seen += reader.pings
    assert came == ["".join(texts).encode() for _, texts in messages]
    assert seen == pings
    assert reader.fault is None
    assert not reader.partial


@pytest.mark.parametrize("sizes", [[3, 5, 1, 0, 70_000, 2], [70_001, 1], [0], [4, 4]])
def test_a_message_in_pieces_is_masked_as_one(sizes: list[int]) -> None:
    parts = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    message = b"".join(parts)
    reader = FrameReader(masked=True, max_size=1 << 20)
    assert reader.feed(b"".join(masked_parts(TEXT, len(message), parts))) == [message]


def test_two_messages_are_not_masked_alike() -> None:
    assert len({frame(TEXT, b"the same", masked=True) for _ in range(8)}) > 1


def test_the_head_is_as_short_as_can_be() -> None:
    assert [len(head(TEXT, size)) for size in (0, 125, 126, 65535, 65536)] == [2, 2, 4, 4, 10]


# -- a client of others at our server -------------------------------------------------------------------------------


def text(method: str, *params: Any, **members: Any) -> str:
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": list(params), **members}).decode()


async def next_of(socket: ClientConnection | ServerConnection) -> Any:
    message = await asyncio.wait_for(socket.recv(), 20)
    assert isinstance(message, str), "a reply is text"
    return orjson.loads(message)


def url_of(served: Served) -> str:
    return f"ws://{served.address}/"


async def test_a_foreign_client_calls_and_is_called(served: Served) -> None:
    offered: Any = ["chat", "jsonrpc"]
    async with foreign_connect(url_of(served), subprotocols=offered, ping_interval=0.01) as socket:
        assert socket.subprotocol == "jsonrpc"
        await socket.send(text("add", 1, 2, id="b").encode())
        assert await next_of(socket) == reply("b", 3)
        await socket.send("[" + text("add", 1, 2, id=1) + "," + text("note", 7) + "," + text("add", 3, 4, id=2) + "]")
        assert await next_of(socket) == [reply(1, 3), reply(2, 7)]
        await socket.send("{")
        assert (await next_of(socket))["error"]["code"] == -32700
        await socket.send(text("ask", "double", 20, id=1))
        question = await next_of(socket)
        assert (question["method"], question["params"]) == ("double", [20])
        await socket.send(orjson.dumps(reply(question["id"], 40)).decode())
        assert await next_of(socket) == reply(1, 40)
        await socket.send(text("count", 3, id=1, stream=2))
        assert [(await next_of(socket))["params"]["value"] for _ in range(2)] == [0, 1]
        await socket.send(orjson.dumps(notification("$/credit", id=1, n=5)).decode())
        assert (await next_of(socket))["params"]["value"] == 2
        assert await next_of(socket) == reply(1, None)
        await socket.send(text("wait", id=2))
        await until(lambda: served.server.begun)
        await socket.send(orjson.dumps(notification("$/cancelRequest", id=2)).decode())
        assert (await next_of(socket))["error"]["code"] == -32800
        for payload in (b"", b"x" * 125):
            await asyncio.wait_for(await socket.ping(payload), 20)
        await socket.send(text("rpc.subscribe", "ticks", id=1))
        assert "result" in await next_of(socket)
        for value in range(3):
            assert served.server.publish("ticks", value) == 1
        assert [(await next_of(socket))["params"]["value"] for _ in range(3)] == [0, 1, 2]
        for number in range(100):
            await socket.send(text("note", number))
    # Notifications before a goodbye are carried out.
    await until(lambda: len(served.server.noted) == 101 and not served.server.topics)
    assert served.server.noted == [7, *range(100)]
    assert served.server.stats()["closed_for_limits"] == 0


@pytest.mark.parametrize("size", [10, 1000, 100_000, 3_000_000])
async def test_messages_of_any_size_and_in_fragments(served: Served, size: int) -> None:
    value = "ä" * (size // 2)
    message = text("echo", value, id=1)
    whole, third = message.encode(), len(message) // 3
    async with foreign_connect(url_of(served), max_size=None) as socket:
        for sent in (
            message,
            [message[:third], "", message[third : 2 * third], message[2 * third :]],
            [whole[:third], whole[third:]],
        ):
            await socket.send(sent)
            assert await next_of(socket) == reply(1, value)


async def test_a_foreign_client_closes(served: Served) -> None:
    socket = await foreign_connect(url_of(served))
    await socket.send(text("wait", id=1))
    await until(lambda: served.server.begun)
    await socket.close(4001, "I have seen enough")
    assert socket.close_code == 4001
    await until(lambda: served.server.ended == [(None, "CancelledError")])


async def test_the_server_says_goodbye_when_all_is_answered(served: Served) -> None:
    async with foreign_connect(url_of(served)) as socket:
        await socket.send(text("wait", id=1))
        await until(lambda: served.server.begun)
        served.server.stop()
        farewell = await next_of(socket)
        await socket.send(text("add", 1, 2, id=2))  # comes too late
        served.server.release()
        assert (farewell["method"], farewell["params"]["last"]) == ("$/goAway", 1)
        assert await next_of(socket) == reply(1, None)
        with pytest.raises(ConnectionClosedOK):
            await socket.recv()
        assert socket.close_code == 1001


async def test_one_too_many_is_told_so(serve: Serve) -> None:
    served = await serve(max_connections=1)
    async with foreign_connect(url_of(served)):
        with pytest.raises(InvalidStatus, match="503"):
            await foreign_connect(url_of(served))


# -- our client at a server of others -------------------------------------------------------------------------------


def double(value: int) -> int:
    return value * 2


async def test_our_client_at_a_foreign_server() -> None:
    seen: list[Any] = []
    ended = asyncio.Event()

    async def answer(socket: ServerConnection) -> None:
        async for message in socket:
            assert isinstance(message, str), "a request is text"
            asked = orjson.loads(message)
            seen.append(asked)
            if asked.get("method") == "add":
                await socket.ping()
                said = orjson.dumps(reply(asked["id"], sum(asked["params"])))
                await socket.send([said[:5], said[5:]])
            elif asked.get("method") == "ask_back":
                await socket.send(text("double", 4, id="theirs"))
            elif asked.get("id") == "theirs":
                await socket.send(orjson.dumps(reply(seen[-2]["id"], asked["result"])).decode())
        assert socket.close_code == 1000
        ended.set()

    async with foreign_serve(answer, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"ws://127.0.0.1:{port}/") as client:
            client(double)
            assert await client.call("add", 1, 2) == 3
            assert await client.call("ask_back") == 8
            await client.notify("note", "x" * 100_000)
        await asyncio.wait_for(ended.wait(), 20)
    note, farewell = seen[-2:]
    assert note["params"] == ["x" * 100_000]
    # It may be called, so it says which request of the server it has read last.
    assert (farewell["method"], farewell["params"]["last"]) == ("$/goAway", "theirs")


async def test_a_foreign_server_closes_while_a_call_waits() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(1011, "out of paper")

    async with foreign_serve(leave, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"ws://127.0.0.1:{port}/") as client:
            with pytest.raises(ConnectionLost, match="1011, out of paper"):
                await client.call("add", 1, 2)


async def test_a_trace_sees_every_message(served: Served) -> None:
    seen: list[tuple[str, Any]] = []
    async with AsyncClient(
        url_of(served), trace=lambda way, message: seen.append((way, orjson.loads(message)))
    ) as client:
        assert await client.call("echo", ["x" * 200_000]) == ["x" * 200_000]
        assert await client.call("add", 1, 2) == 3
    assert [way for way, _ in seen] == ["send", "receive"] * 2
    assert [message["result"] for way, message in seen if way == "receive"] == [["x" * 200_000], 3]
