"""bytes, bytearray and memoryview as `{"$type": "bytes", "data": base64}`, and base64 itself (RFC 4648, section 4).

Base64 is read at the speed of memory, and strictly: refused are white space, characters outside the alphabet, and
missing or superfluous padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pybase64

from .attachments import Attachment, Payload
from .codec import Encoding
from .rich_hint import TAG_KEY, base64_of, members, mismatch, tagged_schema

_DATA_URL = re.compile(r"data:[^,]{0,255};base64,", re.IGNORECASE)


def readable_bytes(text: object) -> bytes | memoryview:
    """The bytes in memory that is only read, not copied where they came beside the JSON.

    Raises:
        ValueError: it is neither a payload nor a string, or not base64.
    """
    return text.view() if type(text) is Attachment else _decoded(text, pybase64.b64decode)


def writable_bytes(text: object) -> Any:
    """The bytes as a bytearray, or an array of bytes, that the caller may change. Errors as of `readable_bytes`."""
    return text.take() if type(text) is Attachment else _decoded(text, pybase64.b64decode_as_bytearray)


def payload_size(text: object) -> int:
    """The number of bytes that a payload has, about; 0 if it is none."""
    if type(text) is Attachment:
        return text.size
    return (text.size if type(text) is Payload else len(text) if type(text) is str else 0) * 3 // 4


def without_data_url(text: str) -> str:
    """The base64 in a data: URL (RFC 2397), of any media type; any other text as it is."""
    found = _DATA_URL.match(text)
    return text[found.end() :] if found else text


def _decoded(text: object, decoder: Callable[..., Any]) -> Any:
    if type(text) is not Payload and not isinstance(text, str):
        raise mismatch("base64 string", text)
    try:
        return decoder(text.text if isinstance(text, Payload) else text, validate=True)
    except ValueError:
        raise ValueError(
            "the payload is not base64: send the bytes of the file, not its path or URL, in the standard alphabet "
            "with padding, on one line; in Python, pass an image as pathlib.Path('cat.jpg')"
        ) from None


TAG = "bytes"


def encode_bytes(value: bytes | bytearray | memoryview, encoding: Encoding) -> object:
    """A tagged object with the bytes as base64."""
    if isinstance(value, memoryview):
        # `cast` needs C order and refuses views with a zero in their shape; `tobytes` takes any.
        value = value.cast("B") if value.c_contiguous and value.nbytes else value.tobytes()
    return {TAG_KEY: TAG, "data": encoding.payload(value)}


def decode_bytes(tagged: dict[str, Any], _: object = None) -> bytes:
    """The bytes of a tagged object. ValueError if it is not what the wire page says."""
    (data,) = members(tagged, "data")
    return bytes(data.lend() if type(data) is Attachment else readable_bytes(data))


class BytesHint:
    """The hints bytes, bytearray and memoryview. Bytearrays are the caller's own; memoryviews can be written to."""

    name = "bytes"
    component = "Bytes"

    def __init__(self, kind: type) -> None:
        self._kind = kind
        #: To decode them here saves a copy.
        self.tags = frozenset() if kind is bytes else frozenset({TAG})

    def decode(self, value: object, _: object = None) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            (value,) = members(value, "data")
        elif isinstance(value, str):
            value = without_data_url(value)
        if isinstance(value, str | Payload | Attachment):
            value = readable_bytes(value)
        if not isinstance(value, bytes | bytearray | memoryview):
            raise mismatch(self.name, value, "bytes are a string in base64")
        if type(value) is self._kind:
            return value
        return memoryview(bytearray(value)) if self._kind is memoryview else self._kind(value)

    def accept(self, value: object) -> object:
        if isinstance(value, bytes | bytearray | memoryview):
            return value
        raise mismatch(self.name, value)

    def schema(self) -> dict[str, Any]:
        data = base64_of("application/octet-stream")
        return {"x-bytes": True, "anyOf": [tagged_schema(TAG, {"data": data}), data]}
