"""Messages as tests write them: requests, notifications and batches, and binary frames."""

from __future__ import annotations

import json
from typing import Any

import orjson


def request(method: str, *params: Any, id: Any = 1, **members: Any) -> dict[str, Any]:
    """A request with parameters by position; `params={...}` gives them by name, other members are added."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": list(params), **members}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def batch(*messages: Any) -> bytes:
    """A batch of these messages, as JSON; bytes stand in it as they are."""
    return b"[" + b",".join(as_bytes(each) for each in messages) + b"]"


def reply(id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def as_bytes(message: Any) -> bytes:
    """Bytes and texts as they are, anything else as JSON."""
    if isinstance(message, str):
        return message.encode()
    return bytes(message) if isinstance(message, bytes | bytearray) else orjson.dumps(message)


def frame(message: Any, *payloads: bytes) -> bytes:
    """A binary frame (docs/reference/wire.md): `{"$bin": k}` in the message stands for the k-th payload."""
    text = as_bytes(message)
    head = f"@{len(text) + 1} {' '.join(str(len(each)) for each in payloads)}"
    head += " " * (-(len(head) + 1 + len(text) + 1) % 8) + "\n"
    padded = [each + bytes(-len(each) % 8) for each in payloads[:-1]]
    return b"".join((head.encode(), text, b"\n", *padded, *payloads[-1:]))


class Frame(bytes):
    """A binary frame that has come: its JSON, and `payloads`."""

    payloads: list[bytes]

    def __new__(cls, json: bytes, payloads: list[bytes]) -> Frame:
        made = super().__new__(cls, json)
        made.payloads = payloads
        return made


class MessageReader:
    """Cuts a stream into messages: lines, and binary frames as `Frame`.

    Of a payload in shared memory, a frame has what its header says of it (`b"0:4096:100"`).
    """

    def __init__(self) -> None:
        self._data = bytearray()
        #: Bytes of the first message, as far as they are known; and how far no line end was found.
        self._needed = 0
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        found = []
        while len(self._data) >= self._needed and (message := self._next()) is not None:
            self._needed = self._searched = 0
            if message.strip():
                found.append(message)
        return found

    def _next(self) -> bytes | None:
        end = self._data.find(b"\n", self._searched) + 1
        if not end:
            self._searched = len(self._data)
            return None
        line = bytes(self._data[:end])
        if not line.startswith(b"@"):
            del self._data[:end]
            return line.strip()
        json_size, *entries = line[1:].split()
        end_of_json, sizes = int(json_size), [0 if b":" in entry else int(entry) for entry in entries]
        begins = [end + end_of_json]
        for size in sizes[:-1]:
            begins.append(begins[-1] + size + -size % 8)
        self._needed = begins[-1] + (sizes[-1] if sizes else 0)
        if len(self._data) < self._needed:
            return None
        text = bytes(self._data[end : end + end_of_json])
        assert begins[0] % 8 == 0, "the payloads are not aligned"
        assert text.endswith(b"\n")
        payloads = [bytes(self._data[begin : begin + size]) for begin, size in zip(begins, sizes, strict=False)]
        payloads = [payload or entry for payload, entry in zip(payloads, entries, strict=False)]
        del self._data[: self._needed]
        return Frame(text, payloads)


def parsed(message: bytes) -> Any:
    """The JSON of a message, with integers of any size."""
    return json.loads(message)
