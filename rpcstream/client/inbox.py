"""What comes in on a sync client's connection, each message handed to whom it concerns.

Owns the way from bytes to the calls that they answer. Reads no socket; the thread that has the reader role hands the
bytes in, and sends what is to be sent for them.
"""

from __future__ import annotations

from _thread import LockType
from collections.abc import Callable
from threading import get_ident
from typing import Any

import orjson

from ..codec.payloads import TooManyValues
from ..peer.marshal import Marshaller
from ..peer.pending import PendingCalls
from ..text import get_logger
from ..wire import envelope
from ..wire.framing import LONG, LineFramer, Message, Oversize
from .callbacks import ClientDispatcher
from .options import Settings


class Inbox:
    """Bytes to settled calls.

    Args:
        pending: the table of calls, guarded by `state`.
        lose: ends the connection, with the reason; called while `state` is held.
    """

    def __init__(
        self, pending: PendingCalls, state: LockType, settings: Settings, *, lose: Callable[[str], object]
    ) -> None:
        max_size = settings.limits.max_message_size
        #: A message has begun and its end has not come.
        self.partial = False
        #: Run, while `state` is held, when the message that is being handled has been handled whole.
        self.soon: list[Callable[[], None]] = []
        self._pending = pending
        self._state = state
        self._settings = settings
        #: The thread that runs an `on_progress` now.
        self._telling: int | None = None
        self._parse_long = settings.codec.parse
        self._max_values = settings.limits.max_values
        self._trace = settings.trace
        self._framer = LineFramer(max_size=max_size, delimiter=settings.delimiter)
        self._max_size = max_size
        self._refuse = ClientDispatcher(settle=pending.settle, close=lose)

    def receive(self, data: bytes) -> tuple[list[bytes], str | None]:
        """Settle what these bytes answer; no bytes mean the end of the stream.

        Returns:
            The messages to send, which refuse the peer's own requests; and why the conversation is over, if it is.
        """
        if not data:
            last = self._framer.finish()
            if last and not _is_json(last[0]):
                return [], "the peer closed the connection within a message"
            return self._handle(last), "the peer closed the connection"
        refusals = self._handle(self._framer.feed(data))
        self.partial = self._framer.partial
        return refusals, "the peer ended the conversation with an empty line" if self._framer.ended else None

    def check_may_wait(self, method: str) -> None:
        """Raises RuntimeError in a function that is told of progress: what it waited for would never be read."""
        if self._telling == get_ident():
            raise RuntimeError(f"{method!r} was called in on_progress, which must not wait: this thread reads for all")

    def _handle(self, messages: list[Message]) -> list[bytes]:
        refusals = []
        for position, line in enumerate(messages, 1):
            if self._trace is not None:
                self._trace("receive", bytes(line.head if isinstance(line, Oversize) else line))
            refusal = self._handle_one(line, messages, position)
            if refusal is not None:
                refusals.append(refusal)
        return refusals

    def _handle_one(self, line: Message, messages: list[Message], position: int) -> bytes | None:
        if isinstance(line, Oversize):
            with self._state:
                self._refuse.refuse(line, envelope.refusal_of(line, self._max_size, side="client"))
            return None
        text = line
        try:
            if len(line) < LONG:
                message = orjson.loads(line)
            else:
                message, text = self._parse_long(line, self._max_values)
        except TooManyValues as error:
            return self._handle_one(error.stand_in(line), messages, position)
        except orjson.JSONDecodeError as error:
            if values := envelope.split_values(line):
                messages[position:position] = values
                return None
            with self._state:
                self._refuse.refuse({}, envelope.unreadable(line, error))
            return None
        if type(message) is dict and message.get("method") == envelope.PROGRESS and "id" not in message:
            self._progress(message.get("params"), text)
            return None
        with self._state:
            refusal = self._settle(message, text)
            if self.soon:
                for function in self.soon:
                    function()
                self.soon.clear()
        return refusal

    def _settle(self, message: Any, line: bytes | bytearray) -> bytes | None:
        return None if self._pending.settled(message, line) else self._refuse.answer_now(message, line)

    def _progress(self, params: Any, line: bytes | bytearray) -> None:
        """A handler says how far it is. What the caller's function raises is not the call's fault, nor its end.

        It is told at once, and so before the call is answered.
        """
        with self._state:
            waiter: Any = self._pending.find(params.get("token")) if type(params) is dict else None
        on_progress = getattr(waiter, "on_progress", None)
        if on_progress is None:
            return
        settings = self._settings
        marshaller = Marshaller(settings.codec, settings.limits, str(settings.address))
        self._telling = get_ident()
        try:
            on_progress(marshaller.member(waiter.method, params, line, "value"))
        except Exception:
            get_logger("rpcstream.client").exception("on_progress of a call of %r failed", waiter.method)
        finally:
            self._telling = None


def _is_json(line: Message) -> bool:
    try:
        orjson.loads(line)  # type: ignore[arg-type]
    except orjson.JSONDecodeError:
        return False
    return True
