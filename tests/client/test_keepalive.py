"""Keep-alive: a silent server is pinged and given up; one that is only idle is kept."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Backoff, Client, ConnectionLost, Server
from rpcstream.testing import FakeTimeLoop, memory_client, serve_in_thread
from rpcstream.transports.memory import join

from ..internals import client_connections
from ..kit import until

Scripted = Callable[[Callable[[Any], None]], str]

AT_ONCE = Backoff(first=0.001, longest=0.01)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a socket that accepts connections, as the system does for it, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_a_silent_server_is_given_up(silent: str) -> None:
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message)  # noqa: E731
    async with AsyncClient(silent, keepalive=0.1, trace=trace) as client:
        calls = [asyncio.create_task(client.work(timeout=None)) for _ in range(3)]
        for call in calls:
            with pytest.raises(ConnectionLost, match=r"sent nothing for 0.1 s, .* \(keepalive\).*'work'"):
                await call
        assert client.state == "idle"
    assert [orjson.loads(message)["id"] for message in sent if b"rpc.ping" in message] == [4], "asked once"


async def test_one_that_waits_for_nothing_learns_it_too(silent: str) -> None:
    async with AsyncClient(silent, keepalive=0.05) as client:
        await client.notify.tell()
        with pytest.raises(ConnectionLost, match="keepalive"):
            await client.wait_closed()


async def test_with_reconnect_it_tries_again(silent: str) -> None:
    states: list[str] = []
    async with AsyncClient(silent, keepalive=0.05, reconnect=AT_ONCE, on_state=states.append):
        await until(lambda: states.count("connected") == 3)


async def test_an_idle_connection_is_kept() -> None:
    server = Server()
    server.add(lambda: "here", name="where")
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message)  # noqa: E731
    async with server.listening(port=0) as address, AsyncClient(address, keepalive=0.1, trace=trace) as client:
        assert await client.where() == "here"
        await until(lambda: sum(b"rpc.ping" in message for message in sent) >= 5)
        (link,) = client_connections(client)
        assert await client.where() == "here"
        assert client_connections(client) == [link]
        assert client.replies_dropped == 0


@pytest.mark.parametrize("error", [-32601, -32005])
async def test_an_error_is_an_answer(scripted: Scripted, error: int) -> None:
    pings = []
    enough = threading.Event()

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            if request["method"] == "rpc.ping":
                pings.append(request)
                line.say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": error, "message": "no"}})
                if len(pings) >= 2:
                    enough.set()

    async with AsyncClient(scripted(script), keepalive=0.4) as client:
        await client.notify.tell()
        assert await asyncio.to_thread(enough.wait, 20)
        assert client.state == "connected"


async def test_a_part_of_a_message_is_a_sign_of_life(scripted: Scripted) -> None:
    """A long message on a slow line: no ping is answered before its end."""

    def script(line: Any) -> None:
        request = line.read()
        reply = orjson.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "x" * 50})
        for byte in reply:
            line.raw(bytes((byte,)))
            time.sleep(0.01)
        line.raw(b"\n")
        line.read()

    async with AsyncClient(scripted(script), keepalive=0.5) as client:
        assert await client.work() == "x" * 50


def test_what_the_loop_has_not_read_yet_counts() -> None:
    """Some loops look at their timers before they read (uvloop)."""

    async def connect(make: Callable[[], Any]) -> Any:
        join(protocol := make(), asyncio.Protocol())
        return protocol

    async def unread() -> None:
        async with AsyncClient("memory", connect=connect, keepalive=60.0) as client:
            await client.notify.tell()
            (link,) = client_connections(client)
            link.poll = lambda milliseconds: True
            await asyncio.sleep(600)
            assert link.is_open
            link.poll = lambda milliseconds: False
            with pytest.raises(ConnectionLost, match="keepalive"):
                await client.wait_closed()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(unread())


def test_a_ping_that_left_late_is_waited_for() -> None:
    """The loop is held up when the server has been asked, and the ping has not left yet."""
    pings: list[float] = []

    def trace(direction: str, message: bytes) -> None:
        if direction == "send" and b"rpc.ping" in message:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, FakeTimeLoop)
            pings.append(loop.time())
            loop.jump(100)

    async def held_up() -> None:
        async with memory_client(Server(), keepalive=60.0, trace=trace) as client:
            await client.call("rpc.stats")
            (link,) = client_connections(client)
            await asyncio.sleep(600)
            assert client_connections(client) == [link]

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(held_up())
    assert len(pings) >= 3


async def test_nothing_is_left_of_it_when_the_connection_is_closed() -> None:
    server = Server()
    async with memory_client(server, keepalive=1000.0) as client:
        assert await client.call("rpc.ping") == "pong"
        (link,) = client_connections(client)
    loop = asyncio.get_running_loop()
    timers = [handle for handle in getattr(loop, "_scheduled", ()) if not handle.cancelled()]
    assert not [handle for handle in timers if "Keepalive" in repr(handle)]
    assert not link.session.pending


def test_an_hour_of_silence_costs_a_ping_every_half_of_the_time() -> None:
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message) if direction == "send" else None  # noqa: E731

    async def idle() -> None:
        async with memory_client(Server(), keepalive=60.0, trace=trace) as client:
            await client.call("rpc.stats")
            await asyncio.sleep(3600)
            assert client.state == "connected"

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(idle())
    assert 50 <= sum(b"rpc.ping" in message for message in sent) <= 120


@pytest.mark.parametrize("seconds", [0, -1])
def test_times_that_make_no_sense(seconds: float) -> None:
    for option in ("keepalive", "registration_timeout"):
        for kind in (AsyncClient, Client):
            with pytest.raises(ValueError, match=f"{option} must be positive or None"):
                kind(**{option: seconds})  # type: ignore[operator]


# -- the sync client ---------------------------------------------------------------------------------------------------


def test_a_thread_that_waits_is_told(silent: str) -> None:
    with Client(silent, keepalive=0.1) as client:
        with pytest.raises(ConnectionLost, match="keepalive"):
            client.work()
        future = client.submit.work()
        with pytest.raises(ConnectionLost, match="keepalive"):
            future.result(20)


def test_it_keeps_no_program_from_ending() -> None:
    """An idle client that was not closed; the server answers its pings to the end."""
    program = """
import sys
from rpcstream import Client
client = Client(sys.argv[1], keepalive=0.05)
print(client.call("rpc.ping"))
"""
    with serve_in_thread(Server()) as address:
        run = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr, run.returncode) == ("pong\n", "", 0)


@pytest.fixture
async def websocket() -> AsyncIterator[str]:
    async with Server().listening(port=0) as address:
        yield f"ws://{address}"


async def test_over_a_websocket(websocket: str) -> None:
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message)  # noqa: E731
    async with AsyncClient(websocket, keepalive=0.1, trace=trace) as client:
        await client.call("rpc.ping")
        (link,) = client_connections(client)
        await until(lambda: sum(b'"rpc.ping"' in message for message in sent) >= 5)
        assert client_connections(client) == [link]
