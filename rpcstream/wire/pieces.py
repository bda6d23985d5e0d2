"""A long message on its way out: its pieces, one behind the other.

Copying a payload to where it stands between the head and the tail of its message takes longer than its base64.
"""

from __future__ import annotations


class Pieces:
    """What is sent like bytes, and as long as those, but never was in one piece."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


#: A message to be sent.
Written = bytes | Pieces


def parts_of(message: Written) -> list[bytes]:
    """What is to be written for a message, in order."""
    return message.parts if isinstance(message, Pieces) else [message]


def exact(data: bytes) -> bytes:
    """The same bytes in memory of just their size, for what is kept.

    `orjson.dumps` leaves a buffer of 1 to 4 KiB behind each small result.
    """
    return bytes(memoryview(data))


def kept(message: Written) -> Written:
    """The same message, fit to be kept for longer than this turn of the loop: see `exact`."""
    return exact(message) if type(message) is bytes and len(message) < SMALL else message


#: Bytes from which on a result of `orjson.dumps` has no more than as much again behind it.
SMALL = 16 * 1024
