"""Received messages, as every transport hands them to its session: text, a binary frame, or one that was refused.

Knows neither how bytes are cut into messages (`framing`, `binary_frame`, `frames`, `http_parser`) nor what they mean.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import RpcError

#: Bytes from which on a message is long: it may have large payloads, which are cut out before it is parsed.
LONG = 16 * 1024

#: The header of a binary frame, as it is shown in a trace. (`OFF:N` is a payload that did not come inline.)
_SHOWN_HEADER = re.compile(rb"@\d{1,12}((?: (?:\d{1,12}:)?\d{1,12}){1,256}) (?=[{\[])")

#: Bytes at the beginning of a message in which its id is looked for where the rest cannot be read; they are kept of a
#: message over the limit.
HEAD_SIZE = 512


@dataclass(frozen=True, slots=True)
class Oversize:
    """Stands in the list of messages for one that was refused, so that its error reply keeps its place.

    Attributes:
        size: bytes; of a message whose end has not been received, the bytes so far.
        head: the beginning of the message.
        limit: the limit that it was over.
        values: the number of its values, where these were over the limit; else 0.
        json_size: bytes of its JSON without payloads, where these were over the limit; else 0.
        is_refused: the message was over no limit of its own, but the server had no memory for it.
    """

    size: int
    head: bytes
    limit: int = field(default=0, compare=False)
    values: int = field(default=0, compare=False)
    json_size: int = field(default=0, compare=False)
    is_refused: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return min(self.size, sys.maxsize)  # a peer may announce any size


class BinaryFrame:
    """A message that was received as a binary frame, whole; or one that was refused when its JSON was there.

    Attributes:
        json: the JSON of it.
        sizes: bytes of each payload.
        content: what `FrameIntake.admit` has read: the parsed message and its line; None for a refused one.
        refusal: why it is not carried out; None for a message to be handled.
        offsets: where each payload stood in shared memory; None for one that came with the message.
    """

    __slots__ = ("_size", "content", "json", "offsets", "refusal", "sizes")

    def __init__(
        self, json: bytes, sizes: tuple[int, ...], content: Any = None, refusal: RpcError | None = None
    ) -> None:
        self.json = json
        self.sizes = sizes
        self.content = content
        self.refusal = refusal
        self.offsets: tuple[int | None, ...] = (None,) * len(sizes)
        # Never a short message: those are parsed without a look at what they are.
        self._size = max(LONG, len(json) + sum(sizes))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        """The header and the JSON, for a trace: payloads are not shown."""
        return b"@%d %b %b" % (len(self.json), entries(self.sizes, self.offsets), self.json.rstrip(b"\n"))


class ParsedText(BinaryFrame):
    """A message in text that was parsed before the session gets it; from there on it is handled like a binary frame.

    What was decided by its `content` holds for what the session does, since nothing parses it again.
    """

    __slots__ = ()

    def __init__(self, text: bytes, content: Any, refusal: RpcError | None = None) -> None:
        super().__init__(text, (), content, refusal)

    def __bytes__(self) -> bytes:
        return self.json


def entries(sizes: Iterable[int], offsets: Iterable[int | None]) -> bytes:
    """The payloads in the header of a frame: sizes, and for those in shared memory where they stand as well."""
    return b" ".join([b"%d" % n if at is None else b"%d:%d" % (at, n) for n, at in zip(sizes, offsets, strict=True)])


def split_shown(message: bytes) -> tuple[bytes, list[int], int]:
    """A message as a trace was given it: its JSON, the bytes of each payload, and how many are in shared memory.

    A message without a binary frame's header is given back as it is, without payloads.
    """
    found = _SHOWN_HEADER.match(message)
    if found is None:
        return message, [], 0
    sizes = [int(size.rpartition(b":")[2]) for size in found[1].split()]
    return message[found.end() :], sizes, found[1].count(b":")


#: A result of a framer.
Message = bytes | BinaryFrame | Oversize


class Reception(Protocol):
    """Counts the received bytes of a message, together with those of all messages that are being received."""

    @property
    def limit(self) -> int:
        """Bytes that all messages may hold together."""

    def grow(self, size: int) -> bool:
        """Set the bytes received so far; False if the message must be dropped."""

    def over(self) -> None:
        """End the count: the message is complete, or was dropped."""


class PartialFrame(Protocol):
    """A binary frame whose payloads are being received."""

    @property
    def left(self) -> int:
        """Bytes of them that are still to come, padding included."""

    def skip(self) -> None:
        """Skip these: the frame was refused meanwhile, and its memory is not used."""


class SharedPayloads(Protocol):
    """Memory that the two ends of a connection share, where payloads stand instead of behind their message."""

    def place(self, payloads: Sequence[Any]) -> list[int | None]:
        """Put payloads there that are sent; gives where each stands, None for one that is sent behind its message."""

    def holds(self, places: Sequence[tuple[int, int]]) -> bool:
        """Whether payloads of the peer may stand there, of one message: an offset and a size each."""

    def read(self, offset: int, memory: memoryview) -> None:
        """Copy a payload of the peer out."""

    def count_read(self, places: Sequence[tuple[int, int]]) -> None:
        """The payloads of one message were read, or will not be."""

    def publish(self) -> None:
        """Tell the peer that the memory of all that was counted is free; when what came with one read was looked at."""


class FrameIntake(Protocol):
    """Decides about a binary frame when its JSON is there, and counts its payloads while they come."""

    @property
    def shared(self) -> SharedPayloads | None:
        """Memory that payloads may stand in; None: all come with their message."""

    def refuses_frames(self) -> str | None:
        """Why no frame may come now; None if one may."""

    def admit(self, json: bytes, sizes: tuple[int, ...]) -> tuple[BinaryFrame, list[memoryview]] | None:
        """Look at a frame.

        Args:
            json: as it came.
            sizes: bytes of each payload.

        Returns:
            The frame, and the memory that its payloads are received into; no memory for a frame that was refused, whose
            payloads are skipped. None if it is the turn of others: the frame must wait, `admit` is called again.
        """

    def begun(self, rest: PartialFrame) -> None:
        """The frame that was admitted is received into the memory that it was given; called before any of it is."""

    def grow(self, received: int) -> bool:
        """Set the bytes of payloads received so far; False if the frame must wait until there is memory for them."""

    def over(self) -> None:
        """The frame that was admitted, or waits, is complete, or its rest will never come."""
