"""A hub that is restarted under load, in short: the long form is `python -m tests.hub.restarts`."""

from __future__ import annotations

import pytest

from .restarts import run


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "reconnect"), [(False, False), (False, True), (True, True)])
async def test_no_call_fails(kills: bool, reconnect: bool) -> None:
    """Stopped in order, although none is repeated; killed, where that may be."""
    outcome = await run(1 if kills else 2, kills=kills, reconnect=reconnect, calls=100)
    assert not outcome.errors
    assert kills or outcome.is_right, outcome
