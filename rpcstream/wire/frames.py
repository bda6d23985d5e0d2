"""WebSocket frames (RFC 6455 section 5): bytes to messages and back, without extensions.

Owns where a frame and a message end, masking, and what a peer must not send. Knows neither sockets nor clocks, nor what
a message means. Short frames take few operations, since they are on the path of every call.
"""

from __future__ import annotations

import codecs
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from .binary_frame import MARK, FrameError
from .frame_messages import MaskedFrameMessage, masking
from .messages import HEAD_SIZE, FrameIntake, Message, Oversize, Reception

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_CONTINUATION = 0x0
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_FINAL_TEXT, _FINAL_PING = _FINAL | TEXT, _FINAL | PING

#: Codes of close frames (7.4.1) that are sent from here.
NORMAL, GOING_AWAY, PROTOCOL_ERROR, BAD_DATA, TOO_BIG, TRY_LATER = 1000, 1001, 1002, 1007, 1009, 1013
#: Stands for a close frame without a code; never sent.
NO_CODE = 1005
#: Codes that a peer may send, beside those from 3000 on, which are for libraries and applications.
_CODES = {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014}

#: Bytes of a control frame's payload.
CONTROL_MAX = 125

#: The first length that a frame must not announce: the highest bit of a length is never set.
_LENGTH_END = 1 << 63

#: Bytes; longer payloads are unmasked from a view of the buffer, which saves a copy.
_VIEW_MIN = 16 * 1024


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
    """The peer broke the protocol; `close` is the close frame to answer with."""

    def __init__(self, code: int, reason: str) -> None:
        self.close = Close(code, reason)


