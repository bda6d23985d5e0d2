"""What standard error shows with -v: the messages on the wire.

Knows the bytes of messages only as text to be shortened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from ..text import visible
from .output import Look

_LONG_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
#: Longer strings inside a message are cut to this many characters.
_STRING = 60
#: Longer messages are cut to this many characters after that: a list of a million numbers.
_MESSAGE = 4000


def shortened_message(message: bytes | bytearray | memoryview) -> str:
    """A message for people: one line, long strings (base64) cut, with their length; controls escaped."""
    text = bytes(message).decode(errors="replace").strip("\r\n")
    text = visible(_LONG_STRING.sub(_shorten, text))
    if len(text) > _MESSAGE:
        text = f"{text[:_MESSAGE]}... ({len(message):,} bytes in all)"
    return text


def _shorten(found: re.Match[str]) -> str:
    inside = found[1]
    return found[0] if len(inside) <= _STRING else f'"{inside[:_STRING]}..." ({len(inside):,} characters)'


def tracer(stream: TextIO, look: Look) -> Callable[[str, bytes], None]:
    """For `Client(trace=...)`: `> ` before what went out, `< ` before what came in."""

    def trace(direction: str, message: bytes) -> None:
        mark = ">" if direction == "send" else "<"
        stream.write(f"{look.paint('dim', mark)} {shortened_message(message)}\n")
        stream.flush()

    return trace
