"""Where arrays and objects open and close in JSON text, found without parsing it.

For text that cannot be parsed, or not yet: values whose end has to be seen, and values that follow each other without a
delimiter. Brackets are counted, whatever their kind; those inside strings do not count. Pure.
"""

from __future__ import annotations

import re
from itertools import islice

OPENING, CLOSING = b"[{", b"]}"

#: Values that `values_in` takes from a text at once. So many take some 10 ms.
VALUES_MAX = 4096

#: Places inside strings that look like the border of two values. Looking at each takes 0.3 us.
_FALSE_BORDERS_MAX = 20_000

#: Outside strings, no JSON value has this in it.
_BORDER = re.compile(rb"[\]}][ \t\r\n]*+[\[{]")
#: The same of values that stand right behind each other.
_CLOSE_BORDERS = (b"}{", b"][", b"}[", b"]{")
_CLOSE_BORDER = re.compile(rb"[\]}][\[{]")
#: How many of those in a piece are looked at from its beginning, and from its end (each look is at all before it).
_BORDERS_TRIED = 64
_LAST_BORDERS_TRIED = 4
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'"{}[]')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_BLANKS = b" \t\r\n"
_QUOTE = ord('"')


class Balance:
    """How many arrays and objects are open at the end of a text that is given piece by piece.

    Attributes:
        depth: arrays and objects that are open; negative when more were closed.
        in_string: the text ends inside a string.
    """

    __slots__ = ("_escaped", "depth", "in_string")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    @property
    def is_closed(self) -> bool:
        """No array and no object is open, and no string."""
        return self.depth <= 0 and not self.in_string

    def add(self, piece: bytes) -> None:
        """Count what follows. Takes about 1 ns a byte, 6 ns at worst."""
        if self._escaped and piece:
            self._escaped = False
            if piece[0] in b'\\"':
                piece = piece[1:]
        if b"\\" in piece:
            # Pairs first: what is left of a run of backslashes then escapes the byte behind it.
            piece = piece.replace(b"\\\\", b"")
            self._escaped = piece.endswith(b"\\")
            piece = piece.replace(b'\\"', b"")
        # Most strings have no bracket in them: nothing is left of those but two quotes.
        quoted = piece.translate(_BRACKETS, _NOT_MARKS).replace(b'""', b"").split(b'"')
        outside = b"".join(quoted[self.in_string :: 2])
        self.in_string ^= len(quoted) % 2 == 0
        self.depth += len(outside) - 2 * outside.count(b"]")


def may_close(end: bytes) -> bool:
    """Can the outermost array or object close with the last byte of a text, of which this is the end?

    False is certain: what closes there stands behind a comma or a colon, so inside something else. Costs a look at the
    last array or object, as far as it stands in `end`.

    Args:
        end: some hundred bytes, the last of them a closing bracket.
    """
    if end[:1] == b"\\":  # it may be escaped itself
        return True
    depth, in_string = 0, False
    text = end.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    for place in range(len(text) - 1, -1, -1):
        byte = text[place]
        if byte == _QUOTE:
            in_string = not in_string
        elif in_string:
            continue
        elif byte in CLOSING:
            depth += 1
        elif byte in OPENING:
            depth -= 1
            if not depth:
                before = text[:place].rstrip(_BLANKS)
                return not before or before[-1] in CLOSING
    return True


def borders_in(piece: bytes) -> list[int]:
    """Find where one value may end with another right behind it, in order; the first `_BORDERS_TRIED` places.

    Some may stand in strings. A piece with few brackets, such as one of base64, costs 0.1 ns a byte; others 3 ns.
    """
    if not _may_have_border(piece, b"{") and not _may_have_border(piece, b"["):
        return []
    return [found.start() + 1 for found in islice(_CLOSE_BORDER.finditer(piece), _BORDERS_TRIED)]


def _may_have_border(piece: bytes, opening: bytes) -> bool:
    """Say whether a closing bracket stands before one of these opening ones."""
    place = piece.find(opening, 1)
    for _ in range(_BORDERS_TRIED):
        if place < 0:
            return False
        if piece[place - 1] in CLOSING:
            return True
        place = piece.find(opening, place + 1)
    return b"]" + opening in piece or b"}" + opening in piece


def end_of_last_value(text: bytes) -> int:
    """Where the last complete value ends in a text that begins with a value and ends inside another; 0 if that is not
    to be seen."""
    end = len(text)
    for _ in range(_LAST_BORDERS_TRIED):
        end = max(text.rfind(border, 0, end) for border in _CLOSE_BORDERS) + 1
        if not end:
            break
        balance = Balance()
        balance.add(text[:end])
        if balance.is_closed:
            return end
    return 0


def values_in(text: bytes) -> tuple[list[bytes], bytes]:
    """Arrays and objects that follow each other, with nothing or blanks between, in a text that is not JSON.

    Returns:
        The values, as far as brackets tell; and what is left: the text from the `VALUES_MAX`th on, or from where it is
        no JSON in any case. No values where there are not at least two parts.
    """
    values: list[bytes] = []
    if text.lstrip(_BLANKS)[:1] not in (b"[", b"{"):
        return values, text
    blanked = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in text else text
    start = looked = false_borders = 0
    in_string = 0
    for border in _BORDER.finditer(blanked):
        end = border.start() + 1
        in_string ^= blanked.count(b'"', looked, end) % 2
        looked = end
        if in_string:
            false_borders += 1
            if false_borders > _FALSE_BORDERS_MAX:
                break
            continue
        value = text[start:end]
        balance = Balance()
        balance.add(value)
        if balance.depth:
            break
        values.append(value)
        start = end
        if len(values) == VALUES_MAX:
            break
    return values, text[start:]
