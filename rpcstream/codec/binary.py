"""bytes, bytearray and memoryview as `{"$type": "bytes", "data": base64}`.

Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from typing import Any

from . import base64
from .encoding import Encoding
from .payloads import Attachment, Payload
from .rich_hint import TAG_KEY, base64_of, members, mismatch, tagged_schema

TAG = "bytes"


def encode_bytes(value: bytes | bytearray, encoding: Encoding) -> object:
    """A tagged object with the bytes as base64."""
    return {TAG_KEY: TAG, "data": encoding.payload(value)}


def encode_memoryview(value: memoryview, encoding: Encoding) -> object:
    """A tagged object with the bytes of the view as base64."""
    # `cast` needs C order and refuses views with a zero in their shape; `tobytes` takes any.
    plain = value.c_contiguous and value.nbytes > 0
    return {TAG_KEY: TAG, "data": encoding.payload(value.cast("B") if plain else value.tobytes())}


def decode_bytes(tagged: dict[str, Any], _: object = None) -> bytes:
    """The bytes of a tagged object. ValueError if it is not what the wire page says."""
    (data,) = members(tagged, "data")
    return base64.decode(data)


def _writable(value: object) -> bytearray | memoryview:
    data = base64.decode_writable(value)
    return data if isinstance(data, bytearray) else memoryview(data)


class BytesHint:
    """The hints bytes, bytearray and memoryview. Bytearrays are the caller's own; memoryviews can be written to."""

    name = "bytes"

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            (value,) = members(value, "data")
        elif isinstance(value, str) and (url := base64.split_data_url(value)) is not None:
            value = url[1]  # of any media type: a browser's FileReader writes what it believes the file to be
        if isinstance(value, str | Payload | Attachment):
            return self._in_kind(base64.decode(value) if self._kind is bytes else _writable(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self._in_kind(value)
        raise mismatch(self.name, value)

    def accept(self, value: object) -> object:
        if isinstance(value, bytes | bytearray | memoryview):
            return value
        raise mismatch(self.name, value)

    component = "Bytes"

    def schema(self) -> dict[str, Any]:
        data = base64_of("application/octet-stream")
        return {"x-bytes": True, "anyOf": [tagged_schema(TAG, {"data": data}), data]}

    def _in_kind(self, data: bytes | bytearray | memoryview) -> object:
        if type(data) is self._kind:
            return data
        if self._kind is memoryview:
            return memoryview(data if isinstance(data, bytearray) else bytearray(data))
        return self._kind(data)
