"""The harness of the attacks: it reports each kind of cost that is over its budget."""

from __future__ import annotations

import logging
import sys

import pytest

from rpcstream import Logs, Server

from .harness import ATTACKS, ATTEMPTS, KIB, MIB, ServerUnderAttack, attack, run, spin

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def careless() -> Server:
    """A server whose handler takes whatever the test wants it to take."""
    server = Server(logs=Logs(slow_call=3600))
    kept: list[bytes] = []

    @server
    def take(seconds: float, memory: int, log: int) -> None:
        spin(seconds)
        kept.append(b"x" * memory)
        logging.getLogger("test").warning("%s", "x" * log)

    return server


async def act(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for memory in (64 * MIB, 0, 0):  # on a busy machine the other caller does not ask at any time
        assert "result" in await raw.call("take", [0.4, memory, 64 * KIB])


def test_what_is_over_a_budget_is_reported() -> None:
    attack(0, "careless", careless, memory=32 * MIB)(act)
    report = run(ATTACKS.pop(), whole=True)
    assert [problem.split()[0] for problem in report.problems[:2]] == ["another", "memory"]
    assert "bytes were logged" in report.problems[2]
    assert report.pings > 0


def test_what_is_within_is_not() -> None:
    attack(0, "careful", careless, memory=96 * MIB, log=512 * KIB, slowest=1.5)(act)
    assert not run(ATTACKS.pop(), whole=True).problems


@pytest.mark.parametrize(("slow_runs", "is_reported"), [(ATTEMPTS - 1, False), (ATTEMPTS, True)])
def test_a_wait_counts_when_it_is_too_long_again_and_again(slow_runs: int, is_reported: bool) -> None:
    left = [0.4] * slow_runs + [0.0] * ATTEMPTS

    async def act(target: ServerUnderAttack) -> None:
        raw = await target.connect()
        seconds = left.pop(0)
        for _ in range(3):
            assert "result" in await raw.call("take", [seconds, 0, 0])

    attack(0, "slow now and then", careless, memory=96 * MIB)(act)
    assert bool(run(ATTACKS.pop(), whole=True).problems) == is_reported


async def fail(target: ServerUnderAttack) -> None:
    raise AssertionError("something else is wrong")


def test_what_an_attack_finds_itself_is_reported() -> None:
    attack(0, "fails", careless, memory=96 * MIB)(fail)
    assert run(ATTACKS.pop(), whole=True).problems == ["AssertionError: something else is wrong"]
