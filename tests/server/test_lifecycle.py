"""The life of a server in an event loop: its options and addresses, how it starts, and how it stops."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, Hub, Limits, NotAuthenticated, Server
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, RawPeer, UsualServer, authority, request, server_tls, until
from ..kit.http import RawHttpConnection, get
from ..observe.reading import value


async def is_served(address: str, **options: Any) -> bool:
    async with AsyncClient(address, **options) as client:
        return bool(await client.call("rpc.ping") == "pong")


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def begin(server: Server, **where: Any) -> tuple[str, asyncio.Task[None]]:
    """Let a server serve in a task of its own."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with server.listening(port=0, **where) as address:
            listening.set_result(address)
            await until(lambda: not server.is_serving)

    serving = asyncio.create_task(serve())
    return await listening, serving


async def listen_at(server: Server | None = None, **where: Any) -> None:
    """Start a server, and stop it at once."""
    async with (server or Server()).listening(**where):
        pass


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "title"), [(Server, "rpcstream server"), (Hub, "rpcstream hub")])
def test_the_help_has_each_option_with_its_default_and_others_are_refused(kind: type[Server], title: str) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(\) has no option 'limts' \(did you mean 'limits'\?\)$"):
        kind(limts=1)  # type: ignore[call-arg]
    assert kind().info.title == title
    shown = dict(re.findall(r"^    (\w+)=(.+?): ", kind.__doc__ or "", re.MULTILINE))
    assert [shown.pop(name) for name in ("limits", "info")] == ["Limits()", "Info()"]
    assert [shown.pop(name) for name in ("http", "logs")] == ["Http()", "Logs()"]
    assert len(shown) > 15
    kind(**{name: ast.literal_eval(default) for name, default in shown.items()})


