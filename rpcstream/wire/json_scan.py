"""Find the structure of JSON text without parsing it: where values end, how many there are, how deep they are nested.

Where they end is needed for text that cannot be parsed yet or at all, such as values that follow each other without a
delimiter: brackets outside strings are counted, whatever their kind. How many and how deep is needed before a long text
is parsed: numpy, imported for that, looks at a piece at a time, so that the memory does not grow with the text. Pure.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

# -- brackets

OPENING, CLOSING = b"[{", b"]}"

#: Values that `split_values` takes from a text at once. So many take some 10 ms.
VALUES_MAX = 4096

#: Places inside strings that look like the border of two values. Looking at each takes 0.3 us.
_FALSE_BORDERS_MAX = 20_000

#: A closing bracket before an opening one: outside strings, this stands in no JSON value, only between two.
_BORDER = re.compile(rb"[\]}][ \t\r\n]*+[\[{]")
#: The same without blanks between.
_CLOSE_BORDERS = (b"}{", b"][", b"}[", b"]{")
_CLOSE_BORDER = re.compile(rb"[\]}][\[{]")
#: How many of those in a piece are tried from its beginning, and from its end (each try reads all before it).
_BORDERS_TRIED = 64
_LAST_BORDERS_TRIED = 4
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'"{}[]')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_BLANKS = b" \t\r\n"


#: Bytes behind the last quote of a piece from which on they are looked at by themselves: most often they are base64.
_LONG_TAIL = 4096

#: Bytes and lines of a value that is written over several lines, which are skipped after one error.
SPREAD_MAX, SPREAD_LINES_MAX = 1024 * 1024, 10_000

#: What the lines of such a value begin with: strings, brackets, numbers, words of JSON.
_MAY_GO_ON = tuple(bytes((byte,)) for byte in b'"{}[],:-0123456789tfn')


class Balance:
    """Counts the arrays and objects that are open at the end of a text, which is given piece by piece.

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
        """Count the brackets of the next piece. Takes about 1 ns a byte, 9 ns at worst; nearly nothing for base64."""
        end = piece.rfind(b'"') + 1
        if end and len(piece) - end > _LONG_TAIL:
            self.add(piece[:end])
            piece = piece[end:]
        if self.in_string and not self._escaped and b'"' not in piece and b"\\" not in piece:
            return
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


class SpreadValue:
    """A value that a peer has written over several lines, where a message is one line: the lines that belong to it.

    Use `begun_by` for the first line, and `takes` for those that follow, until the value ends or a line does not
    belong to it. Reads at most `SPREAD_MAX` bytes in `SPREAD_LINES_MAX` lines.
    """

    __slots__ = ("_balance", "_lines", "_size")

    def __init__(self) -> None:
        self._balance = Balance()
        self._size = self._lines = 0

    @classmethod
    def begun_by(cls, line: bytes) -> SpreadValue | None:
        """The value that this line, which is no JSON, may begin; None where it does not look like that."""
        text = line.strip(_BLANKS)
        if text[:1] not in (b"{", b"[") or text[-1:] not in (b"{", b"[", b",", b":"):
            return None
        value = cls()
        return value if value._add(text) and not value.is_over else None

    @property
    def is_over(self) -> bool:
        """The value is complete, or too long to be followed further."""
        return self._balance.is_closed or self._size > SPREAD_MAX or self._lines > SPREAD_LINES_MAX

    def takes(self, line: bytes) -> bool:
        """Whether a line is the next one of the value; not where strings do not end in it, or a word begins it."""
        text = line.strip(_BLANKS)
        return text[:1] in _MAY_GO_ON and not self.is_over and self._add(text)

    def _add(self, text: bytes) -> bool:
        self._size += len(text)
        self._lines += 1
        if self._size <= SPREAD_MAX:
            self._balance.add(text)
        return not self._balance.in_string


def may_end_value(end: bytes) -> bool:
    """Tell whether the outermost array or object of a text may close with its last byte.

    False is certain: the array or object that closes there stands behind a comma or a colon, so inside another one.
    Reads the last array or object only, as far as it stands in `end`.

    Args:
        end: the last hundred bytes or so of the text, the very last a closing bracket.
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


def find_borders(piece: bytes) -> list[int]:
    """Find the places where one value may end and another begins right behind it: the first `_BORDERS_TRIED`.

    Some of these places may be inside strings. A piece with few brackets, such as one of base64, costs 0.1 ns a byte;
    others 3 ns.
    """
    if not _may_have_border(piece, b"{") and not _may_have_border(piece, b"["):
        return []
    return [found.start() + 1 for found in islice(_CLOSE_BORDER.finditer(piece), _BORDERS_TRIED)]


def _may_have_border(piece: bytes, opening: bytes) -> bool:
    """Tell whether a closing bracket stands right before one of these opening ones."""
    place = piece.find(opening, 1)
    for _ in range(_BORDERS_TRIED):
        if place < 0:
            return False
        if piece[place - 1] in CLOSING:
            return True
        place = piece.find(opening, place + 1)
    return b"]" + opening in piece or b"}" + opening in piece


def end_of_last_value(text: bytes) -> int:
    """Find where the last complete value ends in a text that begins with a value and ends inside another.

    Returns 0 where none is found.
    """
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


def split_values(text: bytes) -> tuple[list[bytes], bytes]:
    """Split a text in which arrays and objects follow each other, with nothing or blanks between.

    Returns:
        The values, as far as brackets tell; and the rest of the text, from the `VALUES_MAX`th value on or from where
        it cannot be JSON. No values where the text is a single one.
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


