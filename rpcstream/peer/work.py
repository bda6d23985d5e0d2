"""The handlers at work for one connection: which task works for which message, how to stop one of them.

Owns the table of running tasks, which also keeps them alive. Knows neither transports nor methods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .elsewhere import Elsewhere


class Work:
    """What runs at the moment.

    Attributes:
        running: the tasks, and the messages they work for; a batch is one of them.
        members: the tasks of the members of batches.
        elsewhere: the calls that somebody else carries out.
        load: how many calls that are.
    """

    __slots__ = ("_undisturbed", "elsewhere", "load", "members", "running")

    def __init__(self) -> None:
        self.running: dict[asyncio.Task[Any], Any] = {}
        self.elsewhere: dict[Elsewhere, None] = {}
        self.members: dict[asyncio.Task[Any], dict[str, Any]] = {}
        self.load = 0
        self._undisturbed: set[asyncio.Task[Any]] = set()

    def __bool__(self) -> bool:
        return bool(self.running or self.elsewhere)

    def start(self, task: asyncio.Task[Any], message: Any) -> None:
        self.running[task] = message
        self.load += len(message) if type(message) is list else 1  # a batch counts with each of its members

    def finish(self, task: asyncio.Task[Any]) -> Any:
        """The message that the task worked for."""
        message = self.running.pop(task)
        self.load -= len(message) if type(message) is list else 1
        return message

    def enter(self, call: Elsewhere) -> None:
        """Somebody else carries this out."""
        self.elsewhere[call] = None
        self.load += 1

    def leave(self, call: Elsewhere) -> bool:
        """It is over; false if it was over before."""
        if call not in self.elsewhere:
            return False
        del self.elsewhere[call]
        self.load -= 1
        return True

    def start_member(self, task: asyncio.Task[Any], message: dict[str, Any]) -> None:
        """A member of a batch runs; the task of the batch is running too."""
        self.members[task] = message
        task.add_done_callback(self.members.pop)

    def cancel(self, call_id: Any) -> bool:
        """Stop the call with this id (a string or an integer); false if there is none.

        A look at every call that runs, `max_calls` at most: so nothing is kept for a cancel that never comes.
        """
        for table in (self.running, self.members):
            for task, message in table.items():
                if type(message) is dict and is_same_id(message.get("id"), call_id):
                    self._cancel_once(task)
                    return True
        for call in self.elsewhere:
            if is_same_id(call.call_id, call_id):
                call.cancel()
                return True
        return False

    def abandon(self, goes_on: Callable[[Any], bool]) -> None:
        """Nobody waits any more: stop every call, except those that are to go on.

        A batch ends with its members.
        """
        for table in (self.running, self.members):
            for task, message in list(table.items()):
                if type(message) is dict and not goes_on(message):
                    self._cancel_once(task)
        self._cancel_elsewhere()

    def cancel_all(self) -> None:
        for task in [*self.running, *self.members]:
            task.cancel()
        self._cancel_elsewhere()

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """The current task tidies up, and ends soon: only `cancel_all` stops it."""
        task = asyncio.current_task()
        assert task is not None
        self._undisturbed.add(task)
        try:
            yield
        finally:
            self._undisturbed.discard(task)

    def _cancel_elsewhere(self) -> None:
        for call in list(self.elsewhere):
            call.cancel()

    def _cancel_once(self, task: asyncio.Task[Any]) -> None:
        """A second cancel would disturb what the handler does in its `finally`."""
        if not task.cancelling() and task not in self._undisturbed:
            task.cancel()


def is_same_id(left: Any, right: Any) -> bool:
    """Are both the same id? (1, 1.0 and True are equal, and yet no two of them are the same.)"""
    return type(left) is type(right) and bool(left == right)
