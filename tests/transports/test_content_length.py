"""Connections that begin with a header of the Language Server Protocol speak that framing, both ways."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ..kit import RawPeer, notification, reply, request
from ..kit.messages import as_bytes
from .conftest import Serve


def headed(message: Any) -> bytes:
    body = as_bytes(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class HeadedPeer(RawPeer):
    """A raw peer that writes and reads headers."""

    _data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while found := re.match(rb"Content-Length: (\d+)\r\n\r\n", self._data):
            begin, end = found.end(), found.end() + int(found[1])
            if len(self._data) < end:
                break
            self.inbox.append(self._data[begin:end])
            self._data = self._data[end:]
        self._rouse()

    def send(self, *messages: Any) -> None:
        self.write(b"".join(map(headed, messages)))


async def connected(serve: Serve, **options: Any) -> HeadedPeer:
    peer: HeadedPeer = await (await serve(**options)).line(HeadedPeer)
    return peer


async def test_calls_are_answered_in_the_same_framing(serve: Serve) -> None:
    peer = await connected(serve)
    assert await peer.reply("add", 1, 2) == reply(1, 3)
    long = "\u00e9\n" * 200_000
    assert await peer.result("echo", long) == long
    assert [each["result"] for each in await peer.ask([request("add", n, n) for n in range(3)])] == [0, 2, 4]
    peer.call("ask", "answer", "what?", id="a")
    asked = await peer.receive()
    assert (asked["method"], asked["params"]) == ("answer", ["what?"])
    peer.answer(asked, "this")
    assert await peer.receive() == reply("a", "this")
    peer.send(request("wait", id=7), notification("$/cancelRequest", id=7))
    assert await peer.code() == -32800


async def test_a_token_is_the_first_message(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcstream.auth.gate.MAX_AUTH_MESSAGE", 1000)
    options = {"token": "secret"}
    assert await (await connected(serve, **options)).code("add", 1, 2) == -32005
    assert "error" in await (await connected(serve, **options)).reply("rpc.authenticate", "x" * 1000)
    peer = await connected(serve, **options)
    assert await peer.result("rpc.authenticate", "secret") is True
    assert await peer.result("add", 1, 2) == 3


@pytest.mark.parametrize(
    ("body", "id", "codes"),
    [
        *[(body, None, (-32700, -32600)) for body in (b"", b" ", b"{", b"{} {}", b'@2 2 {}"1"', b"\n")],
        (request("echo", "x" * 10_000, id=5), 5, (-32001,)),
    ],
)
async def test_what_is_no_message_is_answered_and_the_next_is_carried_out(
    serve: Serve, body: Any, id: Any, codes: tuple[int, ...]
) -> None:
    peer = await connected(serve, max_message_size=10_000)
    answer = await peer.ask(body)
    assert answer["id"] == id
    assert answer["error"]["code"] in codes
    assert await peer.result("add", 1, 2) == 3


@pytest.mark.parametrize(
    ("stream", "ends", "reason"),
    [
        (b"Content-Length: -5\r\n\r\n", False, ""),
        (b"Content-Length: " + b"1" * 5000, False, ""),
        (b'Content-Length: 100\r\n\r\n{"jsonrpc"', True, "ended within a message"),
        (b"Content-Length: 10\r\n\r\n{", False, "message_timeout"),
    ],
)
async def test_what_cannot_be_read_gets_one_error_and_the_connection_closes(
    serve: Serve, stream: bytes, ends: bool, reason: str
) -> None:
    peer = await connected(serve, message_timeout=0.1)
    peer.write(stream)
    if ends:
        peer.end()
    [answer] = await peer.rest()
    assert answer["error"]["code"] in (-32700, -32600)
    assert answer["error"]["data"]["reason"]
    assert reason in answer["error"]["data"]["reason"]
