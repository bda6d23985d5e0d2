"""Keep-alive of a hub: silent clients are dropped, those that answer are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop, memory_client


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main)


@pytest.mark.parametrize(("ping_interval", "keepalive_timeout"), [(20, 60), (20, 21), (20, 20.1), (1, 1.4)])
@pytest.mark.parametrize("offset", [0.0, 0.1, 0.45, 0.55, 0.9])
def test_who_answers_stays(ping_interval: float, keepalive_timeout: float, offset: float) -> None:
    """Whenever it was heard last, between two looks of the hub."""

    async def main() -> None:
        hub = Hub(ping_interval=ping_interval, keepalive_timeout=keepalive_timeout)
        async with memory_client(hub) as client:
            await client.call("rpc.register", name="quiet")
            await asyncio.sleep(offset * ping_interval)
            await client.call("rpc.ping")
            await asyncio.sleep(10 * keepalive_timeout)
            assert list(hub.directory.by_name) == ["quiet"]

    run(main())


@pytest.mark.parametrize("ping_interval", [0.1, 0.29, None])
async def test_who_does_not_answer_is_dropped(connect: Any, ping_interval: float | None) -> None:
    hub = Hub(ping_interval=ping_interval, keepalive_timeout=0.3)
    async with hub.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("rpc.register", {"name": "deaf"}))["result"]["name"] == "deaf"
        said = await raw.rest()
        assert [each["method"] for each in said] == ["rpc.ping"] * (ping_interval is not None)
        assert not hub.directory.by_name
