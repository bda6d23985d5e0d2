"""Split a byte stream into messages: lines, JSON values without line ends, binary frames (wire page, "Line stream")."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile

import orjson

from .binary_frame import MARK, BinaryFrameReader, FrameError, FrameIntake, plain_frame
from .buffers import ReceiveBuffer
from .envelope import HEAD_SIZE, Message, Oversize, PartialMessage, Reception
from .json_scan import Balance, split_values

#: Bytes of a line from which on `find` is faster than `split`, which tests each byte by itself.
_FOUND_FASTER = 512

#: Bytes of a value that may be left unscanned: scanning the worst text of this size takes about 40 ms.
_UNSCANNED_MAX = 4 * 1024 * 1024

_MARK = b"@"
#: Where a frame begins. Blanks may stand before it: a peer sends some to find out whether anybody listens.
_FRAME, _LINE_AND_FRAME = re.compile(rb" *+@"), re.compile(rb"\n *+@")

#: A rest of these is no message: behind the line end of UTF-16 a NUL is left.
_NOTHING = b" \t\r\n\0"

_CLOSING = (b"]", b"}")


class _Text(PartialMessage):
    """A message whose end has not been received. An array or object may be complete without a delimiter.

    Args:
        first: the byte that it begins with.
    """

    __slots__ = ("_balance", "_unscanned")

    def __init__(self, first: int, reception: Reception | None) -> None:
        super().__init__(reception=reception)
        #: None for what is no array and no object.
        self._balance = Balance() if first in b"{[" else None
        self._unscanned = ReceiveBuffer()

    def is_closed_by(self, piece: bytes) -> bool:
        """Whether the next bytes complete an array or an object.

        A long message costs nothing, unless a piece of it happens to end with a bracket.
        """
        if self._balance is None:
            return False
        self._unscanned.append(piece)
        may_end = piece.rstrip()[-1:] in _CLOSING
        if may_end or self._unscanned.size > _UNSCANNED_MAX:
            self._balance.add(self._unscanned.take())
        return may_end and self._balance.is_closed


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LineFramer:
    """Splits a byte stream into messages; one framer for each connection and direction.

    Call `feed` until `ended` is true or the stream ends; then `finish` once.

    Args:
        max_size: bytes of a message, without the delimiter; may be changed. A longer one is reported once, as
            `Oversize`, as soon as it is known to be longer; the rest up to the next delimiter is dropped.
        delimiter: ends a message; one byte or more.
        reception: counts messages that come in several pieces; one that it does not allow is dropped, too.
        intake: decides about binary frames; None: there are none, and a line that begins with `@` is no JSON.
        skips_blank: an empty line is skipped, in place of ending the requests.

    Attributes:
        ended: the peer sends no more requests: an empty line was received; or what follows cannot be read.
        fault: why what follows cannot be read; None where it can.
        frame: the binary frame that has begun and is not complete.
    """

    max_size: int
    delimiter: bytes = b"\n"
    reception: Reception | None = None
    intake: FrameIntake | None = None
    skips_blank: bool = False
    ended: bool = field(default=False, init=False)
    fault: str | None = field(default=None, init=False)
    frame: BinaryFrameReader | None = field(default=None, init=False)
    #: The next byte begins a message.
    at_start: bool = field(default=True, init=False)
    #: The message that is being received, or dropped up to the next delimiter; None: the next byte begins one.
    _message: _Text | None = field(default=None, init=False)
    #: The last bytes that came, where a delimiter of several bytes may have begun in them.
    _begun: bytes = field(default=b"", init=False)
    #: A value was taken that no delimiter had ended: the line end that may follow belongs to it.
    _after_value: bool = field(default=False, init=False)

    @property
    def partial(self) -> bool:
        """Whether a message has begun and its end has not been received."""
        return self._message is not None or self.frame is not None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete, in order; none after an empty line."""
        if self.at_start:
            end = data.find(self.delimiter)
            if end + 1 == len(data) and 0 < end <= self.max_size and data[0] > MARK:
                # One message, whole, neither blank nor a frame: nearly every read from a peer that waits for answers.
                return [data[:end]]
        messages: list[Message] = []
        if self.intake is not None and (self.frame is not None or _MARK in data):
            self._feed_mixed(data, self.intake, messages)
        else:
            self._feed_text(data, messages)
        return messages

    def finish(self) -> list[Message]:
        """End the stream. Returns the last message, if it has no delimiter."""
        if self.frame is not None and self.intake is not None:
            self.fault, self.frame = "the stream ended within a binary frame", None
            self.intake.over()
        last = (b"" if self._message is None or self._message.is_dropped else self._message.end()) + self._begun
        return [last] if last.strip(_NOTHING) else []

    # -- binary frames ------------------------------------------------------------------------------------------------

    def target(self) -> memoryview | None:
        """Memory of a payload that the next bytes may be received into; None where they must be given to `feed`."""
        return None if self.frame is None else self.frame.target()

    def received(self, count: int) -> list[Message]:
        """Take note of bytes that were received into `target`; gives the message if it is complete."""
        assert self.frame is not None
        messages: list[Message] = []
        self.frame.received(count)
        self._end_frame(self.frame, messages)
        return messages

    def _feed_mixed(self, data: bytes, intake: FrameIntake, messages: list[Message]) -> None:
        """Take bytes in which frames stand among text, or which go on with a frame."""
        at = 0
        try:
            while at < len(data) and not self.ended:
                if self.frame is None:
                    at = self._begin_frame(data, at, intake, messages)
                if self.frame is not None:
                    at = self.frame.feed(data, at)
                    self._end_frame(self.frame, messages)
        except FrameError as error:
            self.fault, self.ended, self.frame = str(error), True, None

    def _begin_frame(self, data: bytes, at: int, intake: FrameIntake, messages: list[Message]) -> int:
        """Take the text in front of a frame, and begin with that, or take all of it; gives the place behind."""
        start = at
        if data[at] != MARK or self._message is not None:
            end, start = self._frame_start(data, at)
            if at < end:
                self._feed_text(data[at:end], messages)
            if start < 0 or self.ended:
                return len(data)
        self.at_start = self._after_value = False
        message, at = plain_frame(data, start, intake, self.max_size)
        if message is None:
            self.frame = BinaryFrameReader(intake, self.max_size)
        else:
            messages.append(message)
            self.at_start = True
        return at

    def _end_frame(self, frame: BinaryFrameReader, messages: list[Message]) -> None:
        """Go on behind a frame, if it is complete."""
        if frame.message is not None:
            messages.append(frame.message)
            self.frame, self.at_start = None, True

    def _frame_start(self, data: bytes, at: int) -> tuple[int, int]:
        """Where the text from `at` on ends, and where a frame begins behind it; that is negative where none does."""
        if self._message is None and (found := _FRAME.match(data, at)):
            return at, found.end() - 1
        found = _LINE_AND_FRAME.search(data, at)
        return (found.start() + 1, found.end() - 1) if found else (len(data), -1)

    # -- text ---------------------------------------------------------------------------------------------------------

    def _feed_text(self, data: bytes, messages: list[Message]) -> None:
        if self._begun:
            data, self._begun = self._begun + data, b""
        start = 0 if self._message is None else self._go_on(self._message, data, messages)
        if start < len(data) and not self.ended:
            self._split(data, start, messages)
        self.at_start = self._message is None and not (self._begun or self.ended or self._after_value)

    def _split(self, data: bytes, start: int, messages: list[Message]) -> None:
        """Split bytes while nothing is held: a new message begins at `start`."""
        lines: list[bytes] = []
        while (end := data.find(self.delimiter, start)) - start >= _FOUND_FASTER:
            lines.append(data[start:end])
            start = end + len(self.delimiter)
        tail = data[start:]
        if end >= 0:
            *short, tail = tail.split(self.delimiter)
            lines += short
        if lines:
            self._add(lines, len(data), messages)
        if tail and not self.ended:
            self._hold(tail, messages)

    def _go_on(self, message: _Text, data: bytes, messages: list[Message]) -> int:
        """Find the end of the message that is being received; gives the place behind it."""
        end = data.find(self.delimiter)
        if end < 0:
            self._hold(data, messages)
            return len(data)
        message.append(data[:end])
        self._message, line = None, message.end()
        if not message.is_dropped:
            self._add([line], len(line), messages)
        return end + len(self.delimiter)

    def _add(self, lines: list[bytes], size: int, messages: list[Message]) -> None:
        """Add lines of at most this size to the messages. An empty one ends the requests."""
        if self._after_value:
            self._after_value = False
            if not lines[0].strip():
                del lines[0]
        if not all(map(bytes.strip, lines)):
            self.ended = not self.skips_blank
            lines = list(filter(bytes.strip, lines) if self.skips_blank else takewhile(bytes.strip, lines))
        messages += lines if size <= self.max_size else map(self._sized, lines)

    def _hold(self, piece: bytes, messages: list[Message]) -> None:
        """Keep bytes without a delimiter, unless they are a complete value, too long, or only blanks.

        Values that follow each other become one message, which its reader splits into shares, so that other connections
        get their turn.
        """
        for width in range(len(self.delimiter) - 1, 0, -1):
            if piece.endswith(self.delimiter[:width]):
                piece, self._begun = piece[:-width], piece[-width:]
                break
        if not (piece := piece.lstrip() if self._message is None else piece):
            return
        message = self._message or _Text(piece[0], self.reception)
        if (refused := message.keep(piece, 0, self.max_size)) is not None:
            messages.append(refused)
        self._after_value = message.is_closed_by(piece)
        self._message = None if self._after_value else message
        if self._after_value and not message.is_dropped:
            messages.append(message.end())

    def _sized(self, line: bytes) -> Message:
        return line if len(line) <= self.max_size else Oversize(len(line), line[:HEAD_SIZE], self.max_size)


def is_cut(last: list[Message]) -> bool:
    """Whether a stream ended within a text, given what `finish` returned."""
    for text in last:
        assert isinstance(text, bytes)
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            return not split_values(text)
    return False
