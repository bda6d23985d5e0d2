"""The calls of a peer that run: their tasks, forwarded calls, cancels, and what keeps other calls waiting.

Also the two interfaces that a session uses: the channel that carries its messages, and the dispatcher.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import RpcError
from ..wire.buffers import Encoded
from .ledger import ConnectionLedger


class Hold:
    """Keeps a session from taking up requests, until it is released or dropped.

    Attributes:
        over: done when it is released.
    """

    __slots__ = ("_is_released", "_session", "over")

    def __init__(self, session: Any) -> None:
        self._session = session
        self._is_released = False
        self.over: asyncio.Future[None] = session.loop.create_future()
        session.running.holds.append(self.over)
        session.intake.is_calm = False

    def release(self) -> None:
        """Have requests taken up again, behind the reply that is being made. Harmless at any time, in any thread."""
        session = self._session
        if not (self._is_released or session.loop.is_closed()):
            self._is_released = True
            session.loop.call_soon_threadsafe(_end_hold, session, self.over, context=session.context)

    #: Of a call that was cancelled before its first step, of which nothing ever runs.
    __del__ = release


def _end_hold(session: Any, over: asyncio.Future[None]) -> None:
    session.running.holds.remove(over)
    over.set_result(None)
    session.intake.wake()


class ForwardedCall:
    """A call that another peer carries out, without a task here. It ends by `Session.finish`.

    Attributes:
        call_id: the id of the request.
        on_end: called once with the reply; None: nobody observes the end.
    """

    __slots__ = ("call_id", "on_end")

    def __init__(self, call_id: Any) -> None:
        self.call_id = call_id
        self.on_end: Callable[[Any], None] | None = None

    def cancel(self) -> None:
        """End the call: the caller has cancelled it, or is gone."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class RunningCalls:
    """The calls of one connection that run.

    Args:
        ledger: of the connection.

    Attributes:
        handlers: the tasks, each with the message that it handles; a batch has one task.
        batch_members: the tasks of members of batches, each with its member.
        forwarded: the calls that other peers carry out.
        holds: what keeps others from being taken up, whatever room there is; each is done when it is over.
        batch: the batch that has members which have not begun yet (`RpcBatch`); None if there is none.
    """

    ledger: ConnectionLedger
    holds: list[asyncio.Future[None]] = field(default_factory=list)
    handlers: dict[asyncio.Task[Any], Any] = field(default_factory=dict)
    forwarded: dict[ForwardedCall, None] = field(default_factory=dict)
    batch_members: dict[asyncio.Task[Any], dict[str, Any]] = field(default_factory=dict)
    batch: Any = None
    #: Bytes of the messages of tasks, small ones left out.
    _sizes: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    _undisturbed: set[asyncio.Task[Any]] = field(default_factory=set)
    #: The ids of all tasks, so that many cancels for unknown ids cost little; None: to be collected.
    _ids: set[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.handlers or self.forwarded)

    def need_no_reply(self, goes_on: Callable[[Any], bool]) -> bool:
        """Whether only notifications run, and all of them go on without the connection, as `goes_on` tells."""
        if self.forwarded or self.batch is not None:
            return False
        messages = self.handlers.values()
        calls = [call for message in messages for call in (message if type(message) is list else [message])]
        return all(type(call) is dict and "id" not in call and goes_on(call) for call in calls)

    def start(self, task: asyncio.Task[Any], message: Any, size: int) -> None:
        """Add the task of a request or a batch, and the memory of its message; 0 if that is not counted."""
        self.handlers[task] = message
        self._ids = None
        self.ledger.calls += len(message) if type(message) is list else 1
        if size:
            self._sizes[task] = size
            self.ledger.hold(size)

    def end(self, task: asyncio.Task[Any]) -> Any:
        """Remove a task that is done; gives its message."""
        message = self.handlers.pop(task)
        self.ledger.calls -= len(message) if type(message) is list else 1
        if self._sizes:
            self.ledger.hold(-self._sizes.pop(task, 0))
        return message

    def enter(self, call: ForwardedCall) -> None:
        """Add a forwarded call."""
        self.forwarded[call] = None
        self.ledger.calls += 1

    def leave(self, call: ForwardedCall) -> bool:
        """Remove a forwarded call that is over; False if it was removed before."""
        if call not in self.forwarded:
            return False
        del self.forwarded[call]
        self.ledger.calls -= 1
        return True

    def start_member(self, task: asyncio.Task[Any], message: dict[str, Any]) -> None:
        """Add the task of a member of a batch; the batch has a task of its own."""
        self.batch_members[task] = message
        self._ids = None
        task.add_done_callback(self.batch_members.pop)

    def cancel(self, call_id: Any) -> bool:
        """Cancel the call with this id (a string or an integer), of several the first; False if there is none."""
        if self._ids is None:
            self._ids = {m["id"] for _, m in self._calls() if type(m) is dict and type(m.get("id")) in (int, str)}
        for task, message in self._calls() if call_id in self._ids else ():
            if is_call(message, call_id):
                self._cancel_once(task)
                return True
        for call in self.forwarded:
            if type(call.call_id) is type(call_id) and call.call_id == call_id:
                call.cancel()
                return True
        return self.batch is not None and bool(self.batch.cancel(call_id))

    def abandon(self, goes_on: Callable[[Any], bool]) -> None:
        """Cancel every call, except those that are to go on without their caller. A batch ends with its members."""
        for task, message in self._calls():
            if type(message) is dict and not goes_on(message):
                self._cancel_once(task)
        self._cancel_forwarded()

    def cancel_all(self) -> None:
        """Cancel every call, also those that tidy up already."""
        for task, _ in self._calls():
            task.cancel()
        self._cancel_forwarded()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """All tasks, of batches and of their members too."""
        return [*self.handlers, *self.batch_members]

    def method_names(self) -> set[str]:
        """The names of the methods that run."""
        return {str(message.get("method")) for _, message in self._calls() if type(message) is dict}

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

    def _calls(self) -> list[tuple[asyncio.Task[Any], Any]]:
        return [*self.handlers.items(), *self.batch_members.items()]

    def _cancel_forwarded(self) -> None:
        for call in list(self.forwarded):
            call.cancel()

    def _cancel_once(self, task: asyncio.Task[Any]) -> None:
        """A second cancel would disturb what the handler does in its `finally`."""
        if not task.cancelling() and task not in self._undisturbed:
            task.cancel()


