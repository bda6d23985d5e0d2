"""The time limits of a connection, with the time passed in."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream import Limits
from rpcstream.transports.timeouts import Timeouts, interval

LIMITS = Limits(idle_timeout=100, message_timeout=10, write_timeout=5)


def look(watch: Timeouts, now: float, *, partial: bool = False, unread: int = 0, busy: bool = False) -> Any:
    return watch.overdue(now, partial=partial, unread=unread, busy=busy)


def test_idle() -> None:
    watch = Timeouts(LIMITS, 0)
    assert look(watch, 99) is None
    assert "idle_timeout" in look(watch, 100)


def test_what_is_heard_or_worked_on_is_not_idle() -> None:
    watch = Timeouts(LIMITS, 0)
    assert look(watch, 90, busy=True) is None
    assert look(watch, 180) is None
    watch.heard = True
    assert look(watch, 185) is None
    assert look(watch, 280) is None
    assert "idle" in look(watch, 285)


def test_a_message_that_does_not_end() -> None:
    watch = Timeouts(LIMITS, 0)
    assert look(watch, 50, partial=True) is None
    watch.heard = True
    assert look(watch, 59, partial=True) is None
    assert "message_timeout" in look(watch, 60, partial=True)


def test_a_message_that_ends_while_the_next_begins() -> None:
    watch = Timeouts(LIMITS, 0)
    for now in range(0, 100, 9):
        watch.completed = True
        assert look(watch, now, partial=True) is None


def test_replies_that_are_not_read() -> None:
    watch = Timeouts(LIMITS, 0)
    assert look(watch, 1, unread=1000) is None
    assert look(watch, 5, unread=1000) is None
    assert look(watch, 5.5, unread=900) is None
    assert look(watch, 10, unread=900) is None
    assert "write_timeout" in look(watch, 10.5, unread=900)


def test_limits_that_are_off() -> None:
    watch = Timeouts(Limits(idle_timeout=None, message_timeout=None, write_timeout=None), 0)
    assert look(watch, 1e9) is None
    assert look(watch, 2e9, partial=True) is None
    assert look(watch, 3e9, unread=1) is None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), 5.0),
        (LIMITS, 1.25),
        (Limits(message_timeout=0.01), 0.05),
        (Limits(idle_timeout=None, message_timeout=None, write_timeout=None), None),
    ],
)
def test_interval(limits: Limits, expected: float | None) -> None:
    assert interval(limits) == expected


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"idle_timeout": -1}, {"max_depth": 255}, {"write_timeout": 0}])
def test_limits_that_make_no_sense(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)
