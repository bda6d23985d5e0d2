"""A hub that is restarted under load, in short: the long form is `python -m tests.hub.restarts`."""

from __future__ import annotations

import pytest

from .restarts import HubThread, run


@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_no_call_fails(kills: bool) -> None:
    """Stopped in order, although none is repeated that may have been carried out; killed, where that may be."""
    load = await run(1 if kills else 4, kills=kills, interval=0.05, loops=3, hub=None if kills else HubThread())
    assert not load.errors
    assert load.calls > 10
