"""Pending calls: an answer reaches its call, once; and which calls the other end has read when it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream.peer.pending import PendingCall, PendingCalls


class Call(PendingCall):
    def __init__(self, method: str = "method") -> None:
        self.method = method
        self.got: list[Any] = []

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.got.append(reply)

    def fail(self, error: Exception) -> None:
        self.got.append(error)


def reply(call_id: Any, result: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


def test_each_call_gets_its_own_answer_once() -> None:
    pending = PendingCalls()
    waiters = [Call() for _ in range(3)]
    ids = [pending.add(waiter) for waiter in waiters]
    assert len(set(ids)) == 3
    given_up = pending.add(Call())
    pending.discard(given_up)
    pending.settle(reply(given_up), b"")
    for call_id in reversed(ids):
        pending.settle(reply(call_id, call_id), b"")
        pending.settle(reply(call_id, "twice"), b"")
        pending.discard(call_id)
    assert [waiter.got[0]["result"] for waiter in waiters] == ids
    assert all(len(waiter.got) == 1 for waiter in waiters)
    assert (pending.dropped, len(pending)) == (4, 0)


@pytest.mark.parametrize("forged", [1.0, True, "1", [1], {"a": 1}, 2, -1, 2**70])
def test_an_id_of_another_kind_is_nobodys(forged: Any) -> None:
    pending = PendingCalls()
    waiter = Call()
    assert pending.add(waiter) == 1
    pending.settle(reply(forged), b"")
    assert waiter.got == []
    assert pending.dropped == 1


def test_an_error_without_an_id_fails_all_that_wait() -> None:
    pending = PendingCalls()
    waiters = [Call(), Call()]
    for waiter in waiters:
        pending.add(waiter)
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
    pending.settle(error, b"")
    assert [waiter.got for waiter in waiters] == [[error], [error]]
    pending.settle(error, b"")
    assert pending.dropped == 1


def test_ids_of_the_caller_and_ours_do_not_meet() -> None:
    pending = PendingCalls()
    own, theirs = Call(), Call()
    pending.add_as(1, theirs)
    assert pending.add(own) == 2
    for wrong in (2, None, 1.5, True, [1]):
        with pytest.raises(ValueError, match=r"is waiting|string or an integer"):
            pending.add_as(wrong, Call())
    pending.add_as("2", Call())
    pending.settle(reply(1), b"")
    assert (len(theirs.got), len(own.got)) == (1, 0)


def entered(*ids: Any) -> PendingCalls:
    """Calls with these ids, in this order; None: with an id of the table's own."""
    pending = PendingCalls()
    for each in ids:
        if each is None:
            pending.add(Call())
        else:
            pending.add_as(each, Call(str(each)))
    return pending


@pytest.mark.parametrize(
    ("ids", "last", "read"),
    [
        ([None] * 4, 2, [1, 2]),
        ([None] * 4, None, []),
        *(([None] * 4, odd, [1, 2, 3, 4]) for odd in (4, 5, 0, "2", 2.0, True)),
        (["a", None, "b"], "a", ["a", 1, "b"]),
        ([5, 3, 9], 3, [5, 3, 9]),
        ([3, 5, 9], 5, [3, 5]),
        ([2**60, None], 3, [2**60, 1]),
        ([], 3, []),
    ],
)
def test_which_calls_were_read(ids: list[Any], last: Any, read: list[Any]) -> None:
    pending = entered(*ids)
    before = len(pending)
    unread = pending.take_unread(last)
    assert [call_id for call_id, _ in pending.items()] == read
    assert len(unread) == before - len(read)


def test_a_call_that_was_answered_is_known_by_its_id_and_nothing_where_calls_are_not_sent_in_order() -> None:
    pending = entered(*[None] * 4)
    pending.settle({"id": 2, "result": 1}, b"")
    pending.take_unread(2)
    assert [call_id for call_id, _ in pending.items()] == [1]
    unordered = entered(*[None] * 4)
    unordered.is_in_order = False
    assert unordered.take_unread(2) == []
