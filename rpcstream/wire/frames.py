"""WebSocket frames (RFC 6455 section 5): bytes to messages and back, without extensions.

Short frames take few operations, since they are on the path of every call.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from functools import cache

from .binary_frame import BinaryFrameReader, FrameError, FrameIntake, whole_frame
from .envelope import Message, PartialMessage, Reception

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_CONTINUATION = 0x0
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_FINAL_TEXT = _FINAL | TEXT

_MARK = b"@"

#: Codes of close frames (7.4.1) that are sent from here.
NORMAL, GOING_AWAY, PROTOCOL_ERROR, BAD_DATA, TRY_LATER = 1000, 1001, 1002, 1007, 1013
#: Stands for a close frame without a code; never sent.
NO_CODE = 1005
#: Bytes of a control frame's payload.
CONTROL_MAX = 125

#: The first length that a frame must not announce: the highest bit of a length is never set.
_LENGTH_END = 1 << 63

#: Bytes; longer payloads are unmasked from a view of the buffer, which saves a copy.
_VIEW_MIN = 16 * 1024

#: Applies a mask of four bytes to a payload; twice gives the payload again.
_Masking = Callable[[bytes | memoryview, bytes], bytes]


@cache
def masking() -> _Masking:
    """The masking function, in C. Imported when first used: that takes hundredths of a second."""
    from websockets.frames import apply_mask  # type: ignore[attr-defined]

    return apply_mask


@dataclass(frozen=True, slots=True)
class Close:
    """Code and reason of a close frame."""

    code: int
    reason: str = ""

    @property
    def payload(self) -> bytes:
        if self.code == NO_CODE:
            return b""
        reason = self.reason.encode()[: CONTROL_MAX - 2].decode(errors="ignore")  # no half characters
        return struct.pack("!H", self.code) + reason.encode()

    def __str__(self) -> str:
        code = "no code" if self.code == NO_CODE else str(self.code)
        return f"{code}, {self.reason}" if self.reason else code


class _ProtocolError(Exception):
    """The peer broke the protocol; the text says how."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class _Fragments(PartialMessage):
    """A message that is received in several reads, or in several frames.

    Attributes:
        opcode: of its first frame.
        left: bytes of the present frame that are still to come.
        mask: of the present frame, for its next byte; empty: none.
        is_last: the message ends with the present frame.
        frame: receives a message that is a binary frame; None for any other.
    """

    opcode: int
    left: int = field(default=0, init=False)
    mask: bytes = field(default=b"", init=False)
    is_last: bool = field(default=False, init=False)
    frame: BinaryFrameReader | None = field(default=None, init=False)

    @property
    def is_untouched(self) -> bool:
        """Nothing of it has come before."""
        return self.frame is None and not (self.size or self.is_dropped)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class FrameReader:
    """Cuts received bytes into messages; one reader for each connection.

    Args:
        masked: the peer is a client, and masks what it sends.
        max_size: bytes of a message, all its fragments together; may be changed. A longer one is reported once, as
            `Oversize`, as soon as a frame announces more and the message's beginning is here; the rest is dropped.
        reception: counts the memory of messages that are received in part; messages it has no room for are dropped like
            those over `max_size`.
        intake: decides about binary messages that begin with `@`: each is a binary frame with payloads (wire page,
            "Binary frames"). None: they are messages as others are.

    Attributes:
        pings: payloads of the pings among the bytes of the last `feed`, in order.
        closed: the close frame of the peer, once received. Nothing is read after it.
        fault: the close frame to send to a peer that broke the protocol, or whose message can neither be read nor
            skipped; else None. Nothing is read after that.
    """

    masked: InitVar[bool]
    max_size: int
    reception: Reception | None = None
    intake: FrameIntake | None = None
    pings: list[bytes] = field(default_factory=list, init=False)
    closed: Close | None = field(default=None, init=False)
    fault: Close | None = field(default=None, init=False)
    _unmask: _Masking | None = field(init=False)
    #: The beginning of a frame whose header, or whose short payload, has come in part.
    _held: bytes = field(default=b"", init=False)
    _message: _Fragments | None = field(default=None, init=False)

    def __post_init__(self, masked: bool) -> None:
        self._unmask = masking() if masked else None

    @property
    def is_over(self) -> bool:
        """Nothing more is read."""
        return self.closed is not None or self.fault is not None

    @property
    def partial(self) -> bool:
        """Part of a message, or of a frame, has been received."""
        return bool(self._held) or self._message is not None

    @property
    def is_partial_frame(self) -> bool:
        """Part of a message that is a binary frame has been received."""
        return self._message is not None and self._message.frame is not None

    def feed(self, data: bytes) -> list[Message]:
        """Take received bytes; returns the messages that they complete, in order. None after the end (see above)."""
        messages: list[Message] = []
        if self.pings:
            self.pings = []
        if self.is_over:
            return messages
        if self._held:
            data, self._held = self._held + data, b""
        try:
            at = self._read(data, messages)
        except _ProtocolError as error:
            self.fault = Close(PROTOCOL_ERROR, str(error))
        except UnicodeDecodeError as error:
            self.fault = Close(BAD_DATA, f"a text message is not UTF-8: {error.reason}")
        except FrameError as error:
            self.fault = Close(BAD_DATA, str(error))
        else:
            if at < len(data):
                self._held = data[at:]
        return messages

    def _read(self, data: bytes, messages: list[Message]) -> int:
        """Take the frames of these bytes; gives the place of the rest. Short messages are read here, for speed."""
        at, end, unmask = 0, len(data), self._unmask
        if self._message is not None:
            at = self._go_on(self._message, data, 0, messages)
        while end - at >= 2:
            first, length = data[at], data[at + 1]
            start = at + 2
            if unmask is not None:
                length -= _MASKED
                start += 4
            if not 0 <= length < 126:
                start, length = self._long(data, at, start, length)
            stop = start + length
            if first != _FINAL_TEXT or stop > end or length > self.max_size or self._message is not None:
                before, at = at, self._read_rare(first, length, data, start, messages)
                if at < 0:  # more of it is needed
                    return before
                continue
            part = data[start:stop] if length < _VIEW_MIN else memoryview(data)[start:stop]
            payload = bytes(part) if unmask is None else unmask(part, data[start - 4 : start])
            if not payload.isascii():
                payload.decode()
            messages.append(payload)
            at = stop
        return at

    def _long(self, data: bytes, at: int, start: int, length: int) -> tuple[int, int]:
        """Start and length of a payload whose length did not fit in a byte."""
        if not 0 <= length <= 127:
            raise _ProtocolError("a frame of a client is not masked" if self._unmask else "a frame is masked")
        width = 2 if length == 126 else 8
        length = int.from_bytes(data[at + 2 : at + 2 + width], "big")
        if length >= _LENGTH_END:
            raise _ProtocolError("a frame announces 2**63 bytes or more")
        return start + width, length

    def _read_rare(self, first: int, length: int, data: bytes, start: int, messages: list[Message]) -> int:
        """Take a frame that is no whole text message; gives the place behind what was taken; -1 if more must come."""
        if start > len(data):
            return -1
        self._check(first, length)
        mask = data[start - 4 : start] if self._unmask is not None else b""
        opcode = first & 0x0F
        if opcode >= CLOSE:
            return self._take_control(opcode, data, start, start + length, mask)
        message = self._message = self._message or _Fragments(opcode=opcode, reception=self.reception)
        message.left, message.mask, message.is_last = length, mask, bool(first & _FINAL)
        return self._go_on(message, data, start, messages)

    def _check(self, first: int, length: int) -> None:
        """Check that a frame with this first byte and length may come now."""
        opcode = first & 0x0F
        if first & _RESERVED:
            raise _ProtocolError("a reserved bit is set, and no extension was agreed on")
        if opcode > PONG or BINARY < opcode < CLOSE:
            raise _ProtocolError(f"there is no opcode {opcode:#x}")
        if opcode >= CLOSE:
            if not first & _FINAL or length > CONTROL_MAX:
                raise _ProtocolError("a control frame is fragmented, or longer than 125 bytes")
        elif (opcode == _CONTINUATION) is (self._message is None):
            wrong = "continues no message" if self._message is None else "begins a message inside another"
            raise _ProtocolError(f"a frame {wrong}")

    def _unmasked(self, data: bytes, start: int, stop: int, mask: bytes) -> bytes:
        if not mask or self._unmask is None:
            return data[start:stop]
        return self._unmask(memoryview(data)[start:stop], mask)

    def _take_control(self, opcode: int, data: bytes, start: int, stop: int, mask: bytes) -> int:
        """Take a control frame; gives the place behind it; -1 if more of it must come."""
        if stop > len(data):
            return -1
        payload = self._unmasked(data, start, stop, mask)
        if opcode == PING:
            self.pings.append(payload)
        elif opcode == CLOSE:
            self.closed = _parse_close(payload)
            return len(data)
        return stop

    # -- messages in several frames, or in several reads --------------------------------------------------------------

    def _go_on(self, message: _Fragments, data: bytes, at: int, messages: list[Message]) -> int:
        """Take the next bytes of a message; gives the place behind them."""
        stop = min(at + message.left, len(data))
        payload = self._unmasked(data, at, stop, message.mask)
        turn = (stop - at) % 4  # where in the mask the next byte is
        message.mask = message.mask[turn:] + message.mask[:turn]
        message.left -= stop - at
        is_whole = message.is_last and not message.left
        if self.intake is not None and payload[:1] == _MARK and message.opcode == BINARY and message.is_untouched:
            if is_whole:
                messages.append(whole_frame(payload, self.intake, self.max_size))
                self._message = None
                return stop
            message.frame = BinaryFrameReader(self.intake, self.max_size)
        if message.frame is not None:
            message.frame.append(payload)
        elif (refused := message.keep(payload, message.left, self.max_size)) is not None:
            messages.append(refused)
        if is_whole:
            self._message = None
            self._end(message, messages)
        return stop

    def _end(self, message: _Fragments, messages: list[Message]) -> None:
        whole = message.end()
        if message.frame is not None:
            messages.append(message.frame.end())
        elif not message.is_dropped:
            if message.opcode == TEXT and not whole.isascii():
                whole.decode()
            messages.append(whole)


