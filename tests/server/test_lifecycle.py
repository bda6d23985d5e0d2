"""A server as a process: start, signals, restart, and its addresses."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Client, Limits, Server

PROGRAM = """
    import asyncio, gc, sys, time
    from rpcstream import Server

    server = Server(drain_timeout={drain})

    @server
    def ping() -> str:
        return "pong"

    @server
    def frozen() -> int:
        return gc.get_freeze_count()

    @server
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @server
    def block(seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return "done"

    @server(offload="thread")
    def hang() -> None:
        time.sleep(1000)

    server.run(port={port}, on_listening=lambda address: print(address, flush=True))
    print("ended", flush=True)
"""


class Process:
    def __init__(self, *, drain: float = 10, port: int = 0) -> None:
        program = textwrap.dedent(PROGRAM).format(drain=drain, port=port)
        self.popen = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.address = self.popen.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2]) if self.address else 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def send(self, connection: socket.socket, method: str, *params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params, "id": 1}
        connection.sendall(orjson.dumps(message) + b"\n")

    def wait(self) -> tuple[int, str, str]:
        out, err = self.popen.communicate(timeout=30)
        return self.popen.returncode, out, err


@contextlib.contextmanager
def process(**options: Any) -> Iterator[Process]:
    started = Process(**options)
    try:
        yield started
    finally:
        started.popen.kill()
        started.popen.communicate()


def rest(sock: socket.socket) -> list[Any]:
    """All messages until the server closes, without the `$/goAway` that comes first."""
    data = b""
    while received := sock.recv(100_000):
        data += received
    farewell, *messages = map(orjson.loads, data.splitlines())
    assert farewell["method"] == "$/goAway"
    return messages


def test_hangup_ends_neither_a_server_nor_one_that_starts() -> None:
    program = """
        import contextlib, os, signal
        from rpcstream import Server

        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

        @contextlib.asynccontextmanager
        async def lifespan(server):
            os.kill(os.getpid(), signal.SIGHUP)
            yield
            os.kill(os.getpid(), signal.SIGHUP)

        server = Server(lifespan=lifespan)

        @server
        def hang_up() -> None:
            os.kill(os.getpid(), signal.SIGHUP)

        server.run(port=0, on_listening=lambda address: print(address, flush=True))
        print("ended", signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        with Client(popen.stdout.readline().strip()) as client:
            for _ in range(3):
                client.call("hang_up")
            popen.send_signal(signal.SIGHUP)
            assert client.call("rpc.ping") == "pong"
        popen.send_signal(signal.SIGTERM)
        assert popen.stdout.read() == "ended True\n"
    assert popen.returncode == 0


def test_the_handler_that_a_program_has_for_hangup_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
    server = Server()

    def hang_up(address: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        server.stop()

    try:
        server.run(port=0, on_listening=hang_up)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGHUP]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_calls_in_flight_finish(number: signal.Signals) -> None:
    with process() as server, server.connect() as idle, server.connect() as busy:
        server.send(busy, "ping")
        assert b"pong" in busy.recv(1000)
        server.send(busy, "wait", 0.3)
        server.send(idle, "ping")
        assert b"pong" in idle.recv(1000)
        os.kill(server.popen.pid, number)
        assert [message["result"] for message in rest(busy)] == ["done"]
        assert rest(idle) == []
        code, out, _ = server.wait()
        assert (code, out) == (0, "ended\n")


def test_calls_that_do_not_finish_are_closed_at_the_deadline() -> None:
    with process(drain=0.2) as server, server.connect() as busy:
        server.send(busy, "wait", 1000)
        server.send(busy, "ping")
        assert b"pong" in busy.recv(1000)
        os.kill(server.popen.pid, signal.SIGTERM)
        assert rest(busy) == []
        assert server.wait()[0] == 0


@pytest.mark.parametrize("what", ["wait", "hang", "block"])
def test_a_second_signal_stops_at_once(what: str) -> None:
    with process(drain=1000) as server, server.connect() as busy:
        server.send(busy, "ping")
        assert b"pong" in busy.recv(1000)
        server.send(busy, what, *([] if what == "hang" else [1000]))
        time.sleep(0.1)  # the handler should run, but nothing depends on it
        os.kill(server.popen.pid, signal.SIGINT)
        time.sleep(0.2)  # two signals at the very same time are one
        os.kill(server.popen.pid, signal.SIGINT)
        code, out, err = server.wait()
        assert (code, out) == (128 + signal.SIGINT, "")
        assert what == "block" or not err  # uvloop tells where it was interrupted


def test_stops_under_load() -> None:
    """A client that never stops asking does not keep the server from stopping."""
    with process() as server, server.connect() as busy:
        request = orjson.dumps({"jsonrpc": "2.0", "method": "ping", "id": 1}) + b"\n"
        busy.sendall(request)
        assert b"pong" in busy.recv(1000)
        os.kill(server.popen.pid, signal.SIGTERM)
        with contextlib.suppress(OSError):
            while True:
                busy.sendall(request)
                if not busy.recv(100_000):
                    break
        assert server.wait()[0] == 0


def test_restart_on_the_same_port_at_once() -> None:
    with process() as first:
        with first.connect() as connection:
            first.send(connection, "ping")
            assert b"pong" in connection.recv(1000)
            # The server closes first, so its side of the connection stays in TIME_WAIT.
            os.kill(first.popen.pid, signal.SIGTERM)
            assert rest(connection) == []
        assert first.wait()[0] == 0
        with process(port=first.port) as second:
            assert second.port == first.port
            with second.connect() as connection:
                second.send(connection, "ping")
                assert b"pong" in connection.recv(1000)


def test_a_failed_bind_says_which_address_and_exits_non_zero() -> None:
    with process() as first, process(port=first.port) as second:
        code, out, err = second.wait()
        assert code != 0
        assert out == ""
        assert f"127.0.0.1:{first.port}" in err


# -- in this process ------------------------------------------------------------------------------------------------


def make_server(**options: Any) -> Server:
    server = Server(**options)
    server.add(lambda: "pong", name="ping")
    return server


async def test_port_zero_gives_the_address(connect: Any) -> None:
    async with make_server().listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("ping"))["result"] == "pong"


async def test_ipv6(connect: Any) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with make_server().listening(host="::1", port=0) as address:
        assert address.startswith("[::1]:")
        raw = await connect(address)
        assert (await raw.call("ping"))["result"] == "pong"


async def test_unix_socket_and_its_file(connect: Any, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    async with make_server().listening(unix=path) as address:
        assert address == f"unix://{path}"
        raw = await connect(address)
        assert (await raw.call("ping"))["result"] == "pong"
        with pytest.raises(OSError, match=str(path)):
            async with make_server().listening(unix=path):
                pass
        assert (await raw.call("ping"))["result"] == "pong"
    assert not path.exists()


async def test_a_relative_unix_path_gives_an_address_that_is_whole(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with make_server().listening(unix="server.sock") as address:
        assert address == f"unix://{tmp_path / 'server.sock'}"
        raw = await connect(address)
        assert (await raw.call("ping"))["result"] == "pong"


async def test_a_dead_servers_socket_file_is_replaced(connect: Any, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with make_server().listening(unix=path) as address:
        raw = await connect(address)
        assert (await raw.call("ping"))["result"] == "pong"


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    path.write_text("precious")
    with pytest.raises(OSError, match=str(path)):
        async with make_server().listening(unix=path):
            pass
    assert path.read_text() == "precious"


async def test_other_than_loopback_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rpcstream.server"):
        async with make_server().listening(host="127.0.0.1", port=0):
            assert not caplog.records
        async with make_server().listening(host="0.0.0.0", port=0):
            assert "no authentication" in caplog.text


async def test_lifespan_surrounds_everything(connect: Any) -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        events.append("open")
        server.state.model = "a model"
        yield
        events.append("close")

    server = Server(lifespan=lifespan)

    @server
    async def use() -> str:
        events.append("begin")
        await asyncio.sleep(0.05)
        events.append("end")
        return str(server.state.model)

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send('{"jsonrpc":"2.0","method":"use","id":1}\n')
        while "begin" not in events:
            await asyncio.sleep(0)
    assert (await raw.reply())["result"] == "a model"
    assert events == ["open", "begin", "end", "close"]


async def test_a_lifespan_that_fails_is_the_callers_error() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise LookupError("no model")
        yield

    server = Server(lifespan=lifespan)
    for _ in range(2):
        with pytest.raises(LookupError, match="no model"):
            async with server.listening(port=0):
                pass


async def test_one_server_runs_once_at_a_time_but_again(connect: Any) -> None:
    server = make_server()
    for _ in range(2):
        async with server.listening(port=0) as address:
            raw = await connect(address)
            assert (await raw.call("ping"))["result"] == "pong"
            with pytest.raises(RuntimeError, match="running already"):
                await server.serve(port=0)


async def test_serve_until_stop_from_a_handler(connect: Any) -> None:
    server = make_server()
    server.add(server.stop, name="stop")
    listening = asyncio.Event()
    addresses: list[str] = []

    def on_listening(address: str) -> None:
        addresses.append(address)
        listening.set()

    task = asyncio.create_task(server.serve(port=0, on_listening=on_listening))
    await listening.wait()
    raw = await connect(addresses[0])
    assert await raw.call("stop") == {"jsonrpc": "2.0", "id": 1, "result": None}
    assert await raw.reply() is None
    await task
    server.stop()  # nothing to stop


async def test_cancelling_serve_drains(connect: Any) -> None:
    server = make_server()
    started = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.serve(port=0, on_listening=started.set_result))
    raw = await connect(await started)
    assert (await raw.call("ping"))["result"] == "pong"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await raw.reply() is None


async def test_requests_that_were_read_before_the_stop_are_answered(connect: Any) -> None:
    server = Server(limits=Limits(max_calls=1))

    @server
    async def wait() -> str:
        await asyncio.sleep(0.02)
        return "done"

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send('{"jsonrpc":"2.0","method":"wait","id":1}\n' * 5)
        await raw.reply()
    assert len(await raw.rest()) == 4


def test_what_is_there_when_a_program_serves_is_not_collected_again() -> None:
    with process() as program, program.connect() as connection:
        program.send(connection, "frozen")
        reply = orjson.loads(connection.makefile().readline())
    assert reply["result"] > 1000


async def test_a_server_among_others_leaves_the_collector_alone() -> None:
    before = gc.get_freeze_count()
    async with make_server().listening(port=0):
        assert gc.get_freeze_count() == before


def test_connections_that_come_while_the_server_stops_are_closed() -> None:
    """Also those that plain asyncio has accepted and not made yet, which it would forget with an open socket."""

    async def come_and_stop(turns: int) -> None:
        callers: list[socket.socket] = []
        async with Server(drain_timeout=5).listening(port=0) as address:
            await asyncio.sleep(0.01)
            host, _, port = address.rpartition(":")
            callers += [socket.create_connection((host, int(port)), timeout=20) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
        for caller in callers:
            with contextlib.suppress(ConnectionResetError):
                assert caller.recv(1) == b""
            caller.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        for turns in range(5):
            runner.run(come_and_stop(turns))
    gc.collect()


async def test_a_stop_that_is_cancelled_closes_what_listens() -> None:
    server, listening = Server(drain_timeout=5), asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(server.serve(port=0, on_listening=listening.set_result))
    host, _, port = (await listening).rpartition(":")
    for _ in range(3):
        serving.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([serving])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_run_in_a_running_loop_names_what_to_use() -> None:
    with pytest.raises(RuntimeError, match=r"use `await server\.serve\(\)`"):
        Server().run(port=0)


# -- the file of a Unix socket ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_the_file_of_the_socket_has_the_permissions_asked_for(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o022)
    try:
        async with Server().listening(unix=tmp_path / "socket", unix_mode=mode) as address:
            assert stat.S_IMODE(os.stat(tmp_path / "socket").st_mode) == mode
            async with AsyncClient(address) as client:
                assert await client.call("rpc.ping") == "pong"
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


async def test_without_it_the_umask_counts(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        async with Server().listening(unix=tmp_path / "socket"):
            assert stat.S_IMODE(os.stat(tmp_path / "socket").st_mode) == 0o700
    finally:
        os.umask(before)
