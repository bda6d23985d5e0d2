"""Accepting connections: exhausted descriptors, unfinished handshakes, and which connection makes room."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from rpcstream import Limits, Server
from rpcstream.process import LoopName, loop_factory
from rpcstream.tls import TLS, client_context
from rpcstream.transports import accept
from rpcstream.transports.open_connections import UnauthenticatedConnections

from ..internals import fail_accepts, listener_of, remembered_hosts
from ..kit import until
from ..kit.raw_connection import raw_connections

PING = b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}'
SHOW_TOKEN = b'{"jsonrpc":"2.0","id":1,"method":"rpc.authenticate","params":["secret"]}'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The authority's certificate, and the server's with its key."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    return folder / "ca.pem", folder / "server.pem"


@pytest.fixture(params=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    name: LoopName = request.param
    with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
        yield runner


# -- no more descriptors --------------------------------------------------------------------------------------------

_STARVED = """
import logging, resource, sys
from rpcstream import Server
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
logging.basicConfig(level=logging.INFO)
server = Server()

@server
def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

server.run(port=0, loop=sys.argv[1], on_listening=lambda address: print(address, flush=True))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of open files")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_no_more_descriptors(loop: str, tmp_path: Path) -> None:
    """Those that are connected are served, newcomers wait and are served later, and little is said of it."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    log = tmp_path / "log"
    with log.open("wb") as errors, contextlib.ExitStack() as stack:
        server = subprocess.Popen([sys.executable, "-c", _STARVED, loop], stdout=subprocess.PIPE, stderr=errors)
        stack.callback(server.communicate)
        stack.callback(server.kill)
        assert server.stdout is not None
        host, _, port = server.stdout.readline().decode().strip().rpartition(":")

        def connect() -> socket.socket:
            made = stack.enter_context(socket.create_connection((host, int(port))))
            made.settimeout(30)
            return made

        def ask(made: socket.socket, method: str = "spent") -> Any:
            made.sendall(orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method}) + b"\n")
            return orjson.loads(made.makefile("rb").readline())["result"]

        first = connect()
        before = ask(first)
        others = [connect() for _ in range(80)]
        while not log.stat().st_size:
            assert ask(first)
        for _ in range(200):  # it is served all the time
            spent = ask(first) - before
        assert spent < 5
        last = connect()
        for each in others:
            each.close()
        assert ask(last, "rpc.ping") == "pong"
        assert "Too many open files" in log.read_text()
        assert log.stat().st_size < 4000


async def test_a_connection_that_is_gone_before_it_is_taken_is_no_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    async with raw_connections(server) as connect:
        failures = [OSError(number, "gone") for number in (errno.ECONNABORTED, errno.EPERM, errno.EPROTO)]
        fail_accepts(server, failures)
        assert (await (await connect()).ask(PING))["result"] == "pong"
        assert not failures


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_accepting_goes_on_after_a_pause(
    number: int, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept, "PAUSE", 0.05)
    server = Server()

    async def main() -> None:
        async with raw_connections(server) as connect:
            failures = [OSError(number, os.strerror(number)) for _ in range(3)]
            fail_accepts(server, failures)
            assert (await (await connect()).ask(PING))["result"] == "pong"
            assert not failures

    runner.run(main())
    assert caplog.text.count("no connection can be accepted") == 1


async def test_strangers_give_way_when_there_are_no_more_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept, "PAUSE", 1000.0)
    server = Server(token="secret")
    async with raw_connections(server) as connect:
        known, stranger = await connect(), await connect()
        assert (await known.ask(SHOW_TOKEN))["result"] is True
        await until(lambda: len(listener_of(server).connections) == 2)
        fail_accepts(server, [OSError(errno.EMFILE, "Too many open files")])
        newcomer = await connect()
        assert (await newcomer.ask(SHOW_TOKEN))["result"] is True
        assert await stranger.is_over()
        assert (await known.ask(PING))["result"] == "pong"


# -- handshakes -----------------------------------------------------------------------------------------------------


def tls_server(files: tuple[Path, Path], *, token: str | None = None, **limits: Any) -> Server:
    return Server(tls=TLS(certificate=files[1]), token=token, limits=Limits(**limits))


def test_half_a_handshake_takes_a_place_and_gives_way(files: tuple[Path, Path], runner: asyncio.Runner) -> None:
    server = tls_server(files, max_connections=3)

    async def main() -> None:
        async with raw_connections(server, tls=client_context(ca=files[0])) as connect:
            first = await connect()
            assert (await first.ask(PING))["result"] == "pong"
            halves = [await connect(in_clear=True) for _ in range(4)]
            halves[0].writer.write(b"\x16\x03\x01")
            await until(lambda: len(listener_of(server).connections) == 3)
            assert await halves[0].is_over()
            assert await halves[1].is_over()
            assert server.counters.connections == 1
            newcomer = await connect()
            assert (await newcomer.ask(PING))["result"] == "pong"
            assert await halves[2].is_over()
            last = await connect()
            assert (await last.ask(PING))["result"] == "pong"
            refused = await connect()
            assert (await refused.reply())["error"]["code"] == -32002
            assert (await first.ask(PING))["result"] == "pong"

    runner.run(main())


@pytest.mark.parametrize("limits", [{"handshake_timeout": 0.2}, {"message_timeout": 0.2}, {"auth_timeout": 0.2}])
def test_half_a_handshake_ends_in_its_time(
    files: tuple[Path, Path], runner: asyncio.Runner, limits: dict[str, Any]
) -> None:
    server = tls_server(files, token="secret", **limits)

    async def main() -> None:
        async with raw_connections(server, tls=client_context(ca=files[0])) as connect:
            silent, begun = await connect(in_clear=True), await connect(in_clear=True)
            begun.writer.write(b"\x16\x03\x01\x02\x00\x01")
            assert await silent.is_over()
            assert await begun.is_over()
            await until(lambda: not listener_of(server).connections)

    runner.run(main())


def test_a_server_that_stops_does_not_wait_for_handshakes(files: tuple[Path, Path], runner: asyncio.Runner) -> None:
    server = tls_server(files, handshake_timeout=None, message_timeout=None)

    async def main() -> None:
        async with raw_connections(server, tls=client_context(ca=files[0])) as connect:
            half = await connect(in_clear=True)
            await until(lambda: listener_of(server).connections)
            listener = listener_of(server)
            await listener.stop_accepting()
            await listener.closed()
            assert await half.is_over()

    runner.run(main())


def test_only_so_many_newcomers_are_told_that_all_places_are_taken(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpcstream.transports.open_connections.MAX_REFUSED", 2)
    monkeypatch.setattr("rpcstream.transports.detect.REFUSAL", 1000.0)
    server = Server(limits=Limits(max_connections=1))

    async def main() -> None:
        async with raw_connections(server) as connect:
            first = await connect()
            assert (await first.ask(PING))["result"] == "pong"
            others = [await connect() for _ in range(6)]
            await until(lambda: server.counters.connections_refused == 6)
            for other in others[2:]:
                assert await other.is_over()
            assert [(await other.ask(PING))["error"]["code"] for other in others[:2]] == [-32002, -32002]
            assert (await first.ask(PING))["result"] == "pong"

    runner.run(main())


# -- strangers ------------------------------------------------------------------------------------------------------


def test_strangers_do_not_take_the_places_of_others(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture) -> None:
    """The oldest connection without authentication is closed for each new one; authenticated ones stay."""
    server = Server(token="secret", limits=Limits(max_connections=3))

    async def main() -> None:
        async with raw_connections(server) as connect:
            known = await connect()
            assert (await known.ask(SHOW_TOKEN))["result"] is True
            strangers = [await connect() for _ in range(6)]
            for each in strangers[:4]:
                assert await each.is_over()
            newcomer = await connect()
            assert (await newcomer.ask(SHOW_TOKEN))["result"] is True
            another = await connect()
            assert (await another.ask(SHOW_TOKEN))["result"] is True
            refused = await connect()
            assert (await refused.reply())["error"]["code"] == -32002
            assert (await known.ask(PING))["result"] == "pong"

    with caplog.at_level(logging.WARNING):
        runner.run(main())
    assert "it has not shown who it is" in caplog.text


async def test_those_without_authentication_do_not_give_way() -> None:
    server = Server(limits=Limits(max_connections=1))
    async with raw_connections(server) as connect:
        silent = await connect()
        await until(lambda: listener_of(server).connections)
        refused = await connect()
        assert (await refused.reply())["error"]["code"] == -32002
        assert (await silent.ask(PING))["result"] == "pong"


class Peer:
    """A connection with an address, and whether its peer has authenticated."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_known = False


