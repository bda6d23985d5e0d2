"""A hub that is restarted under load, in short: the long form is `python -m tests.hub.restarts`."""

from __future__ import annotations

import pytest

from .restarts import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "reconnect", "hubs"),
    [(False, False, 1), (False, True, 1), (True, True, 1), (False, False, 2), (True, False, 2), (True, True, 2)],
)
async def test_no_call_fails(kills: bool, reconnect: bool, hubs: int) -> None:
    """Stopped in order, although none is repeated; killed, where that may be."""
    outcome = await run(1 if kills and hubs == 1 else 2, kills=kills, reconnect=reconnect, calls=100, hubs=hubs)
    assert not outcome.errors
    assert kills or outcome.is_right, outcome
