"""Arrays that stand in payloads of binary frames; and an intake that takes every frame."""

from __future__ import annotations

from typing import Any

from rpcstream.wire.messages import BinaryFrame, PartialFrame


def array_at(number: int, size: int, **changes: Any) -> dict[str, Any]:
    """An array of so many bytes, which stand in the payload of this number."""
    return {"$type": "ndarray", "dtype": "|u1", "shape": [size], "data": {"$bin": number}, **changes}


class TakeAll:
    """Takes every frame; their content is the list of their payloads.

    Attributes:
        has_room: frames need not wait.
        finished: how many frames were complete.
    """

    shared = None

    def __init__(self) -> None:
        self.has_room = True
        self.finished = 0

    def refuses_frames(self) -> str | None:
        return None

    def admit(self, json: bytes, sizes: tuple[int, ...]) -> tuple[BinaryFrame, list[memoryview]] | None:
        if not self.has_room:
            return None
        memory = [bytearray(size) for size in sizes]
        return BinaryFrame(json, sizes, memory), [memoryview(each) for each in memory]

    def begun(self, rest: PartialFrame) -> None:
        """Nothing takes the memory away."""

    def grow(self, received: int) -> bool:
        return self.has_room

    def over(self) -> None:
        self.finished += 1
