"""Subscriptions of the async client to scripted servers: late, missing, broken and unwanted replies and events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import (
    AsyncClient,
    Backoff,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    InternalError,
    MethodNotFound,
    NotPermitted,
)

from ..internals import has_subscriptions

Scripted = Callable[[Callable[[Any], None]], str]

AT_ONCE = Backoff(first=0.001, longest=0.01)


async def test_a_server_that_knows_no_events(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        request = line.read()
        line.say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        assert line.read() is None

    async with AsyncClient(scripted(script)) as client:
        with pytest.raises(MethodNotFound):
            await anext(client.subscribe("a"))


async def test_nobody_there(free_address: str) -> None:
    async with AsyncClient(free_address) as client:
        with pytest.raises(ConnectFailed):
            await anext(client.subscribe("a"))
        assert not has_subscriptions(client)


async def test_giving_up_the_entry_takes_it_back_and_it_can_be_tried_again(scripted: Scripted) -> None:
    seen: list[Any] = []

    def script(line: Any) -> None:
        first = line.read()
        seen.extend([line.read()["method"]])
        second = line.read()
        line.say({"jsonrpc": "2.0", "id": first["id"], "result": {}})
        line.answer(second, {})
        line.say({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": 1}})
        assert line.cancelled == [first["id"]]
        line.read()

    async with AsyncClient(scripted(script), timeout=20) as client:
        events = client.subscribe("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.05)
        assert not has_subscriptions(client)
        assert await anext(events) == 1
        assert seen == ["rpc.unsubscribe"]


async def test_no_answer_in_time(scripted: Scripted) -> None:
    async with AsyncClient(scripted(lambda line: line.read() and line.read()), timeout=0.05) as client:
        with pytest.raises(CallTimeout, match=r"rpc\.subscribe"):
            await anext(client.subscribe("a"))


async def test_the_first_event_may_come_with_the_reply(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        event = {"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": "at once"}}
        line.say({"jsonrpc": "2.0", "id": line.read()["id"], "result": {}}, event)
        line.read()

    async with AsyncClient(scripted(script)) as client, client.subscribe("a") as events:
        assert await anext(events) == "at once"


@pytest.mark.parametrize(
    "params",
    [
        {"topic": "b", "value": 1},
        {"topic": ["a"], "value": 1},
        {"topic": None, "value": 1},
        {"topic": {}, "value": 1},
        {"value": 1},
        {},
        ["a", 1],
        None,
    ],
)
async def test_events_that_nobody_reads_are_dropped(scripted: Scripted, params: Any) -> None:
    def script(line: Any) -> None:
        line.answer(line.read(), {})
        line.say({"jsonrpc": "2.0", "method": "$/event", "params": params})
        line.say({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": "good"}})
        line.read()

    async with AsyncClient(scripted(script)) as client, client.subscribe("a") as events:
        assert await anext(events) == "good"


async def test_broken_events_are_raised_one_by_one(scripted: Scripted) -> None:
    broken = {"$type": "ndarray", "dtype": "<f4", "shape": [5], "data": "AA=="}

    def script(line: Any) -> None:
        line.answer(line.read(), {})
        for params in ({"topic": "a"}, {"topic": "a", "value": broken}, {"topic": "a", "value": "good"}):
            line.say({"jsonrpc": "2.0", "method": "$/event", "params": params})
        line.read()

    async with AsyncClient(scripted(script)) as client, client.subscribe("a") as events:
        for _ in range(2):
            with pytest.raises(InternalError):
                await anext(events)
        assert await anext(events) == "good"


async def test_what_is_no_more_allowed_ends_and_the_connection_stays(scripted: Scripted) -> None:
    connections: list[Any] = []

    def script(line: Any) -> None:
        connections.append(line)
        refuses = len(connections) > 1
        for _ in range(2):
            request = line.read()
            if refuses and request["params"]["topic"] == "bad":
                error = {"code": -32006, "message": "Not permitted"}
                line.say({"jsonrpc": "2.0", "id": request["id"], "error": error})
            else:
                line.answer(request, {})
        request = line.read()
        if refuses:
            line.say({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "good", "value": 1}})
            line.answer(request, "a call")
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
    connections: list[Any] = []

    def script(line: Any) -> None:
        connections.append(line)
        request = line.read()
        if len(connections) > 2:
            line.answer(request, {})
            line.say({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": 1}})
            line.read()

    async with AsyncClient(scripted(script), reconnect=AT_ONCE) as client, client.subscribe("a") as events:
        assert await anext(events) == 1
        assert (len(connections), events.reconnects) == (3, 0)


async def test_a_connection_that_is_lost_during_the_entry_is_an_error_without_reconnect(scripted: Scripted) -> None:
    async with AsyncClient(scripted(lambda line: line.read())) as client:
        with pytest.raises(ConnectionLost):
            await client.subscribe("a").__aenter__()
        assert not has_subscriptions(client)
