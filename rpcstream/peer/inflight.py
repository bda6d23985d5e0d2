"""The calls of a peer that run: which task handles which message, which calls are forwarded, and how to cancel one.

Owns the tables of tasks, which also keep them alive. Knows neither transports nor methods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .memory import MessageMemory


class ForwardedCall:
    """A call that another peer carries out, without a task here. It ends by `ConversationState.finish`.

    Attributes:
        call_id: the id of the request.
    """

    __slots__ = ("call_id",)

    def __init__(self, call_id: Any) -> None:
        self.call_id = call_id

    def cancel(self) -> None:
        """End the call: the caller has cancelled it, or is gone."""
        raise NotImplementedError


#: What can be cancelled.
Cancellable = asyncio.Task[Any] | ForwardedCall


class UnstartedBatch(Protocol):
    """A batch of which not all members have begun."""

    def cancel(self, call_id: Any) -> bool:
        """Do not begin the call with this id; False if it is none of those that have not begun."""


class RunningCalls:
    """The calls of one connection that run.

    Args:
        memory: of the server, where the bytes of the messages count, too.

    Attributes:
        handlers: the tasks, each with the message that it handles; a batch has one task.
        batch_members: the tasks of members of batches, each with its member.
        forwarded: the calls that other peers carry out.
        load: how many calls these are; a batch counts with each member.
        held: bytes of memory that the messages of tasks take, those of small messages not counted.
        batch: the batch that has members which have not begun yet; None if there is none.
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
        #: Bytes of the messages of tasks, small ones left out.
        self._sizes: dict[asyncio.Task[Any], int] = {}
        self.held = 0
        #: What can be cancelled, by its id as text (so that peers do not choose our hashes), in the order in which it
        #: began, since an id may be used twice. Made at the first cancel, since most peers never cancel, and kept for
        #: as long as something runs.
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
        """Add a task and the message that it handles, which takes `size` bytes of memory (0: a small one)."""
        self.handlers[task] = message
        self.load += len(message) if type(message) is list else 1
        if size:
            self._sizes[task] = size
            self.held += size
            self._memory.at_work += size
        if self._by_id is not None:
            self._enter(task, message)

    def finish(self, task: asyncio.Task[Any]) -> Any:
        """Remove a task; gives the message that it handled."""
        message = self.handlers.pop(task)
        self.load -= len(message) if type(message) is list else 1
        if self._sizes and (size := self._sizes.pop(task, 0)):
            self.held -= size
            self._memory.at_work -= size
        if self._by_id is not None:
            self._forget(task, message)
        return message

    def enter(self, call: ForwardedCall) -> None:
        """Add a forwarded call."""
        self.forwarded[call] = None
        self.load += 1
        if self._by_id is not None:
            self._enter_id(call, call.call_id)

    def leave(self, call: ForwardedCall) -> bool:
        """Remove a forwarded call that is over; False if it was removed before."""
        if call not in self.forwarded:
            return False
        del self.forwarded[call]
        self.load -= 1
        if self._by_id is not None:
            self._forget_id(call, call.call_id)
        return True

    def begin_batch(self, batch: UnstartedBatch) -> None:
        """Note that this batch has members which have not begun yet."""
        self.batch = batch

    def end_batch(self) -> None:
        """Note that all members of the batch have begun."""
        self.batch = None

    def start_member(self, task: asyncio.Task[Any], message: dict[str, Any]) -> None:
        """Add the task of a member of a batch; the batch has a task of its own."""
        self.batch_members[task] = message
        if self._by_id is not None:
            self._enter(task, message)
        task.add_done_callback(self._finish_member)

    def _finish_member(self, task: asyncio.Task[Any]) -> None:
        message = self.batch_members.pop(task)
        if self._by_id is not None:
            self._forget(task, message)

    def cancel(self, call_id: Any) -> bool:
        """Cancel the call with this id (a string or an integer), of several the first; False if there is none."""
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
        """Cancel every call, except those that are to go on without their caller. A batch ends with its members."""
        for table in (self.handlers, self.batch_members):
            for task, message in list(table.items()):
                if type(message) is dict and not goes_on(message):
                    self._cancel_once(task)
        self._cancel_forwarded()

    def cancel_all(self) -> None:
        """Cancel every call, also those that tidy up already."""
        for task in [*self.handlers, *self.batch_members]:
            task.cancel()
        self._cancel_forwarded()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """All tasks, of batches and of their members too."""
        return [*self.handlers, *self.batch_members]

    def method_names(self) -> set[str]:
        """The names of the methods that run."""
        messages = [*self.handlers.values(), *self.batch_members.values()]
        return {str(message.get("method")) for message in messages if type(message) is dict}

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """While the current task tidies up, which does not take long, only `cancel_all` cancels it."""
        task = asyncio.current_task()
        assert task is not None
        self._undisturbed.add(task)
        try:
            yield
        finally:
            self._undisturbed.discard(task)

    def is_undisturbed(self, task: asyncio.Task[Any]) -> bool:
        """Whether a task tidies up at the moment."""
        return task in self._undisturbed

    def _cancel_forwarded(self) -> None:
        for call in list(self.forwarded):
            call.cancel()

    def _cancel_once(self, task: asyncio.Task[Any]) -> None:
        """A second cancel would disturb what the handler does in its `finally`."""
        if not task.cancelling() and task not in self._undisturbed:
            task.cancel()


def _key(call_id: int | str) -> str:
    """An id as text, since 1, 1.0 and True are equal in Python, but different ids; and 1 is not "1"."""
    return f"i{call_id}" if type(call_id) is int else f"s{call_id}"
