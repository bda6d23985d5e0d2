"""A process that forks: the child makes connections of its own."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from rpcstream import Client

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork"),
    # The test itself has threads (the server's); the child only makes calls and ends.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_child(work: Any) -> int:
    """The exit status of a child in which the work ran: 0 if it did not raise."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_does_not_share_the_connection(served: str) -> None:
    with Client(served, pool=2) as client:
        assert client.sum(1, 2) == 3
        assert client.submit.sum(1, 2).result() == 3
        waiting = client.submit.echo_after("parent", 0.2)

        def work() -> None:
            for number in range(20):
                assert client.sum(number, 1) == number + 1
            called = []
            futures = [client.submit.sum(number, 1) for number in range(20)]
            futures[0].add_done_callback(called.append)
            assert [future.result(10) for future in futures] == list(range(1, 21))
            client.close()

        assert in_child(work) == 0
        assert waiting.result() == "parent"
        assert client.sum(3, 4) == 7


def test_a_child_may_close_or_drop_what_it_never_used(served: str) -> None:
    with Client(served) as client:
        assert client.sum(1, 2) == 3
        assert in_child(client.close) == 0
        assert in_child(lambda: None) == 0
        assert client.sum(3, 4) == 7
