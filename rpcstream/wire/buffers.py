"""Byte buffers: messages that are received in pieces, and messages that are sent as several byte strings. Pure.

Each avoids copies of long messages: what comes in is joined once, when all of it is there; what goes out is never
joined, since copying a large payload between the head and the tail of its message takes longer than its base64.
"""

from __future__ import annotations

#: Bytes; received pieces shorter than this are joined as they come.
_SHORT_PIECE = 16 * 1024

#: Bytes from which on a result of `orjson.dumps` wastes at most as much memory again.
_SMALL = 16 * 1024


class ReceiveBuffer:
    """Received bytes of one message, in order, joined when they are taken.

    Attributes:
        size: bytes held.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0

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

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


#: A message or a value as it is sent.
Encoded = bytes | MessageParts


def parts_of(message: Encoded) -> list[bytes]:
    """The byte strings to send for a message, in order."""
    return message.parts if isinstance(message, MessageParts) else [message]


def trimmed(data: bytes) -> bytes:
    """A copy that takes no more memory than its length, for data that is stored.

    `orjson.dumps` leaves a buffer of 1 to 4 KiB behind each small result.
    """
    return bytes(memoryview(data))


def trimmed_message(message: Encoded) -> Encoded:
    """The same message without unused memory behind it (see `trimmed`), for a message that is stored."""
    return trimmed(message) if type(message) is bytes and len(message) < _SMALL else message
