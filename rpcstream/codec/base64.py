"""Base64 (RFC 4648, section 4) at the speed of memory, and strict: one text for one sequence of bytes.

Refused are white space, characters outside the alphabet, missing or superfluous padding, and set bits behind the end
(section 3.5). Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pybase64

from .payloads import Payload
from .rich_hint import mismatch


def encode(data: Any) -> bytes:
    """Base64 of any contiguous bytes-like object, without copying it first."""
    return pybase64.b64encode(data)


def encode_text(data: Any) -> str:
    """The same as a string."""
    return pybase64.b64encode_as_string(data)


def decode(text: object) -> bytes:
    """The bytes. ValueError if it is neither a string nor a payload, or not base64."""
    return _decoded(text, pybase64.b64decode)


def decode_writable(text: object) -> bytearray:
    """The bytes in memory that may be changed. ValueError as for `decode`."""
    return _decoded(text, pybase64.b64decode_as_bytearray)


Decoded = TypeVar("Decoded", bytes, bytearray)


def _decoded(text: object, decoder: Callable[..., Decoded]) -> Decoded:
    checked = _checked(text)
    try:
        data = decoder(checked, validate=True)
    except ValueError:
        raise ValueError("the payload is not base64") from None
    _check_end(checked, data)
    return data


def decode_head(text: str | Payload, count: int) -> bytes:
    """The bytes that the first `count` characters stand for, a multiple of four; none if they are not base64."""
    head = _checked(text)[:count]
    try:
        return pybase64.b64decode(head[: len(head) // 4 * 4], validate=True)
    except ValueError:
        return b""


def decoded_size(text: object) -> int:
    """The number of bytes that the text stands for, by its length and padding only."""
    checked = _checked(text)
    return len(checked) // 4 * 3 - _last(checked, 2).count(b"=")


def _checked(text: object) -> str | memoryview:
    if isinstance(text, Payload):
        return text.text
    if not isinstance(text, str):
        raise mismatch("base64 string", text)
    return text


def _last(text: str | memoryview, count: int) -> bytes:
    end = text[-count:]
    return end.encode("ascii", "replace") if isinstance(end, str) else bytes(end)


def _check_end(text: str | memoryview, data: bytes | bytearray) -> None:
    rest = len(data) % 3
    if rest and pybase64.b64encode(data[-rest:]) != _last(text, 4):
        raise ValueError("the payload is not base64: bits are set behind its end")
