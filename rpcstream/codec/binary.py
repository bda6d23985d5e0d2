"""bytes, bytearray and memoryview as `{"$type": "bytes", "data": base64}`."""

from __future__ import annotations

from typing import Any

from . import base64
from .attachments import Attachment, Payload
from .codec import Encoding
from .rich_hint import TAG_KEY, base64_of, members, mismatch, tagged_schema

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
    return bytes(data.lend() if type(data) is Attachment else base64.readable(data))


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
            value = base64.without_data_url(value)
        if isinstance(value, str | Payload | Attachment):
            value = base64.readable(value)
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
