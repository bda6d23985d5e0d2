"""A hub that is restarted under load, in short: the long form is `python -m tests.hub.restarts`."""

from __future__ import annotations

import pytest

from .restarts import run


@pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
async def test_a_hub_that_is_restarted_under_load(kills: bool) -> None:
    """Stopped in order, no call fails, although none is repeated that may have run; killed, no idempotent one does."""
    load = await run(2, kills=kills, interval=0.2, loops=3)
    assert not load.errors
    assert load.calls > 20
