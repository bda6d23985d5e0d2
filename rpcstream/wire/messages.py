"""Received messages, as every transport hands them to its session: text, a binary frame, or one that was refused.

Knows neither how bytes are cut into messages (`framing`, `binary_frame`, `frames`, `http_parser`) nor what they mean.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import RpcError
from .buffers import ReceiveBuffer, shown

#: Bytes from which on a message is long: it may have large payloads, which are cut out before it is parsed.
LONG = 16 * 1024

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


@dataclass(slots=True, eq=False, repr=False)
class BinaryFrame:
    """A message that is parsed before the session gets it, which does not parse it again.

    It was received as a binary frame, whole; or was refused when its JSON was there; or it is text, without payloads.

    Attributes:
        json: the JSON of it.
        sizes: bytes of each payload.
        content: what `FrameIntake.admit` has read: the parsed message and its line; None for a refused one.
        refusal: why it is not carried out; None for a message to be handled.
    """

    json: bytes
    sizes: tuple[int, ...]
    content: Any = None
    refusal: RpcError | None = None

    def __len__(self) -> int:
        # Never a short message: those are parsed without a look at what they are.
        return max(LONG, len(self.json) + sum(self.sizes))

    def __bytes__(self) -> bytes:
        """The message as a trace shows it."""
        return shown(self.json, self.sizes) if self.sizes else self.json


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


@dataclass(slots=True, eq=False, repr=False)
class PartialMessage(ReceiveBuffer):
    """A message of which it is known how much is still to come: kept until it is whole, unless it is refused.

    Args:
        reception: counts what has come; a message that it has no room for is refused.

    Attributes:
        is_dropped: the message was refused; nothing is kept of it.
    """

    reception: Reception | None = field(default=None, kw_only=True)
    is_dropped: bool = field(default=False, init=False)

    def keep(self, piece: bytes, left: int, max_size: int) -> Oversize | None:
        """Keep what came next; gives what stands for the message if it is refused now, with its beginning.

        Args:
            piece: the next bytes.
            left: bytes that are still to come, as far as this is known.
            max_size: bytes that the message may have.
        """
        if self.is_dropped:
            return None
        self.append(piece)
        size, limit, is_refused = self.size + left, max_size, False
        if size > max_size:
            if left and self.size < HEAD_SIZE:
                return None
        elif self.reception is None or self.reception.grow(self.size):
            return None
        else:
            size, limit, is_refused = self.size, self.reception.limit, True
        self.is_dropped = True
        return Oversize(size, self.end()[:HEAD_SIZE], limit, is_refused=is_refused)

    def end(self) -> bytes:
        """The message is over: gives its bytes."""
        if self.reception is not None:
            self.reception.over()
        return self.take()
