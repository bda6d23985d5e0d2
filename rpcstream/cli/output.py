"""How a result looks: for people on a terminal, and for programs in a pipe.

Owns the text. A result comes as plain JSON data in which rich values are still the tagged objects of the wire page, so
a pipe gets exactly what the server sent and numpy is imported only to show an array to a person. Knows no file, no
terminal (width and colour are passed in) and no connection.
"""

from __future__ import annotations

import json
from typing import Any

from ..codec import TAG_KEY, Codec
from ..text import visible

_STYLES = {
    "key": "34",
    "str": "32",
    "number": "36",
    "word": "35",
    "rich": "33",
    "dim": "2",
    "error": "31",
    "bold": "1",
}
#: Lists of plain values stand on one line up to this many columns.
_MAX_COLUMNS = 120
#: The longest string that is shown whole inside a tagged object that cannot be decoded.
_MAX_PAYLOAD = 60


class Look:
    """What the terminal can do: its width in columns, and whether it wants colour (24 bit)."""

    __slots__ = ("colour", "width")

    def __init__(self, width: int = 80, colour: bool = False) -> None:
        self.width = width
        self.colour = colour

    def paint(self, style: str, text: str) -> str:
        """The text in one of the styles, or as it is without colour."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text


def for_people(value: Any, look: Look, codec: Codec) -> str:
    """Indented JSON, in which arrays, images and bytes are described instead of written out."""
    out: list[str] = []
    try:
        _write(value, 0, look, codec, out)
    except RecursionError:  # a server without a limit of depth
        return visible(codec.dumps(value).decode())
    return "".join(out)


def for_programs(value: Any, codec: Codec) -> bytes:
    """JSON on one line, rich values as their tagged objects, with a line end."""
    return codec.dumps(value) + b"\n"


def error_line(code: int, message: str, data: Any, look: Look) -> str:
    """`error -32602: Invalid params, data {...}`; a traceback in the data (a server in debug mode) stands below it."""
    text = look.paint("error", f"error {code}:") + " " + visible(message)
    below = ""
    if isinstance(data, dict) and isinstance(data.get("traceback"), str):
        below = "\n" + visible(data["traceback"].rstrip(), keep="\n\t")
        data = {key: value for key, value in data.items() if key != "traceback"}
    if data is not None and data != {}:
        text += f", data {_json(data)}"
    return text + below


def _write(value: Any, depth: int, look: Look, codec: Codec, out: list[str]) -> None:
    """Append the text of a value that begins behind what is already there."""
    if isinstance(value, dict) and value:
        if TAG_KEY in value and (rich := _rich(value, depth, look, codec)) is not None:
            out.append(rich)
            return
        opening, closing = "{}"
    elif isinstance(value, list) and value:
        if (line := _one_line(value, depth, look)) is not None:
            out.append(line)
            return
        opening, closing = "[]"
    else:
        out.append(_scalar(value, look))
        return
    tagged = isinstance(value, dict) and TAG_KEY in value
    inner = "\n" + "  " * (depth + 1)
    out.append(opening)
    for number, member in enumerate(value):
        out.append("," + inner if number else inner)
        if isinstance(value, dict):
            out.append(look.paint("key", _json(member)) + ": ")
            member = value[member]
        if tagged and isinstance(member, str):
            member = shortened(member)
        _write(member, depth + 1, look, codec, out)
    out.append("\n" + "  " * depth + closing)


def _scalar(value: Any, look: Look) -> str:
    if isinstance(value, str):
        style = "str"
    elif value is None or isinstance(value, bool):
        style = "word"
    else:
        style = "number"
    return look.paint(style, _json(value))


def _one_line(values: list[Any], depth: int, look: Look) -> str | None:
    """A list of plain values as one line, if it is short enough."""
    room = min(look.width, _MAX_COLUMNS) - 2 * depth - 1
    if len(values) * 3 > room or any(isinstance(member, list | dict) for member in values):
        return None
    if len(_json(values)) > room:
        return None
    return "[" + ", ".join(_scalar(member, look) for member in values) + "]"


def _rich(tagged: dict[str, Any], depth: int, look: Look, codec: Codec) -> str | None:
    """The description of a tagged object; None when it is unknown or broken: then it is shown as it is."""
    try:
        value = codec.decode(tagged)
    except (ValueError, ImportError):
        return None
    if value is tagged or isinstance(value, dict):
        return None
    title, body = _described(value, tagged, look, look.width - 2 * (depth + 1))
    indent = "\n" + "  " * (depth + 1)
    return look.paint("rich", visible(title)) + "".join(indent + line for line in body)


def _described(value: Any, tagged: dict[str, Any], look: Look, width: int) -> tuple[str, list[str]]:
    if isinstance(value, bytes | bytearray):
        preview = repr(bytes(value[:24])) + ("..." if len(value) > 24 else "")
        return f"bytes ({len(value):,})", [look.paint("dim", preview)] if value else []
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"ndarray {value.dtype} {value.shape}", array_lines(value, width)
    if hasattr(value, "mode") and hasattr(value, "getbands"):
        title = f"image {str(tagged.get('format', '')).upper()} {value.width} x {value.height} {value.mode}"
        if not look.colour:
            return title, []
        from .picture import half_blocks

        return title, half_blocks(value, columns=min(width, 64))
    return visible(str(value)), []


def array_lines(array: Any, width: int) -> list[str]:
    """An abbreviated print of a numpy array, line by line; nothing for an empty one."""
    if array.size == 0:
        return []
    import numpy as np

    with np.printoptions(threshold=60, edgeitems=3, linewidth=max(width, 20)):
        return visible(np.array2string(array), keep="\n").split("\n")


def shortened(text: str) -> str:
    """A string of a payload: its beginning and its length if it is long."""
    return text if len(text) <= _MAX_PAYLOAD else f"{text[:_MAX_PAYLOAD]}... ({len(text):,} characters)"


def _json(value: Any) -> str:
    """JSON as people read it: one line, letters of all scripts as they are, controls escaped."""
    return visible(json.dumps(value, ensure_ascii=False))
