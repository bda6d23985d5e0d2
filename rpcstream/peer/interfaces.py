"""The interfaces of a session: the channel that carries its messages, and the dispatcher that answers requests."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from ..errors import RpcError
from ..wire.buffers import Encoded
from .inflight import ForwardedCall

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
