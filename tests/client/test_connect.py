"""Every kind of address: the same calls with the same results, against a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcstream import AsyncClient, Client, ConnectFailed, InvalidParams, MethodNotFound, NotAuthenticated, RpcError
from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, authority, request, server_tls, until, until_in_thread
from ..kit.scripted_http import CountedConnections, ScriptedHttpConnection, answered
from .conftest import MakeClient, Scripted, Traced

KINDS = ["tcp", "tls", "unix", "http", "https", "http+unix", "ws", "wss"]
#: The same fault has the same exit status, however the server is reached; and the scheme that does not fit there.
MIXED_UP = {"tcp": "tls", "tls": "tcp", "http": "https", "https": "http", "ws": "wss", "wss": "ws"}
TOKEN = "open-sesame"


class Place:
    """Where a server is, and how a client comes there."""

    def __init__(self, kind: str, address: str, server: UsualServer | None = None) -> None:
        self.kind = kind
        self.server: Any = server
        self.uri = f"{kind}://{address.removeprefix('unix://')}"
        self.options: dict[str, Any] = {"ca": authority()} if kind in ("tls", "https", "wss") else {}

    def command(self, *arguments: str, trusts: bool = True) -> int:
        """The exit status of the command line."""
        ca = ["--ca", str(self.options["ca"])] if self.options and trusts else []
        return main(["--uri", self.uri, *ca, *arguments])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Place]]]:
    """`places = start(**options of the servers)`: one for each kind; they end with the module."""
    folder = tmp_path_factory.mktemp("transports")
    with ExitStack() as stack:

        def all_kinds(**options: Any) -> dict[str, Place]:
            places = {}
            for kind in KINDS:
                tls = server_tls() if kind in ("tls", "https", "wss") else None
                server = UsualServer(drain_timeout=0.2, tls=tls, **options)
                unix = folder / f"{kind} {len(options)}" if kind.endswith("unix") else None
                address = stack.enter_context(serve_in_thread(server, unix=unix))
                places[kind] = Place(kind, address.removeprefix("tls://"), server)
            return places

        yield all_kinds


@pytest.fixture(scope="module")
def places(start: Callable[..., dict[str, Place]]) -> dict[str, Place]:
    return start()


@pytest.fixture(scope="module")
def guarded_places(start: Callable[..., dict[str, Place]]) -> dict[str, Place]:
    return start(token=TOKEN)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    return places[request.param]


@pytest.fixture
def guarded(place: Place, guarded_places: dict[str, Place]) -> Place:
    """The same with a token."""
    return guarded_places[place.kind]


@pytest.fixture
def client(place: Place, make_client: MakeClient) -> Any:
    return make_client(place.uri, **place.options)


# -- the same everywhere --------------------------------------------------------------------------------------------


def test_calls(client: Any) -> None:
    assert client.call("add", 2, 3) == client.call("add", a=2, b=3) == 5
    with pytest.raises(MethodNotFound):
        client.call("nothing")
    with pytest.raises(InvalidParams):
        client.call("add", 1, "x")
    with pytest.raises(RpcError, match="as asked") as caught:
        client.call("fail", 77)
    assert caught.value.code == 77
    assert client(request("add", 1, 1, id="own"))["result"] == 2
    assert client.together(*[("add", n, n) for n in range(100)]) == [2 * n for n in range(100)]
    good, bad = client.batch(("add", 1, 2), ("fail", 5))
    assert (good.result(), bad.error.code) == (3, 5)
    assert client.call("count", 5) == client.call("count", 5, on_progress=print) == [0, 1, 2, 3, 4]
    said: list[Any] = []
    assert client.call("progress", 3, on_progress=said.append) == 3
    assert said[-1:] == [2]


@pytest.mark.parametrize("binary", [True, False])
def test_arrays(place: Place, make_client: MakeClient, binary: bool) -> None:
    """As binary frames in both directions, once each end knows of the other; as base64 where that is off."""
    client = make_client(place.uri, binary=binary, trace=(traced := Traced()), **place.options)
    values = np.arange(300_000, dtype=np.float32)
    for _ in range(3):
        assert np.array_equal(client.call("array", values), values * 2)
    frames = [way for way, message in traced.messages if message[:1] == b"@"]
    assert frames[-2:] == (["send", "receive"] if binary else [])


def test_notifications_and_calls_that_are_given_up(client: Any, place: Place) -> None:
    """The server is told how long the caller waits, or else that it waits no longer."""
    name = f"{place.kind} {id(client)}"
    client.notify("note", name)
    until_in_thread(lambda: name in place.server.noted)
    with pytest.raises(TimeoutError):
        client.call("wait", name, timeout=0.2)
    until_in_thread(lambda: (name, "CancelledError") in place.server.ended)


async def test_streams_and_cancelled_calls(place: Place) -> None:
    async with AsyncClient(place.uri, **place.options) as client:
        assert [n async for n in client.stream.count(1000)] == list(range(1000))
        slow = client.stream.count(3000)  # one reader is slow: the others go on
        assert await anext(slow) == 0
        assert [n async for n in client.stream.count(100)] == list(range(100))
        assert [n async for n in slow] == list(range(1, 3000))
        async with client.stream.count(10**9) as left:
            assert [await anext(left) for _ in range(3)] == [0, 1, 2]
        waiting = client.submit.wait("cancelled")
        await until(lambda: "cancelled" in place.server.begun)
        waiting.cancel()
        await until(lambda: ("cancelled", "CancelledError") in place.server.ended)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("http")])
def test_a_conversation(places: dict[str, Place], kind: str) -> None:
    place = places[kind]
    with Client(place.uri, **place.options) as client, client.subscribe("ticks") as ticks:
        client(lambda question: f"{question} yes", name="confirm")
        assert client.ask("confirm", "really?") == "really? yes"
        assert client.total(iter(range(50))) == sum(range(50))
        for n in range(20):
            place.server.publish("ticks", n)
        assert [next(ticks) for _ in range(20)] == list(range(20))


def test_bytes_that_come_are_told_before_they_are_handled(place: Place, make_client: MakeClient) -> None:
    told: list[str] = []
    client = make_client(
        place.uri,
        on_receive=lambda size: told.append("some" if size > 0 else "none"),
        trace=lambda direction, _: told.append(direction),
        **place.options,
    )
    assert client.call("add", 1, 1) == 2
    assert told[told.index("send") + 1] == "some"
    assert "none" not in told


# -- who may call ---------------------------------------------------------------------------------------------------


def test_a_token(place: Place, guarded: Place, make_client: MakeClient) -> None:
    traced = Traced()
    client = make_client(guarded.uri, token=TOKEN, trace=traced, **guarded.options)
    assert client.call("add", 2, 3) == 5
    assert client.together(*[("add", n, n) for n in range(20)]) == [2 * n for n in range(20)]
    assert TOKEN.encode() not in b"".join(message for _, message in traced.messages)
    assert make_client(place.uri, token=TOKEN, **place.options).call("add", 1, 1) == 2  # nobody asked for it
    for token in ("wr0ng-secret", None):
        other = make_client(guarded.uri, token=token, **guarded.options)
        with pytest.raises(NotAuthenticated, match="method 'add' at ") as caught:
            other.call("add", 2, 3)
        assert "wr0ng" not in f"{caught.value!r} {caught.value} {other.client!r}"


def test_the_command_line(
    place: Place, guarded: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RPCSTREAM_TOKEN", raising=False)
    where = tmp_path / "none.sock" if place.kind.endswith("unix") else "127.0.0.1:1"
    nowhere = Place(place.kind, f"{where}")
    for there, arguments, status in (
        (place, ["add", "a=2", "b=3"], 0),
        (place, ["--stream", "count", "n=3"], 0),
        (place, ["--notify", "add", "a=1", "b=2"], 0),
        (place, ["nothing"], 1),
        (place, ["add", "a=1"], 1),
        (place, ["fail", "code=77"], 1),
        (place, ["--timeout", "0.05", "wait"], 4),
        (guarded, ["add", "a=1", "b=2"], 1),
        (guarded, ["--token", "wr0ng", "add", "a=1", "b=2"], 1),
        (guarded, ["--token", "wr0ng", "--stream", "count", "n=2"], 1),
        (guarded, ["--token", "wr0ng", "--list"], 1),
        (guarded, ["--token", TOKEN, "add", "a=1", "b=6"], 0),
        (nowhere, ["add"], 3),
        (nowhere, ["--notify", "add"], 3),
        (nowhere, ["--stream", "count"], 3),
    ):
        assert there.command(*arguments) == status, arguments
    monkeypatch.setenv("RPCSTREAM_TOKEN", TOKEN)
    assert guarded.command("add", "a=1", "b=7", "-v") == 0
    found = capsys.readouterr()
    assert found.out.split() == ["5", "0", "1", "2", "7", "8"]
    assert TOKEN not in found.err
    assert "wr0ng" not in found.err


def test_the_command_line_without_a_connection(place: Place, places: dict[str, Place], tmp_path: Path) -> None:
    if place.options:
        assert place.command("add", trusts=False) == 3
    if place.kind in MIXED_UP:
        assert Place(place.kind, places[MIXED_UP[place.kind]].uri.partition("://")[2]).command("add") == 3
    # A server that takes the connection, and then closes it.
    is_unix = place.kind.endswith("unix")
    listening = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
    listening.bind(str(tmp_path / "s") if is_unix else ("127.0.0.1", 0))
    listening.listen()

    def accept() -> None:
        connection, _ = listening.accept()
        connection.recv(4096)
        connection.close()

    thread = threading.Thread(target=accept)
    thread.start()
    where = f"{tmp_path / 's'}" if is_unix else f"127.0.0.1:{listening.getsockname()[1]}"
    assert Place(place.kind, where).command("add") == 3
    thread.join()
    listening.close()


# -- the handshake of a WebSocket -----------------------------------------------------------------------------------


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
    ],
)
def test_a_handshake_that_fails(scripted: Scripted, make_client: MakeClient, answer: bytes, said: str) -> None:
    def script(line: Any) -> None:
        while (data := line.socket.recv(4096)) and not data.endswith(b"\r\n\r\n"):
            pass
        line.socket.sendall(answer)

    address = scripted(script)
    client = make_client(f"ws://{address}/rpc", token="s3cret")
    with pytest.raises(RpcError if said.startswith(r"\[") else ConnectFailed, match=said) as caught:
        client.call("add", 1, 2)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).count(address) == 1


def test_a_handshake_without_an_answer(scripted: Scripted, make_client: MakeClient) -> None:
    ended = threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        http.read()
        assert http.read() is None
        ended.set()

    client = make_client(f"ws://{scripted(CountedConnections(script))}", connect_timeout=0.1)
    with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
        client.call("add", 1, 2)
    assert ended.wait(20)


async def test_the_first_of_several_servers_that_can_be_reached(free_address: str, face: Callable[..., Any]) -> None:
    """Of the line stream: in the order of the address, also when they connect again."""
    servers = [UsualServer(drain_timeout=1), UsualServer(drain_timeout=1)]
    for number, server in enumerate(servers):
        server.add(lambda number=number: number, name="which")
    second, first = await servers[1].start(port=0), await servers[0].start(port=0)
    address = f"{free_address},{first},{second}"
    async with face(address, reconnect=True) as lasting:
        assert await lasting.which() == 0
        await servers[0].close()
        assert await lasting.which(wait_for=20) == 1
    async with face(address) as alone:
        assert await alone.which() == 1
        await servers[1].close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectFailed, match="no server listens"):
            await alone.which()
