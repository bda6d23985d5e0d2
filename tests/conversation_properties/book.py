"""The book that is kept of one run: who asked whom for what, what ran, what came of it, and what may have come of it.

Every question has a number of its own, which goes with it and comes back in its answer: so an answer that reached
another question, or came twice, shows.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rpcstream import CallCancelled, CallTimeout, ConnectFailed, ConnectionLost, DeadlineExceeded, RpcError, ServerBusy

#: Codes by which a question may be refused for what its caller did itself.
CANCELLED, LATE, BUSY = CallCancelled.CODE, DeadlineExceeded.CODE, ServerBusy.CODE


class Gate:
    """What a handler waits at until it is told to go on, in the event loop or in a thread."""

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
class Line:
    """One connection, as far as it matters to the questions that are asked over it.

    Attributes:
        name: of the end that is not the server.
        questions: asked over it, in either direction.
        was_touched: it was ended, or something else was done to it that may cost answers.
        is_shaky: that was just now, and perhaps not everybody knows.
        is_crowded: more was asked at once than it takes.
        to_nobody: messages sent by hand that no call waits for.
        is_inexact: how many these are cannot be told.
    """

    name: str
    questions: list[Question] = field(default_factory=list, repr=False)
    was_touched: bool = False
    is_shaky: bool = False
    is_crowded: bool = False
    to_nobody: int = 0
    is_inexact: bool = False

    def touch(self) -> None:
        self.was_touched = self.is_shaky = True
        for question in self.questions:
            question.may_be_lost = question.may_be_lost or not question.is_over


@dataclass(eq=False)
class Question:
    """One call.

    Attributes:
        answer: what the right answer is.
        code: of the error that is the right answer, where there is one.
        failure: what the caller itself fails with.
        limit: seconds after which the caller gives up.
    """

    number: int
    kind: str
    line: Line = field(repr=False)
    answer: Any
    code: int | None = None
    failure: type[Exception] | None = None
    limit: float | None = None
    since: float = 0.0
    task: asyncio.Task[Any] | None = None
    was_cancelled: bool = False
    may_be_lost: bool = False
    #: Errors that somebody gave by hand: code and message.
    told: list[tuple[int, str]] = field(default_factory=list)

    #: The members of its batch.
    together: list[Question] = field(default_factory=list, repr=False)
    #: Was it answered by hand, or asked by hand and answered?
    is_answered: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_answered if self.task is None else self.task.done()

    def check(self, now: float) -> None:
        """Is what came of it what may have come of it?"""
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
                    or (error.code == BUSY and self.line.is_crowded)
                )
        return False


class Book:
    """Everything that was asked.

    Attributes:
        ran: how often the handler of each question began.
        wrong: what handlers saw that cannot be right.
    """

    def __init__(self, crowd: int) -> None:
        self.questions: list[Question] = []
        self.ran: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._crowd = crowd
        self._gates: dict[int, Gate] = {}
        self._last = 0
        self._all_open = False

    def number(self) -> int:
        self._last += 1
        return self._last

    def gate(self, number: int) -> Gate:
        if number not in self._gates:
            self._gates[number] = Gate()
            if self._all_open:
                self._gates[number].open()
        return self._gates[number]

    def open_all(self) -> None:
        """Nothing is kept back from now on."""
        self._all_open = True
        for gate in list(self._gates.values()):
            gate.open()

    def of(self, number: int) -> Question:
        return next(question for question in self.questions if question.number == number)

    def enter(self, question: Question) -> Question:
        self.questions.append(question)
        line = question.line
        question.may_be_lost = line.is_shaky
        line.questions.append(question)
        line.is_crowded = line.is_crowded or sum(not each.is_over for each in line.questions) > self._crowd
        return question

    def begins(self, number: int) -> None:
        """A handler says that it begins."""
        self.ran[number] += 1

    def check(self) -> None:
        """What must hold at any time."""
        assert not self.wrong, self.wrong
        twice = [number for number, times in self.ran.items() if times > 1]
        assert not twice, f"carried out more than once: {twice}"
