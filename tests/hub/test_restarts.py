"""A hub that is restarted under load, in short: the long form is `python -m tests.hub.restarts`."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import closing

import pytest

from rpcstream import AsyncClient

from ..kit import notification, reply, request
from ..kit.scripted import ScriptedConnection, ScriptedServer
from .restarts import run


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True])
async def test_no_call_fails(kills: bool) -> None:
    """Stopped in order, although none is repeated that may have been carried out; killed, where that may be."""
    load = await run(1 if kills else 2, kills=kills, interval=0.2, loops=3)
    assert not load.errors
    assert load.calls > 10


async def test_a_call_that_comes_with_the_last_word_is_answered() -> None:
    """A hub that stops just after a provider has come back: registration, call and last word come together."""
    replies: list[object] = []
    connections = itertools.count()
    has_replied = threading.Event()

    def script(hub: ScriptedConnection) -> None:
        number = next(connections)
        while (registration := hub.read()) is not None:
            accepted = reply(registration["id"], {"name": "one", "key": "k", "methods": ["double"]})
            if number == 1:
                last_word = notification("$/goAway", last=registration["id"], reason="it stops")
                hub.say(accepted, request("double", 21, id=7), last_word)
                replies.append(hub.read())
                return has_replied.set()
            hub.say(accepted)
            if number == 0 and "methods" in registration["params"]:
                return None
        return None

    with closing(ScriptedServer(script)) as server:
        async with AsyncClient(server.address, name="one", reconnect=True) as client:

            @client
            async def double(number: int) -> int:
                await asyncio.sleep(0.01)
                return 2 * number

            await client.offer()
            assert await asyncio.to_thread(has_replied.wait, 10)
    assert replies == [reply(7, 42)]
