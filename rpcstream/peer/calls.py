"""Calls before they are sent: a method with its params and options, as the bytes of a request with an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..wire import envelope
from ..wire.buffers import Encoded
from .marshal import NOT_GIVEN, Marshaller
from .pending import PendingCall, PendingCalls


class Call:
    """One call of one method, which is sent and waits for its reply.

    The order: `enter`, then `encode` and send; `leave` if the wait is given up; `outcome` when the reply is there.

    Args:
        marshaller: writes the request and reads the reply.
        timeout: as the caller gave it; the peer is told how long the caller waits if there is one.
        returns: the type of the result, or of an item of it.
        window: items of the result that may be sent ahead of its reader; None: the result is wanted whole.

    Attributes:
        call_id: the id that it has in the table of pending calls.
        params: an iterator among them is sent item by item.
        tells_time: the peer is told how long the caller waits.
        is_repeatable: it can be sent again; not once an iterator is being sent.
        trace: records it (`observe.tracing.CallSpan`), and gives further members of its request; None: nothing does.
    """

    call_id: int | str = 0
    is_repeatable = True
    trace: Any = None

    def __init__(
        self,
        marshaller: Marshaller,
        method: str,
        params: Any = None,
        timeout: Any = NOT_GIVEN,
        returns: Any = NOT_GIVEN,
        window: int | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.tells_time = timeout is not NOT_GIVEN and timeout is not None
        self.window = window
        self.marshaller = marshaller
        self.returns = returns

    @property
    def methods(self) -> Sequence[str]:
        """The names of the methods that are called."""
        return (self.method,)

    @property
    def call_ids(self) -> Sequence[int | str]:
        """The ids in the table of pending calls."""
        return (self.call_id,)

    def enter(self, pending: PendingCalls, call: PendingCall) -> None:
        """Enter the table of pending calls, so that `call` gets the reply.

        Args:
            pending: the table.
            call: waits for the reply.
        """
        self.call_id = pending.add(call)

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        """The bytes of the request. Raises what `Marshaller.encode` raises.

        Args:
            left: seconds until the caller gives up (may be infinite).
            says_whole: tell the server that the result is wanted whole, though it could send items.
        """
        timeout = told(left) if self.tells_time else None
        message = envelope.request(self.method, self.params, call_id=self.call_id, timeout=timeout, stream=self.window)
        if self.trace is not None:
            message.update(self.trace.sent(self.call_id))
        return self.marshaller.encode({"stream": None, **message} if says_whole else message, self.method)

    def leave(self, pending: PendingCalls) -> list[int | str]:
        """Leave the table, since the wait is given up; gives the ids of the calls that had no reply yet."""
        return [call_id for call_id in self.call_ids if pending.discard(call_id)]

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> Any:
        """The value that the caller gets for the reply; raises the error that it gets."""
        return self.marshaller.value(self.method, reply, line, self.returns)


def params_of(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any] | None:
    """Turn Python arguments into the params of a call; None for none. TypeError for both positional and named ones."""
    if args and kwargs:
        raise unnamed(method, "here the names of parameters are not known")
    return list(args) or kwargs or None


def unnamed(method: str, reason: str) -> TypeError:
    """The error for positional and named arguments that cannot be sent together."""
    return TypeError(
        f"{method}() was called with positional and named arguments, and {reason}; JSON-RPC takes either: name them all"
    )


def told(left: float) -> float | None:
    """The member "timeout" of a request, for the time (s) that is left to the caller."""
    return None if left == float("inf") else max(round(left, 3), 0.001)