def _parse_close(payload: bytes) -> Close:
    from websockets.exceptions import ProtocolError
    from websockets.frames import Close as Parsed

    try:
        parsed = Parsed.parse(payload)
    except ProtocolError as error:
        raise _ProtocolError(f"a close frame is malformed: {error}") from None
    return Close(int(parsed.code), parsed.reason)


# -- writing --------------------------------------------------------------------------------------------------------


def head(opcode: int, size: int, *, masked: bool = False) -> bytes:
    """The bytes before the payload of an unfragmented message of `size` bytes, or before its mask."""
    first, bit = _FINAL | opcode, _MASKED if masked else 0
    if size < 126:
        return bytes((first, bit | size))
    if size < 1 << 16:
        return struct.pack("!BBH", first, bit | 126, size)
    return struct.pack("!BBQ", first, bit | 127, size)


def frame(opcode: int, payload: bytes, *, masked: bool) -> bytes:
    """An unfragmented message, or a control frame."""
    if masked:
        return b"".join(masked_parts(opcode, len(payload), [payload]))
    return head(opcode, len(payload)) + payload


def masked_parts(opcode: int, size: int, parts: Iterable[bytes | memoryview]) -> list[bytes]:
    """The same for a message in pieces of `size` bytes together, masked as a client must send it."""
    mask, apply = os.urandom(4), masking()
    written = [head(opcode, size, masked=True), mask]
    for part in parts:
        written.append(apply(part, mask))
        at = len(part) % 4  # where in the mask the next one begins
        mask = mask[at:] + mask[:at]
    return written
