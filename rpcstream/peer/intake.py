"""What becomes of messages while there is no room for requests.

Owns that requests wait, in the backlog, and that what something that runs may be waiting for passes them: replies and
the words of the conversation (`$/…`), however they are packed. Decides neither when there is room nor who is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from ..wire import envelope
from ..wire.framing import LONG, Message, Oversize
from ..wire.pieces import Written
from . import control
from .backlog import Backlog
from .interfaces import Dispatch

if TYPE_CHECKING:
    from .session import Session

#: A message with none of these is neither a reply nor a word. (The same names may be written with escapes.)
_SIGNS = (b'"$', b'"result"', b'"error"', b"\\u")


class Intake:
    """Takes messages in for a session that has no room for requests.

    Attributes:
        dispatch: answers what is turned away.
        is_sifting: a message is handled now that has overtaken the requests that wait.
    """

    __slots__ = ("_backlog", "_holds_early", "_session", "dispatch", "is_sifting")

    def __init__(self, session: Session, dispatch: Dispatch, backlog: Backlog) -> None:
        self._session = session
        self.dispatch = dispatch
        self._backlog = backlog
        #: Words wait behind requests that they are about perhaps.
        self._holds_early = False
        self.is_sifting = False

    def sift(self, messages: list[Message]) -> list[Message]:
        """Handle what need not wait; give what is left."""
        self.is_sifting = True
        left = [rest for line in messages for rest in self._left_of(line)]
        self.is_sifting = False
        return left

    def sift_begun(self) -> None:
        """Requests that waited have begun, and more do not for now: handle what waited behind them about them."""
        if self._holds_early:
            self.sift_backlog()

    def sift_backlog(self) -> None:
        """Handle what need not wait of what waits already."""
        self._holds_early = False
        self.is_sifting = True
        self._backlog.sift(self._left_of)
        self.is_sifting = False

    def keep(self, messages: list[Message], noted: int) -> None:
        """Have requests wait; `noted` cancels had been noted when they came."""
        self._backlog.put(messages, self._session.loop.time(), noted)

    def turn_away(self, messages: list[Message], noted: int) -> list[Written]:
        """The answers to requests that can neither be kept nor left unread.

        A word about a call that waits itself is no request, and kept.
        """
        return [reply for line in messages for reply in self._turned_away(line, noted) if reply is not None]

    def _left_of(self, line: Message) -> list[Message]:
        """Handle what a message says of the conversation; give what is left of it."""
        session = self._session
        if isinstance(line, Oversize):
            settled = session.pending.settled_too_long(line, session.limits.max_message_size, session.side)
            return [] if settled else [line]
        # Most are plain requests, and need not be read for that. (A long one is read sooner than looked through.)
        if len(line) < LONG and b'"method"' in line and not any(sign in line for sign in _SIGNS):
            return [line]
        try:
            message, read = session.parse(line)
        except orjson.JSONDecodeError:
            values = envelope.unreadable(line)
            return [rest for value in values for rest in self._left_of(value)] if isinstance(values, list) else [line]
        if type(message) is list:
            return self._left_of_batch(message, line, read)
        return [] if self._heeded(message, read) else [line]

    def _left_of_batch(self, members: list[Any], line: bytes, read: bytes) -> list[Message]:
        may_pass = [type(each) is dict and (_is_notification(each) or envelope.is_reply(each)) for each in members]
        if len(members) > self._session.limits.max_batch or not any(may_pass):
            return [line]
        import msgspec

        try:
            written = msgspec.json.decode(read, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):  # deeper than may be; it is refused when its turn comes
            return [line]
        left = [
            bytes(raw)
            for raw, member, may in zip(written, members, may_pass, strict=True)
            if not may or not self._heeded(member, b"" if "method" in member else read)
        ]
        if len(left) == len(members):
            return [line]
        return [b"[" + b",".join(left) + b"]"] if left else []

    def _heeded(self, message: Any, line: bytes) -> bool:
        """Handle a message if it is a reply or a word of the conversation; false for anything else, which may wait."""
        session = self._session
        if type(message) is dict and "method" in message:
            if not _is_notification(message):
                return False
            if control.is_early(session, message):
                self._holds_early = True
                return False
            return control.handle(session, message, line)
        return session.pending.settled(message, line)

    def _turned_away(self, line: Message, noted: int) -> Iterator[Written | None]:
        if isinstance(line, Oversize):
            yield self.dispatch.oversize(line)
            return
        try:
            message, read = self._session.parse(line)
        except orjson.JSONDecodeError:
            values = envelope.unreadable(line)
            if isinstance(values, list):
                for value in values:
                    yield from self._turned_away(value, noted)
            else:
                yield self.dispatch.unreadable(values)
            return
        if self._kept_word(message, noted) or self._heeded(message, read):
            return
        envelope.with_exact_ids(message, read)
        if type(message) is list and message:
            message = [member for member in message if not self._kept_word(member, noted)]
            if not message:
                return
        yield self.dispatch.busy(message, self._session.limits.max_calls)

    def _kept_word(self, message: Any, noted: int) -> bool:
        """Is it about a call that waits perhaps? Then it waits with it."""
        if type(message) is not dict or not _is_notification(message) or not control.is_early(self._session, message):
            return False
        self._holds_early = True
        self._backlog.put_word(orjson.dumps(message), self._session.loop.time(), noted)
        return True


def _is_notification(message: dict[str, Any]) -> bool:
    return "method" in message and "id" not in message