# -- values and depth

#: Bytes that are counted in one go: they stay in the processor's cache.
_BLOCK = 1024 * 1024

#: In quarters of a value. A number counts by its comma, a string by its comma and two quotes; an array or an object
#: takes the time and the memory of four numbers.
_COMMA_UNITS, _QUOTE_UNITS, _OPENING_UNITS = 4, 2, 16

#: The most values that one byte can stand for: an opening bracket counts 4.
_DENSEST = 4

#: Bytes of a text below which numpy would take longer than `bytes.translate`.
_SHORT_TEXT = 16 * 1024

_QUOTE, _COMMA, _OPEN, _CLOSE = 0x22, 0x2C, 0x7B, 0x7D
#: The bit that makes `[` and `{` the same byte, and `]` and `}`.
_CASE = 0x20

_NO_LIMIT = float("inf")
_NOT_COUNTED = bytes(byte for byte in range(256) if byte not in b'",[{')


def values_over(text: bytes | bytearray, limit: int) -> int:
    """Count the values of a text if they are more than `limit`; 0 if they are not. Stops soon after the limit.

    Numbers and short words count one, strings two, arrays and objects four: in proportion to their cost. The text need
    not be JSON.
    """
    if len(text) * _DENSEST <= limit or _roughly(text, limit) <= limit:
        return 0
    # The rough count has the commas and brackets inside strings, too.
    count = _exactly(text, limit)
    return count if count > limit else 0


def values_roughly(text: bytes | bytearray) -> int:
    """Estimate the values of a text, never too low: commas and brackets inside strings may be counted, too."""
    if len(text) >= _SHORT_TEXT:
        return _roughly(text)
    marks = text.translate(None, _NOT_COUNTED)
    commas, quotes = marks.count(b","), marks.count(b'"')
    return (_COMMA_UNITS * commas + _QUOTE_UNITS * quotes + _OPENING_UNITS * (len(marks) - commas - quotes)) // 4


def deepest(text: bytes | bytearray) -> int:
    """The depth to which arrays and objects are nested. The text is JSON."""
    import numpy as np

    depth = most = 0
    for piece, outside in _blocks(_unescaped(text), _NOT_MARKS):
        folded = piece | _CASE
        steps = ((folded == _OPEN) & outside).view(np.int8) - ((folded == _CLOSE) & outside).view(np.int8)
        depths = np.cumsum(steps, dtype=np.int32)
        most = max(most, depth + int(depths.max()))
        depth += int(depths[-1])
    return most


def _roughly(text: bytes | bytearray, enough: float = _NO_LIMIT) -> int:
    """Estimate the values, never too low, at the speed of memory. Stops once there are more than `enough`."""
    import numpy as np

    whole = np.frombuffer(text, np.uint8)
    quarters = 0
    for start in range(0, len(text), _BLOCK):
        quarters += _quarters(np, whole[start : start + _BLOCK], None)
        if quarters // 4 > enough:
            break
    return quarters // 4


def _exactly(text: bytes | bytearray, enough: float = _NO_LIMIT) -> int:
    """Count the values of a text, leaving out the insides of strings. Stops once there are more than `enough`."""
    import numpy as np

    quarters = 0
    for piece, outside in _blocks(_unescaped(text), _NOT_COUNTED):
        quarters += _quarters(np, piece, outside)
        if quarters // 4 > enough:
            break
    return quarters // 4


def _quarters(np: Any, piece: Any, outside: Any) -> int:
    commas, openings = piece == _COMMA, (piece | _CASE) == _OPEN
    if outside is not None:
        commas &= outside
        openings &= outside
    quotes = np.count_nonzero(piece == _QUOTE)
    counted = _COMMA_UNITS * np.count_nonzero(commas) + _OPENING_UNITS * np.count_nonzero(openings)
    return int(counted + _QUOTE_UNITS * quotes)


def _unescaped(text: bytes | bytearray) -> bytes | bytearray:
    """The text without escaped quotes, so that every remaining quote begins or ends a string."""
    if b"\\" not in text:
        return text
    # Pairs first: what is left of a run of backslashes then escapes the byte behind it.
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _blocks(text: bytes | bytearray, without: bytes) -> Any:
    """Iterate over the text in arrays of bytes, each with a mask of the bytes that are outside strings.

    Args:
        text: every quote in it begins or ends a string.
        without: bytes to leave out.
    """
    import numpy as np

    in_string = 0
    for start in range(0, len(text), _BLOCK):
        piece = np.frombuffer(text[start : start + _BLOCK].translate(None, without), np.uint8)
        if not len(piece):
            continue
        inside = np.cumsum(piece == _QUOTE, dtype=np.uint8)
        inside += np.uint8(in_string)
        inside &= np.uint8(1)
        in_string = int(inside[-1])
        yield piece, inside == 0
