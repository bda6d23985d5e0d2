r"""Binary frames: a JSON message with its payloads behind it as bytes (wire page, "Binary frames"). Pure.

    @<J> <n1> [<n2> ...]<0-7 blanks>\n
    <JSON of exactly J bytes, ending in \n>
    <n1 bytes>[zeros to a multiple of 8]<n2 bytes>...

In the place of a size `off:n` may stand, for a payload in shared memory: no bytes follow for it.

Owns the bytes of a frame, in both directions. Which frames are taken, and where their payloads are received, is for a
`FrameIntake` to decide.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from .buffers import AttachedMessage, ReceiveBuffer, padding
from .messages import HEAD_SIZE, FrameIntake, Message, Oversize, Reception, SharedPayloads, entries

#: The first byte of a frame, which no JSON begins with.
MARK = 0x40

#: Bytes of a payload from which on it is attached: below, base64 inside the JSON costs less than the frame.
ATTACHED_MIN = 4 * 1024

#: Payloads of one frame that is sent. A message with more is sent as text, whose base64 does not count as JSON.
ATTACHED_MAX = 64

#: Bytes of a header, which has at most 256 sizes.
HEADER_MAX = 4096

#: So many times `max_message_size` of a frame that is refused are skipped; the connection of a larger one is closed.
SKIPPED_MAX = 16

_HEADER = re.compile(rb"@(\d{1,12})((?: (?:\d{1,12}:)?\d{1,12}){1,256}) {0,7}\n")
_PLAIN_HEADER = re.compile(rb"@([1-9]\d{0,11}) ([1-9]\d{0,11}) {0,7}\n")
_BEGIN = re.compile(rb"@(?:\d{1,12}(?: (?:\d{1,12}:)?\d{1,12})*(?: \d{1,12}:| {0,8}))?")
_ZEROS = bytes(8)


class FrameError(ValueError):
    """The bytes are no frame; the text says why."""


def header(json_size: int, sizes: Sequence[int], offsets: Sequence[int | None] = ()) -> bytes:
    """The header of a frame, so long that the payload behind the JSON begins at a multiple of 8 bytes from the `@`.

    Args:
        json_size: bytes of the JSON.
        sizes: bytes of each payload.
        offsets: where each stands in shared memory, None behind the JSON; empty: none stands there.
    """
    return _aligned(b"@%d %b" % (json_size, entries(sizes, offsets or [None] * len(sizes))), json_size)


def _aligned(text: bytes, json_size: int) -> bytes:
    """A header with its blanks and its line end."""
    return text + b" " * padding(len(text) + 1 + json_size) + b"\n"


def read_header(line: bytes) -> tuple[int, tuple[int, ...], tuple[int | None, ...]]:
    """The size of the JSON, those of the payloads, and where each stands in shared memory (None: behind the JSON).

    Args:
        line: with its line end.

    Raises:
        FrameError: it is malformed.
    """
    found = _HEADER.fullmatch(line)
    parted = [entry.rpartition(b":") for entry in found[2].split()] if found is not None else []
    sizes = tuple([int(size) for _, _, size in parted])
    if found is None or len(line) > HEADER_MAX or not all(sizes) or not int(found[1]):
        raise FrameError("the header of a binary frame is malformed: '@', the bytes of the JSON, and of each payload")
    return int(found[1]), sizes, tuple([int(offset) if offset else None for offset, _, _ in parted])


def parts_of_frame(message: AttachedMessage, shared: SharedPayloads | None = None) -> list[Any]:
    """The bytes to send for a message as a frame, in order: its header and JSON, then its payloads, not copied.

    Args:
        message: it.
        shared: takes large payloads, which are then not among the bytes; None: there is no such memory.
    """
    json, payloads = message.json, message.payloads
    if shared is None and len(payloads) == 1:  # as nearly always
        return [_aligned(b"@%d %d" % (len(json), len(payloads[0])), len(json)) + json, payloads[0]]
    offsets = [None] * len(payloads) if shared is None else shared.place(payloads)
    parts: list[Any] = [header(len(json), list(map(len, payloads)), offsets) + json]
    inline = [payload for payload, offset in zip(payloads, offsets, strict=True) if offset is None]
    if not inline:
        return parts
    for payload in inline:
        parts.append(payload)
        if zeros := padding(len(payload)):
            parts.append(_ZEROS[:zeros])
    # Behind the last one there is no padding.
    if len(parts[-1]) < 8 and parts[-1] is not inline[-1]:
        parts.pop()
    return parts


def shown(first: bytes) -> bytes:
    """The first part of a frame as a trace shows it: its sizes and its JSON on one line."""
    head, _, json = first.partition(b"\n")
    return b"%b %b" % (head.rstrip(), json[:-1])


def body_size(json_size: int, sizes: Sequence[int]) -> int:
    """Bytes of a frame behind its header: JSON, the payloads that follow it, and the padding between these."""
    return json_size + sum(sizes) + sum(map(padding, sizes[:-1]))


class PlainFrame(NamedTuple):
    """Bytes that are one whole frame with one payload behind its JSON, as nearly all short ones are."""

    json: bytes
    size: int
    payload: memoryview

    @classmethod
    def of(cls, data: bytes, max_size: int) -> PlainFrame | None:
        """The frame in these bytes; None for anything else, which a `BinaryFrameReader` is to look at."""
        found = _PLAIN_HEADER.match(data)
        if found is None:
            return None
        begin, size = found.end(), int(found[2])
        end = begin + int(found[1])
        if end + size != len(data) or len(data) - begin > max_size:
            return None
        return cls(data[begin:end], size, memoryview(data)[end:])


class BinaryFrameReader:
    """Receives one frame.

    Bytes are given to `feed`; or, while `target` has room, received into that directly and told by `received`.

    Args:
        intake: decides about the frame.
        max_size: bytes of JSON, payloads and padding together.
        reception: counts the JSON while it is received.

    Attributes:
        message: the frame, or what stands for it, once it is complete; None before.
        is_waiting: the intake wants no more of it now: `go_on` is to be called when it does.
        must_close: the connection cannot go on behind this frame, which is too large to be skipped.

    Raises, by `feed`:
        FrameError: the header is malformed, or no frame may come now.
    """

    __slots__ = (
        "_at",
        "_body_size",
        "_came",
        "_frame",
        "_intake",
        "_json",
        "_json_size",
        "_max_size",
        "_memory",
        "_offsets",
        "_reception",
        "_sizes",
        "_skips",
        "_steps",
        "_view",
        "_wanted",
        "is_waiting",
        "message",
        "must_close",
    )

    def __init__(self, intake: FrameIntake, max_size: int, reception: Reception | None) -> None:
        self._intake = intake
        self._max_size = max_size
        self._reception = reception
        self._json = ReceiveBuffer()
        self._json_size = 0
        self._sizes: tuple[int, ...] = ()
        #: Where payloads stand in shared memory; and bytes of those that do not, with JSON and padding.
        self._offsets: tuple[int | None, ...] = ()
        self._body_size = 0
        self._frame: Message | None = None
        #: What is still to be received: memory to fill, or a number of bytes to skip.
        self._steps: deque[memoryview | int] = deque()
        self._view: memoryview | None = None
        #: Memory of an admitted frame of which nothing was received yet.
        self._memory: list[memoryview] = []
        self._at = self._skips = 0
        #: Bytes of payloads that were received, and for how many memory was asked for last.
        self._came = self._wanted = 0
        self.message: Message | None = None
        self.is_waiting = False
        self.must_close = False

    def feed(self, data: bytes, at: int = 0) -> int:
        """Take bytes; returns how far. Less than all of them if the frame is complete, or must wait."""
        if not self._json_size:
            at = self._take_header(data, at)
            if not self._json_size:
                return at
        if self._frame is None and not self.is_waiting:
            at = self._take_json(data, at)
        size = len(data)
        while at < size and self.message is None and not self.is_waiting and self._frame is not None:
            if self._view is not None:
                count = min(size - at, len(self._view) - self._at)
                if not self._has_room(self._came + count):
                    break
                self._view[self._at : self._at + count] = memoryview(data)[at : at + count]
                at += count
                self._advance(count)
            else:
                count = min(size - at, self._skips)
                at += count
                self._skips -= count
                if not self._skips:
                    self._next()
        return at

    def wait(self, plain: PlainFrame) -> None:
        """Be where the intake does not want this frame yet, whose payload is to be fed later."""
        self._json.append(plain.json)
        self._json_size, self._sizes, self._offsets = len(plain.json), (plain.size,), (None,)
        self._body_size = self._json_size + plain.size
        self.is_waiting = True

    def target(self) -> memoryview | None:
        """Memory that the next bytes may be received into; None where they must be given to `feed`."""
        return None if self._view is None or self.is_waiting else self._view[self._at :]

    def received(self, count: int) -> None:
        """Take note of bytes that were received into `target`, perhaps one from before `skip`."""
        if self._view is None:
            self._skips -= count
            if not self._skips:
                self._next()
            return
        self._advance(count)
        if self.message is None:
            self._has_room(self._came)

    def _advance(self, count: int) -> None:
        assert self._view is not None
        self._at += count
        self._came += count
        if self._at == len(self._view):
            self._next()

    def _has_room(self, size: int) -> bool:
        """Whether there is memory for so many bytes of payloads; if not, the frame waits for it."""
        self._wanted = size
        self.is_waiting = not self._intake.grow(size)
        return not self.is_waiting

    @property
    def left(self) -> int:
        """As `PartialFrame.left`."""
        now = self._skips if self._view is None else len(self._view) - self._at
        return now + sum([each if isinstance(each, int) else len(each) for each in self._steps])

    def skip(self) -> None:
        """As `PartialFrame.skip`."""
        if self._memory:
            self._memory = []
            self._begin(self._rest_skipped)
            return
        self._skips, self._view = self.left, None
        self._steps.clear()

    def go_on(self) -> bool:
        """Ask the intake again; False if the frame must still wait."""
        if self.is_waiting:
            self.is_waiting = False
            if self._frame is None:
                self._admit()
            elif self._memory:
                self._fill()
            elif self._view is not None:
                self._has_room(self._wanted)
        return not self.is_waiting

    def _take_header(self, data: bytes, at: int) -> int:
        if not self._json.size and (reason := self._intake.refuses_frames()) is not None:
            raise FrameError(reason)
        end = data.find(b"\n", at, at + HEADER_MAX) + 1
        self._json.append(data[at : end or at + HEADER_MAX + 1])
        if self._json.size > HEADER_MAX or (not end and not _BEGIN.fullmatch(head := self._json.take())):
            raise FrameError("the header of a binary frame is malformed, or too long")
        if not end:
            self._json.append(head)
            return len(data)
        self._read_header(self._json.take())
        self.must_close = self._size > SKIPPED_MAX * self._max_size
        if self._json_size > self._max_size:
            self._frame = Oversize(self._size, b"", self._max_size)
            self._begin([] if self.must_close else [self._body_size])
        return end

    def _read_header(self, line: bytes) -> None:
        self._json_size, self._sizes, self._offsets = read_header(line)
        inline = self._sizes
        if b":" in line:
            shared = self._intake.shared
            inline = tuple([size for size, at in zip(self._sizes, self._offsets, strict=True) if at is None])
            if shared is None or not shared.holds(self._places()):
                raise FrameError("the header of a binary frame is malformed: no such place in shared memory")
        self._body_size = body_size(self._json_size, inline)

    @property
    def _size(self) -> int:
        """Bytes of the message, those in shared memory included."""
        return self._body_size + sum([size for _, size in self._places()])

    def _places(self) -> list[tuple[int, int]]:
        """Where the payloads in shared memory stand, and their sizes."""
        return [(at, size) for at, size in zip(self._offsets, self._sizes, strict=True) if at is not None]

    def _take_json(self, data: bytes, at: int) -> int:
        end = min(len(data), at + self._json_size - self._json.size)
        self._json.append(data[at:end])
        if self._json.size < self._json_size:
            if self._reception is not None and not self._reception.grow(self._json.size):
                self._refuse_rest()
        else:
            self._admit()
        return end

    def _refuse_rest(self) -> None:
        """Skip a frame of whose JSON only a part was received: the server has no memory for it."""
        assert self._reception is not None
        seen = self._json.take()
        self._reception.over()
        self._frame = Oversize(self._size, seen[:HEAD_SIZE], self._reception.limit, is_refused=True)
        self._begin([self._body_size - len(seen)])

    def _admit(self) -> None:
        """Decide about the frame, whose JSON is there."""
        json = self._json.take()
        if self._size > self._max_size:
            self._frame = Oversize(self._size, json[:HEAD_SIZE], self._max_size)
            self._begin([] if self.must_close else self._rest_skipped)
            return
        admitted = self._intake.admit(json, self._sizes)
        self.is_waiting = admitted is None
        if admitted is None:
            self._json.append(json)
            return
        self._frame, self._memory = admitted
        self._frame.offsets = self._offsets
        if self._memory:
            self._intake.begun(self)
            self._fill()
        else:
            self._begin(self._rest_skipped)

    @property
    def _rest_skipped(self) -> list[memoryview | int]:
        """The steps that skip all bytes behind the JSON."""
        rest = self._body_size - self._json_size
        return [rest] if rest else []

    def _fill(self) -> None:
        """Begin to receive payloads; first those in shared memory, if there is memory for them."""
        if size := sum([size for _, size in self._places()]):
            if not self._has_room(size):
                return
            self._came = size
        memory, self._memory = self._memory, []
        steps: list[memoryview | int] = []
        for view in self._unshared(memory):
            steps += [view, zeros] if (zeros := padding(len(view))) else [view]
        if steps and not isinstance(steps[-1], memoryview):
            steps.pop()
        self._begin(steps)

    def _unshared(self, memory: list[memoryview]) -> list[memoryview]:
        """The memory of the payloads that follow; the others are copied out of shared memory now."""
        shared = self._intake.shared
        if shared is None:
            return memory
        for view, offset in zip(memory, self._offsets, strict=True):
            if offset is not None:
                shared.read(offset, view)
        return [view for view, offset in zip(memory, self._offsets, strict=True) if offset is None]

    def _begin(self, steps: Sequence[memoryview | int]) -> None:
        if self._reception is not None:
            self._reception.over()
        if (places := self._places()) and (shared := self._intake.shared) is not None:
            shared.count_read(places)
        self._steps.extend(steps)
        self._next()

    def _next(self) -> None:
        """Go on with the next step; after the last one the frame is complete."""
        self._view, self._at = None, 0
        if not self._steps:
            self.message = self._frame
            return
        step = self._steps.popleft()
        if isinstance(step, int):
            self._skips = step
        else:
            self._view = step
