"""Restarts under load, in short form: `python -m tests.rolling` is the long one, with programs."""

from __future__ import annotations

from .harness import providers_restarted, server_restarted


async def test_a_rolling_restart_of_shared_providers_loses_no_call() -> None:
    outcome = await providers_restarted(rounds=3, as_programs=False, calls=100, clients=4, each=8)
    assert outcome.is_right, outcome
    assert outcome.restarts == 9


async def test_a_server_that_is_restarted_under_load_loses_no_call_and_makes_none_twice() -> None:
    outcome = await server_restarted(rounds=4, as_programs=False, calls=100, clients=4, each=8)
    assert outcome.is_right, outcome
    assert outcome.restarts == 4
