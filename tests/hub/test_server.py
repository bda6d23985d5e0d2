"""The hub as a server: options, stop, log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient
from rpcstream.hub import Hub, Rule

from ..internals import ping_interval


@asynccontextmanager
async def serving(hub: Hub) -> AsyncIterator[str]:
    """Serve until the hub is stopped, which the block may do."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(hub.serve(port=0, on_listening=address.set_result))
    try:
        yield await address
    finally:
        hub.stop()
        await task


async def test_a_stop_waits_for_calls_in_flight() -> None:
    """As at any server: their providers are not sent away before."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    hub = Hub()
    async with serving(hub) as address, AsyncClient(address, name="p") as provider, AsyncClient(address) as caller:

        @provider
        async def work() -> str:
            begun.set()
            await go_on.wait()
            return "done"

        await provider.offer()
        call = caller.submit.work()
        await begun.wait()
        hub.stop()
        while not hub.routes.is_draining:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not call.done()
        go_on.set()
        assert await call == "done"


async def test_a_stop_does_not_wait_for_ever() -> None:
    hub = Hub(drain_timeout=0.05)
    async with serving(hub) as address, AsyncClient(address, name="p") as provider, AsyncClient(address) as caller:
        begun = asyncio.Event()

        @provider
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        await provider.offer()
        call = caller.submit.work()
        await begun.wait()
        hub.stop()
        with pytest.raises(ConnectionError):
            await call
    assert not any([hub.directory.members, hub.directory.routes, hub.directory.by_name])


async def test_nobody_reads_tokens_and_keys_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rpcstream.wire")
    hub = Hub(debug=True, token="a-secret-token")
    async with serving(hub) as address, AsyncClient(address, token="a-secret-token") as client:
        key = (await client.call("rpc.register", name="p"))["key"]
        await client.call("rpc.register", name="p", key=key)
    assert len(key) == 32
    assert "rpc.register" in caplog.text
    assert key not in caplog.text
    assert "a-secret-token" not in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"balance": "fair"}, "balance must be one of least_in_flight, round_robin; got 'fair'"),
        ({"call_timeout": 0}, "call_timeout must be positive or None, got 0"),
        ({"keepalive_timeout": -1}, "keepalive_timeout must be positive or None, got -1"),
        ({"registration_timeout": 0.0}, "registration_timeout must be positive or None, got 0.0"),
        ({"registration_timeout": float("nan")}, "registration_timeout must be positive or None, got nan"),
        ({"ping_interval": 0}, "ping_interval must be positive or None, got 0"),
        ({"keepalive_timeout": 5, "ping_interval": 5}, "ping_interval must be shorter than keepalive_timeout"),
        ({"rules": []}, "rules need callers that are authenticated"),
        ({"rules": [Rule("*", call="*")]}, "rules need callers that are authenticated"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Hub(**options)


def test_a_short_time_for_signs_of_life_is_enough_for_a_ping() -> None:
    assert ping_interval(Hub(keepalive_timeout=6)) == 2
    assert ping_interval(Hub(keepalive_timeout=600)) == 20
    assert ping_interval(Hub(keepalive_timeout=None)) == 20
    assert ping_interval(Hub(ping_interval=None)) is None
