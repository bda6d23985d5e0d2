"""Byte buffers: messages that are received in pieces, and messages that are sent as several byte strings.

Both avoid copies of long messages. Received pieces are joined once, at the end. Sent pieces are never joined, because
copying a large payload takes longer than encoding it as base64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any

#: Bytes; received pieces shorter than this are joined as they come.
_SHORT_PIECE = 16 * 1024

#: Bytes from which on a result of `orjson.dumps` wastes at most as much memory again.
_SMALL = 16 * 1024


@dataclass(slots=True, eq=False, repr=False)
class ReceiveBuffer:
    """Received bytes of one message, in order, joined when they are taken.

    Attributes:
        size: bytes held.
    """

    size: int = field(default=0, init=False)
    _pieces: list[bytes | bytearray] = field(default_factory=list, init=False)

    def append(self, data: bytes) -> None:
        """Add the bytes that came next."""
        self.size += len(data)
        # A peer may send bytes one by one: they must not become as many objects.
        if len(data) >= _SHORT_PIECE or not self._pieces:
            self._pieces.append(data)
        elif isinstance(last := self._pieces[-1], bytearray) and len(last) < _SHORT_PIECE:
            last += data
        else:
            self._pieces.append(bytearray(data))

    def take(self) -> bytes:
        """Return all bytes as one string, and leave the buffer empty."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return b"".join(pieces)


class MessageParts:
    """An outgoing message as several byte strings, to be sent one behind the other. Its `len` is that of them all."""

    __slots__ = ("_size", "_text")

    def __init__(self, parts: list[bytes]) -> None:
        self._text: list[bytes] | None = parts
        self._size = sum(map(len, parts))

    @property
    def parts(self) -> list[bytes]:
        """The byte strings, in order."""
        assert self._text is not None
        return self._text

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


class AttachedMessage(MessageParts):
    """An outgoing message whose payloads stand beside its JSON. It is sent as text or as a binary frame.

    Its `len` is that of the frame, without the header. As text it has base64 in the place of the payloads; that is
    written when it is first asked for.

    Args:
        pieces: JSON, cut where the payloads stand: one piece more than there are payloads.
        payloads: bytes-like objects whose `len` is their number of bytes, which is not 0.
        is_secured: as the attribute.

    Attributes:
        is_secured: no code can change the memory of the payloads any more, so that none is copied.
        lent: the `id` of memory that is held once more, by code that does not use it any more; as often as it is.
    """

    __slots__ = ("is_secured", "lent", "payloads", "pieces")

    def __init__(self, pieces: list[bytes], payloads: list[Any], *, is_secured: bool = False) -> None:
        self.pieces = pieces
        self.payloads = payloads
        self.lent: Sequence[int] = ()
        self.is_secured = is_secured
        self._text = None
        # Each payload with its padding, to a multiple of 8.
        self._size = sum(map(len, pieces)) + sum([_PLACE_SIZE + (len(payload) + 7 & -8) for payload in payloads])

    @property
    def parts(self) -> list[bytes]:
        """The message as text, with base64 in the place of the payloads."""
        if self._text is None:
            import pybase64

            parts = [self.pieces[0] + b'"']
            for payload, piece in zip(self.payloads, self.pieces[1:], strict=True):
                parts += pybase64.b64encode(payload), b'"' + piece + b'"'
            parts[-1] = parts[-1][:-1]
            self._text = parts
        return self._text

    @property
    def text_size(self) -> int:
        """Bytes of the message as text."""
        return sum(map(len, self.pieces)) + sum([(len(payload) + 2) // 3 * 4 + 2 for payload in self.payloads])

    def secure(self) -> None:
        """Copy payloads in memory that others may still change; to be called before the message waits."""
        if not self.is_secured:
            self.payloads = [payload if is_own(payload, self.lent) else bytes(payload) for payload in self.payloads]
            self.is_secured = True

    @property
    def json(self) -> bytes:
        """The JSON of the frame, with a line end."""
        if len(self.pieces) == 2:  # as nearly always
            return b'%b{"$bin":0}%b\n' % (self.pieces[0], self.pieces[1])
        parts = [self.pieces[0]]
        for number, piece in enumerate(self.pieces[1:]):
            parts += b'{"$bin":%d}' % number, piece
        return b"".join((*parts, b"\n"))

    def shown(self) -> bytes:
        """The frame as a trace shows it."""
        return shown(self.json, [len(payload) for payload in self.payloads])


#: Bytes of what stands in the JSON of a frame for a payload, at most.
_PLACE_SIZE = len(b'{"$bin":00}')


class PeerMemory:
    """Memory that a peer sees as well. It is the base of each array over it."""

    __slots__ = ("__array_interface__", "address")


def owner_of(payload: Any) -> Any:
    """What owns the memory of a payload that is an array of bytes: the innermost base; None for any other."""
    owner = getattr(payload, "base", None)
    while (inner := getattr(owner, "base", None)) is not None:
        owner = inner
    return owner


def is_own(payload: Any, lent: Sequence[int] = ()) -> bool:
    """Whether no code can change the memory of a payload, or may, as far as Python knows who holds it.

    Args:
        payload: bytes, or a view of an array, which only the caller holds.
        lent: as in `AttachedMessage`.
    """
    if type(payload) is bytes:
        return True
    owner = getattr(payload, "base", None)
    if owner is None or getattr(owner, "base", owner) is not None:
        return type(owner) is bytes or isinstance(owner_of(payload), PeerMemory)
    return getrefcount(owner) <= _refs_of_own() + lent.count(id(owner))


@functools.cache
def _refs_of_own() -> int:
    """The references that `is_own` sees of memory that nothing holds but one view."""
    import numpy as np

    payload = np.empty(8, np.uint8)[:]
    owner = getattr(payload, "base", None)
    return getrefcount(owner)


def shown(json: bytes, sizes: Sequence[int]) -> bytes:
    """A binary frame as a trace shows it: its JSON, and the bytes of each payload."""
    return b"%b + payloads of %b bytes" % (json.rstrip(b"\n"), b", ".join([b"%d" % size for size in sizes]))


def padding(size: int) -> int:
    """Zeros that stand behind a payload of so many bytes, which another one follows."""
    return -size % 8


#: A message or a value as it is sent.
Encoded = bytes | MessageParts


def parts_of(message: Encoded) -> list[bytes]:
    """The byte strings to send for a message, in order."""
    return message.parts if isinstance(message, MessageParts) else [message]


def first_part(message: Encoded) -> bytes:
    """The first of the byte strings of a message; of one with attachments, of its JSON."""
    return message.pieces[0] if type(message) is AttachedMessage else parts_of(message)[0]


def json_of(message: Encoded) -> bytes:
    """The JSON of a message; payloads that stand beside it are left out."""
    return message.json if type(message) is AttachedMessage else bytes(message)


def size_as_text(message: Encoded) -> int:
    """Bytes of a message where it is sent to an end that does not read binary frames."""
    return message.text_size if type(message) is AttachedMessage else len(message)


def trimmed(data: bytes) -> bytes:
    """A copy that takes no more memory than its length, for data that is stored.

    `orjson.dumps` leaves a buffer of 1 to 4 KiB behind each small result.
    """
    return bytes(memoryview(data))


def trimmed_message(message: Encoded) -> Encoded:
    """The same message without unused memory behind it (see `trimmed`), for a message that is stored."""
    return trimmed(message) if type(message) is bytes and len(message) < _SMALL else message
