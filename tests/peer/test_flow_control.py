"""Credit of a stream, counted without a connection."""

from __future__ import annotations

import pytest

from rpcstream.peer.flow_control import CREDIT_MAX, CreditWindow


def test_credit_is_granted_and_spent() -> None:
    window = CreditWindow(credit=1)
    assert window.spend()
    assert not window.spend()
    window.grant(2)
    assert window.spend()
    assert window.spend()
    assert not window.spend()


def test_credit_beyond_the_window_is_ignored() -> None:
    assert CreditWindow(4, credit=9).credit == 4
    window = CreditWindow(credit=CREDIT_MAX)
    window.grant(CREDIT_MAX)
    assert window.credit == CREDIT_MAX


@pytest.mark.parametrize(
    ("size", "credit", "held", "granted"),
    [
        (16, 0, 0, 16),
        (16, 16, 0, 0),
        (16, 9, 0, 0),
        (16, 8, 0, 8),
        (16, 4, 5, 0),  # items that wait to be used take their part of the window
        (16, 4, 4, 8),
        (16, 0, 16, 0),
        (1, 1, 0, 0),
        (1, 0, 1, 0),
        (1, 0, 0, 1),
        (3, 2, 0, 0),
        (3, 1, 0, 2),
    ],
)
def test_the_next_grant_comes_when_half_of_the_window_is_used(size: int, credit: int, held: int, granted: int) -> None:
    assert CreditWindow(size, credit).next_grant(held) == granted


@pytest.mark.parametrize(("credit", "limit", "granted"), [(0, 5, 5), (4, 5, 1), (5, 5, 0), (6, 5, 0), (0, 0, 0)])
def test_a_grant_keeps_to_a_limit_below_the_window(credit: int, limit: int, granted: int) -> None:
    assert CreditWindow(16, credit).next_grant(limit=limit) == granted
