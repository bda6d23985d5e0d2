"""How many values a JSON text has and how deep they are, seen in its bytes before (or without) parsing it.

Owns the units in which the size of a parsed message is estimated. Pure; for long texts only: imports numpy, and looks
at a piece of the text at a time, so that it needs no memory in proportion to it.
"""

from __future__ import annotations

from typing import Any

#: Bytes that are looked at in one go: they stay in the processor's cache.
_PIECE = 1024 * 1024

#: Quarters of a value. A number has its comma, a string that and its quotes; an array or an object takes the time and
#: the memory of four numbers.
_COMMA, _QUOTE, _OPENING = 4, 2, 16

#: Texts of fewer bytes than this, divided into the limit, cannot be over it: an opening bracket is 4 values.
_DENSEST = 4

#: Bytes of a text for which numpy would take longer.
_SHORT = 16 * 1024

_QUOTE_BYTE, _COMMA_BYTE, _OPEN, _CLOSE = 0x22, 0x2C, 0x7B, 0x7D
#: What makes `[` and `{` the same byte, and `]` and `}`.
_CASE = 0x20

_ENDLESS = float("inf")
_NOT_COUNTED = bytes(byte for byte in range(256) if byte not in b'",[{')
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'"[]{}')


def values_over(text: bytes | bytearray, limit: int) -> int:
    """How many values a text has, if that is more than `limit`; 0 if it is not. Counts not much further than the limit.

    Numbers and short words count one, strings two, arrays and objects four, since so they cost. The text need not be
    JSON.
    """
    if len(text) * _DENSEST <= limit or _roughly(text, limit) <= limit:
        return 0
    # What stands in strings was counted, too.
    count = _exactly(text, limit)
    return count if count > limit else 0


def values_roughly(text: bytes | bytearray) -> int:
    """Not fewer values than a text has; what stands in its strings may be counted, too."""
    if len(text) >= _SHORT:
        return _roughly(text)
    marks = text.translate(None, _NOT_COUNTED)
    commas, quotes = marks.count(b","), marks.count(b'"')
    return (_COMMA * commas + _QUOTE * quotes + _OPENING * (len(marks) - commas - quotes)) // 4


def deepest(text: bytes | bytearray) -> int:
    """How many arrays and objects are inside each other at most. The text is JSON."""
    import numpy as np

    depth = most = 0
    for piece, outside in _pieces(_unescaped(text), _NOT_MARKS):
        folded = piece | _CASE
        steps = ((folded == _OPEN) & outside).view(np.int8) - ((folded == _CLOSE) & outside).view(np.int8)
        depths = np.cumsum(steps, dtype=np.int32)
        most = max(most, depth + int(depths.max()))
        depth += int(depths[-1])
    return most


def _roughly(text: bytes | bytearray, enough: float = _ENDLESS) -> int:
    """Not fewer values than there are, at the speed of memory; only some of them, if those are `enough`."""
    import numpy as np

    whole = np.frombuffer(text, np.uint8)
    quarters = 0
    for start in range(0, len(text), _PIECE):
        quarters += _quarters(np, whole[start : start + _PIECE], None)
        if quarters > 4 * enough:
            break
    return quarters // 4


def _exactly(text: bytes | bytearray, enough: float = _ENDLESS) -> int:
    """The values of a text, without what only looks so inside strings; only some of them, if those are `enough`."""
    import numpy as np

    quarters = 0
    for piece, outside in _pieces(_unescaped(text), _NOT_COUNTED):
        quarters += _quarters(np, piece, outside)
        if quarters > 4 * enough:
            break
    return quarters // 4


def _quarters(np: Any, piece: Any, outside: Any) -> int:
    commas, openings = piece == _COMMA_BYTE, (piece | _CASE) == _OPEN
    if outside is not None:
        commas &= outside
        openings &= outside
    quotes = np.count_nonzero(piece == _QUOTE_BYTE)
    counted = _COMMA * np.count_nonzero(commas) + _OPENING * np.count_nonzero(openings) + _QUOTE * quotes
    return int(counted)


def _unescaped(text: bytes | bytearray) -> bytes | bytearray:
    """The text without escaped quotes: every quote that is left begins or ends a string."""
    if b"\\" not in text:
        return text
    # Pairs first: what is left of a run of backslashes then escapes the byte behind it.
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _pieces(text: bytes | bytearray, without: bytes) -> Any:
    """The bytes piece by piece as an array, `without` some, and which of them are outside strings.

    Every quote among them begins or ends a string.
    """
    import numpy as np

    in_string = 0
    for start in range(0, len(text), _PIECE):
        piece = np.frombuffer(text[start : start + _PIECE].translate(None, without), np.uint8)
        if not len(piece):
            continue
        inside = np.cumsum(piece == _QUOTE_BYTE, dtype=np.uint8)
        inside += np.uint8(in_string)
        inside &= np.uint8(1)
        in_string = int(inside[-1])
        yield piece, inside == 0
