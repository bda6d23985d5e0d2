"""Binary frames byte by byte, as another implementation would write them; and an intake that takes every one."""

from __future__ import annotations

from typing import Any

import orjson

from rpcstream.wire.messages import BinaryFrame, PartialFrame


def binary_frame(message: Any, *payloads: bytes) -> bytes:
    """A frame with this message, in which `{"$bin": k}` stands for payloads."""
    json = message if isinstance(message, bytes) else orjson.dumps(message)
    json += b"\n"
    head = b"@%d %b" % (len(json), b" ".join(b"%d" % len(payload) for payload in payloads))
    head += b" " * (-(len(head) + 1 + len(json)) % 8) + b"\n"
    padded = [payload + bytes(-len(payload) % 8) for payload in payloads[:-1]]
    return b"".join([head, json, *padded, *payloads[-1:]])


def array_at(number: int, size: int, **changes: Any) -> dict[str, Any]:
    """An array of so many bytes, which stand in the payload of this number."""
    return {"$type": "ndarray", "dtype": "|u1", "shape": [size], "data": {"$bin": number}, **changes}


def request(method: str, *params: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": list(params)}


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
