"""Requests that wait until there is room for them: in order, within bounds, each with the time it came.

Owns the lines and what is known of them before they are read. Pure: the time is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..limits import Limits
from ..wire.framing import Message
from ..wire.pieces import Written
from .interfaces import Dispatch, Later

if TYPE_CHECKING:
    from .session import Session

#: Bytes that a message takes besides its own.
OVERHEAD = 64

#: Cancels that are noted at least, whatever `max_calls` is. Which calls wait here is not known, so most of them may be
#: about others, that are over; a client that gives up thousands of calls at once is not to be heard in part.
CANCELS = 4096

#: Characters of an id that are kept as they are.
NAME_MAX = 100

#: As `Dispatch.answer`.
Answer = Callable[[Any, "bytes | bytearray", "Session"], Written | Later | None]


class Backlog:
    """A queue of messages, cut as they came from the connection.

    Attributes:
        noted: cancels that came before their request was read, all in all. Each means only requests that had come by
            then: a later one with the same id is another call.
    """

    __slots__ = (
        "_cancelled",
        "_chunks",
        "_count",
        "_max_calls",
        "_max_kept",
        "_max_size",
        "_size",
        "_taken",
        "_word_count",
        "_word_size",
        "noted",
    )

    def __init__(self, limits: Limits) -> None:
        self._max_calls = limits.max_calls
        self._max_size = limits.write_buffer
        self._max_kept = limits.write_buffer + limits.max_message_size
        #: When they came, how many cancels had been noted before, and the messages.
        self._chunks: list[tuple[float, int, list[Message]]] = []
        self._count = self._size = 0
        #: The same of words that were kept although it was over, since it was last empty.
        self._word_count = self._word_size = 0
        self.noted = 0
        #: The same number for what was taken last.
        self._taken = 0
        #: Ids that were cancelled before their request was read, as text (peers choose ids, not our hashes), and the
        #: number of the cancel.
        self._cancelled: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def is_full(self) -> bool:
        """As many messages wait as one connection may have calls, or they hold as many bytes as replies may."""
        return self._count >= self._max_calls or self._size > self._max_size

    def is_over(self, *, stalled: bool) -> bool:
        """No more is to be kept, even if the connection has to be read.

        While the peer does not read (`stalled`), more is kept, up to one message of any size: two ends that send each
        other long messages come so far that each must hold some of the other's.
        """
        if stalled:
            return self._size + OVERHEAD * self._count > self._max_kept
        return self._count >= self._max_calls or self._size > self._max_kept

    def put(self, messages: list[Message], now: float, noted: int) -> None:
        """Behind all others; they came at `now` (s), when so many cancels had been noted."""
        self._chunks.append((now, noted, messages))
        self._add(messages, 1)

    def put_word(self, line: bytes, now: float, noted: int) -> None:
        """Behind all others, even if no more is to be kept: a word of the conversation, about one of them perhaps.

        Of those, too, there may be as many, or as large; who sends more loses them.
        """
        if self._word_count < self._max_calls and self._word_size + len(line) <= self._max_kept:
            self._word_count += 1
            self._word_size += len(line)
            self.put([line], now, noted)

    def put_back(self, messages: list[Message], since: float) -> None:
        """Before all others: the rest of what was taken, or of what has just come."""
        self._chunks.insert(0, (since, self._taken, messages))
        self._add(messages, 1)

    def take(self) -> tuple[list[Message], float]:
        """The messages that came first, all from one read, and when that was."""
        since, self._taken, messages = self._chunks.pop(0)
        self._add(messages, -1)
        return messages, since

    def sift(self, left_of: Callable[[Message], list[Message]]) -> None:
        """Put what the function gives in the place of each message."""
        chunks, self._chunks = self._chunks, []
        self._count = self._size = 0
        for since, noted, messages in chunks:
            kept = [rest for line in messages for rest in left_of(line)]
            if kept:
                self.put(kept, since, noted)

    def cancel(self, call_id: Any) -> None:
        """The request with this id, which is perhaps one of these, is to be answered without being carried out."""
        if len(self._cancelled) < max(self._max_calls, CANCELS):
            self._cancelled[_name(call_id)] = self.noted
            self.noted += 1

    def was_cancelled(self, message: dict[str, Any]) -> bool:
        """Was a request cancelled that was taken last? Asked once for each."""
        if not self._cancelled:
            return False
        name = _name(message.get("id"))
        if self._cancelled.get(name, -1) < self._taken:
            return False
        del self._cancelled[name]
        return True

    def unless_cancelled(self, dispatch: Dispatch) -> Answer:
        """What answers requests as long as some are noted that are not to be carried out."""

        def answer(message: Any, line: bytes | bytearray, session: Session) -> Written | Later | None:
            if type(message) is dict and self.was_cancelled(message):
                return dispatch.cancelled(message)
            return dispatch.answer(message, line, session)

        return answer

    def forget_cancelled(self) -> None:
        """All requests have been read: what is still noted was never among them."""
        self._cancelled.clear()
        self.noted = self._taken = 0
        self._word_count = self._word_size = 0

    def clear(self) -> None:
        self._chunks.clear()
        self._count = self._size = 0
        self.forget_cancelled()

    def _add(self, messages: list[Message], sign: int) -> None:
        self._count += sign * len(messages)
        self._size += sign * sum(map(len, messages))


def _name(call_id: Any) -> str:
    """An id as text: peers choose ids, not our hashes; nor how much is kept of each."""
    name = repr(call_id)
    return name if len(name) <= NAME_MAX else hashlib.sha256(name.encode()).hexdigest()