def test_a_host_takes_its_places_from_itself() -> None:
    strangers = UnauthenticatedConnections()
    flood = [Peer(f"[::1]:{port}") for port in range(1, 4)]
    quiet, later = Peer("192.0.2.1:1"), Peer("192.0.2.2:1")
    for peer in (quiet, *flood):
        strangers.add(peer)  # type: ignore[arg-type]
    taken = [strangers.take(Peer("[::1]:9")) for _ in range(2)]  # type: ignore[arg-type]
    assert taken == flood[:2]
    flood[2].is_known = True
    assert strangers.take(later) is quiet  # type: ignore[arg-type]
    assert strangers.take(later) is None  # type: ignore[arg-type]
    assert flood[2] not in strangers
    strangers.add(later)  # type: ignore[arg-type]
    assert strangers.take(None) is later
    strangers.discard(later)  # type: ignore[arg-type]
    assert not remembered_hosts(strangers)


# -- where ----------------------------------------------------------------------------------------------------------


async def test_every_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
    bound = await accept.bound_tcp("localhost", 0)
    try:
        assert 1 <= len(bound) <= len(found)
        assert {each.family for each in bound} <= {each[0] for each in found}
    finally:
        for each in bound:
            each.close()


async def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1:{port}") as failed:
            async with Server().listening(port=port):
                pass
        assert failed.value.errno == errno.EADDRINUSE


async def test_a_name_that_is_none() -> None:
    with pytest.raises(OSError, match=r"cannot listen at no\.such\.name\.invalid"):
        async with Server().listening(host="no.such.name.invalid", port=0):
            pass
