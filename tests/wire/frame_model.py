"""A slow and plain reader of lines and binary frames, to hold the framer to; and an intake that takes all frames."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rpcstream.codec import payloads
from rpcstream.wire.binary_frame import BinaryFrameReader
from rpcstream.wire.envelope import BinaryFrame, Message, Oversize
from rpcstream.wire.framing import LineFramer

HEADER = re.compile(rb"@[0-9]{1,12}(?: [0-9]{1,12}){1,256} {0,7}\n")

#: A message to be compared: a line; the JSON of a frame and its payloads; the size of one that was too large.
Seen = bytes | tuple[bytes, ...] | int


def frame_of(json: bytes, *contents: bytes) -> bytes:
    """A frame, written as the wire page says, with as few blanks as possible."""
    json += b"\n"
    head = b"@%d %b" % (len(json), b" ".join(b"%d" % len(each) for each in contents))
    blanks = -(len(head) + 1 + len(json)) % 8
    body = b"".join(each + bytes(-len(each) % 8) for each in contents[:-1]) + contents[-1]
    return head + b" " * blanks + b"\n" + json + body


def sizes_of(header: bytes) -> tuple[int, list[int]]:
    json_size, *sizes = map(int, header[1:].split())
    return json_size, sizes


@dataclass
class Reading:
    """What a stream comes to: the messages, and the lines that are too long, of which `seen` has the sizes."""

    seen: list[Seen] = field(default_factory=list)
    too_long: list[bytes] = field(default_factory=list)
    #: No more are read.
    ended: bool = False
    #: Since something is no frame.
    is_faulty: bool = False
    #: Where the message begins that is not complete.
    rest: int = 0


def read_slowly(stream: bytes, max_size: int) -> Reading:
    """The messages in a whole stream."""
    found, at = Reading(), 0
    while at < len(stream):
        found.rest = at
        begin = at
        while stream[begin : begin + 1] == b" ":
            begin += 1
        line_end = stream.find(b"\n", at) + 1
        if stream[begin : begin + 1] != b"@":
            if not line_end:
                break
            line, at = stream[at : line_end - 1], line_end
            if not line.strip():
                found.ended = True
                break
            found.seen.append(line.strip() if len(line) <= max_size else len(line))
            if len(line) > max_size:
                found.too_long.append(line)
            continue
        header = stream[begin:line_end] if line_end else b""
        if not line_end and len(stream) - begin <= 4096:
            break
        if len(header) > 4096 or not HEADER.fullmatch(header) or 0 in (sizes := sizes_of(header))[1] or not sizes[0]:
            found.ended = found.is_faulty = True
            break
        json_size, contents = sizes
        places, end = [], line_end + json_size
        for size in contents:
            places.append(end)
            end += size + (-size % 8)
        end = places[-1] + contents[-1]
        total = end - line_end
        if len(stream) < end:
            break
        at = end
        if total > max_size:
            found.seen.append(total)
            continue
        whole = [stream[place : place + size] for place, size in zip(places, contents, strict=True)]
        found.seen.append((stream[line_end : line_end + json_size], *whole))
    else:
        found.rest = at
    return found


class TakesAll:
    """An intake that takes every frame.

    Attributes:
        memory: bytes of payloads that are being received, for the frame that was admitted last.
        frame: what is being received, as far as this was said.
        most: the most that it ever was.
        reason: why no frame may come.
    """

    def __init__(self) -> None:
        self.memory = self.most = self.admitted = 0
        self.frame: BinaryFrameReader | None = None
        self.reason: str | None = None
        self.shared: Any = None

    def refuses_frames(self) -> str | None:
        return self.reason

    def admit(
        self, json: bytes, sizes: tuple[int, ...], lent: Sequence[Any] = ()
    ) -> tuple[BinaryFrame, list[memoryview]]:
        self.admitted += 1
        frame = payloads.read_frame(json, sizes, None, "server")
        if frame.refusal is not None:
            return frame, []
        self.memory = sum(sizes)
        self.most = max(self.most, self.memory)
        return frame, frame.content[1].take_memory(lent)

    def grow(self, received: int, frame: BinaryFrameReader) -> None:
        self.frame = frame

    def over(self) -> None:
        self.memory = 0


def seen_of(message: Message) -> Seen:
    """A message as the model gives it."""
    if isinstance(message, Oversize):
        return message.size
    if isinstance(message, BinaryFrame):
        line = message.content[1] if message.content is not None else None
        if message.refusal is not None or line is None:
            return (message.json, *(b"?" * size for size in message.sizes))
        return (message.json, *(bytes(each.view()) for each in line.payloads))
    return bytes(message).strip()


def read_in_pieces(
    pieces: list[bytes], max_size: int, *, directly: bool = False
) -> tuple[LineFramer, list[Seen], TakesAll]:
    """What the framer makes of pieces; `directly`: payloads are received into their memory."""
    intake = TakesAll()
    framer = LineFramer(max_size=max_size, intake=intake)
    seen: list[Seen] = []
    for whole in pieces:
        piece = whole
        while directly and piece and (target := framer.target()) is not None:
            count = min(len(target), len(piece))
            target[:count] = piece[:count]
            seen += map(seen_of, framer.received(count))
            piece = piece[count:]
        if piece:
            seen += map(seen_of, framer.feed(piece))
    return framer, seen, intake
