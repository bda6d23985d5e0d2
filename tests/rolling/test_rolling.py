"""Restarts under load, in short form: `python -m tests.rolling` is the long one."""

from __future__ import annotations

import pytest

from .harness import providers_restarted, server_restarted

pytestmark = pytest.mark.slow


async def test_a_rolling_restart_of_shared_providers_loses_no_call() -> None:
    outcome = await providers_restarted(rounds=1)
    assert (outcome.is_right, outcome.restarts) == (True, 3), outcome


@pytest.mark.parametrize("scheme", ["tcp", "ws", "http"])
async def test_a_server_that_is_restarted_under_load_loses_no_call_and_makes_none_twice(scheme: str) -> None:
    outcome = await server_restarted(rounds=2, scheme=scheme)
    assert (outcome.is_right, outcome.restarts) == (True, 2), outcome
