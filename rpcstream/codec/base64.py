"""Payloads as bytes: base64 (RFC 4648, section 4) at the speed of memory, and strict; and attachments, as they came.

Refused are white space, characters outside the alphabet, and missing or superfluous padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pybase64

from .attachments import Attachment, Payload
from .rich_hint import mismatch

_DATA_URL = re.compile(r"data:[^,]{0,255};base64,", re.IGNORECASE)


def readable(text: object) -> bytes | memoryview:
    """The bytes in memory that is only read, not copied where they came beside the JSON.

    Raises:
        ValueError: it is neither a payload nor a string, or not base64.
    """
    return text.view() if type(text) is Attachment else _decoded(text, pybase64.b64decode)


def writable(text: object) -> Any:
    """The bytes as a bytearray, or an array of bytes, which the caller may change. ValueError as for `readable`."""
    return text.take() if type(text) is Attachment else _decoded(text, pybase64.b64decode_as_bytearray)


def size(text: object) -> int:
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
            "with padding, on one line"
        ) from None
