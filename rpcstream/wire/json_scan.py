"""Find the structure of JSON text without parsing it: where values end, how many there are, how deep they are nested.

This works for text that cannot be parsed yet, or must not be parsed before its limits are checked. A bracket outside
strings counts, whatever its kind.
"""

from __future__ import annotations

import re
from itertools import accumulate

#: Bytes of a line that is not JSON up to which it is searched, for values without a delimiter between them, and for an
#: id behind the params. A search of a line of this size takes up to 15 ms.
SEARCHED_MAX = 1024 * 1024

#: Values that `split_values` takes from a text at once. So many take about 10 ms.
VALUES_MAX = 4096

#: Bytes behind the last quote of a piece from which on they are looked at by themselves: most often they are base64.
_LONG_TAIL = 4096

#: Bytes of a text from which on numpy, which is imported for that, is faster.
_LONG = 16 * 1024

#: Bytes that are counted in one go: they stay in the processor's cache.
_BLOCK = 1024 * 1024

#: In quarters of a value. A number counts by its comma, a string by its comma and two quotes; an array or an object
#: takes the time and the memory of four numbers.
_COMMA_UNITS, _QUOTE_UNITS, _OPENING_UNITS = 4, 2, 16

#: The most values that one byte can stand for: an opening bracket counts 4.
_DENSEST = 4

#: Where a value begins that may follow another one.
_VALUE = re.compile(r"[ \t\r\n]*+(?=[\[{])")

_QUOTE, _COMMA, _OPEN = 0x22, 0x2C, 0x7B
#: The bit that makes `[` and `{` the same byte.
_CASE = 0x20

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b'"{}[]')
_NOT_VALUES = bytes(byte for byte in range(256) if byte not in b'",[{')


class Balance:
    """Counts the arrays and objects that are open at the end of a text, which is given piece by piece.

    Attributes:
        depth: arrays and objects that are open; negative when more were closed.
        in_string: the text ends inside a string.
        quotes: the quotes around strings.
    """

    __slots__ = ("_escaped", "depth", "in_string", "quotes")

    def __init__(self) -> None:
        self.depth = self.quotes = 0
        self.in_string = self._escaped = False

    @property
    def is_closed(self) -> bool:
        """No array and no object is open, and no string."""
        return self.depth <= 0 and not self.in_string

    def add(self, piece: bytes | bytearray, without: bytes = _NOT_BRACKETS) -> bytes:
        """Count the brackets of the next piece. Takes about 1 ns a byte, 9 ns at worst; nearly nothing for base64.

        Args:
            piece: the next bytes.
            without: bytes that are of no interest.

        Returns:
            The other bytes that stand outside strings; brackets of any kind as square ones.
        """
        end = piece.rfind(b'"') + 1
        before = b""
        if end and len(piece) - end > _LONG_TAIL:
            before = self.add(piece[:end], without)
            piece = piece[end:]
        if self.in_string and not self._escaped and b'"' not in piece and b"\\" not in piece:
            return before
        if self._escaped and piece:
            self._escaped = False
            if piece[0] in b'\\"':
                piece = piece[1:]
        if b"\\" in piece:
            # Pairs first: what is left of a run of backslashes then escapes the byte behind it.
            piece = piece.replace(b"\\\\", b"")
            self._escaped = piece.endswith(b"\\")
            piece = piece.replace(b'\\"', b"")
        marks = piece.translate(_BRACKETS, without)
        self.quotes += marks.count(b'"')
        # Most strings have no bracket in them: nothing is left of those but two quotes.
        quoted = marks.replace(b'""', b"").split(b'"')
        outside = b"".join(quoted[self.in_string :: 2])
        self.in_string ^= len(quoted) % 2 == 0
        self.depth += outside.count(b"[") - outside.count(b"]")
        return before + outside


def split_values(text: bytes | bytearray) -> list[bytes]:
    """Split a text in which arrays and objects follow each other, with nothing or blanks between.

    Returns:
        At most `VALUES_MAX` values, and behind them the rest of the text, to be split later; empty where the text is no
        such, or longer than `SEARCHED_MAX`.
    """
    if len(text) > SEARCHED_MAX:
        return []
    from json import JSONDecoder

    decode, values, begin, end = JSONDecoder(parse_int=float).raw_decode, list[bytes](), 0, 0
    try:
        line = text.decode()
        while len(values) < VALUES_MAX and (found := _VALUE.match(line, end)):
            begin = found.end()
            end = decode(line, begin)[1]
            values.append(line[begin:end].encode())
    except (ValueError, RecursionError):  # the rest is no JSON
        pass
    if values and not _VALUE.match(line, end):  # the last value belongs to the rest
        values.pop()
        end = begin
    return [*values, line[end:].encode()] if values else values


def values_over(text: bytes | bytearray, limit: int) -> int:
    """Count the values of a text if they are more than `limit`; 0 if they are not. Stops soon after the limit.

    Numbers and short words count one, strings two, arrays and objects four: in proportion to their cost. The text need
    not be JSON.
    """
    if len(text) * _DENSEST <= limit or values_roughly(text) <= limit:
        return 0
    # The rough count has the commas and brackets inside strings, too.
    balance, units = Balance(), 0
    for start in range(0, len(text), _BLOCK):
        outside = balance.add(text[start : start + _BLOCK], _NOT_VALUES)
        units += _COMMA_UNITS * outside.count(b",") + _OPENING_UNITS * outside.count(b"[")
        if (values := (units + _QUOTE_UNITS * balance.quotes) // 4) > limit:
            return values
    return 0


def values_roughly(text: bytes | bytearray) -> int:
    """Estimate the values of a text, never too low: commas and brackets inside strings may be counted, too."""
    if len(text) < _LONG:
        marks = text.translate(None, _NOT_VALUES)
        commas, quotes = marks.count(b","), marks.count(b'"')
        openings = len(marks) - commas - quotes
    else:
        import numpy as np

        commas = quotes = openings = 0
        for start in range(0, len(text), _BLOCK):
            block = np.frombuffer(text, np.uint8, min(_BLOCK, len(text) - start), start)
            commas += int(np.count_nonzero(block == _COMMA))
            quotes += int(np.count_nonzero(block == _QUOTE))
            openings += int(np.count_nonzero((block | _CASE) == _OPEN))
    return (_COMMA_UNITS * commas + _QUOTE_UNITS * quotes + _OPENING_UNITS * openings) // 4


def is_deeper(line: bytes | bytearray, limit: int) -> bool:
    """Tell whether arrays and objects are nested deeper than `limit`. The line is known to be JSON.

    Counts the brackets of a line; only if these are many, passes over them a few times.
    """
    if line.count(b"[") + line.count(b"{") <= limit:
        return False
    brackets = Balance().add(line)
    # Most values are wide, not deep: a few rounds that remove the innermost level leave few brackets to count.
    rounds = min(4, limit)
    for _ in range(rounds):
        brackets = brackets.replace(b"[]", b"")
    steps = brackets.translate(_STEPS)
    return max(accumulate(memoryview(steps).cast("b"), initial=rounds)) > limit
