"""A hub that is restarted under load, in short: the long form is `python -m tests.hub.restarts`."""

from __future__ import annotations

from .restarts import HubThread, run


async def test_no_call_fails_where_the_hub_is_stopped_in_order() -> None:
    """Although none is repeated that may have been carried out."""
    load = await run(4, interval=0.05, loops=3, hub=HubThread())
    assert not load.errors
    assert load.calls > 20


async def test_no_call_of_an_idempotent_method_fails_where_the_hub_is_killed() -> None:
    load = await run(1, kills=True, interval=0.05, loops=3)
    assert not load.errors
    assert load.calls > 10
