"""Outgoing calls that wait for their reply.

Owns the ids of our own calls, and the promise that a reply reaches the call that it belongs to, once, or none. Knows no
socket, no clock and no thread: a `PendingCall` decides what its reply does. Not for several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..codec import payloads
from ..errors import ConnectionLost, InternalError, ParseError, Unread, error_from_wire
from ..wire import envelope
from ..wire.buffers import Encoded, first_part
from ..wire.messages import HEAD_SIZE, LONG, Oversize
from .deadline import INFINITE

#: Called with each value that a handler reports on its way to the result.
OnProgress = Callable[[Any], object]


class PendingCall:
    """A call that waits for its reply: `answer` or `fail` is called, once, unless the call is given up before.

    Attributes:
        method: its name, for errors.
        deadline: when the wait is over (loop time, s); infinite: not before the connection is.
        on_progress: called with each value that the handler reports on its way; None: these are dropped.
        keeps_order: it is sent behind those that were entered before it, also where `set_out_of_order` was called.
    """

    # Empty, so that a subclass may have another base with slots.
    __slots__ = ()

    method: str
    deadline: float = INFINITE
    on_progress: OnProgress | None = None
    keeps_order = False

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Take the reply object, and the message that it stood in."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """There will be no reply."""
        raise NotImplementedError

    def item(self, params: dict[str, Any], line: bytes | bytearray) -> bool:
        """Take an item of the stream that answers the call, as it came; False if the call wants none.

        Raises:
            InvalidRequest: it was not permitted. The call has ended with that.
        """
        return False

    def progress(self, params: dict[str, Any], line: bytes | bytearray) -> bool:
        """Take a progress report as it came; False if it is for `on_progress`."""
        return False

    def when_over(self, function: Callable[[], object]) -> None:
        """Call this when the wait is over, for whatever reason. For calls with streams among their arguments."""
        raise NotImplementedError


class BinaryOffer(PendingCall):
    """The request `rpc.hello`, which asks the peer whether it reads binary frames.

    Args:
        accept: called with its answer if it does; not where it answers with an error, such as an end of an older
            version.
    """

    __slots__ = ("_accept", "method")

    def __init__(self, accept: Callable[[dict[str, Any]], object]) -> None:
        self.method = envelope.HELLO
        self._accept = accept

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        result = reply.get("result")
        if type(result) is dict and result.get("binary") == 1:
            self._accept(result)

    def fail(self, error: Exception) -> None:
        """Text is sent for as long as the connection lasts, which is not for long."""


class PendingCalls:
    """The table of calls that wait. Ids come from our own counter, so that a peer cannot choose the keys.

    Attributes:
        dropped: replies and items for which no call waited: late, forged or duplicate.
        when_silent: gives what is added to the reason of a connection that ended before any call was answered.
    """

    __slots__ = (
        "_is_in_order",
        "_last_id",
        "_offer",
        "_read",
        "_refusal",
        "_rises",
        "_waiting",
        "dropped",
        "when_silent",
    )

    def __init__(self) -> None:
        #: In the order in which they were sent, unless `_is_in_order` is False.
        self._waiting: dict[int | str, PendingCall] = {}
        self._last_id = 0
        self._is_in_order = True
        #: Each call was entered with a greater id than the one before.
        self._rises = True
        #: The calls that the other end has read, once it has said which; those entered later are not among them.
        self._read: frozenset[int | str] | None = None
        self._refusal: str | None = None
        #: The id of the `rpc.hello` that was sent ahead of a call, and that of the call, which was entered before it.
        self._offer: tuple[int, int] | None = None
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

    def add_offer(
        self, accept: Callable[[dict[str, Any]], object], message: Encoded, ring: dict[str, Any] | None
    ) -> bytes:
        """Enter a `BinaryOffer`; gives the `rpc.hello` to send now, ahead of the message.

        Args:
            accept: as for `BinaryOffer`.
            message: is sent next.
            ring: the shared memory that is offered with it; None: there is none.
        """
        offer_id = self.add(BinaryOffer(accept))
        if _is_request(message, offer_id - 1):
            self._offer = offer_id, offer_id - 1
        params = {"binary": 1} if ring is None else {"binary": 1, "shm": ring}
        return orjson.dumps(envelope.request(envelope.HELLO, params, call_id=offer_id))

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
            self._rises = False
        self._waiting[call_id] = call

    def items(self) -> list[tuple[int | str, PendingCall]]:
        """The calls that wait now, with their ids."""
        return list(self._waiting.items())

    def find(self, call_id: Any) -> PendingCall | None:
        """The call with exactly this id, of the same type too; None if none waits."""
        return self._waiting.get(call_id) if type(call_id) is int or type(call_id) is str else None

    def discard(self, call_id: int | str) -> bool:
        """Remove a call that is given up; a reply that still comes is dropped. False: the reply has come already."""
        return self._waiting.pop(call_id, None) is not None

    def count_dropped(self) -> None:
        """Count an item that was dropped since no call waits for it."""
        self.dropped += 1

    def settle(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Give a reply to the call that waits for it.

        An error without an id means that the peer could not read some message of ours: then every call that waits gets
        the error, since any of them may have been in that message.
        """
        call_id = reply.get("id")
        if call_id is None and "error" in reply:
            self._refusal = str(error_from_wire(reply["error"]))
            if self._waiting:
                waiting, self._waiting = self._waiting, {}
                if len(line) >= LONG and len(waiting) > 1:
                    # Each call would have to read it.
                    reply, line = {"id": None, "error": _without_data(reply["error"])}, b""
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
            whole = payloads.shared(line)
            for member in message:
                self.settle(member, whole)
        else:
            return False
        return True

    def settled_too_long(self, message: Oversize, limit: int, side: str) -> bool:
        """Fail the call whose reply is over the `limit` of this end; False if the message is no reply."""
        if not envelope.is_reply_head(message.head):
            return False
        error = envelope.refusal_of(message, limit, side=side)
        self.settle(envelope.error_reply(envelope.id_in_head(message.head), error), b"")
        return True

    def settled_unreadable(self, line: bytes | bytearray, error: ParseError) -> bool:
        """Fail the call whose reply is not JSON (it may have a NaN in it); False if it does not begin like a reply."""
        head = bytes(line[:HEAD_SIZE])
        if not envelope.is_reply_head(head):
            return False
        told = InternalError("The reply is not JSON", error.data)
        self.settle(envelope.error_reply(envelope.id_in_head(head), told), b"")
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

    def set_out_of_order(self) -> None:
        """Note that calls are not always sent in the order in which they were entered."""
        self._is_in_order = False

    def take_unread(self, last: Any) -> list[PendingCall]:
        """Take out the calls that the other end did not read; those entered from now on count as such, too.

        Args:
            last: the id of the last request that it read, as it came; None: it read none; `UNSAYABLE`: it did not say.
        """
        unread = self._sent_behind(last)
        calls = [self._waiting.pop(call_id) for call_id in unread]
        self._read = frozenset(self._waiting)
        return calls

    def _sent_behind(self, last: Any) -> list[int | str]:
        """The ids of the calls that were certainly sent behind the one with the id `last`."""
        waiting = list(self._waiting)
        behind: list[int | str] = []
        if last is None:
            behind = waiting
        elif self._offer is not None and type(last) is int and last == self._offer[0] and self._offer[1] in waiting:
            behind = waiting[waiting.index(self._offer[1]) :]
        elif type(last) is not int and type(last) is not str:
            pass
        elif last in self._waiting:
            behind = waiting[waiting.index(last) + 1 :]
        elif type(last) is int and self._rises and 0 < last <= self._last_id:
            behind = [call_id for call_id in waiting if call_id > last]  # type: ignore[operator]  # all are integers
        if last is not None and not self._is_in_order:
            behind = [call_id for call_id in behind if self._waiting[call_id].keeps_order]
        return behind


def _is_request(message: Encoded, call_id: int) -> bool:
    """Whether a message of ours is the request with this id."""
    return first_part(message).startswith(b'{"jsonrpc":"2.0","id":%d,"method":' % call_id)


def _without_data(error: Any) -> Any:
    """An error as it came, but short."""
    if type(error) is not dict:
        return {"code": InternalError.CODE, "message": "The peer sent a malformed error"}
    message = error.get("message")
    return {"code": error.get("code"), "message": message[:1000] if type(message) is str else None}
