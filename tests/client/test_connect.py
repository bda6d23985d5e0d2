"""Every kind of address: the same calls with the same results, against a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from rpcstream import (
    AsyncClient,
    CallTimeout,
    Client,
    ConnectFailed,
    Context,
    DeadlineExceeded,
    InvalidParams,
    MethodNotFound,
    NotAuthenticated,
    RpcError,
    Server,
)
from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread
from rpcstream.tls import TLS

from ..internals import settings_of
from ..kit import until_in_thread
from ..kit.scripted_http import CountedConnections, ScriptedHttpConnection, answered

KINDS = ["tcp", "tls", "unix", "http", "https", "http+unix", "ws", "wss"]
LASTING = [kind for kind in KINDS if not kind.startswith("http")]
TOKEN = "open sesame".replace(" ", "-")

MakeClient = Callable[..., Any]


class Place:
    """Where a server is, and how a client comes there."""

    def __init__(self, kind: str, address: str, ca: Path) -> None:
        self.kind = kind
        self.uri = f"{kind}://{address.removeprefix('unix://')}"
        self.options: dict[str, Any] = {"ca": ca} if kind in ("tls", "https", "wss") else {}


def make_server(**options: Any) -> Server:
    server = Server(drain_timeout=0.2, **options)
    gone: list[str] = []

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def double(values: np.ndarray) -> np.ndarray:
        return values * 2

    @server
    def fail(code: int) -> None:
        raise RpcError(code, "as wanted", {"x": 1})

    @server
    async def never(name: str = "") -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(name)

    @server
    def ended() -> list[str]:
        return gone

    @server
    def note(value: Any) -> None:
        gone.append(value)

    @server
    async def count(upto: int, text: str = "") -> AsyncIterator[Any]:
        for n in range(upto):
            yield [n, text] if text else n

    @server
    async def work(ctx: Context) -> str:
        for n in range(3):
            ctx.progress(n)
            await asyncio.sleep(0.01)
        return "done"

    @server
    def tick(n: int) -> int:
        return server.publish("ticks", n)

    @server
    async def ask(ctx: Context) -> Any:
        return await ctx.peer.confirm("really?")

    @server
    async def total(values: AsyncIterator[int]) -> int:
        return sum([value async for value in values])

    return server


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Place]]:
    """`place = start(kind, **options of the server)`; servers end with the module."""
    folder = tmp_path_factory.mktemp("transports")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    with ExitStack() as stack:

        def one(kind: str, **options: Any) -> Place:
            if kind in ("tls", "https", "wss"):
                options["tls"] = TLS(certificate=folder / "server.pem")
            number = len(list(folder.iterdir()))
            unix = folder / f"{number}.sock" if kind.endswith("unix") else None
            return Place(
                kind, stack.enter_context(serve_in_thread(make_server(**options), unix=unix)), folder / "ca.pem"
            )

        yield one


@pytest.fixture(scope="module")
def places(start: Callable[..., Place]) -> dict[str, Place]:
    return {kind: start(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def guarded(start: Callable[..., Place]) -> dict[str, Place]:
    """The same server, with a token."""
    return {kind: start(kind, token=TOKEN) for kind in KINDS}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    return places[request.param]


@pytest.fixture
def client(place: Place, make_client: MakeClient) -> Any:
    return make_client(place.uri, **place.options)


# -- the same everywhere --------------------------------------------------------------------------------------------


def test_calls(client: Any) -> None:
    assert client.call("add", 2, 3) == 5
    assert client.call("add", a=2, b=3) == 5
    with pytest.raises(MethodNotFound):
        client.call("nothing")
    with pytest.raises(InvalidParams):
        client.call("add", 1, "x")
    with pytest.raises(RpcError, match="as wanted") as caught:
        client.call("fail", 77)
    assert caught.value.code == 77
    assert client({"jsonrpc": "2.0", "id": "own", "method": "add", "params": [1, 1]})["result"] == 2


@pytest.mark.parametrize("binary", [True, False])
def test_arrays(place: Place, make_client: MakeClient, binary: bool) -> None:
    """As binary frames in both directions, once each end knows of the other; as base64 where that is off."""
    seen: list[tuple[str, bytes]] = []
    options = {**place.options, "binary": binary, "trace": lambda way, message: seen.append((way, message[:1]))}
    client = make_client(place.uri, **options)
    values = np.arange(300_000, dtype=np.float32)
    for _ in range(3):
        assert np.array_equal(client.call("double", values), values * 2)
    frames = [way for way, first in seen if first == b"@"]
    assert set(frames) == ({"send", "receive"} if binary else set())
    assert frames[-2:] == (["send", "receive"] if binary else [])


def test_many_at_once_and_in_a_batch(client: Any) -> None:
    assert client.together(*[("add", n, n) for n in range(100)]) == [2 * n for n in range(100)]
    good, bad = client.batch(("add", 1, 2), ("fail", 5))
    assert good.result() == 3
    assert bad.error.code == 5


def test_notifications(client: Any, place: Place) -> None:
    name = f"{place.kind} {id(client)}"
    client.notify("note", name)
    until_in_thread(lambda: name in client.call("ended"))


def test_time_is_over(client: Any, place: Place) -> None:
    """The server is told how long the caller waits, or else that it waits no longer."""
    name = f"late {place.kind} {id(client)}"
    assert client.call("ended") is not None  # so that the time is not spent on connecting
    with pytest.raises((CallTimeout, DeadlineExceeded)):
        client.call("never", name, timeout=0.2)
    until_in_thread(lambda: name in client.call("ended"))


def test_progress(client: Any) -> None:
    said: list[Any] = []
    assert client.call("work", on_progress=said.append) == "done"
    assert said
    assert said == sorted(set(said))


def test_items_as_one_array(client: Any) -> None:
    assert client.call("count", 5) == [0, 1, 2, 3, 4]
    assert client.call("count", 5, on_progress=print) == [0, 1, 2, 3, 4]


async def test_streams(place: Place) -> None:
    text = "x" * 5000
    async with AsyncClient(place.uri, **place.options) as client:
        assert [n async for n in client.stream.count(1000)] == list(range(1000))
        # One reader is slow: the others go on.
        slow = client.stream.count(2000, text)
        assert await anext(slow) == [0, text]
        assert [n async for n in client.stream.count(100)] == list(range(100))
        assert [n async for n, _ in slow] == list(range(1, 2000))
        async with client.stream.count(10**9) as left:
            assert [await anext(left) for _ in range(3)] == [0, 1, 2]
        assert await client.add(1, 2) == 3


async def test_a_call_that_is_cancelled(place: Place) -> None:
    name = f"cancelled {place.kind}"
    async with AsyncClient(place.uri, **place.options) as client:
        await client.add(1, 2)
        waiting = client.submit.never(name)
        await asyncio.sleep(0.02)
        waiting.cancel()
        for _ in range(1000):
            if name in await client.ended():
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the handler was not cancelled")


def test_closing_fails_what_waits(place: Place) -> None:
    from rpcstream import ConnectionLost

    client = Client(place.uri, **place.options)
    future = client.submit("never")
    assert client.submit("add", 1, 2).result(20) == 3
    client.close()
    assert isinstance(future.exception(20), ConnectionLost)
    with pytest.raises(RuntimeError, match="closed client"):
        client.add(1, 2)


def test_the_command_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--uri", place.uri, *(["--ca", str(place.options["ca"])] if place.options else [])]
    assert main([*where, "add", "a=2", "b=3"]) == 0
    assert main([*where, "--stream", "count", "upto=3"]) == 0
    assert main([*where, "nothing"]) == 1
    found = capsys.readouterr()
    assert found.out.split() == ["5", "0", "1", "2"]
    assert "Method not found" in found.err


# -- what lasts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LASTING)
def test_a_conversation(places: dict[str, Place], kind: str) -> None:
    place = places[kind]
    with Client(place.uri, **place.options) as client:

        @client
        def confirm(question: str) -> str:
            return f"{question} yes"

        assert client.ask() == "really? yes"
        assert client.total(iter(range(50))) == sum(range(50))


@pytest.mark.parametrize("kind", LASTING)
async def test_events(places: dict[str, Place], kind: str) -> None:
    place = places[kind]
    async with AsyncClient(place.uri, **place.options) as client, client.subscribe("ticks") as ticks:
        for n in range(20):
            await client.tick(n)
        assert [await anext(ticks) for _ in range(20)] == list(range(20))


# -- who may call ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_token(guarded: dict[str, Place], make_client: MakeClient, kind: str) -> None:
    place = guarded[kind]
    client = make_client(place.uri, token=TOKEN, **place.options)
    assert client.call("add", 2, 3) == 5
    assert client.together(*[("add", n, n) for n in range(20)]) == [2 * n for n in range(20)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", ["wr0ng-secret", None])
def test_a_wrong_token_or_none(
    guarded: dict[str, Place], make_client: MakeClient, kind: str, token: str | None
) -> None:
    place = guarded[kind]
    client = make_client(place.uri, token=token, **place.options)
    with pytest.raises(NotAuthenticated, match="method 'add' at ") as caught:
        client.call("add", 2, 3)
    assert "wr0ng" not in f"{caught.value!r} {caught.value} {client.client!r} {settings_of(client.client)!r}"


def test_a_token_that_nobody_asked_for(places: dict[str, Place], make_client: MakeClient) -> None:
    for place in places.values():
        assert make_client(place.uri, token=TOKEN, **place.options).call("add", 1, 1) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_not_traced(guarded: dict[str, Place], make_client: MakeClient, kind: str) -> None:
    traced: list[bytes] = []
    place = guarded[kind]
    client = make_client(place.uri, token=TOKEN, trace=lambda _, message: traced.append(message), **place.options)
    assert client.call("add", 1, 1) == 2
    assert traced
    assert TOKEN.encode() not in b"".join(traced)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_come_are_told_before_they_are_handled(
    places: dict[str, Place], make_client: MakeClient, kind: str
) -> None:
    told: list[str] = []
    place = places[kind]
    client = make_client(
        place.uri,
        on_receive=lambda size: told.append("some" if size > 0 else "none"),
        trace=lambda direction, _: told.append(direction),
        **place.options,
    )
    assert client.call("add", 1, 1) == 2
    answer = told[told.index("send") + 1 :]
    assert answer[0] == "some"
    assert "none" not in told


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_and_the_token(
    guarded: dict[str, Place], kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = guarded[kind]
    call = ["--uri", place.uri, *(["--ca", str(place.options["ca"])] if place.options else []), "add", "a=2", "b=3"]
    monkeypatch.delenv("RPCSTREAM_TOKEN", raising=False)
    assert main(call) == 1
    assert main([*call, "--token", TOKEN]) == 0
    monkeypatch.setenv("RPCSTREAM_TOKEN", TOKEN)
    assert main([*call, "-v"]) == 0
    assert main([*call, "--token", "wr0ng-secret"]) == 1
    found = capsys.readouterr()
    assert found.out.split() == ["5", "5"]
    assert TOKEN not in found.err
    assert "wr0ng" not in found.err


@pytest.mark.parametrize("kind", KINDS)
class TestExitStatus:
    """The same fault has the same exit status, however the server is reached."""

    @staticmethod
    def status(place: Place, *arguments: str, trusts: bool = True) -> int:
        ca = ["--ca", str(place.options["ca"])] if place.options and trusts else []
        return main(["--uri", place.uri, *ca, *arguments])

    def test_a_result_and_errors(
        self, places: dict[str, Place], guarded: dict[str, Place], kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RPCSTREAM_TOKEN", raising=False)
        assert self.status(places[kind], "add", "a=1", "b=2") == 0
        assert self.status(places[kind], "--notify", "add", "a=1", "b=2") == 0
        assert self.status(places[kind], "no-such-method") == 1
        assert self.status(places[kind], "add", "a=1") == 1
        assert self.status(places[kind], "fail", "code=77") == 1
        assert self.status(guarded[kind], "add", "a=1", "b=2") == 1
        assert self.status(guarded[kind], "--token", "wrong", "add", "a=1", "b=2") == 1
        assert self.status(guarded[kind], "--token", "wrong", "--stream", "count", "upto=2") == 1
        assert self.status(guarded[kind], "--token", "wrong", "--list") == 1
        assert self.status(places[kind], "--timeout", "0.05", "never") == 4

    def test_no_connection(self, places: dict[str, Place], kind: str, tmp_path: Path) -> None:
        where = tmp_path / "none.sock" if kind.endswith("unix") else "127.0.0.1:1"
        nowhere = Place(kind, f"{where}", places[kind].options.get("ca", tmp_path))
        assert self.status(nowhere, "add") == 3
        assert self.status(nowhere, "--notify", "add") == 3
        assert self.status(nowhere, "--stream", "count") == 3
        if places[kind].options:
            assert self.status(places[kind], "add", trusts=False) == 3
        mixed_up = {"tcp": "tls", "tls": "tcp", "http": "https", "https": "http", "ws": "wss", "wss": "ws"}.get(kind)
        if mixed_up is not None:
            there = Place(kind, places[mixed_up].uri.partition("://")[2], places["tls"].options["ca"])
            assert self.status(there, "add") == 3

    def test_a_lost_connection(self, places: dict[str, Place], kind: str, tmp_path: Path) -> None:
        """A server that takes the connection, and then closes it."""
        is_unix = kind.endswith("unix")
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
        assert self.status(Place(kind, where, places[kind].options.get("ca", tmp_path)), "add") == 3
        thread.join()
        listening.close()


def test_the_command_line_and_wrong_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--uri", "https://127.0.0.1:1", "--ca", str(tmp_path / "none.pem"), "add"]) == 2
    assert main(["--uri", "127.0.0.1:1", "--ca", "x.pem", "add"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


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
def test_a_handshake_that_fails(
    scripted: Callable[..., str], make_client: MakeClient, answer: bytes, said: str
) -> None:
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


def test_a_handshake_without_an_answer(scripted: Callable[..., str], make_client: MakeClient) -> None:
    ended = threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        http.read()
        assert http.read() is None
        ended.set()

    client = make_client(f"ws://{scripted(CountedConnections(script))}", connect_timeout=0.1)
    with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
        client.call("add", 1, 2)
    assert ended.wait(20)


def which_answers(address: str) -> int:
    """The number of the server that a new client of these reaches."""
    with Client(address) as client:
        return client.call("which", returns=int)


async def test_the_first_of_several_servers_that_can_be_reached() -> None:
    """Of the line stream: by both clients, in the order of the address, also when they connect again."""
    servers = [Server(drain_timeout=1), Server(drain_timeout=1)]
    for number, server in enumerate(servers):
        server.add(lambda number=number: number, name="which")
    with socket.socket() as free:  # where nothing listens
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
        second = await servers[1].start(port=0)
        first = await servers[0].start(port=0)
        address = f"{nowhere},{first},{second}"
        assert await asyncio.to_thread(which_answers, address) == 0
        async with AsyncClient(address, reconnect=True) as lasting:
            assert await lasting.call("which") == 0
            await servers[0].close()
            assert await lasting.call("which", wait_for=20) == 1
        assert await asyncio.to_thread(which_answers, address) == 1
        await servers[1].close()
        with pytest.raises(ConnectFailed, match="no server listens"):
            await asyncio.to_thread(which_answers, address)
        async with AsyncClient(address) as alone:
            with pytest.raises(ConnectFailed, match="no server listens"):
                await alone.call("which")
