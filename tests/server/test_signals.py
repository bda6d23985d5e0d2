"""A server as a process of its own: signals, what its handlers do meanwhile, and the next one at its port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any, Self

import orjson
import pytest

from rpcstream import Client, Server

if sys.platform == "win32":
    pytest.skip("signals", allow_module_level=True)

PROGRAM = """
    import asyncio, gc, logging, os, signal, sys, time
    from contextlib import asynccontextmanager

    from rpcstream import Server

    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

    @asynccontextmanager
    async def lifespan(server):
        os.kill(os.getpid(), signal.SIGHUP)
        try:
            yield
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep({leaving})
            print("left", flush=True)

    server = Server(drain_timeout={drain}, lifespan=lifespan)

    @server
    def ping() -> str:
        return "pong"

    @server
    def frozen() -> int:
        return gc.get_freeze_count()

    @server
    async def wait(seconds: float) -> str:
        print("begun", flush=True)
        await asyncio.sleep(seconds)
        return "done"

    async def go_on():
        print("begun", flush=True)
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    @server
    async def swallow() -> None:
        await go_on()

    @server.batched()
    async def batched(items: list[int]) -> list[int]:
        await go_on()

    @server.get("/page")
    async def page() -> str:
        await go_on()

    def hang() -> None:
        print("begun", flush=True)
        time.sleep(1000)

    server.add(hang, name="thread", offload="thread")
    server.add(hang, name="block")

    @server
    async def to_thread() -> None:
        await asyncio.to_thread(hang)

    @server
    def keep_all() -> None:
        print("begun", flush=True)
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    server.run(port={port}, on_listening=lambda address: print(address, flush=True))
    print("ended", signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, flush=True)
"""

PARAMS: dict[str, list[Any]] = {"wait": [1000], "batched": [1]}


class Process:
    def __init__(self, *, drain: float = 10, leaving: float = 0, port: int = 0) -> None:
        program = textwrap.dedent(PROGRAM).format(drain=drain, leaving=leaving, port=port)
        self.popen = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self._out = self.popen.stdout
        self.address = self.line()
        self.port = int(self.address.rpartition(":")[2]) if ":" in self.address else 0

    def line(self) -> str:
        return self._out.readline().strip()

    def connect(self, *, http: bool = False) -> socket.socket:
        """A connection that has been served, or one for HTTP."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        if not http:
            self.send(connection, "ping")
            assert b"pong" in connection.recv(1000)
        return connection

    def send(self, connection: socket.socket, method: str, *params: Any) -> None:
        if method == "page":
            connection.sendall(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or PARAMS.get(method, [])}
        connection.sendall(orjson.dumps(message) + b"\n")

    def begin(self, connection: socket.socket, method: str, *params: Any) -> None:
        """Call it; it has begun when this returns."""
        self.send(connection, method, *params)
        assert self.line() == "begun"

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.popen.pid, number)

    def wait(self) -> tuple[int, str, str]:
        out, err = self.popen.communicate(timeout=30)
        return self.popen.returncode, out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.popen.kill()
        self.popen.communicate()


def rest(sock: socket.socket) -> list[Any]:
    """All messages until the server closes, without the `$/goAway` that comes first."""
    data = b""
    while received := sock.recv(100_000):
        data += received
    farewell, *messages = map(orjson.loads, data.splitlines())
    assert farewell["method"] == "$/goAway"
    return messages


ENDED = (0, "left\nended True\n", "")
KILLED = 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_lets_calls_in_flight_finish_and_hangup_ends_nothing(number: signal.Signals) -> None:
    with Process(leaving=0.1) as server, server.connect() as idle, server.connect() as busy:
        server.send(idle, "frozen")  # what is there when a program serves is not collected again
        assert orjson.loads(idle.recv(1000))["result"] > 1000
        for _ in range(3):
            server.signal(signal.SIGHUP)
            server.send(idle, "ping")
            assert b"pong" in idle.recv(1000)
        server.begin(busy, "wait", 0.2)
        server.signal(number)
        assert [message["result"] for message in rest(busy)] == ["done"]
        assert rest(idle) == []
        assert server.wait() == ENDED


@pytest.mark.slow
def test_it_stops_under_load_and_the_next_one_is_at_its_port_at_once() -> None:
    """A client that never stops asking does not keep it from stopping; its end of the connection is in TIME_WAIT."""
    with Process() as first:
        with Process(port=first.port) as second:
            code, out, err = second.wait()
            assert (code != 0, out) == (True, "")
            assert f"127.0.0.1:{first.port}" in err
        with first.connect() as busy:
            first.signal()
            with contextlib.suppress(OSError):
                while True:
                    first.send(busy, "ping")
                    if not busy.recv(100_000):
                        break
            assert first.wait()[0] == 0
        with Process(port=first.port) as second:
            assert second.port == first.port


@pytest.mark.parametrize(
    "what", ["wait", *(pytest.param(each, marks=pytest.mark.slow) for each in ("thread", "block"))]
)
def test_a_second_signal_stops_at_once(what: str) -> None:
    with Process(drain=1000) as server, server.connect() as busy:
        server.begin(busy, what)
        server.signal(signal.SIGINT)
        time.sleep(0.2)  # two signals at the very same time are one
        server.signal(signal.SIGINT)
        code, out, err = server.wait()
        assert (code, "ended" in out) == (128 + signal.SIGINT, False)
        assert what == "block" or not err  # uvloop tells where it was interrupted


# -- handlers that do not end ----------------------------------------------------------------------------------------

BLOCKING = [("block", "hang"), ("keep_all", "keep_all")]
LEFT = "abandoned, because they did not end when cancelled: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "status", "out", "says"),
    [
        ("wait", 0, ENDED[1], []),  # it is cancelled at the deadline
        *[(each, 0, ENDED[1], [f"{LEFT}methods '{each}'"]) for each in ("swallow", "batched")],
        ("page", 0, ENDED[1], [f"{LEFT}'page'"]),
        ("thread", 0, ENDED[1], ["methods at work: 'thread'"]),
        ("to_thread", 0, ENDED[1], ["methods at work: 'to_thread'", "run_in_executor did not end and were a"]),
        *[
            (each, KILLED, "", ["exiting at once: the event loop has been blocked", f"in {by}\n"])
            for each, by in BLOCKING
        ],
    ],
)
def test_the_first_signal_ends_the_process_whatever_its_handlers_do(
    method: str, status: int, out: str, says: list[str]
) -> None:
    with Process(drain=0.1) as server, server.connect(http=method == "page") as busy:
        server.begin(busy, method)
        server.signal()
        found = server.wait()
    assert found[:2] == (status, out)
    for each in says:
        assert each in found[2]


@pytest.mark.slow
def test_a_lifespan_that_takes_its_time_is_not_cut_short() -> None:
    with Process(drain=0.1, leaving=2.5) as server, server.connect() as busy:
        server.begin(busy, "swallow")
        server.signal()
        assert server.wait()[:2] == ENDED[:2]


# -- programs of which a server is a part ----------------------------------------------------------------------------


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


def test_a_program_that_was_stopped_may_serve_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):

        def stop(address: str) -> None:
            with Client(address) as client:
                client.close()
            os.kill(os.getpid(), signal.SIGTERM)

        Server().run(port=0, on_listening=stop)
        assert signal.getsignal(signal.SIGTERM) is before
