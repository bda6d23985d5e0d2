"""Bytes that come in pieces and become one: copied once, when all are there. Pure."""

from __future__ import annotations

#: Bytes; what comes in shorter pieces than this is put together as it comes.
PIECE = 16 * 1024


class PieceBuffer:
    """Pieces, in order.

    Attributes:
        size: bytes of them all.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0

    def append(self, data: bytes) -> None:
        self.size += len(data)
        # A peer may send bytes one by one: they must not become as many objects.
        if len(data) >= PIECE or not self._pieces:
            self._pieces.append(data)
        elif isinstance(last := self._pieces[-1], bytearray) and len(last) < PIECE:
            last += data
        else:
            self._pieces.append(bytearray(data))

    def take(self) -> bytes:
        """All of them as one; then there are none."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return b"".join(pieces)
