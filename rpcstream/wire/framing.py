"""Split a byte stream into messages: lines, JSON values without line ends, too long lines (wire page, "Line stream").

Owns where one message ends and the next begins. Reads of JSON only where the outermost bracket closes
(`wire.json_scan`); what begins with `@` is a binary frame, which `binary_frame` reads. Knows no socket and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .binary_frame import MARK, BinaryFrameReader, FrameError, PlainFrame
from .buffers import ReceiveBuffer
from .json_scan import CLOSING, Balance, end_of_last_value, find_borders, may_end_value
from .messages import HEAD_SIZE, FrameIntake, Message, Oversize, Reception

#: Bytes of a line from which on `find` is faster than `split`, which tests each byte by itself.
_FOUND_FASTER = 512

#: From so many bytes on that were not yet scanned for the end of a value, the last few are checked first.
_CHECK_END_FIRST = 4 * 1024
_END = 512

#: Bytes of a value that may be left unscanned: scanning the worst text of this size takes about 40 ms.
_UNSCANNED_MAX = 4 * 1024 * 1024


class LineFramer:
    """Splits a byte stream into messages; one framer for each connection and direction.

    Call `feed` until `ended` is true or the stream ends; then `finish` once.

    Args:
        max_size: bytes of a message, without the delimiter. A longer one is reported once, as `Oversize`, as soon as
            it is known to be longer; the rest up to the next delimiter is dropped.
        delimiter: ends a message; one byte or more.
        reception: counts messages that come in several pieces; one that it does not allow is dropped likewise.
        intake: decides about binary frames; None: there are none, and a line that begins with `@` is no JSON.
        skips_blank: an empty line is skipped, in place of ending the requests.

    Attributes:
        ended: the peer sends no more requests: an empty line was received; or what follows cannot be read.
        fault: why what follows cannot be read; None where it can.
    """

    __slots__ = (
        "_after_value",
        "_at_start",
        "_delimiter",
        "_frame",
        "_held",
        "_intake",
        "_max_size",
        "_reception",
        "_rest",
        "_skipping",
        "_skips_blank",
        "_value_scan",
        "_width",
        "ended",
        "fault",
    )

    def __init__(
        self,
        *,
        max_size: int,
        delimiter: bytes = b"\n",
        reception: Reception | None = None,
        intake: FrameIntake | None = None,
        skips_blank: bool = False,
    ) -> None:
        if not delimiter:
            raise ValueError("the delimiter must have at least one byte")
        self._delimiter = delimiter
        self._width = len(delimiter)
        self._max_size = max_size
        self._reception = reception
        self._intake = intake
        self._skips_blank = skips_blank
        #: The frame that is being received, and bytes behind its JSON while it waits for memory.
        self._frame: BinaryFrameReader | None = None
        self._rest = b""
        self._held = _HeldBytes()
        self._value_scan: _ValueScan | None = None
        self._skipping = False
        self._after_value = False
        #: The next byte begins a message.
        self._at_start = True
        self.ended = False
        self.fault: str | None = None

    @property
    def partial(self) -> bool:
        """Whether a message has begun and its end has not been received."""
        return self._skipping or bool(self._held.mark) or self._frame is not None

    def limit(self, max_size: int) -> None:
        """Set another limit, also for a message that has begun."""
        self._max_size = max_size

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete, in order; none after an empty line."""
        if self._at_start:
            end = data.find(self._delimiter)
            if end + self._width == len(data) and 0 < end <= self._max_size and data[0] > MARK:
                # One message, whole, neither blank nor a frame: nearly every read from a peer that waits for answers.
                return [data[:end]]
        if self._intake is not None and (self._frame is not None or _MARK in data):
            if self._at_start and (plain := PlainFrame.of(data, self._max_size)) is not None:
                return self._take_plain(plain, self._intake)
            return self._feed_mixed(data)
        return self._feed_text(data)

    def _feed_text(self, data: bytes) -> list[Message]:
        held = self._held
        is_begun = held.size or self._skipping
        messages = self._feed_rest(data) if is_begun or self.ended else self._feed_lines(data)
        self._at_start = not (held.size or self._skipping or self.ended or self._after_value)
        return messages

    def finish(self) -> list[Message]:
        """End the stream. Returns the last message, if it has no delimiter."""
        if self._frame is not None and self._intake is not None:
            self.fault, self._frame, self._rest = "the stream ended within a binary frame", None, b""
            self._intake.over()
        last = self._held.take()
        self._received()
        if self.ended or self._skipping or not last.strip(_NOTHING):
            return []
        return [last]

    # -- binary frames ------------------------------------------------------------------------------------------------

    @property
    def is_partial_frame(self) -> bool:
        """Whether a frame has begun, and not all of it was received."""
        return self._frame is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a frame waits for memory: read no more, and call `go_on` when there may be some."""
        return self._frame is not None and self._frame.is_waiting

    def target(self) -> memoryview | None:
        """Memory of a payload that the next bytes may be received into; None where they must be given to `feed`."""
        return None if self._frame is None else self._frame.target()

    def received(self, count: int) -> list[Message]:
        """Take note of bytes that were received into `target`; gives the message if it is complete."""
        assert self._frame is not None
        self._frame.received(count)
        return [] if self._frame.message is None else self._feed_mixed(b"")

    def go_on(self) -> list[Message]:
        """Go on with a frame that waits, if there is memory now; gives the messages that are complete then."""
        if self._frame is None or not self._frame.go_on():
            return []
        rest, self._rest = self._rest, b""
        return self._feed_mixed(rest)

    def _take_plain(self, plain: PlainFrame, intake: FrameIntake) -> list[Message]:
        """Take a frame that has come by itself, with one read."""
        if (reason := intake.refuses_frames()) is not None:
            self.fault, self.ended, self._at_start = reason, True, False
            return []
        admitted = intake.admit(plain.json, (plain.size,))
        if admitted is None:
            self._frame = BinaryFrameReader(intake, self._max_size, self._reception)
            self._frame.wait(plain)
            self._rest, self._at_start = bytes(plain.payload), False
            return []
        frame, memory = admitted
        if memory:
            memory[0][:] = plain.payload
        intake.over()
        return [frame]

    def _feed_mixed(self, data: bytes) -> list[Message]:
        """Take bytes in which frames stand among text, or which go on with a frame."""
        assert self._intake is not None
        messages: list[Message] = []
        at = 0
        has_blanks: bool | None = None
        while not self.ended:
            frame = self._frame
            if frame is None:
                if at == len(data):
                    break
                # Not before it is needed: it looks through all payloads.
                if has_blanks is None and (data[at] != MARK or self._held.mark or self._skipping):
                    has_blanks = data.find(_BLANK_AND_MARK, at) >= 0
                end, start = self._frame_start(data, at, has_blanks)
                if at < end:
                    messages += self._feed_text(data[at:end])
                if start < 0 or self.ended:
                    break
                self._held.take()  # blanks
                self._at_start = self._after_value = False
                at, frame = start, BinaryFrameReader(self._intake, self._max_size, self._reception)
                self._frame = frame
            try:
                at = frame.feed(data, at)
            except FrameError as error:
                self.fault, self.ended, self._frame = str(error), True, None
                break
            if frame.message is None:
                self._rest += data[at:]  # all of it was taken, unless the frame waits
                break
            messages.append(frame.message)
            self._intake.over()
            self._frame = None
            self.ended, self._at_start = frame.must_close, not frame.must_close
        if (shared := self._intake.shared) is not None:
            shared.publish()
        return messages

    def _frame_start(self, data: bytes, at: int, has_blanks: bool | None) -> tuple[int, int]:
        """Where the text from `at` on ends, and where a frame begins behind it; that is negative where none does.

        Args:
            data: bytes; no frame is being received.
            at: where to begin.
            has_blanks: there may be blanks in front of a frame; None where one begins at `at`.
        """
        if not (self._held.mark or self._skipping) and (found := _FRAME.match(data, at)):
            return at, found.end() - 1
        if has_blanks:
            found = _LINE_AND_FRAME.search(data, at)
            return (found.start() + 1, found.end() - 1) if found else (len(data), -1)
        start = data.find(_LINE_AND_MARK, at) + 1
        return (start, start) if start else (len(data), -1)

    # -- text ---------------------------------------------------------------------------------------------------------

    def _feed_lines(self, data: bytes, start: int = 0) -> list[Message]:
        """Split bytes while nothing is held: a new message begins at `start`."""
        lines: list[Message] = []
        while (end := data.find(self._delimiter, start)) - start >= _FOUND_FASTER:
            lines.append(data[start:end])
            start = end + self._width
        tail = data[start:]
        if end >= 0:
            *short, tail = tail.split(self._delimiter)
            lines += short
        if self._after_value and lines:
            self._after_value = False
            if not lines[0].strip():  # type: ignore[union-attr]
                del lines[0]
        if not all(map(bytes.strip, lines)):  # type: ignore[arg-type]
            if not self._skips_blank:
                return self._end(lines)
            lines = [line for line in lines if line.strip()]  # type: ignore[union-attr]
        if len(data) > self._max_size:
            lines = [self._sized(line) for line in lines]
        if tail:
            self._held.append(tail)
            self._hold(lines, tail)
        return lines

    def _feed_rest(self, data: bytes) -> list[Message]:
        """Split bytes while a message is held or being dropped: first find its end."""
        if self.ended:
            return []
        held, delimiter = self._held, self._delimiter
        messages: list[Message] = []
        # A delimiter of several bytes may have begun in the held ones.
        begun = held.last(self._width - 1)
        end = (begun + data if begun else data).find(delimiter) - len(begun)
        if end < -len(begun):
            held.append(data)
            self._hold(messages, data)
            return messages
        held.append(data[: max(end, 0)])
        line = held.take(without=max(-end, 0))
        self._received()
        start = end + self._width
        self._value_scan = None
        if self._skipping:
            self._skipping = False
        elif line and not line.isspace():
            self._after_value = False
            messages.append(self._sized(line))
        elif self._after_value:
            self._after_value = False
        elif not self._skips_blank:
            self.ended = True
            return messages
        if start < len(data):
            messages += self._feed_lines(data, start)
        return messages

    def _hold(self, messages: list[Message], piece: bytes) -> None:
        """Keep bytes without a delimiter, unless they are a complete value, too long, or only blanks.

        Args:
            messages: complete ones are added to it.
            piece: the last received of the held bytes.
        """
        held = self._held
        if not self._skipping:
            if borders := find_borders(piece):
                self._cut(messages, piece, borders)
            if held.size > _UNSCANNED_MAX:
                self._scan().catch_up(held)
        if self._skipping or not held.mark:
            held.drop(self._width - 1)  # a delimiter may have begun in it
        elif held.mark in CLOSING and self._is_closed(held):
            messages.append(self._sized(held.take()))
            self._received()
            self._value_scan, self._after_value = None, True
        elif held.size > self._max_size + self._width:
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._max_size))
            self._skip(held)
        elif self._reception is not None and not self._reception.grow(held.size):
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._reception.limit, is_refused=True))
            self._skip(held)

    def _cut(self, messages: list[Message], piece: bytes, borders: Iterable[int]) -> None:
        """Take complete values from the held bytes where values seem to follow each other in a piece.

        The value that had begun before the piece becomes a message. Those that begin in the piece become one message
        together, which its reader splits into shares, so that other connections get their turn.
        """
        held = self._held
        scan = self._scan()
        if not scan.is_value:
            return
        begun = held.size - len(piece)
        fresh = piece
        if begun:
            end = next((end for end in borders if scan.closes_at(held, begun + end)), 0)
            if not end:
                return
            fresh = piece[end:]
            self._cut_at(messages, fresh)
        if end := end_of_last_value(fresh):
            self._cut_at(messages, fresh[end:])

    def _cut_at(self, messages: list[Message], rest: bytes) -> None:
        """End a message where this rest of the held bytes begins."""
        held = self._held
        messages.append(self._sized(held.take(without=len(rest))))
        self._received()
        self._value_scan = None
        held.append(rest)

    def _skip(self, held: _HeldBytes) -> None:
        """Drop the held message, and the bytes of it that are received later."""
        self._skipping, self._value_scan = True, None
        held.drop(self._width - 1)
        self._received()

    def _received(self) -> None:
        if self._reception is not None:
            self._reception.over()

    def _is_closed(self, held: _HeldBytes) -> bool:
        """Tell whether the held bytes, which end with a bracket, end where the outermost bracket closes.

        A long message in pieces costs nothing, unless a piece happens to end with a bracket: then the last bytes show
        most often that it is an inner one. Otherwise each byte is scanned once, at most `_UNSCANNED_MAX` at a time.
        """
        scan = self._scan()
        if not scan.is_value:
            return False
        if held.size - scan.seen > _CHECK_END_FIRST and not may_end_value(held.last(_END).rstrip()):
            return False
        return scan.closes_at(held, held.size)

    def _scan(self) -> _ValueScan:
        """The scan of the held value, begun where there is none."""
        if self._value_scan is None:
            self._value_scan = _ValueScan(self._held.first_mark())
        return self._value_scan

    def _sized(self, message: Message) -> Message:
        size = len(message)
        if size <= self._max_size:
            return message
        return Oversize(size, bytes(message[:HEAD_SIZE]), self._max_size)  # type: ignore[index]

    def _end(self, lines: list[Message]) -> list[Message]:
        """End the stream at the empty line among these; the lines before it are messages."""
        self.ended = True
        before = []
        for line in lines:
            if not line.strip():  # type: ignore[union-attr]
                break
            before.append(self._sized(line))
        return before


_MARK, _LINE_AND_MARK, _BLANK_AND_MARK = b"@", b"\n@", b" @"
#: A rest of these is no message: behind the line end of UTF-16 a NUL is left.
_NOTHING = b" \t\r\n\0"
#: A frame, perhaps behind blanks: this end or the other sends some to find out whether anybody listens.
_FRAME, _LINE_AND_FRAME = re.compile(rb" *+@"), re.compile(rb"\n *+@")


class _HeldBytes(ReceiveBuffer):
    """The bytes of a message whose end has not been received.

    Attributes:
        mark: the last byte that is no blank (1 for a NUL); 0 if there is none.
    """

    __slots__ = ("mark",)

    def __init__(self) -> None:
        super().__init__()
        self.mark = 0

    def append(self, data: bytes) -> None:
        """Add the bytes that came next."""
        super().append(data)
        if marks := data.rstrip():
            self.mark = marks[-1] or 1

    def take(self, without: int = 0) -> bytes:
        """Return all bytes but the last `without`, and leave the buffer empty."""
        whole = super().take()
        self.mark = 0
        return whole[: len(whole) - without] if without else whole

    def drop(self, but: int) -> None:
        """Drop all bytes but the last few."""
        rest = self.last(but)
        self._pieces = [rest] if rest else []
        self.size = len(rest)

    def first(self, count: int) -> bytes:
        """The first bytes, at most `count`."""
        found = b""
        for piece in self._pieces:
            if len(found) >= count:
                break
            found += piece[: count - len(found)]
        return found

    def last(self, count: int) -> bytes:
        """The last bytes, at most `count`."""
        found: list[bytes | bytearray] = []
        for piece in reversed(self._pieces):
            if count <= 0:
                break
            found.append(piece[-count:])
            count -= len(found[-1])
        return b"".join(reversed(found))

    def first_mark(self) -> bytes:
        """The first byte that is no blank; empty where there is none."""
        return next((bytes(mark[:1]) for piece in self._pieces if (mark := piece.lstrip())), b"")


class _ValueScan(Balance):
    """The scan of the held bytes for the end of their value.

    Attributes:
        is_value: the bytes begin with an array or an object.
        seen: bytes scanned so far.
    """

    __slots__ = ("is_value", "seen")

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.is_value = first in (b"[", b"{")
        self.seen = 0

    def catch_up(self, held: _HeldBytes) -> None:
        """Scan what was received, if there is too much of it to be left for the end."""
        if self.is_value and held.size - self.seen > _UNSCANNED_MAX:
            self.closes_at(held, held.size)

    def closes_at(self, held: _HeldBytes, end: int) -> bool:
        """Tell whether no bracket is open in the held bytes up to `end`, not before the last place given."""
        self.add(held.last(held.size - self.seen)[: end - self.seen])
        self.seen = end
        return self.is_closed
