"""Deadlines of outgoing calls: they expire in order, at a cost that does not grow with the calls that wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import Codec, Limits
from rpcstream.errors import CallTimeout
from rpcstream.peer import outgoing as module
from rpcstream.peer.marshal import Marshaller
from rpcstream.peer.outgoing import OutgoingCalls
from rpcstream.peer.pending import PendingCall, PendingCalls
from rpcstream.testing import FakeTimeLoop

from ..internals import deadline_entries


class Waiting(PendingCall):
    """A call that waits until a time."""

    method = "work"

    def __init__(self, deadline: float, told: list[tuple[float, float]]) -> None:
        self.deadline = deadline
        self._told = told

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None: ...

    def fail(self, error: Exception) -> None:
        assert isinstance(error, CallTimeout)
        self._told.append((self.deadline, asyncio.get_running_loop().time()))

    def when_over(self, function: Callable[[], object]) -> None: ...


class Looked(PendingCalls):
    """Counts how often a call is looked up."""

    __slots__ = ("looks",)
    looks: int

    def find(self, call_id: Any) -> Any:
        self.looks += 1
        return super().find(call_id)


class Session:
    """As much of a session as calls need."""

    channel = None

    def __init__(self) -> None:
        self.pending = Looked()
        self.pending.looks = 0


def on_fake_time(make: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(make())


def made() -> tuple[Session, OutgoingCalls]:
    session: Any = Session()
    return session, OutgoingCalls(session, Marshaller(Codec(), Limits(), "here", side="server"))


def test_each_is_told_at_its_time_and_those_that_were_answered_are_not() -> None:
    async def main() -> None:
        session, calls = made()
        told: list[tuple[float, float]] = []
        draw = random.Random(7)
        deadlines = [draw.uniform(1, 100) for _ in range(500)]
        ids = []
        for deadline in deadlines:
            ids.append(session.pending.add(Waiting(deadline, told)))
            calls.expect(ids[-1], deadline)
        answered = set(draw.sample(range(500), 200))
        for place in answered:
            session.pending.discard(ids[place])
        await asyncio.sleep(200)
        expected = sorted(deadline for place, deadline in enumerate(deadlines) if place not in answered)
        assert [deadline for deadline, _ in told] == expected
        assert all(deadline <= when < deadline + 0.1 for deadline, when in told)
        assert not session.pending

    on_fake_time(main)


def test_the_work_is_one_look_for_each_whatever_waits_besides() -> None:
    async def main() -> int:
        session, calls = made()
        told: list[tuple[float, float]] = []
        for number in range(5000):
            calls.expect(session.pending.add(Waiting(1 + number / 100, told)), 1 + number / 100)
        before = session.pending.looks
        await asyncio.sleep(100)
        assert len(told) == 5000
        return session.pending.looks - before

    assert on_fake_time(main) <= 2 * 5000


def test_what_is_kept_of_calls_that_were_answered_is_bounded() -> None:
    async def main() -> None:
        session, calls = made()
        waiting = [session.pending.add(Waiting(1000, [])) for _ in range(100)]
        for call_id in waiting:
            calls.expect(call_id, 1000)
        for number in range(20_000):
            call_id = session.pending.add(Waiting(60 + number, []))
            calls.expect(call_id, 60 + number)
            session.pending.discard(call_id)
            assert deadline_entries(calls) <= 2 * 100 + module.DEADLINES + 1
        assert session.pending.looks <= 20 * 20_000
        calls.stop()

    on_fake_time(main)


def test_a_crowd_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 0)

    async def main() -> None:
        session, calls = made()
        told: list[tuple[float, float]] = []
        for _ in range(50):
            calls.expect(session.pending.add(Waiting(1, told)), 1)
        turns = 0
        await asyncio.sleep(1)
        while len(told) < 50:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 40

    on_fake_time(main)
