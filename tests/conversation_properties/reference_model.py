"""A model of what may become of each call in a run: its answer, and the errors that it may end with.

Every call has a number of its own, which is among its params and comes back in its answer: so an answer that reached
another call, or came twice, is noticed.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rpcstream import CallTimeout, ConnectFailed, ConnectionLost, RpcError, ServerBusy
from rpcstream.errors import CallCancelled, DeadlineExceeded

#: Codes of errors that a caller may cause itself.
CANCELLED, LATE, BUSY = CallCancelled.CODE, DeadlineExceeded.CODE, ServerBusy.CODE


class Gate:
    """A handler waits here until it may go on, in the event loop or in a thread."""

    def __init__(self) -> None:
        self._in_loop = asyncio.Event()
        self._in_thread = threading.Event()

    def open(self) -> None:
        self._in_loop.set()
        self._in_thread.set()

    async def passed(self) -> None:
        await self._in_loop.wait()

    def passed_in_thread(self) -> None:
        assert self._in_thread.wait(20), "a handler's gate was never opened"


@dataclass(eq=False)
class ConnectionModel:
    """The state of one connection, as far as it decides about the calls on it.

    Attributes:
        name: of the client or the scripted peer.
        expected_calls: made on it, in either direction.
        was_touched: something was done to it that may cost answers, such as closing it.
        is_shaky: that was just now, and one of its ends may not have noticed.
        is_crowded: there were more calls at once than it takes.
    """

    name: str
    expected_calls: list[ExpectedCall] = field(default_factory=list, repr=False)
    was_touched: bool = False
    is_shaky: bool = False
    is_crowded: bool = False

    def touch(self) -> None:
        self.was_touched = self.is_shaky = True
        for expected in self.expected_calls:
            expected.may_be_lost = expected.may_be_lost or not expected.is_over


@dataclass(eq=False)
class ExpectedCall:
    """One call, and what it may end with.

    Attributes:
        answer: the right result.
        code: of the error that is the right answer, where there is one.
        failure: the exception that the caller itself raises.
        limit: seconds after which the caller gives up.
    """

    number: int
    kind: str
    connection: ConnectionModel = field(repr=False)
    answer: Any
    code: int | None = None
    failure: type[Exception] | None = None
    limit: float | None = None
    since: float = 0.0
    task: asyncio.Task[Any] | None = None
    was_cancelled: bool = False
    may_be_lost: bool = False
    #: Errors that scripted peers answered with: code and message.
    told: list[tuple[int, str]] = field(default_factory=list)

    #: The members of its batch.
    together: list[ExpectedCall] = field(default_factory=list, repr=False)
    #: A scripted peer answered it, or made it and had its answer.
    is_answered: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_answered if self.task is None else self.task.done()

    def check(self, now: float) -> None:
        """Assert that the outcome is one of those that are allowed."""
        assert self.task is not None
        assert self.task.done(), f"never answered: {self}"
        if self.task.cancelled():
            assert self.was_cancelled, self
            return
        error = self.task.exception()
        if error is None:
            assert self.code is None, self
            assert self.failure is None, self
            assert self.task.result() == self.answer, self
        else:
            assert self.may_end_with(error, now), f"{self} ended with {error!r}"

    def may_end_with(self, error: BaseException, now: float) -> bool:
        if self.failure is not None and isinstance(error, self.failure):
            return True
        was_late = self.limit is not None and now - self.since >= self.limit
        match error:
            case ConnectionLost() | ConnectFailed():
                return self.may_be_lost
            case CallTimeout():
                return was_late
            case RpcError():
                return (
                    error.code == self.code
                    or (error.code, error.message) in self.told
                    or (error.code == CANCELLED and (self.was_cancelled or self.may_be_lost))
                    or (error.code == LATE and was_late)
                    or (error.code == BUSY and self.connection.is_crowded)
                )
        return False


class ReferenceModel:
    """All calls of one run, how often the handler of each began, and what handlers noticed to be wrong."""

    def __init__(self, crowd: int) -> None:
        self.expected_calls: list[ExpectedCall] = []
        self.ran: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._crowd = crowd
        self._gates: dict[int, Gate] = {}
        self.number = itertools.count(1).__next__
        self._all_open = False

    def gate(self, number: int) -> Gate:
        if number not in self._gates:
            self._gates[number] = Gate()
            if self._all_open:
                self._gates[number].open()
        return self._gates[number]

    def open_all(self) -> None:
        """Open all gates, those to come as well."""
        self._all_open = True
        for gate in list(self._gates.values()):
            gate.open()

    def of(self, number: int) -> ExpectedCall:
        return next(expected for expected in self.expected_calls if expected.number == number)

    def enter(self, expected: ExpectedCall) -> ExpectedCall:
        self.expected_calls.append(expected)
        connection = expected.connection
        expected.may_be_lost = connection.is_shaky
        connection.expected_calls.append(expected)
        connection.is_crowded = (
            connection.is_crowded or sum(not each.is_over for each in connection.expected_calls) > self._crowd
        )
        return expected

    def check(self) -> None:
        """Assert what must hold at any time."""
        assert not self.wrong, self.wrong
        twice = [number for number, times in self.ran.items() if times > 1]
        assert not twice, f"carried out more than once: {twice}"
