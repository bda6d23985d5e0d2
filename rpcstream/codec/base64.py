"""Payloads as bytes: base64 (RFC 4648, section 4) at the speed of memory, and strict; and attachments, as they came.

One base64 text stands for one sequence of bytes.
Refused are white space, characters outside the alphabet, missing or superfluous padding, and set bits behind the end
(section 3.5). An error says what the text seems to be instead. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import pybase64

from .payloads import Attachment, Payload
from .rich_hint import mismatch, shortened

#: How a data: URL with base64 begins (RFC 2397); parameters such as a charset mean nothing for bytes.
_DATA_URL = re.compile(r"data:([a-z0-9][\w.+-]{0,126}/[a-z0-9][\w.+-]{0,126})?;base64,", re.IGNORECASE | re.ASCII)
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,20}://", re.IGNORECASE)
#: No path is longer (Linux, PATH_MAX).
_LONGEST_PATH = 4096
_PATH = re.compile(r"(?:~?/|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\)[^\n]*|[^\n]*\.[A-Za-z0-9]{1,5}")
_FOREIGN = re.compile(r"[^A-Za-z0-9+/=]")
_NOT_URL_SAFE = re.compile(r"[^A-Za-z0-9_=-]")
_BLANKS = " \t\r\n"
#: Characters that are looked at to say what is wrong.
_LOOKED_AT = 64 * 1024


def encode(data: Any) -> bytes:
    """Base64 of any contiguous bytes-like object, without copying it first."""
    return pybase64.b64encode(data)


def encode_text(data: Any) -> str:
    """The same as a string."""
    return pybase64.b64encode_as_string(data)


def decode(text: object) -> bytes:
    """The bytes. ValueError if it is neither a string nor a payload, or not base64."""
    if type(text) is Attachment:
        return bytes(text.view())
    return _decoded(text, pybase64.b64decode)


def decode_writable(text: object) -> Any:
    """The bytes as a bytearray, or an array of bytes, which the caller may change. ValueError as for `decode`."""
    if type(text) is Attachment:
        return text.take()
    return _decoded(text, pybase64.b64decode_as_bytearray)


def readable(text: object) -> bytes | memoryview:
    """The bytes in memory that is only read, not copied where they came beside the JSON. ValueError as for `decode`."""
    return text.view() if type(text) is Attachment else decode(text)


Decoded = TypeVar("Decoded", bytes, bytearray)


def _decoded(text: object, decoder: Callable[..., Decoded]) -> Decoded:
    checked = _checked(text)
    try:
        data = decoder(checked, validate=True)
    except ValueError:
        raise ValueError(f"the payload is not base64{_reason(checked)}") from None
    _check_end(checked, data)
    return data


def split_data_url(text: str) -> tuple[str, str] | None:
    """The media type of a data: URL, in small letters ("" if it has none), and its base64; None for any other text.

    Raises:
        ValueError: it is a data: URL of another form.
    """
    if text[4:5] != ":" or text[:4].lower() != "data":  # base64 has no colon
        return None
    found = _DATA_URL.match(text)
    if found is None:
        raise ValueError("a data: URL must have the form data:TYPE/SUBTYPE;base64,PAYLOAD")
    return (found[1] or "").lower(), text[found.end() :]


def path_advice(text: object) -> str:
    """What to do about a text that looks like the path of a file, behind a colon; "" if it does not look so."""
    if isinstance(text, str) and len(text) <= _LONGEST_PATH and _PATH.fullmatch(text):
        return ": it looks like the path of a file; send the bytes of the file as base64"
    return ""


def _reason(text: str | memoryview) -> str:
    """What a text that is not base64 seems to be, and what to send in its place, behind a colon."""
    size = len(text)
    if size > 2 * _LOOKED_AT:
        # Seen at the beginning already: lines are shorter, and one byte in 32 is written in another alphabet.
        text = text[:_LOOKED_AT]
    if isinstance(text, memoryview):
        text = bytes(text).decode("latin-1")
    if text[:5].lower() == "data:":
        return ": it is a data: URL; send the part behind the comma"
    if _URL.match(text):
        return ": it is a URL, and nothing is fetched here; send the bytes of the file as base64"
    foreign = _FOREIGN.search(text)
    if foreign is None:
        if size > len(text):
            return f": there is something else behind position {len(text)}, or the padding ('=') at its end is wrong"
        return ": the padding ('=') at its end is missing or wrong"
    if advice := path_advice(text):
        return advice
    if foreign[0] in _BLANKS and not _FOREIGN.search(text.translate(_WITHOUT_BLANKS)):
        return ": it has line breaks or blanks; send it as one line without any"
    if foreign[0] in "-_" and not _NOT_URL_SAFE.search(text):
        return ": it is URL-safe base64; send the standard alphabet, with '+' and '/' in place of '-' and '_'"
    return f": there is {shortened(ascii(foreign[0]))} at position {foreign.start()}"


_WITHOUT_BLANKS = dict.fromkeys(map(ord, _BLANKS))


def decode_head(text: str | Payload | Attachment, count: int) -> bytes:
    """The bytes that the first `count` characters stand for, a multiple of four; none if they are not base64."""
    if type(text) is Attachment:
        return bytes(text.view()[: count // 4 * 3]) if text.memory is not None else b""
    head = _checked(text)[:count]
    try:
        return pybase64.b64decode(head[: len(head) // 4 * 4], validate=True)
    except ValueError:
        return b""


def decoded_size(text: object) -> int:
    """The number of bytes that a payload has; of base64 by its length and padding only."""
    if type(text) is Attachment:
        return text.size
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
