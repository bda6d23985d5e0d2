"""Keep-alive: a silent server is pinged and given up; one that is only idle is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Backoff, ConnectionLost, Server
from rpcstream.testing import FakeTimeLoop, connections_of, memory_client

from ..kit import UsualServer, reply, until
from .conftest import Scripted, Traced, refusal


async def test_a_silent_server_is_given_up(silent: str, face: Callable[..., Any]) -> None:
    """With `reconnect` it is tried again."""
    async with face(silent, keepalive=0.1, trace=(traced := Traced())) as client:
        calls = [asyncio.ensure_future(client.work(timeout=None)) for _ in range(3)]
        for call in calls:
            with pytest.raises(ConnectionLost, match=r"sent nothing for 0.1 s, .* \(keepalive\).*'work'"):
                await call
        assert client.state == "idle"
        assert traced.asked("rpc.ping") == 1
        if isinstance(client, AsyncClient):  # one that waits for nothing learns it too
            await client.notify.tell()
            with pytest.raises(ConnectionLost, match="keepalive"):
                await client.wait_closed()
    states: list[str] = []
    backoff = Backoff(first=0.001, longest=0.01)
    async with AsyncClient(silent, keepalive=0.05, reconnect=backoff, on_state=states.append):
        await until(lambda: states.count("connected") == 3)


@pytest.mark.parametrize(("scheme", "error"), [("", None), ("ws://", None), ("", -32005)])
async def test_an_idle_connection_is_kept(scripted: Scripted, scheme: str, error: int | None) -> None:
    """An error is an answer, too."""
    server, traced = UsualServer(), Traced()

    def refusing(line: Any) -> None:
        while (call := line.read()) is not None:
            line.say(refusal(call["id"], error or 0) if call["method"] == "rpc.ping" else reply(call["id"], 3))

    async with (
        server.listening(port=0) as address,
        AsyncClient(scripted(refusing) if error else scheme + address, keepalive=0.1, trace=traced) as client,
    ):
        assert await client.add(1, 2) == 3
        await until(lambda: traced.asked("rpc.ping") >= 3)
        assert await client.add(1, 2) == 3
        assert (client.state, client.replies_dropped) == ("connected", 0)
        assert error or len(connections_of(server)) == 1


async def test_a_part_of_a_message_is_a_sign_of_life(scripted: Scripted) -> None:
    """A long message on a slow line: no ping is answered before its end."""

    def script(line: Any) -> None:
        for byte in orjson.dumps(reply(line.read()["id"], "x" * 50)):
            line.raw(bytes((byte,)))
            time.sleep(0.005)
        line.raw(b"\n")
        line.read()

    async with AsyncClient(scripted(script), keepalive=0.2) as client:
        assert await client.work() == "x" * 50


@pytest.mark.parametrize("held_up", [0, 100])
def test_an_hour_of_silence_costs_a_ping_every_half_of_the_time(held_up: float) -> None:
    """Also where the loop is held up when a ping is about to leave: it is waited for none the less."""
    pings = 0

    def trace(direction: str, message: bytes) -> None:
        nonlocal pings
        if direction == "send" and b"rpc.ping" in message:
            pings += 1
            loop: Any = asyncio.get_running_loop()
            loop.jump(held_up)

    async def idle() -> None:
        server = Server()
        async with memory_client(server, keepalive=60.0, trace=trace) as client:
            await client.call("rpc.stats")
            (connection,) = connections_of(server)
            await asyncio.sleep(3600)
            assert client.state == "connected"
            assert connection.is_open

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(idle())
    assert 20 <= pings <= 120


def test_keepalive_leaves_no_task_to_a_loop_that_is_closed(served: str) -> None:
    loop = asyncio.new_event_loop()
    client = AsyncClient(served, keepalive=60.0)
    try:
        assert loop.run_until_complete(client.call("echo", 1)) == 1
        assert not asyncio.all_tasks(loop)
    finally:
        loop.run_until_complete(client.close())
        loop.close()
