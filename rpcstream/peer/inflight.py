"""The handlers at work for one connection: which task works for which message, how to stop one of them.

Owns the table of running tasks, which also keeps them alive. Knows neither transports nor methods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .memory import MessageMemory


class ForwardedCall:
    """A call that is carried out by somebody else, with no task here.

    Whoever makes one says when it is over (`Session.finish`).

    Attributes:
        call_id: of the request that it answers.
    """

    __slots__ = ("call_id",)

    def __init__(self, call_id: Any) -> None:
        self.call_id = call_id

    def cancel(self) -> None:
        """Nobody waits any more."""
        raise NotImplementedError


#: What a cancel stops.
Cancellable = asyncio.Task[Any] | ForwardedCall


class UnstartedBatch(Protocol):
    """A batch of which not all members have been taken up."""

    def cancel(self, call_id: Any) -> bool:
        """Do not carry out the call with this id; false if it is none of those."""


class RunningCalls:
    """What runs at the moment.

    Attributes:
        running: the tasks, and the messages they work for; a batch is one of them.
        members: the tasks of the members of batches.
        elsewhere: the calls that somebody else carries out.
        load: how many calls that are.
        batch: has members that were not taken up yet; None without.
        held: bytes of memory that the messages of tasks take, those of small messages not counted.

    Args:
        memory: of the server, where these bytes count, too.
    """

    __slots__ = (
        "_by_id",
        "_memory",
        "_sizes",
        "_undisturbed",
        "batch",
        "batch_members",
        "forwarded",
        "handlers",
        "held",
        "load",
    )

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        #: Of the tasks whose message is not small.
        self._sizes: dict[asyncio.Task[Any], int] = {}
        self.held = 0
        #: What can be cancelled, by the text of its id, in the order in which it began: peers choose ids, not our
        #: hashes, and may use one twice. There from the first cancel on for as long as something runs, since most
        #: peers never cancel.
        self._by_id: dict[str, dict[Cancellable, None]] | None = None
        self.handlers: dict[asyncio.Task[Any], Any] = {}
        self.forwarded: dict[ForwardedCall, None] = {}
        self.batch_members: dict[asyncio.Task[Any], dict[str, Any]] = {}
        self.load = 0
        self.batch: UnstartedBatch | None = None
        self._undisturbed: set[asyncio.Task[Any]] = set()

    def __bool__(self) -> bool:
        return bool(self.handlers or self.forwarded)

    def start(self, task: asyncio.Task[Any], message: Any, size: int = 0) -> None:
        """A task works for a message, which takes `size` bytes of memory (0 for a small one)."""
        self.handlers[task] = message
        self.load += len(message) if type(message) is list else 1  # a batch counts with each of its members
        if size:
            self._sizes[task] = size
            self.held += size
            self._memory.at_work += size
        if self._by_id is not None:
            self._enter(task, message)

    def finish(self, task: asyncio.Task[Any]) -> Any:
        """The message that the task worked for."""
        message = self.handlers.pop(task)
        self.load -= len(message) if type(message) is list else 1
        if self._sizes and (size := self._sizes.pop(task, 0)):
            self.held -= size
            self._memory.at_work -= size
        if self._by_id is not None:
            self._forget(task, message)
        return message

    def enter(self, call: ForwardedCall) -> None:
        """Somebody else carries this out."""
        self.forwarded[call] = None
        self.load += 1
        if self._by_id is not None:
            self._enter_id(call, call.call_id)

    def leave(self, call: ForwardedCall) -> bool:
        """It is over; false if it was over before."""
        if call not in self.forwarded:
            return False
        del self.forwarded[call]
        self.load -= 1
        if self._by_id is not None:
            self._forget_id(call, call.call_id)
        return True

    def begin_batch(self, batch: UnstartedBatch) -> None:
        """From now on this batch has members that were not taken up yet."""
        self.batch = batch

    def end_batch(self) -> None:
        """All members of the batch were taken up."""
        self.batch = None

    def start_member(self, task: asyncio.Task[Any], message: dict[str, Any]) -> None:
        """A member of a batch runs; the task of the batch is running too."""
        self.batch_members[task] = message
        if self._by_id is not None:
            self._enter(task, message)
        task.add_done_callback(self._finish_member)

    def _finish_member(self, task: asyncio.Task[Any]) -> None:
        message = self.batch_members.pop(task)
        if self._by_id is not None:
            self._forget(task, message)

    def cancel(self, call_id: Any) -> bool:
        """Stop the call with this id (a string or an integer); false if there is none.

        Of several with the same id, the one that began first. Nothing is kept for a cancel that never comes.
        """
        if self._by_id is None:
            if not (self.handlers or self.batch_members or self.forwarded):
                return self.batch is not None and self.batch.cancel(call_id)
            self._by_id = {}
            for table in (self.handlers, self.batch_members):
                for task, message in table.items():
                    self._enter(task, message)
            for call in self.forwarded:
                self._enter_id(call, call.call_id)
        found = self._by_id.get(_key(call_id))
        if found is None:
            return self.batch is not None and self.batch.cancel(call_id)
        first = next(iter(found))
        if isinstance(first, ForwardedCall):
            first.cancel()
        else:
            self._cancel_once(first)
        return True

    def _enter(self, task: asyncio.Task[Any], message: Any) -> None:
        if type(message) is dict:
            self._enter_id(task, message.get("id"))

    def _enter_id(self, what: Cancellable, call_id: Any) -> None:
        if type(call_id) is int or type(call_id) is str:
            assert self._by_id is not None
            self._by_id.setdefault(_key(call_id), {})[what] = None

    def _forget(self, task: asyncio.Task[Any], message: Any) -> None:
        self._forget_id(task, message.get("id") if type(message) is dict else None)

    def _forget_id(self, what: Cancellable, call_id: Any) -> None:
        if not (self.handlers or self.batch_members or self.forwarded):
            self._by_id = None
        elif type(call_id) is int or type(call_id) is str:
            assert self._by_id is not None
            key = _key(call_id)
            same = self._by_id.get(key)
            if same is not None:
                same.pop(what, None)
                if not same:
                    del self._by_id[key]

    def abandon(self, goes_on: Callable[[Any], bool]) -> None:
        """Nobody waits any more: stop every call, except those that are to go on.

        A batch ends with its members.
        """
        for table in (self.handlers, self.batch_members):
            for task, message in list(table.items()):
                if type(message) is dict and not goes_on(message):
                    self._cancel_once(task)
        self._cancel_forwarded()

    def cancel_all(self) -> None:
        for task in [*self.handlers, *self.batch_members]:
            task.cancel()
        self._cancel_forwarded()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """All that run, of batches and of their members too."""
        return [*self.handlers, *self.batch_members]

    def method_names(self) -> set[str]:
        """The methods that tasks run for."""
        messages = [*self.handlers.values(), *self.batch_members.values()]
        return {str(message.get("method")) for message in messages if type(message) is dict}

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

    def _cancel_forwarded(self) -> None:
        for call in list(self.forwarded):
            call.cancel()

    def _cancel_once(self, task: asyncio.Task[Any]) -> None:
        """A second cancel would disturb what the handler does in its `finally`."""
        if not task.cancelling() and task not in self._undisturbed:
            task.cancel()


def _key(call_id: int | str) -> str:
    """An id (1, 1.0 and True are equal, and yet no two of them are the same; and 1 is not "1")."""
    return f"i{call_id}" if type(call_id) is int else f"s{call_id}"
