"""Outgoing calls that wait for their reply: it reaches the call that it belongs to, once, or none.

A `PendingCall` decides what its reply does. Not for several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..codec import payloads
from ..errors import ConnectionLost, RpcError, Unread, error_from_wire
from ..text import get_logger
from ..wire import envelope
from ..wire.envelope import LONG
from .deadline import INFINITE
from .marshal import Marshaller

#: Called with each value that a handler reports on its way to the result.
OnProgress = Callable[[Any], object]


class PendingCall:
    """A call that waits for its reply: `answer` or `fail` is called, once, unless the call is given up before.

    Attributes:
        method: its name, for errors.
        deadline: when the wait is over (loop time, s); infinite: not before the connection is.
        on_progress: called with each value that the handler reports on its way; None: these are dropped.
    """

    # Empty, so that a subclass may have another base with slots.
    __slots__ = ()

    method: str
    deadline: float = INFINITE
    on_progress: OnProgress | None = None

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Take the reply object, and the message that it stood in."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """There will be no reply."""
        raise NotImplementedError

    def end_array(self) -> None:
        """Note that every reply of the array with this call's reply has been given to its call."""

    def put(self, params: dict[str, Any], line: bytes | bytearray) -> None:
        """Take an item of the stream that answers the call, as it came; ignored by a call that wants none.

        Raises:
            InvalidRequest: it was not permitted. The call has ended with that.
        """

    def progress(self, params: dict[str, Any], line: bytes | bytearray, marshaller: Marshaller) -> None:
        """Take a progress report as it came. What `on_progress` raises is logged, and ends nothing."""
        if self.on_progress is None:
            return
        try:
            self.on_progress(marshaller.item(self.method, params, line))
        except Exception:
            get_logger("rpcstream.client").exception("on_progress of a call of %r failed", self.method)

    def when_over(self, function: Callable[[], object]) -> None:
        """Call this when the wait is over, for whatever reason. For calls with streams among their arguments."""
        raise NotImplementedError


