"""The three forms of an answer over HTTP, each cut into its messages: one JSON text, lines, or a binary frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..wire.binary_frame import BinaryFrameReader, FrameIntake
from ..wire.buffers import ReceiveBuffer
from ..wire.framing import LineFramer
from ..wire.messages import Message, Oversize


class Answer(Protocol):
    """The body of one answer. Both methods raise FrameError if it is to be a binary frame, and is none."""

    def feed(self, data: bytes) -> Sequence[Message]:
        """The messages that these bytes complete."""

    def end(self) -> Sequence[Message]:
        """The body is complete: the messages that are left."""


class TextAnswer:
    """One JSON text, or a text for people, of this many bytes at most."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._body = ReceiveBuffer()

    def feed(self, data: bytes) -> Sequence[Message]:
        self._body.append(data)
        size = self._body.size
        return [] if size <= self._max_size else [Oversize(size, self._body.take(), self._max_size)]

    def end(self) -> Sequence[Message]:
        body = self._body.take().strip()
        return [body] if body else []


class LineAnswer:
    """A message a line, each of this many bytes at most."""

    def __init__(self, max_size: int) -> None:
        self._framer = LineFramer(max_size=max_size, skips_blank=True)

    def feed(self, data: bytes) -> Sequence[Message]:
        return self._framer.feed(data)

    def end(self) -> Sequence[Message]:
        return self._framer.finish()


class FrameAnswer:
    """A binary frame."""

    def __init__(self, max_size: int, intake: FrameIntake) -> None:
        self._frame = BinaryFrameReader(intake, max_size)

    def feed(self, data: bytes) -> Sequence[Message]:
        self._frame.append(data)
        return []

    def end(self) -> Sequence[Message]:
        return [self._frame.end()]