class FrameReader:
    """Cuts received bytes into messages; one reader for each connection.

    Args:
        masked: the peer is a client, and masks what it sends.
        max_size: bytes of a message, all its fragments together. A longer one is reported once, as `Oversize`, as soon
            as a frame announces more and the message's beginning is here; its bytes are dropped as they come.
        reception: counts the memory of messages that are received in part; messages it has no room for are dropped like
            those over `max_size`.
        intake: decides about binary messages that begin with `@`: each is a binary frame with payloads (wire page,
            "Binary frames"). None: they are messages as others are.

    Attributes:
        pings: payloads of the pings among the bytes of the last `feed`, in order.
        closed: the close frame of the peer, once received. Nothing is read after it.
        fault: the close frame to send to a peer that broke the protocol, else None. Nothing is read after that.
        bad_frame: the close frame to send, behind what is to be answered, to a peer whose binary frame is malformed
            (`BAD_DATA`) or too large to be skipped (`TOO_BIG`); else None. Nothing is read after that either.
        is_over: one of these three is set.
        binary: the message that is being received, if it is a binary frame; else None.
    """

    __slots__ = (
        "_decoder",
        "_held",
        "_intake",
        "_is_counted",
        "_masked",
        "_max_size",
        "_message",
        "_opcode",
        "_reception",
        "_rest",
        "_skipping",
        "_unmask",
        "_unwanted",
        "_wanted",
        "bad_frame",
        "binary",
        "closed",
        "fault",
        "is_over",
        "pings",
    )

    def __init__(
        self, *, masked: bool, max_size: int, reception: Reception | None = None, intake: FrameIntake | None = None
    ) -> None:
        self.pings: list[bytes] = []
        self.closed: Close | None = None
        self.fault: Close | None = None
        self.bad_frame: Close | None = None
        self._reception = reception
        self._intake = intake
        self.binary: MaskedFrameMessage | None = None
        #: Bytes that have come while a binary frame waits.
        self._rest = b""
        #: The message that is being received is counted by `reception`.
        self._is_counted = False
        self.is_over = False
        self._masked = masked
        self._unmask = masking() if masked else None
        self._max_size = max_size
        #: The beginning of a frame, and how many bytes of it are needed to get any further.
        self._held = bytearray()
        self._wanted = 0
        #: The fragments so far of a message, the opcode of its first frame, and a check of its text as it comes.
        self._message: bytearray | None = None
        self._opcode = 0
        self._decoder: codecs.IncrementalDecoder | None = None
        #: The message being received was reported as too long; and how many more bytes of its frame to drop.
        self._skipping = False
        self._unwanted = 0

    @property
    def partial(self) -> bool:
        """Part of a message, or of a frame, has been received."""
        return bool(self._held or self._unwanted) or self._message is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a binary frame waits for memory: read no more, and call `go_on` when there may be some."""
        return self.binary is not None and self.binary.is_waiting

    def go_on(self) -> bool:
        """Ask again for memory; if there is some, `feed` takes what has come meanwhile."""
        return self.binary is not None and self.binary.go_on()

    def limit(self, max_size: int) -> None:
        """Set `max_size` from now on, also for a message that has begun."""
        self._max_size = max_size

    def feed(self, data: bytes) -> list[Message]:
        """Take received bytes; returns the messages that they complete, in order. None after the end (see above)."""
        messages: list[Message] = []
        if self.pings:
            self.pings = []
        if self.is_over:
            return messages
        if self._unwanted:
            before, self._unwanted = self._unwanted, max(self._unwanted - len(data), 0)
            data = data[before:]
        if self.binary is not None:
            data, self._rest = self._rest + data, b""
        if not self._held:
            self._read(data, messages)
        else:
            self._held += data
            if len(self._held) >= self._wanted:
                held, self._held = self._held, bytearray()
                self._read(held, messages)
        if self.binary is not None:  # it is counted by its intake
            return messages
        if self._held or self._message is not None:
            if self._reception is not None:
                self._receive_in_part(self._reception, messages)
        elif self._is_counted and self._reception is not None:
            self._is_counted = False
            self._reception.over()
        return messages

    def _receive_in_part(self, reception: Reception, messages: list[Message]) -> None:
        """Count a message that is here in part; without room for it, drop it as if it were too long."""
        message = self._message
        size = len(self._held) + len(message or b"")
        if self._skipping or self.is_over:
            size = 0
        self._is_counted = True
        if size and reception.grow(size):
            return
        reception.over()
        if not size:
            return
        held, self._held = self._held, bytearray()
        if message is None:  # its first frame, or its only one, has come in part
            before, self._max_size = self._max_size, -1
            self._read(held, messages)
            self._max_size = before
            begun = messages.pop().head  # type: ignore[union-attr]
        else:
            begun = bytes(message[:HEAD_SIZE])
            self._skipping, self._message, self._decoder = True, bytearray(), None
            self._read(held, messages)
        messages.append(Oversize(size, begun, reception.limit, is_refused=True))

    def _read(self, data: bytes | bytearray, messages: list[Message]) -> None:  # noqa: C901, PLR0912, PLR0915 (one loop, for speed)
        """Take the complete frames of these bytes, and keep the rest. One long loop, for the speed of short frames."""
        at, end, unmask = 0, len(data), self._unmask
        try:
            if self.binary is not None:
                at = self._read_binary(self.binary, data, 0, messages)
            while end - at >= 2:
                first, length = data[at], data[at + 1]
                start = at + 2
                if unmask is not None:
                    length -= _MASKED
                    start += 4
                if not 0 <= length < 126:
                    start, length = self._long(data, at, start, length)
                    if length < 0:  # the length itself is not here yet
                        self._wanted = start - at
                        break
                message = self._message
                if first == _FINAL_TEXT and message is None:
                    is_unwanted = length > self._max_size
                elif first == _CONTINUATION and message:
                    is_unwanted = len(message) + length > self._max_size
                else:
                    is_unwanted = (first != _FINAL_PING or length > CONTROL_MAX) and self._is_unwanted(first, length)
                    if first & 0x0F <= BINARY and self._may_be_binary(first, length):
                        seen = start if self.binary is not None else start + 1  # its first byte tells what it is
                        if seen > end:
                            self._wanted = seen - at
                            break
                        mask = bytes(data[start - 4 : start]) if unmask is not None else b""
                        if self.binary is not None or data[start] ^ (mask[0] if mask else 0) == MARK:
                            at = self._begin_binary(first, length, mask, data, start, messages)
                            continue
                stop = start + length
                if is_unwanted:
                    seen = start + (0 if self._skipping else min(length, HEAD_SIZE))
                    if seen > end:  # its beginning may tell which call it belongs to
                        self._wanted = seen - at
                        break
                    begun = bytes(data[start:seen])
                    if unmask is not None:
                        begun = unmask(begun, data[start - 4 : start])
                    self._skip(first, begun, length, messages)
                    self._unwanted = max(stop - end, 0)
                    at = min(stop, end)
                    continue
                if stop > end:
                    self._wanted = stop - at
                    break
                part = data[start:stop] if length < _VIEW_MIN else memoryview(data)[start:stop]
                payload = bytes(part) if unmask is None else unmask(part, data[start - 4 : start])
                if first == _FINAL_TEXT:
                    if not payload.isascii():
                        payload.decode()
                    messages.append(payload)
                elif first == _FINAL_PING:
                    self.pings.append(payload)
                elif message is not None and first == _CONTINUATION:
                    if self._decoder is not None:
                        self._decoder.decode(payload)
                    message += payload
                else:
                    self._take(first, payload, messages)
                    if self.is_over:
                        return
                at = stop
            else:
                self._wanted = 2
        except _ProtocolError as error:
            self.fault, self.is_over = error.close, True
        except UnicodeDecodeError as error:
            self.fault, self.is_over = Close(BAD_DATA, f"a text message is not UTF-8: {error.reason}"), True
        else:
            if at < end:
                self._held += memoryview(data)[at:]

    def _long(self, data: bytes | bytearray, at: int, start: int, length: int) -> tuple[int, int]:
        """Start and length of a payload whose length did not fit in a byte; -1 while that length has not come."""
        if not 0 <= length <= 127:
            raise _ProtocolError(
                PROTOCOL_ERROR, "a frame of a client is not masked" if self._masked else "a frame is masked"
            )
        width = 2 if length == 126 else 8
        if len(data) < at + 2 + width:
            return start + width, -1
        length = int.from_bytes(data[at + 2 : at + 2 + width], "big")
        if length >= _LENGTH_END:
            raise _ProtocolError(PROTOCOL_ERROR, "a frame announces 2**63 bytes or more")
        return start + width, length

    def _is_unwanted(self, first: int, length: int) -> bool:
        """Check that a frame with this first byte and length may come now; returns whether its message is too long."""
        opcode = first & 0x0F
        if first & _RESERVED:
            raise _ProtocolError(PROTOCOL_ERROR, "a reserved bit is set, and no extension was agreed on")
        if opcode >= CLOSE:
            if opcode > PONG:
                raise _ProtocolError(PROTOCOL_ERROR, f"there is no opcode {opcode:#x}")
            if not first & _FINAL or length > CONTROL_MAX:
                raise _ProtocolError(PROTOCOL_ERROR, "a control frame is fragmented, or longer than 125 bytes")
            return False
        if opcode > BINARY:
            raise _ProtocolError(PROTOCOL_ERROR, f"there is no opcode {opcode:#x}")
        if (opcode == _CONTINUATION) is (self._message is None):
            wrong = "continues no message" if self._message is None else "begins a message inside another"
            raise _ProtocolError(PROTOCOL_ERROR, f"a frame {wrong}")
        return self._skipping or length + len(self._message or b"") > self._max_size

    def _may_be_binary(self, first: int, length: int) -> bool:
        """Whether a frame belongs to a message that is a binary frame, or may begin one."""
        opcode = first & 0x0F
        if self.binary is not None:
            return opcode == _CONTINUATION
        if self._intake is None or not length or self._skipping:
            return False
        return opcode == BINARY or (opcode == _CONTINUATION and self._opcode == BINARY and not self._message)

    def _begin_binary(
        self, first: int, length: int, mask: bytes, data: bytes | bytearray, start: int, messages: list[Message]
    ) -> int:
        """Begin with a frame of a message that is a binary frame, the first or another one; as `_read_binary`."""
        if self.binary is None:
            assert self._intake is not None
            self.binary = MaskedFrameMessage(self._intake, self._max_size, self._reception)
            self._message, self._opcode, self._decoder = bytearray(), BINARY, None
        self.binary.begin(length, mask, is_last=bool(first & _FINAL))
        return self._read_binary(self.binary, data, start, messages)

    def _read_binary(
        self, binary: MaskedFrameMessage, data: bytes | bytearray, at: int, messages: list[Message]
    ) -> int:
        """Give the next bytes to a message that is a binary frame; gives the place behind those that were taken."""
        try:
            at = binary.feed(data, at)
            if binary.is_waiting:
                self._rest = bytes(data[at:])
                return len(data)
            if binary.is_unbounded or (binary.is_last and not binary.left):
                messages.append(binary.end())
                self.binary = self._message = None
                if binary.is_unbounded:
                    self.bad_frame = Close(TOO_BIG, "a binary frame is too large to be skipped")
        except FrameError as error:
            self.bad_frame, self.binary = Close(BAD_DATA, str(error)), None
        if self.bad_frame is not None:
            self.is_over = True
            return len(data)
        return at

    def _skip(self, first: int, begun: bytes, length: int, messages: list[Message]) -> None:
        """Report a message that is too long, once, with its first bytes; drop what was kept of it."""
        if not self._skipping:
            message = self._message or b""
            head = bytes(message[:HEAD_SIZE]) + begun[: max(HEAD_SIZE - len(message), 0)]
            messages.append(Oversize(len(message) + length, head, self._max_size))
        self._skipping = not first & _FINAL
        self._message = bytearray() if self._skipping else None
        self._decoder = None

    def _take(self, first: int, payload: bytes, messages: list[Message]) -> None:
        """Handle the rarer frames: a close, a pong, a binary message, the first or last fragment of a message."""
        opcode, is_final = first & 0x0F, bool(first & _FINAL)
        if opcode == CLOSE:
            self.closed = _parse_close(payload)
            self.is_over = True
        elif opcode < CLOSE:
            if self._message is None:
                if is_final:
                    messages.append(payload)
                    return
                self._message, self._opcode = bytearray(), opcode
                self._decoder = codecs.getincrementaldecoder("utf-8")() if opcode == TEXT else None
            if self._decoder is not None:
                self._decoder.decode(payload, is_final)
            self._message += payload
            if is_final:
                messages.append(bytes(self._message))
                self._message = self._decoder = None


def _parse_close(payload: bytes) -> Close:
    if not payload:
        return Close(NO_CODE)
    if len(payload) < 2:
        raise _ProtocolError(PROTOCOL_ERROR, "a close frame has half a code")
    code = int.from_bytes(payload[:2], "big")
    if code not in _CODES and not 3000 <= code <= 4999:
        raise _ProtocolError(PROTOCOL_ERROR, f"a close frame has the code {code}")
    return Close(code, payload[2:].decode())


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