class PendingCalls:
    """The table of calls that wait. Ids come from our own counter, so that a peer cannot choose the keys.

    Attributes:
        dropped: replies and items for which no call waited: late, forged or duplicate.
        is_in_order: each call is sent behind those with lesser ids.
        holds_notices: a message without a reply waits in the table until there is a connection for it (HTTP).
        when_silent: gives what is added to the reason of a connection that ended before any call was answered.
    """

    def __init__(self) -> None:
        self._waiting: dict[int | str, PendingCall] = {}
        self._last_id = 0
        self.is_in_order = True
        self.holds_notices = False
        #: The calls that the other end has read, once it has said which; those entered later are not among them.
        self._read: frozenset[int | str] | None = None
        self._refusal: str | None = None
        self.dropped = 0
        self.when_silent: Callable[[], str] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: PendingCall) -> int:
        """Enter a call; gives the id to send it with."""
        call_id = self._last_id + 1
        while call_id in self._waiting:
            call_id += 1
        self._last_id = call_id
        self._waiting[call_id] = call
        return call_id

    def add_as(self, call_id: Any, call: PendingCall) -> None:
        """Enter a call under an id that the caller chose.

        Raises:
            ValueError: it is no id (section 4: a string or an integer here), or a call with it is waiting.
        """
        if type(call_id) not in (int, str):
            raise ValueError(f"an id must be a string or an integer, got {call_id!r}")
        if call_id in self._waiting:
            raise ValueError(f"a call with the id {call_id!r} is waiting for its answer")
        if type(call_id) is int and self._last_id < call_id < 2**53:
            # Should this call be given up, its late answer must not find a call of ours that was given the same id.
            self._last_id = call_id
        else:
            self.is_in_order = False
        self._waiting[call_id] = call

    def add_notice(self, call: PendingCall) -> tuple[int, ...]:
        """Enter a message without a reply, or end its wait at once; gives the ids that it has in the table."""
        if self.holds_notices:
            return (self.add(call),)
        call.answer({}, b"")
        return ()

    def items(self) -> list[tuple[int | str, PendingCall]]:
        """The calls that wait now, with their ids."""
        return list(self._waiting.items())

    def find(self, call_id: Any) -> PendingCall | None:
        """The call with exactly this id, of the same type too; None if none waits."""
        return self._waiting.get(call_id) if type(call_id) is int or type(call_id) is str else None

    def discard(self, call_id: int | str) -> bool:
        """Remove a call that is given up; a reply that still comes is dropped. False: the reply has come already."""
        return self._waiting.pop(call_id, None) is not None

    def settle(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Give a reply to the call that waits for it.

        An error without an id means that the peer could not read some message of ours: then every call that waits gets
        the error, since any of them may have been in that message.
        """
        call_id = reply.get("id")
        if call_id is None and "error" in reply:
            refusal = error_from_wire(reply["error"])
            self._refusal = str(refusal)
            if self._waiting:
                if len(line) >= LONG:  # each call would have to read it
                    reply, line = {"id": None, "error": {"code": refusal.code, "message": refusal.message[:1000]}}, b""
                waiting, self._waiting = self._waiting, {}
                for call in waiting.values():
                    call.answer(reply, line)
                return
        # 1, 1.0 and True are the same key; an answer must have the very type of the id that was sent.
        found = self._waiting.pop(call_id, None) if type(call_id) is int or type(call_id) is str else None
        if found is None:
            self.dropped += 1
        else:
            found.answer(reply, line)

    def settled(self, message: Any, line: bytes | bytearray) -> bool:
        """Give a reply, or a batch of replies, to the calls that wait; False if the message is anything else."""
        if envelope.is_reply(message):
            self.settle(message, line)
        elif type(message) is list and message and all(map(envelope.is_reply, message)):
            self.settle_array(message, line)
        else:
            return False
        return True

    def settle_array(self, replies: list[dict[str, Any]], line: bytes | bytearray) -> None:
        """Give the replies of an array to the calls that wait for them."""
        line = payloads.shared(line)
        calls = [self.find(reply.get("id")) for reply in replies]
        for reply in replies:
            self.settle(reply, line)
        for call in filter(None, calls):
            call.end_array()

    def settled_unread(self, head: bytes, error: RpcError) -> bool:
        """Fail the call whose reply is too large or no JSON; False if `head`, its beginning, is not that of a reply."""
        if not envelope.is_reply_head(head):
            return False
        self.settle(envelope.error_reply(envelope.id_in_head(head), error), b"")
        return True

    def explained(self, reason: str) -> str:
        """The reason why the connection ended, with the last error that belonged to no call: perhaps "busy"."""
        if self._refusal is not None:
            return f"{reason}, having said: {self._refusal}"
        if self.when_silent is not None and len(self._waiting) == self._last_id:
            return reason + self.when_silent()
        return reason

    def fail_all(self, make_error: Callable[[str], Exception]) -> None:
        """Fail every call at once, with the error made for its method.

        Calls that were entered after `take_unread` get `Unread` in the place of a ConnectionLost.
        """
        errors = [make_error(call.method) for call in self._waiting.values()]
        waiting, self._waiting = self._waiting, {}
        for (call_id, call), error in zip(waiting.items(), errors, strict=True):
            if self._read is not None and call_id not in self._read and isinstance(error, ConnectionLost):
                call.fail(Unread(error.reason, method=error.method, address=error.address))
            else:
                call.fail(error)

    # -- what the other end has read (`$/goAway`) -------------------------------------------------------------------

    def take_unread(self, last: Any) -> list[PendingCall]:
        """Take out the calls that the other end did not read; those entered from now on count as such, too.

        Args:
            last: the id of the last request that it read, as it came; None: it read none; `UNSAYABLE`: it did not say.
        """
        calls = [self._waiting.pop(call_id) for call_id in self._sent_behind(last)]
        self._read = frozenset(self._waiting)
        return calls

    def _sent_behind(self, last: Any) -> list[Any]:
        """The ids of the calls that were certainly sent behind the one with the id `last`."""
        if last is None:
            return list(self._waiting)
        if type(last) is int and self.is_in_order and 0 < last <= self._last_id:
            return [call_id for call_id in self._waiting if call_id > last]  # type: ignore[operator]
        return []
