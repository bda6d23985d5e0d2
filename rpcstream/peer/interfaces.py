"""What a session stands between: a channel that carries its messages, and a dispatcher that answers requests."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ParseError
from ..wire.framing import Oversize
from ..wire.pieces import Written
from .forwarded import ForwardedCall

if TYPE_CHECKING:
    from .session import Session

#: A handler that waits, and gives the reply.
Waiting = Coroutine[Any, Any, Written | None]

#: What there is in the place of a reply that comes later: who waits for it here, or elsewhere.
Later = Waiting | ForwardedCall


class Channel(Protocol):
    """What a transport does for a session."""

    #: Of the other end, for people.
    address: str

    #: Why it was lost, if the peer did not simply close it.
    reason: str | None

    def send(self, messages: list[Written]) -> None:
        """Write these messages, in order, with one write. May call `blocked` before it returns."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""

    def close(self) -> None:
        """Write what is left, then close; what is still received is dropped."""

    def abort(self, reason: str) -> None:
        """Close at once."""

    def probe(self) -> None:
        """See whether a peer that says nothing more still listens; if not, the connection will be lost."""


class Dispatch(Protocol):
    """What answers requests: one parsed message in, one reply out, now or later."""

    def answer(self, message: Any, line: bytes | bytearray, session: Session) -> Written | Later | None:
        """The reply to a request or a batch; what gives it, where one must wait; None where there is none."""
        ...

    def oversize(self, message: Oversize) -> Written | None:
        """The reply to a request over the size limit."""
        ...

    def unreadable(self, error: ParseError, call_id: Any) -> Written | None:
        """The reply to a message that is not JSON."""
        ...

    def cancelled(self, message: Any) -> Written | None:
        """The reply to a request whose handler was cancelled."""
        ...

    def busy(self, message: Any, limit: int, name: str) -> Written | None:
        """The reply to a request that cannot be taken now for this limit, which has this name in `Limits`."""
        ...

    def goes_on(self, message: Any) -> bool:
        """Is this request to be carried out although its caller is gone?"""
        ...

    def took_long(self, message: Any, seconds: float) -> None:
        """A message kept the loop for so long."""
