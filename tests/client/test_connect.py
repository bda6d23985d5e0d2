"""Every kind of address: the same calls with the same results, against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

import numpy as np
import pytest

from rpcstream import Client, ConnectFailed, InvalidParams, MethodNotFound, NotAuthenticated, RpcError, Trace
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, authority, request, server_tls, until_in_thread
from ..kit.scripted_http import answered
from .conftest import MakeClient, Scripted, Traced

KINDS = ["tcp", "tls", "unix", "http", "https", "http+unix", "ws", "wss"]
TOKEN = "open-sesame"


class Place(NamedTuple):
    """A server, how a client comes there, and the address of another one that asks for a token."""

    kind: str
    server: UsualServer
    uri: str
    guarded: str
    options: dict[str, Any]


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    kind = request.param
    tls = server_tls() if kind in ("tls", "https", "wss") else None
    servers = [UsualServer(drain_timeout=0.2, tls=tls, token=token) for token in (None, TOKEN)]
    with ExitStack() as stack:
        uris = []
        for server in servers:
            unix = tmp_path_factory.mktemp("place") / "a socket" if kind.endswith("unix") else None
            address = stack.enter_context(serve_in_thread(server, unix=unix))
            uris.append(f"{kind}://{address.removeprefix('tls://').removeprefix('unix://')}")
        yield Place(kind, servers[0], uris[0], uris[1], {"tls": authority()} if tls is not None else {})


def test_calls(place: Place, make_client: MakeClient) -> None:
    """The server is told how long the caller waits, or else that it waits no longer."""
    told: list[str] = []
    trace = Trace(message=lambda direction, _: told.append(direction))
    client = make_client(place.uri, trace=trace, **place.options)
    assert client.call("add", 2, 3) == client.call("add", a=2, b=3) == 5
    assert told == ["send", "receive"] * 2
    with pytest.raises(MethodNotFound):
        client.call("nothing")
    with pytest.raises(InvalidParams):
        client.call("add", 1, "x")
    with pytest.raises(RpcError, match="as asked") as caught:
        client.call("fail", 77)
    assert caught.value.code == 77
    assert client(request("add", 1, 1, id="own"))["result"] == 2
    assert client.together(*[("add", n, n) for n in range(20)]) == [2 * n for n in range(20)]
    good, bad = client.batch(("add", 1, 2), ("fail", 5))
    assert (good.result(), bad.error.code) == (3, 5)
    assert client.call("count", 5) == client.call("count", 5, on_progress=print) == [0, 1, 2, 3, 4]
    said: list[Any] = []
    assert client.call("progress", 3, on_progress=said.append) == 3
    assert said[-1:] == [2]
    name = f"{place.kind} {id(client)}"
    client.notify("note", name)
    until_in_thread(lambda: name in place.server.noted)
    with pytest.raises(TimeoutError):
        client.call("wait", name, timeout=0.1)
    until_in_thread(lambda: (name, "CancelledError") in place.server.ended)


@pytest.mark.parametrize("binary", [True, False])
def test_arrays(place: Place, make_client: MakeClient, binary: bool) -> None:
    """As binary frames in both directions, once each end knows of the other; as base64 where that is off."""
    client = make_client(place.uri, binary=binary, trace=(traced := Traced()), **place.options)
    values = np.arange(30_000, dtype=np.float32)
    for _ in range(3):
        assert np.array_equal(client.call("array", values), values * 2)
    frames = [way for way, message in traced.messages if b" + payloads of " in message]
    assert frames[-2:] == (["send", "receive"] if binary else [])


@pytest.mark.parametrize("place", [kind for kind in KINDS if not kind.startswith("http")], indirect=True)
def test_a_conversation(place: Place) -> None:
    with Client(place.uri, **place.options) as client, client.subscribe("ticks") as ticks:
        client(lambda question: f"{question} yes", name="confirm")
        assert client.ask("confirm", "really?") == "really? yes"
        assert client.total(iter(range(50))) == sum(range(50))
        for n in range(20):
            place.server.publish("ticks", n)
        assert [next(ticks) for _ in range(20)] == list(range(20))


def test_a_token(place: Place, make_client: MakeClient) -> None:
    traced = Traced()
    client = make_client(place.guarded, token=TOKEN, trace=traced, **place.options)
    assert client.call("add", 2, 3) == 5
    assert client.together(*[("add", n, n) for n in range(5)]) == [2 * n for n in range(5)]
    assert TOKEN.encode() not in b"".join(message for _, message in traced.messages)
    assert make_client(place.uri, token=TOKEN, **place.options).call("add", 1, 1) == 2  # nobody asked for it
    for token in ("wr0ng-secret", None):
        other = make_client(place.guarded, token=token, **place.options)
        with pytest.raises(NotAuthenticated, match="method 'add' at ") as caught:
            other.call("add", 2, 3)
        assert "wr0ng" not in f"{caught.value!r} {caught.value} {other.client!r}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answered(b"who are you?", "401 Unauthorized"), r"\[-32005\].*401 Unauthorized: who are you\?"),
        (answered(b"not you", "403 Forbidden"), r"\[-32006\].*403 Forbidden: not you"),
        (answered(b"later", "503 Service Unavailable"), r"\[-32002\].*503 Service Unavailable: later"),
        (answered(b"", "404 Not Found"), "404 Not Found"),
        (answered(b"hello"), "200 OK: hello"),
        (b"SSH-2.0\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "Sec-WebSocket-Accept"),
        (b"HTTP/1.1 101 Switching\r\nUpgr", "closed the connection in the handshake"),
        (b"", "closed the connection in the handshake"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000, "longer than 65536 bytes"),
        (None, r"within 0\.1 s"),
    ],
)
def test_a_handshake_that_fails(scripted: Scripted, make_client: MakeClient, answer: Any, said: str) -> None:
    ended = threading.Event()

    def script(line: Any) -> None:
        while (data := line.socket.recv(4096)) and not data.endswith(b"\r\n\r\n"):
            pass
        if answer is None:
            assert line.read() is None
        else:
            line.socket.sendall(answer)
        ended.set()

    address = scripted(script)
    client = make_client(f"ws://{address}/rpc", token="s3cret", connect_timeout=0.1 if answer is None else 20)
    with pytest.raises(RpcError if said.startswith(r"\[") else ConnectFailed, match=said) as caught:
        client.call("add", 1, 2)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).count(address) == 1
    assert ended.wait(20)


async def test_the_first_of_several_servers_that_can_be_reached(free_address: str, face: Callable[..., Any]) -> None:
    """Of the line stream: in the order of the address, also when they connect again."""
    servers = [UsualServer(drain_timeout=1), UsualServer(drain_timeout=1)]
    for number, server in enumerate(servers):
        server.add(lambda number=number: number, name="which")
    async with AsyncExitStack() as second_block, AsyncExitStack() as first_block:
        second = await second_block.enter_async_context(servers[1].listening(port=0))
        first = await first_block.enter_async_context(servers[0].listening(port=0))
        address = f"{free_address},{first},{second}"
        async with face(address, reconnect=True) as lasting:
            assert await lasting.which() == 0
            await first_block.aclose()
            assert await lasting.which(wait_for=20) == 1
        async with face(address) as alone:
            assert await alone.which() == 1
            await second_block.aclose()
            await asyncio.sleep(0)
            with pytest.raises(ConnectFailed, match="no server listens"):
                await alone.which()
