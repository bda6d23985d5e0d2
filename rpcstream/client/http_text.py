"""What a client and an HTTP server say, as text: lines, the beginning of a long message, words for people.

Pure: knows no socket.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from ..wire.buffers import Encoded, MessageParts, parts_of
from ..wire.framing import LONG

#: The type of a body of many messages.
LINES = "application/x-ndjson"

#: Characters of what a server says beside an error.
TEXT_MAX = 300


class Splitter:
    """Cuts a body into lines; empty ones are left out.

    Args:
        max_size: bytes of a line.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """The lines that are whole now; and the size of one that is too long, behind those, or 0."""
        lines: list[bytes] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._hold(data[start:end])
            if self._size > self._max_size:
                return lines, self._size
            line = self.rest()
            if line:
                lines.append(line)
            start = end + 1
        self._hold(data[start:])
        return lines, self._size if self._size > self._max_size else 0

    def rest(self) -> bytes:
        """What has come since the last line."""
        line = b"".join(self._held).strip()
        self._held.clear()
        self._size = 0
        return line

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)


def outline(message: Encoded) -> Any:
    """A message of ours as data; of a long request, what stands before its params."""
    if len(message) >= LONG:
        head = parts_of(message)[0][:1024]
        end = head.find(b',"params":')
        try:
            found = orjson.loads(head[:end] + b"}") if end > 0 else None
        except orjson.JSONDecodeError:
            found = None
        if type(found) is dict and "id" in found:
            return found
    data = bytes(message)
    found = orjson.loads(data)
    members = found if type(found) is list else [found]
    if any(type(each) is dict and type(each.get("id")) is float for each in members):
        found = json.loads(data)  # an integer over 64 bits is exact so
    return found


def without_items(request: Encoded) -> Encoded:
    """A request of ours, saying that its result is wanted whole though the answer may be lines."""
    head, *rest = parts_of(request)
    head = head.replace(b"{", b'{"stream":null,', 1)
    return MessageParts([head, *rest]) if rest else head


def words(body: bytes) -> str:
    """What a server says to people, short, and without what moves a cursor."""
    text = body[: 8 * TEXT_MAX].decode(errors="replace")
    text = "".join(character for character in text if character.isprintable() or character.isspace())
    text = " ".join(text.split())
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."
