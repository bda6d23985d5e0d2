"""Format a result as a table: a row for each object of a list, a column for each of their keys.

Owns the choice of rows and columns, and how wide these are. Pure, as `output`; imported for --format table.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from ..codec import TAG_KEY, Codec
from ..text import visible
from .output import Terminal, format_for_terminal, format_line

#: Columns of text that a value may take where the width of the table is not limited.
_MAX_CELL = 60
#: Columns are left out, at the end, before one of them becomes narrower than this.
_MIN_CELL = 8
#: Columns at most: a list of objects with a new key each would have as many as rows.
_MAX_COLUMNS = 100
_GAP = "  "


def format_table(value: Any, terminal: Terminal, codec: Codec) -> str:
    """A table of a list of objects, a list of lists, a list, or an object; any other value as for a terminal.

    Long values are cut to fit the terminal.

    Args:
        value: plain JSON data, rich values tagged.
        terminal: its width; 0 for lines of any length.
        codec: decodes the rich values, which are described.
    """
    if not isinstance(value, list | dict) or not value or (isinstance(value, dict) and TAG_KEY in value):
        return format_for_terminal(value, Terminal(terminal.width or 80, terminal.colour), codec)
    header, rows = _rows(value)
    lines = _Columns(header, [[_cell(member, codec) for member in row] for row in rows], _numeric(rows))
    return "\n".join(lines.text(terminal))


_MISSING: Any = object()


def _rows(value: list[Any] | dict[str, Any]) -> tuple[list[str] | None, list[list[Any]]]:
    """The names of the columns, if they have any, and the values of each row."""
    if isinstance(value, dict):
        return None, [[key, member] for key, member in value.items()]
    if all(isinstance(row, dict) and TAG_KEY not in row for row in value):
        keys = list(dict.fromkeys(key for row in value for key in row)) or [""]
        return keys[: _MAX_COLUMNS + 1], [[row.get(key, _MISSING) for key in keys[: _MAX_COLUMNS + 1]] for row in value]
    if all(isinstance(row, list) for row in value):
        count = min(max(map(len, value)), _MAX_COLUMNS + 1) or 1
        return None, [(row + [_MISSING] * count)[:count] for row in value]
    return None, [[member] for member in value]


def _cell(value: Any, codec: Codec) -> str:
    if value is _MISSING:
        return ""
    if isinstance(value, str):
        return visible(value)
    return format_line(value, Terminal(), codec)


def _numeric(rows: list[list[Any]]) -> list[bool]:
    """Whether the values of each column are numbers, which are put to the right."""
    return [all(map(_is_number_or_nothing, column)) for column in zip(*rows, strict=True)]


def _is_number_or_nothing(value: Any) -> bool:
    return value is None or value is _MISSING or (isinstance(value, int | float) and not isinstance(value, bool))


class _Columns:
    """The columns of one table, with texts in them."""

    def __init__(self, header: list[str] | None, cells: list[list[str]], numeric: list[bool]) -> None:
        self._header = None if header is None else [visible(name) for name in header]
        self._cells = cells
        self._numeric = numeric
        lines = cells if self._header is None else [self._header, *cells]
        self._widths = [max(map(text_width, column)) for column in zip(*lines, strict=True)]

    def text(self, terminal: Terminal) -> list[str]:
        """The lines of the table, no wider than the terminal."""
        count, widths = self._fitting(terminal.width)
        lines = []
        if self._header is not None:
            names = map(_padded, self._header[:count], widths, self._numeric)
            lines.append(_GAP.join(terminal.paint("bold", name) for name in names).rstrip())
        lines += [_GAP.join(map(_padded, row[:count], widths, self._numeric)).rstrip() for row in self._cells]
        if count < len(self._widths):
            rest = len(self._widths) - count
            more = "more" if count == _MAX_COLUMNS else f"{rest} more"
            lines.append(terminal.paint("dim", f"({more} columns do not fit: --format json has all)"))
        return lines

    def _fitting(self, room: int) -> tuple[int, list[int]]:
        """How many columns are shown, and the width of each."""
        widths = self._widths[:_MAX_COLUMNS]
        if room <= 0:
            return len(widths), [min(width, _MAX_CELL) for width in widths]
        while True:
            left = room - len(_GAP) * (len(widths) - 1)
            most = _common_maximum(widths, left)
            if most >= min(_MIN_CELL, max(widths)) or len(widths) == 1:
                return len(widths), [min(width, max(most, 1)) for width in widths]
            widths.pop()


def _common_maximum(widths: list[int], room: int) -> int:
    """The largest width to which all must be cut so that they fit into the room together."""
    narrow = 0
    for at, width in enumerate(sorted(widths)):
        share = (room - narrow) // (len(widths) - at)
        if width > share:
            return share
        narrow += width
    return max(widths)


def _padded(text: str, width: int, is_number: bool) -> str:
    text = _cut(text, width)
    blanks = " " * (width - text_width(text))
    return blanks + text if is_number else text + blanks


def _cut(text: str, width: int) -> str:
    """The text, or its beginning with three dots, in so many columns at most."""
    if text_width(text) <= width:
        return text
    dots = "..."[:width]
    taken, room = 0, width - len(dots)
    for at, letter in enumerate(text):
        taken += text_width(letter)
        if taken > room:
            return text[:at] + dots
    return text


def text_width(text: str) -> int:
    """The columns of a terminal that a text takes: two for a wide letter, none for an accent of its own."""
    if text.isascii():
        return len(text)
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1
