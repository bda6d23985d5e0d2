r"""Binary frames: a JSON message with its payloads behind it as raw bytes (wire page, "Binary frames").

    @<J> <n1> [<n2> ...]<0-7 blanks>\n
    <JSON of exactly J bytes, ending in \n>
    <n1 bytes>[zeros to a multiple of 8]<n2 bytes>...

A size may also be `lease:place:n` or `lease:lease:off:n`, for a payload in shared memory: no bytes follow for it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .buffers import AttachedMessage, ReceiveBuffer, padding
from .envelope import HEAD_SIZE, BinaryFrame, Oversize

#: The first byte of a frame, which no JSON begins with.
MARK = 0x40

#: Bytes of a payload from which on it is attached: below, base64 inside the JSON costs less than the frame.
ATTACHED_MIN = 4 * 1024

#: Bytes of a payload from which on shared memory takes it. Below, a socket is as fast.
SHARED_MIN = 64 * 1024

#: Payloads of one frame that is sent. A message with more is sent as text, whose base64 does not count as JSON.
ATTACHED_MAX = 64

#: Bytes of a header, which has at most 256 sizes.
HEADER_MAX = 4096

_HEADER = re.compile(rb"@(\d{1,12})((?: (?:\d{1,12}:(?:\d{1,12}:){1,2})?\d{1,12}){1,256}) {0,7}\n")
_PLAIN_HEADER = re.compile(rb"@([1-9]\d{0,11}) ((?:\d{1,12}:){2,3})?([1-9]\d{0,11}) {0,7}\n")
_ZEROS, _BLANKS = bytes(8), b" " * 8

#: A frame, and memory for its payloads.
Admitted = tuple[BinaryFrame, list[memoryview]]


class FrameError(ValueError):
    """The bytes are no frame; the text says why."""


class FrameHeader(NamedTuple):
    """What the header of a frame says.

    Attributes:
        json_size: bytes of the JSON.
        sizes: bytes of each payload.
        places: where each payload stands in shared memory; None for one that stands behind the JSON.
    """

    json_size: int
    sizes: tuple[int, ...]
    places: tuple[tuple[int, ...] | None, ...]

    @property
    def size(self) -> int:
        """Bytes of the message, those in shared memory included."""
        shared = [size for place, size in zip(self.places, self.sizes, strict=True) if place]
        return self.body_size + sum(shared)

    @property
    def body_size(self) -> int:
        """Bytes behind the header: JSON, the payloads that follow it, and the padding between these."""
        inline = [size for place, size in zip(self.places, self.sizes, strict=True) if place is None]
        return self.json_size + sum(inline) + sum(map(padding, inline[:-1]))


def header(json_size: int, entries: Sequence[bytes]) -> bytes:
    """The header of a frame, so long that the payload behind the JSON begins at a multiple of 8 bytes from the `@`.

    Args:
        json_size: bytes of the JSON.
        entries: for each payload its bytes, behind its place if it stands in shared memory.
    """
    text = b"@%d %b" % (json_size, b" ".join(entries))
    return b"%b%b\n" % (text, _BLANKS[: -(len(text) + 1 + json_size) % 8])


def read_header(line: bytes) -> FrameHeader:
    """Read a header, given with its line end.

    Raises:
        FrameError: it is malformed.
    """
    found = _HEADER.fullmatch(line)
    if found is not None and len(line) <= HEADER_MAX:
        entries = [tuple(map(int, entry.split(b":"))) for entry in found[2].split()]
        sizes = tuple([entry[-1] for entry in entries])
        if int(found[1]) and all(sizes):
            return FrameHeader(int(found[1]), sizes, tuple([entry[:-1] or None for entry in entries]))
    raise FrameError("the header of a binary frame is malformed: '@', the bytes of the JSON, and of each payload")


def parts_of_frame(message: AttachedMessage, shared: Any = None) -> list[Any]:
    """The bytes to send for a message as a frame, in order: its header and JSON, then its payloads, not copied.

    Args:
        message: the message.
        shared: a `SharedMemory`, which takes large payloads that are then not among the bytes; None: there is none.
    """
    json, payloads = message.json, message.payloads
    entries = [] if shared is None else shared.place(payloads)
    if not entries:
        entries = [b"%d" % len(payload) for payload in payloads]
    parts: list[Any] = [header(len(json), entries) + json]
    for payload, entry in zip(payloads, entries, strict=True):
        if b":" in entry:
            continue
        if len(parts) > 1 and (zeros := padding(len(parts[-1]))):
            parts.append(_ZEROS[:zeros])
        parts.append(payload)
    return parts


def whole_frame(data: bytes, intake: FrameIntake, max_size: int) -> BinaryFrame | Oversize:
    """The frame that a whole message is, of a WebSocket or of NATS.

    Raises:
        FrameError: the message is no frame.
    """
    message, end = plain_frame(data, 0, intake, max_size)
    if message is not None and end == len(data):
        return message
    reader = BinaryFrameReader(intake, max_size)
    reader.append(data)
    return reader.end()


def plain_frame(data: bytes, at: int, intake: FrameIntake, max_size: int) -> tuple[BinaryFrame | None, int]:
    """A whole frame with one payload, as nearly all short ones are, and the place behind the frame.

    None for anything else, which a `BinaryFrameReader` reads.

    Raises:
        FrameError: no frame may come now.
    """
    found = _PLAIN_HEADER.match(data, at)
    if found is None:
        return None, at
    json_size, place, size = found.groups()
    begin, size = found.end(), int(size)
    payload = begin + int(json_size)
    end = payload if place else payload + size
    if end > len(data) or payload + size - begin > max_size:
        return None, at
    if (reason := intake.refuses_frames()) is not None:
        raise FrameError(reason)
    lent = [_lent(intake, size, tuple(map(int, place[:-1].split(b":"))))] if place else ()
    frame, memory = intake.admit(data[begin:payload], (size,), lent)
    if memory:
        memory[0][:] = memoryview(data)[payload:end]
    intake.over()
    return frame, end


def _lent(intake: FrameIntake, size: int, place: tuple[int, ...] | None) -> Any:
    """A payload that stands in shared memory, as an array; None for one that stands nowhere. Raises FrameError."""
    if place is None:
        return None
    shared = intake.shared
    if shared is None:
        raise FrameError("the header of a binary frame is malformed: there is no shared memory")
    return shared.borrow(size, *place)


class FrameIntake(Protocol):
    """Decides about a binary frame when its JSON is there, and counts its bytes while they come."""

    @property
    def shared(self) -> Any:
        """The `SharedMemory` that payloads may stand in; None: all come with their message."""

    def refuses_frames(self) -> str | None:
        """Why no frame may come now; None if one may."""

    def admit(self, json: bytes, sizes: tuple[int, ...], lent: Sequence[Any] = ()) -> Admitted:
        """Look at a frame.

        Args:
            json: as it came.
            sizes: bytes of each payload.
            lent: the payloads in shared memory, as arrays; None for one that stands behind the JSON. Empty: all do.

        Returns:
            The frame, and the memory that its other payloads are received into; no memory for a frame that was refused,
            whose payloads are skipped.
        """

    def grow(self, received: int, frame: BinaryFrameReader) -> None:
        """Set the bytes received so far of the frame that is being received."""

    def over(self) -> None:
        """The frame is complete, or its rest will never come."""


@dataclass(slots=True, eq=False, repr=False)
class BinaryFrameReader:
    """Receives one frame.

    Give bytes to `feed`; or, while `target` has room, receive them into that and say so by `received`.

    Args:
        intake: decides about the frame.
        max_size: bytes of JSON, payloads and padding together.

    Attributes:
        message: the frame, or what stands for it, once it is complete; None before. One that is too large is skipped.

    Raises, by `feed` and `append`:
        FrameError: the header is malformed, or no frame may come now.
    """

    intake: FrameIntake
    max_size: int
    message: BinaryFrame | Oversize | None = field(default=None, init=False)
    #: The header, and then the JSON, until all of it has come.
    _head: ReceiveBuffer = field(default_factory=ReceiveBuffer, init=False)
    _header: FrameHeader | None = field(default=None, init=False)
    #: The payloads in shared memory, until the JSON has come.
    _lent: Sequence[Any] = field(default=(), init=False)
    _frame: BinaryFrame | Oversize | None = field(default=None, init=False)
    #: What is still to come: memory to fill, or a number of bytes to skip.
    _steps: deque[memoryview | int] = field(default_factory=deque, init=False)
    _received: int = field(default=0, init=False)

    def feed(self, data: bytes, at: int = 0) -> int:
        """Take bytes from `at` on; returns how far: less than all of them only if the frame is complete."""
        begin = at
        if self._header is None:
            at = self._take_header(data, at)
        if self._frame is None and self._header is not None:
            at = self._take_json(self._header, data, at)
        while at < len(data) and self._steps:
            step = self._steps[0]
            count = min(len(data) - at, step if isinstance(step, int) else len(step))
            if not isinstance(step, int):
                step[:count] = memoryview(data)[at : at + count]
            self._take(count)
            at += count
        self._count(at - begin)
        return at

    def append(self, data: bytes) -> None:
        """Take the next bytes of a message that holds this frame and nothing else."""
        if self.feed(data) < len(data):
            raise FrameError("bytes follow the binary frame in its message")

    def end(self) -> BinaryFrame | Oversize:
        """The message that holds this frame is over: gives the frame.

        Raises:
            FrameError: the frame is not complete.
        """
        if self.message is None:
            self.intake.over()
            raise FrameError("the message ends before the binary frame in it does")
        return self.message

    def target(self) -> memoryview | None:
        """Memory that the next bytes may be received into; None where they must be given to `feed`."""
        step = self._steps[0] if self._steps else None
        return None if isinstance(step, int) else step

    def received(self, count: int) -> None:
        """Take note of bytes that were received into `target`, perhaps one from before `drop`."""
        self._take(count)
        self._count(count)

    def drop(self, limit: int) -> None:
        """Skip what is still to come: the frame was refused meanwhile, or its JSON is over this limit of memory."""
        assert self._header is not None
        rest = sum([step if isinstance(step, int) else len(step) for step in self._steps])
        if self._frame is None:
            rest = self._header.body_size - self._head.size
            self._frame = Oversize(self._header.size, self._head.take()[:HEAD_SIZE], limit, is_refused=True)
        self._steps = deque([rest])

    def _count(self, received: int) -> None:
        if self.message is None:
            self._received += received
            self.intake.grow(self._received, self)

    def _take(self, count: int) -> None:
        """Go on with what is still to come, behind these bytes; without any left the frame is complete."""
        step = self._steps.popleft()
        left = step - count if isinstance(step, int) else step[count:]
        if left:
            self._steps.appendleft(left)
        elif not self._steps:
            self._complete()

    def _complete(self) -> None:
        self.message = self._frame
        self.intake.over()

    def _take_header(self, data: bytes, at: int) -> int:
        if not self._head.size and (reason := self.intake.refuses_frames()) is not None:
            raise FrameError(reason)
        end = data.find(b"\n", at, at + HEADER_MAX) + 1
        self._head.append(data[at : end or at + HEADER_MAX + 1])
        line = self._head.take()
        if len(line) > HEADER_MAX:
            raise FrameError("the header of a binary frame is malformed: it is too long")
        if not end:
            self._head.append(line)
            return len(data)
        self._header = read_header(line)
        if any(self._header.places):
            entries = zip(self._header.sizes, self._header.places, strict=True)
            self._lent = [_lent(self.intake, size, place) for size, place in entries]
        if self._header.json_size > self.max_size:
            self._begin(Oversize(self._header.size, b"", self.max_size), [], self._header.body_size)
        return end

    def _take_json(self, header: FrameHeader, data: bytes, at: int) -> int:
        end = min(len(data), at + header.json_size - self._head.size)
        self._head.append(data[at:end])
        if self._head.size == header.json_size:
            json, rest = self._head.take(), header.body_size - header.json_size
            if header.size > self.max_size:
                self._begin(Oversize(header.size, json[:HEAD_SIZE], self.max_size), [], rest)
            else:
                frame, memory = self.intake.admit(json, header.sizes, self._lent)
                self._begin(frame, memory, rest)
            self._lent = ()
        return end

    def _begin(self, frame: BinaryFrame | Oversize, memory: list[memoryview], rest: int) -> None:
        """Receive the payloads into this memory; without any, skip the rest of the frame."""
        assert self._header is not None
        self._frame = frame
        if memory:
            for view in memory:
                self._steps += [view, zeros] if (zeros := padding(len(view))) and view is not memory[-1] else [view]
        elif rest:
            self._steps.append(rest)
        if not self._steps:
            self._complete()