def test_the_help_of_run_has_each_option_and_others_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) has no option 'worker' \(did you mean 'workers'\?\)$"):
        Server().run(worker=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^listening\(\) has no option 'prot' \(did you mean 'port'\?\)$"):
        asyncio.run(listen_at(prot=1))
    listed, all_of_run = (
        re.findall(r"^    (\w+)=", function.__doc__ or "", re.MULTILINE) for function in (Server.listening, Server.run)
    )
    assert listed == ["host", "port", "unix", "unix_mode", "sockets"]
    assert all_of_run == [*listed, "workers", "max_requests", "affinity", "memory_limit", "start_timeout"]


async def test_guard_adds_a_certificate_to_a_server() -> None:
    server = UsualServer(token="abc")
    async with server.listening(port=0):
        with pytest.raises(RuntimeError, match="running already"):
            server.guard(tls=server_tls())
    server.guard(tls=server_tls())
    async with server.listening(port=0) as address:
        assert await is_served(f"tls://{address}", tls=authority(), token="abc")
        async with AsyncClient(f"tls://{address}", tls=authority()) as client:
            with pytest.raises(NotAuthenticated):
                await client.add(1, 2)
    with pytest.raises(ValueError, match="already has"):
        server.guard(read_access=lambda: ({"token": "other"}, None))
    with pytest.raises(ValueError, match="a certificate"):
        server.guard(tls=server_tls())


# -- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "begins"),
    [
        ({"port": 0}, "127.0.0.1:"),
        ({"port": 0, "host": "::1"}, "[::1]:"),
        ({"unix": "server.sock"}, "unix://{folder}/server.sock"),
    ],
)
async def test_the_address_is_one_for_clients(
    where: dict[str, Any], begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "host" in where:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    async with (server := Server()).listening(**where) as address:
        assert address.startswith(begins.format(folder=tmp_path))
        assert server.addresses == (address,)
        assert await is_served(address)
    assert not any(tmp_path.iterdir())


async def test_the_file_of_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with Server().listening(unix=path) as address:  # that of a dead server is replaced
        with pytest.raises(OSError, match=str(path)):
            await listen_at(unix=path)
        assert await is_served(address)
    path.write_text("precious")
    with pytest.raises(OSError, match=str(path)):
        await listen_at(unix=path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(("umask", "mode", "found"), [(0o022, 0o666, 0o666), (0o077, None, 0o700)])
async def test_the_permissions_of_a_unix_socket(tmp_path: Path, umask: int, mode: int | None, found: int) -> None:
    before = os.umask(umask)
    try:
        async with Server().listening(unix=tmp_path / "socket", unix_mode=mode) as address:
            assert stat.S_IMODE(os.stat(tmp_path / "socket").st_mode) == found
            assert await is_served(address)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


async def test_other_than_loopback_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rpcstream.server"):
        async with Server().listening(port=0):
            assert not caplog.records
        async with Server().listening(host="0.0.0.0", port=0):
            assert "no authentication" in caplog.text
        caplog.clear()
        async with Server(token="t", tls=server_tls()).listening(host="0.0.0.0", port=0):
            assert not caplog.records
        async with Server(token="t").listening(host="0.0.0.0", port=0):
            assert "tokens cross the network unencrypted" in caplog.text


def test_limits_are_numbers() -> None:
    with pytest.raises(TypeError, match="max_message_size must be a number, got '100M'"):
        Limits(max_message_size="100M")  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
def test_run_takes_all_files_that_the_system_permits() -> None:
    program = (
        "import resource; from rpcstream import Server; server = Server(); files = resource.RLIMIT_NOFILE\n"
        "resource.setrlimit(files, (100, resource.getrlimit(files)[1]))\n"
        "server.run(port=0, on_listening=lambda address: (print(*resource.getrlimit(files)), server.stop()))"
    )
    soft, hard = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert soft == hard


# -- lifespan -------------------------------------------------------------------------------------------------------


class Lifespan:
    """Notes the tasks that it begins and ends in; waits for `go_on`, and raises what is set."""

    fails: Exception | None = None
    fails_at_end: Exception | None = None

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.go_on = asyncio.Event()

    @contextlib.asynccontextmanager
    async def __call__(self, server: Server) -> AsyncIterator[None]:
        server.state.model = "a model"
        self.events.append(asyncio.current_task())
        try:
            await self.go_on.wait()
            if self.fails:
                raise self.fails
            yield
        finally:
            self.events.append(asyncio.current_task())
        if self.fails_at_end:
            raise self.fails_at_end


async def test_the_lifespan_surrounds_everything_in_one_task() -> None:
    server = UsualServer(lifespan=(lifespan := Lifespan()))
    lifespan.go_on.set()

    @server
    async def use() -> str:
        lifespan.events.append("begin")
        await server.call_wait()
        lifespan.events.append("end")
        return str(server.state.model)

    async with server.listening(port=0) as address, AsyncClient(address) as client:
        call = client.submit.use()
        await until(lambda: server.begun)
        server.stop()
        await until(lambda: not server.addresses)
        server.release()
        assert await call == "a model"  # calls in flight finish
    first, *between, last = lifespan.events
    assert between == ["begin", "end"]
    assert first is last is asyncio.current_task()


def test_a_slow_lifespan_is_named(caplog: pytest.LogCaptureFixture) -> None:
    @contextlib.asynccontextmanager
    async def slow(server: Server) -> AsyncIterator[None]:
        await asyncio.sleep(7)
        yield

    async def start_and_stop() -> None:
        async with Server(lifespan=slow).in_memory():
            pass

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(start_and_stop())
    assert caplog.messages == ["the lifespan has run for 5 s: connections are accepted when it is done"]


async def test_errors_of_the_lifespan_are_those_of_who_starts_or_closes() -> None:
    server = Server(lifespan=(lifespan := Lifespan()))
    lifespan.go_on.set()
    lifespan.fails = LookupError("no model")
    for _ in range(2):
        with pytest.raises(LookupError, match="no model"):
            await listen_at(server, port=0)
    lifespan.fails, lifespan.fails_at_end = None, LookupError("not closed")
    with pytest.raises(LookupError, match="not closed"):
        await listen_at(server, port=0)


async def test_a_start_may_be_cancelled_or_stopped_before_it_listens() -> None:
    server = Server(lifespan=(lifespan := Lifespan()))
    starting = asyncio.create_task(listen_at(server, port=0))
    await until(lambda: lifespan.events)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert len(lifespan.events) == 2
    assert not server.is_serving
    serving = asyncio.create_task(listen_at(server, port=0))
    await until(lambda: len(lifespan.events) == 3)
    server.stop()
    lifespan.go_on.set()
    await serving
    assert server.addresses == ()


# -- start and stop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Server, Hub])
async def test_a_server_listens_once_at_a_time_and_may_listen_again(kind: type[Server]) -> None:
    server = kind()
    for _ in range(2):
        async with server.listening(port=0) as address:
            with pytest.raises(RuntimeError, match="running already"):
                await listen_at(server, port=0)
            assert await is_served(address)
            with pytest.raises(OSError, match=r"cannot listen at 127\.0\.0\.1"):
                await listen_at(port=place(address)[1])
        assert server.addresses == ()
        with pytest.raises(ConnectFailed):
            await is_served(address)


async def test_a_handler_may_stop_the_server() -> None:
    server = UsualServer()
    server.add(server.stop, name="stop")
    address, serving = await begin(server)
    raw = await RawPeer.open(address)
    assert await raw.ask(request("stop")) == {"jsonrpc": "2.0", "id": 1, "result": None}
    assert await raw.rest() == []
    raw.close()
    await serving
    server.stop()  # nothing to stop


async def test_a_server_that_is_stopped_within_the_block_ends_there() -> None:
    server = UsualServer()
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        call = client.submit.wait("done")
        await until(lambda: server.begun)
        server.stop()
        await until(lambda: not server.addresses)
        server.release()
        assert await call == "done"
        await until(lambda: not server.is_serving)
        with pytest.raises(ConnectFailed):
            await is_served(address)


async def test_cancelling_the_block_drains_and_cancelling_the_drain_ends_at_once() -> None:
    server = UsualServer(drain_timeout=1000)
    address, serving = await begin(server)
    async with AsyncClient(address) as client:
        call = client.submit.wait("done")
        await until(lambda: server.begun)
        serving.cancel()
        await until(lambda: not server.addresses)
        server.release()
        assert await call == "done"
        with pytest.raises(asyncio.CancelledError):
            await serving
    other = UsualServer(drain_timeout=1000)
    address, serving = await begin(other)
    async with AsyncClient(address) as client:
        call = client.submit.wait()
        await until(lambda: other.begun)
        serving.cancel()
        await until(lambda: not other.addresses)
        serving.cancel()
        await asyncio.wait([serving])
        assert not other.is_serving
        call.cancel()


def test_connections_that_come_while_the_server_stops_are_closed() -> None:
    """Also those that plain asyncio has accepted and not made yet, which it would forget with an open socket."""

    async def come_and_stop(turns: int) -> None:
        callers: list[socket.socket] = []
        async with Server(drain_timeout=5).listening(port=0) as address:
            await asyncio.sleep(0.01)
            callers += [socket.create_connection(place(address), timeout=20) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
        for caller in callers:
            with contextlib.suppress(ConnectionResetError):
                assert caller.recv(1) == b""
            caller.close()

    async def main() -> None:
        await asyncio.gather(*map(come_and_stop, (0, 1, 3)))

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(main())
    gc.collect()


def test_handlers_that_swallow_their_cancellation_are_left_to_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server, release = UsualServer(drain_timeout=0.01), asyncio.Event()
        ended: list[int] = []

        async def swallow() -> None:
            server.begun.append(0)
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()
            ended.append(0)

        for number in range(12):
            server.add(swallow, name=f"m{number:02}")
        async with TRANSPORTS["memory"].serving(server, None) as endpoint:
            raw = await endpoint.raw()
            raw.send(*[request(f"m{number:02}", id=number) for number in range(12)])
            await until(lambda: len(server.begun) == 12)
        assert re.search("they did not end when cancelled: methods 'm.*'m09' and 2 more", caplog.text)
        assert not ended
        release.set()
        await until(lambda: len(ended) == 12)
        raw.close()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())


async def test_a_server_among_others_leaves_the_collector_and_signals_alone() -> None:
    before = gc.get_freeze_count(), signal.getsignal(signal.SIGTERM)
    async with Server().listening(port=0):
        assert (gc.get_freeze_count(), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(RuntimeError, match=r"use `async with server\.listening\(\):`"):
        Server().run(port=0)


# -- what waits when a server stops ----------------------------------------------------------------------------------


async def test_what_is_in_line_when_the_time_is_up_is_made_again_at_the_next_server() -> None:
    first, second = [UsualServer(limits=Limits(max_calls=1), metrics=True, drain_timeout=each) for each in (0.05, 5)]
    second.release()
    async with first.listening(port=0) as address:
        client = AsyncClient(address, reconnect=True)
        calls = [client.submit.wait(number) for number in range(4)]
        await until(lambda: value(first.metrics_text(), "rpcstream_requests_waiting") == 3)
    async with second.listening(port=place(address)[1]):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
    assert isinstance(outcomes[0], ConnectionLost)
    assert (outcomes[0].executed, outcomes[1:]) == (None, [1, 2, 3])
    assert (first.begun, second.begun) == ([0], [1, 2, 3])


async def test_a_websocket_that_is_made_while_the_server_stops_is_told_so() -> None:
    """Its handshake comes on a connection that had sent nothing when the server began to stop."""
    address, serving = await begin(server := Server())
    reader, writer = await asyncio.open_connection(*place(address))
    await until(lambda: server.counters.connections == 1)
    server.stop()
    await until(lambda: not server.addresses)
    keys = ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
    writer.write(get("/", "Upgrade: websocket", "Connection: Upgrade", *keys))
    received = await asyncio.wait_for(reader.readuntil(b"$/goAway"), 5)
    assert received.startswith(b"HTTP/1.1 101 ")
    writer.write(b"\x88\x80" + bytes(4))  # the answer to its close frame
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await asyncio.wait_for(serving, 5)


async def test_with_a_drain_delay_it_is_not_ready_but_serves_on() -> None:
    address, serving = await begin(server := Server(drain_delay=60))

    async def status(path: str) -> int:
        http = RawHttpConnection(*await asyncio.open_connection(*place(address)))
        answer = await http.ask(get(path, "Connection: close"))
        await http.close()
        return answer.status

    assert await status("/readyz") == 200
    server.stop()
    async with asyncio.timeout(20):
        while await status("/readyz") == 200:
            pass
    assert (await status("/readyz"), await status("/healthz")) == (503, 200)
    assert await is_served(address)
    server.abort()  # nobody need wait any more
    await asyncio.wait_for(serving, 20)
