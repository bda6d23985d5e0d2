"""Subscriptions of the async client to scripted servers: late, missing, broken and unwanted replies and events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream import (
    AsyncClient,
    Backoff,
    NotPermitted,
)

from ..kit import notification
from .conftest import Connections, Scripted, refusal

AT_ONCE = Backoff(first=0.001, longest=0.01)


def event(topic: Any, value: Any) -> dict[str, Any]:
    return notification("$/event", topic=topic, value=value)


def entered(*messages: Any) -> Any:
    """A script that answers `rpc.subscribe`, and says these."""

    def script(line: Any) -> None:
        line.say({"jsonrpc": "2.0", "id": line.read()["id"], "result": {}}, *messages)
        line.read()

    return script


async def test_giving_up_the_entry_takes_it_back_and_it_can_be_tried_again(scripted: Scripted) -> None:
    seen: list[Any] = []

    def script(line: Any) -> None:
        first = line.read()
        seen.append(line.read()["method"])
        second = line.read()
        line.answer(first, {})
        line.answer(second, {})
        line.say(event("a", 1))
        assert line.cancelled == [first["id"]]
        line.read()

    async with AsyncClient(scripted(script), timeout=20) as client:
        events = client.subscribe("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.05)
        assert await anext(events) == 1
        assert seen == ["rpc.unsubscribe"]


async def test_what_is_no_more_allowed_ends_and_the_connection_stays(scripted: Scripted) -> None:
    connections: list[Any] = []

    def script(line: Any) -> None:
        connections.append(line)
        refuses = len(connections) > 1
        for _ in range(2):
            call = line.read()
            if refuses and call["params"]["topic"] == "bad":
                line.say(refusal(call["id"], -32006, "Not permitted"))
            else:
                line.answer(call, {})
        call = line.read()
        if refuses:
            line.say(event("good", 1))
            line.answer(call, "a call")
            line.read()

    async with (
        AsyncClient(scripted(script), reconnect=AT_ONCE) as client,
        client.subscribe("good") as good,
        client.subscribe("bad") as bad,
    ):
        await client.notify.enough()
        with pytest.raises(NotPermitted):
            await anext(bad)
        assert await client.anything() == "a call"
        assert await anext(good) == 1
        assert (good.reconnects, bad.reconnects) == (1, 0)


async def test_a_connection_that_is_lost_during_the_entry_is_made_again(scripted: Scripted) -> None:
    connections = Connections(*[lambda line: line.read()] * 2, entered(event("a", 1)))
    async with AsyncClient(scripted(connections), reconnect=AT_ONCE) as client, client.subscribe("a") as events:
        assert await anext(events) == 1
        assert (connections.count, events.reconnects) == (3, 0)
