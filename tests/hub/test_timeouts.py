"""Time limits of a hub: of calls, of silent clients, of connections that say nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream.hub import Hub
from rpcstream.testing import memory_client

from ..kit import TRANSPORTS, batch, notification, request
from .conftest import CALL, Code, HubPeer, OpenHub, asked_of

pytestmark = pytest.mark.fake_time

#: The default times of a hub, which are off in the other tests of this folder that have a clock of their own.
DEFAULT = {"ping_interval": 20.0, "keepalive_timeout": 60.0}


@pytest.mark.parametrize(("asked", "seconds"), [(None, 3), (1, 1), (100, 3)])
async def test_of_two_times_for_a_call_the_shorter_one_counts(
    open_hub: OpenHub, asked: float | None, seconds: float
) -> None:
    hub, loop = await open_hub(call_timeout=3), asyncio.get_running_loop()
    provider, caller = await hub.pair()
    message = request("work", **({} if asked is None else {"timeout": asked}))
    for sent in (message, batch(message)):
        since = loop.time()
        caller.send(sent)
        there = await provider.receive()
        assert there["timeout"] == seconds
        answer = await caller.receive()
        answer = answer[0] if isinstance(answer, list) else answer
        assert answer["error"]["code"] == Code.LATE
        assert loop.time() - since == pytest.approx(seconds)
        assert await provider.receive() == notification("$/cancelRequest", id=there["id"])
        provider.answer(there, "late")
    await caller.silence()


@pytest.mark.parametrize("sign", [CALL % (1, "keepAlive", "[]"), '[{"jsonrpc":"2.0","method":"keepAlive"}]'])
async def test_who_gives_no_more_signs_of_life_is_dropped_and_leaves_nobody_waiting(
    open_hub: OpenHub, sign: str
) -> None:
    """A client that does not answer pings, and gives a sign now and then."""
    hub = await open_hub(**DEFAULT)
    provider, caller = await hub.pair()
    await asked_of(provider, caller)
    for _ in range(20):
        await asyncio.sleep(45)
        provider.send(sign)
    assert hub.hub.stats()["clients"] == 1
    error = await caller.error()
    assert (error["code"], error["data"]) == (Code.GONE, {"method": "work", "client": "p"})
    assert asyncio.get_running_loop().time() < 20 * 45 + 91
    assert sum(each.get("method") == "rpc.ping" for each in await provider.rest()) == 1


@pytest.mark.parametrize(("ping_interval", "keepalive_timeout"), [(20, 60), (20, 20.1), (1, 1.4)])
async def test_who_answers_stays(ping_interval: float, keepalive_timeout: float) -> None:
    """Whenever it was heard last, between two looks of the hub."""
    for offset in (0.0, 0.1, 0.45, 0.55, 0.9):
        hub = Hub(ping_interval=ping_interval, keepalive_timeout=keepalive_timeout)
        async with memory_client(hub) as client:
            await client.call("rpc.register", name="quiet")
            await asyncio.sleep(offset * ping_interval)
            await client.call("rpc.ping")
            await asyncio.sleep(10 * keepalive_timeout)
            assert hub.stats()["clients"] == 1


@pytest.mark.parametrize(
    ("options", "seconds", "stays"),
    [
        ({"keepalive_timeout": 6}, 2, False),
        ({"keepalive_timeout": 600}, 20, True),
        ({"keepalive_timeout": None}, 20, True),
        ({"ping_interval": None}, None, False),
        ({"ping_interval": None, "keepalive_timeout": None}, None, True),
    ],
)
async def test_pings_come_often_enough(options: dict[str, Any], seconds: float | None, stays: bool) -> None:
    """By default after a third of the time for signs of life, and after 20 s at most."""
    hub = Hub(**options)
    async with TRANSPORTS["memory"].serving(hub, None) as there:
        peer = await there.join(HubPeer)
        await peer.offers("p")
        if seconds is not None:
            assert (await peer.receive())["method"] == "rpc.ping"
            assert seconds <= asyncio.get_running_loop().time() < 1.6 * seconds
        await asyncio.sleep(500)
        assert bool(hub.stats()["clients"]) is stays
        peer.close()


async def test_a_ping_is_no_call_and_who_only_calls_is_left_alone(open_hub: OpenHub) -> None:
    hub = await open_hub(**DEFAULT)
    provider, caller = await hub.pair()
    assert "timeout" not in await asked_of(provider, provider, id=0)
    provider.answer({"id": 1})
    await provider.result()
    assert (await provider.receive())["method"] == "rpc.ping"
    seen = (await caller.result("rpc.clients"))[0]
    assert (seen["name"], seen["in_flight"], seen["state"]) == ("p", 0, "idle")
    await asyncio.sleep(600)
    await caller.silence()


@pytest.mark.parametrize(
    ("said", "stays"),
    [
        *((said, False) for said in ("", CALL % (1, "rpc.ping", "[]"), "nonsense", "[]", CALL % (1, "nothing", "[]"))),
        *((CALL % (1, method, "{}"), True) for method in ("rpc.register", "rpc.clients", "work")),
        (CALL % (1, "rpc.subscribe", '["t"]'), True),
    ],
)
async def test_who_wants_nothing_is_closed(open_hub: OpenHub, said: str, stays: bool) -> None:
    hub = await open_hub(registration_timeout=5)
    provider, peer = await hub.pair()
    peer.send(*[said] * bool(said))
    await asyncio.sleep(4.5)
    assert not peer.is_over
    await asyncio.sleep(1)
    assert peer.is_over is not stays
    assert not provider.is_over
