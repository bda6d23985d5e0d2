"""WebSocket with well-behaved peers: the handshake, frames, and conversations with other libraries."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as foreign_connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as foreign_serve

from rpcstream import AsyncClient, ConnectionLost
from rpcstream.wire.frames import TEXT, FrameReader, frame, masked_parts
from rpcstream.wire.http_messages import Request
from rpcstream.wire.upgrade import UpgradeRefusedError, accept_upgrade, check_response, request_upgrade

from ..kit import reply, until
from ..kit.websocket import ACCEPTED
from .conftest import Served

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
        (asked(upgrade="h2c"), 400, "Upgrade"),
        (asked(connection="keep-alive"), 400, "Connection"),
        (asked(sec_websocket_key="c2hvcnQ="), 400, "Key"),
        (asked(sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ=="), 400, "Key"),
        (asked(sec_websocket_key="\xe4" * 24), 400, "Key"),
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
        ("localhost", "rpc", {}),
        ("localhost", "/ä", {}),
        ("localhost", "/", {"X": "1\r\nY: 2"}),
        ("localhost", "/", {"X\r\nY": "1"}),
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
        (ANSWER.replace(ACCEPTED, "AAAA"), 101, "Sec-WebSocket-Accept"),
        (ANSWER.replace("Sec-WebSocket-Accept", "X-Accept"), 101, "Sec-WebSocket-Accept"),
        (ANSWER.replace("Upgrade: WebSocket", "Upgrade: h2c"), 101, "other than WebSocket"),
        (ANSWER.replace("Connection: upgrade", "Connection: close"), 101, "other than WebSocket"),
        (ANSWER.replace("Upgrade: ", "Upgrade "), 101, "not a header"),
        (ANSWER.replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), 101, "not offered"),
        (ANSWER.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n"), 101, "not offered"),
        ('{"jsonrpc": "2.0"}', None, "not HTTP"),
        ("\xff\xfe", None, "not HTTP"),
    ],
)
def test_an_answer_that_is_none(answer: str, status: int | None, text: str) -> None:
    with pytest.raises(UpgradeRefusedError, match=text) as caught:
        check_response(answer.encode("latin-1"), GOOD["sec-websocket-key"])
    assert caught.value.status == status


@pytest.mark.parametrize("sizes", [[3, 5, 1, 0, 70_000, 2], [70_001, 1], [0], [4, 4]])
def test_a_message_in_pieces_is_masked_as_one(sizes: list[int]) -> None:
    parts = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    message = b"".join(parts)
    reader = FrameReader(masked=True, max_size=1 << 20)
    assert reader.feed(b"".join(masked_parts(TEXT, len(message), parts))) == [message]


def test_two_messages_are_not_masked_alike() -> None:
    assert len({frame(TEXT, b"the same", masked=True) for _ in range(8)}) > 1


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
        await socket.send(text("ask", "double", 20, id=1))
        question = await next_of(socket)
        assert (question["method"], question["params"]) == ("double", [20])
        await socket.send(orjson.dumps(reply(question["id"], 40)).decode())
        assert await next_of(socket) == reply(1, 40)
        for payload in (b"", b"x" * 125):
            await asyncio.wait_for(await socket.ping(payload), 20)
        for number in range(100):
            await socket.send(text("note", number))
    # Notifications before a goodbye are carried out.
    await until(lambda: len(served.server.noted) == 100)
    assert served.server.noted == [*range(100)]
    assert served.server.stats()["closed_for_limits"] == 0


async def test_our_client_at_a_foreign_server() -> None:
    seen: list[Any] = []
    ended = asyncio.Event()

    async def answer(socket: ServerConnection) -> None:
        async for message in socket:
            assert isinstance(message, str), "a request is text"
            seen.append(orjson.loads(message))
            if seen[-1].get("method") == "add":
                await socket.ping()
                said = orjson.dumps(reply(seen[-1]["id"], sum(seen[-1]["params"])))
                await socket.send([said[:5], said[5:]])
        assert socket.close_code == 1000
        ended.set()

    async with foreign_serve(answer, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"ws://127.0.0.1:{port}/") as client:
            assert await client.call("add", 1, 2) == 3
            await client.notify("note", "x" * 100_000)
        await asyncio.wait_for(ended.wait(), 20)
    assert seen[1]["params"] == ["x" * 100_000]


async def test_a_foreign_server_closes_while_a_call_waits() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(1011, "out of paper")

    async with foreign_serve(leave, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"ws://127.0.0.1:{port}/") as client:
            with pytest.raises(ConnectionLost, match="1011, out of paper"):
                await client.call("add", 1, 2)
