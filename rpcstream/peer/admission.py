"""What becomes of messages while there is no room for requests.

Owns that requests wait, in the backlog, and that what something that runs may be waiting for passes them: replies and
the words of the conversation (`$/…`), however they are packed. Each message is looked through once. Decides neither
when there is room nor who is read.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import orjson

from ..codec import payloads
from ..codec.payloads import TooManyValues
from ..errors import RpcError
from ..wire import envelope
from ..wire.framing import LONG, Message, Oversize
from ..wire.pieces import Written
from . import control_messages
from .interfaces import Dispatch
from .request_queue import Chunk, RequestQueue, Word, busy

if TYPE_CHECKING:
    from .session import Session

#: A message with none of these is neither a reply nor a word. (The same names may be written with escapes.)
_SIGNS = (b'"$', b'"result"', b'"error"', b"\\u")

#: What is left of a message: requests, and words that wait with them.
Left = list[Message | Word]


class Intake:
    """Takes messages in for a session that has no room for requests.

    Attributes:
        dispatch: answers what is turned away.
        is_sifting: a message is handled now that has overtaken the requests that wait.
    """

    __slots__ = ("_backlog", "_opened", "_session", "dispatch", "is_sifting")

    def __init__(self, session: Session, dispatch: Dispatch, backlog: RequestQueue) -> None:
        self._session = session
        self.dispatch = dispatch
        self._backlog = backlog
        #: The streams that had been opened when the words that wait were compared with them last.
        self._opened = 0
        self.is_sifting = False

    def sift(self, until: float) -> None:
        """Handle what need not wait of the messages that were not looked through yet; go on until this time (s)."""
        backlog = self._backlog
        self.is_sifting = True
        try:
            while (found := backlog.next_unsifted()) is not None:
                chunk, line = found
                for rest in self._left_of(line, chunk):
                    self._place(rest, chunk)
                if perf_counter() > until:
                    break
        finally:
            self.is_sifting = False

    def heed_begun(self) -> None:
        """Handle the words that wait about streams that have been opened since this was called last."""
        flows, words = self._session.flows, self._backlog.words
        if not words or flows.opened == self._opened:
            return
        self._opened = flows.opened
        for key in [key for key in words if control_messages.is_open(self._session, key)]:
            for line in self._backlog.take_words(key):
                try:
                    message = orjson.loads(line)
                except orjson.JSONDecodeError:  # in a long string of it, which was not looked at before
                    continue
                control_messages.handle(self._session, message, line)

    # -- what is left of a message ----------------------------------------------------------------------------------

    def _left_of(self, line: Message, chunk: Chunk) -> Left:
        """Handle what a message of this chunk says of the conversation; give what is left of it."""
        session = self._session
        if isinstance(line, Oversize):
            return [] if session.settled_too_long(line) else [line]
        # Most are plain requests, and need not be read for that. (A long one is read sooner than looked through.)
        is_short = len(line) < LONG
        if is_short and b'"method"' in line and not any(sign in line for sign in _SIGNS):
            return [line]
        try:
            message, read = (orjson.loads(line), line) if is_short else session.parse(line)
        except TooManyValues as error:
            return self._left_of(error.stand_in(line), chunk)
        except orjson.JSONDecodeError:
            values = envelope.values_in(line) if session.takes_apart else []
            self._backlog.put_in(chunk, values)
            return [] if values else [line]
        if type(message) is list:
            return self._left_of_batch(message, line, read)
        key = control_messages.early_key(session, message)
        if key is not None:
            return [Word(key, line)]
        return [] if self._heeded(message, read) else [line]

    def _left_of_batch(self, members: list[Any], line: bytes, read: bytes) -> Left:
        may_pass = [type(each) is dict and (_is_notification(each) or envelope.is_reply(each)) for each in members]
        if len(members) > self._session.limits.max_batch or not any(may_pass):
            return [line]
        try:
            parts = payloads.members(read)
        except RecursionError:  # deeper than may be; it is refused when its turn comes
            return [line]
        shared = payloads.shared(read)
        left: list[bytes] = []
        words: Left = []
        for part, member, may in zip(parts, members, may_pass, strict=True):
            if not may:
                left.append(part)
            elif (key := control_messages.early_key(self._session, member)) is not None:
                # Behind the batch: the request that opens its stream may stand in it.
                words.append(Word(key, bytes(payloads.whole(bytes(part), part))))
            elif not self._heeded(member, b"" if "method" in member else shared):
                left.append(part)
        if len(left) == len(members):
            return [line]
        return [bytes(payloads.whole(b"[" + b",".join(left) + b"]", read)), *words] if left else words

    def _heeded(self, message: Any, line: bytes) -> bool:
        """Handle a message if it is a reply or a word of the conversation; false for anything else, which may wait."""
        session = self._session
        if type(message) is dict and "method" in message:
            return _is_notification(message) and control_messages.handle(session, message, line)
        return session.pending.settled(message, line)

    # -- what becomes of it -----------------------------------------------------------------------------------------

    def _place(self, rest: Message | Word, chunk: Chunk) -> None:
        """Have what is left of a message of this chunk wait, unless it can neither be kept nor left unread."""
        session = self._session
        if chunk.drops:
            return
        is_over = chunk.is_new and session.must_read() and self._backlog.is_over(stalled=session.flows.stalled)
        if isinstance(rest, Word):
            self._backlog.keep_word(chunk, rest, is_over=is_over)
        elif is_over:
            session.answer_with(self._turned_away(rest, chunk, session.limit_reached()))
        elif not self._backlog.keep(chunk, rest):
            error = busy(session.limits.max_held_total, "max_held_total")
            session.answer_with(self._turned_away(rest, chunk, error))

    def _turned_away(self, line: Message, chunk: Chunk, error: RpcError) -> Written | None:
        """The answer to requests that can neither be kept nor left unread."""
        if isinstance(line, Oversize):
            return self._session.refuse_oversize(line)
        try:
            message, read = self._session.parse(line) if len(line) >= LONG else (orjson.loads(line), line)
        except orjson.JSONDecodeError as unparsed:
            values, reply = self._session.unparsed(line, unparsed)
            self._backlog.put_in(chunk, values)
            return reply
        envelope.with_exact_ids(message, read)
        return self.dispatch.refuse(message, error)


def _is_notification(message: dict[str, Any]) -> bool:
    return "method" in message and "id" not in message