def is_call(message: Any, call_id: int | str) -> bool:
    """Whether a message is the request with exactly this id, of the same type too: 1 is not 1.0."""
    found = message.get("id") if type(message) is dict else None
    return type(found) is type(call_id) and found == call_id


#: A handler that waits; gives the reply.
Waiting = Coroutine[Any, Any, Encoded | None]

#: Stands for a reply that comes later: a coroutine to run here, or a call that another peer carries out.
Later = Waiting | ForwardedCall


class Channel(Protocol):
    """A transport, as a session uses it."""

    #: Of the other end, for logs and errors.
    address: str

    #: Why the connection was lost; None if the peer just closed it.
    reason: str | None

    def send(self, messages: list[Encoded]) -> None:
        """Write these messages, in order, with one write. May call `blocked` before it returns."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read again after `pause`."""

    def close(self) -> None:
        """Write what is left, then close; what is still received is dropped."""

    def abort(self, reason: str) -> None:
        """Close at once. May call `lost` before it returns (HTTP and NATS do), also in the first step of a handler."""

    def probe(self) -> None:
        """Find out whether a peer that has closed its sending half still reads; if not, the connection will be lost."""


class Dispatch(Protocol):
    """Answers the requests of a session: one parsed message in, one reply out, now or later."""

    def answer(self, message: Any, line: bytes | bytearray, session: Any) -> Encoded | Later | None:
        """Carry out a request or a batch.

        Args:
            message: as parsed.
            line: as it came.
            session: the conversation that it came on.

        Returns:
            The reply; a coroutine or a forwarded call that gives it later; None where no reply is due.
        """
        ...

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """The error reply to a message that is not carried out; None where no reply is due.

        Args:
            message: the request or batch. An `Oversize` if it was too large to be read; `{"id": ...}` if it is not
                JSON, with None where the id cannot be told.
            error: the reason: MessageTooLarge, ParseError, CallCancelled (also of a handler that was cancelled),
                NotAuthenticated or ServerBusy. Each member of a batch gets its own.
        """
        ...

    def goes_on(self, message: Any) -> bool:
        """Whether the handler of this request is to go on when the connection is lost."""
        ...
