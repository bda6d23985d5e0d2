"""Format a result as text: readable on a terminal, JSON on one line in a pipe.

A result comes as plain JSON data in which rich values are still the tagged objects of the wire page, so a pipe gets
exactly the data that the server sent, and numpy is imported only to show an array on a terminal.
"""

from __future__ import annotations

import json
from typing import Any

from ..codec import TAG_KEY, Codec
from ..codec.attachments import CutLine
from ..codec.payloads import with_strings
from ..errors import readable
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
#: A list of plain values is shown on one line if it takes at most this many columns.
_MAX_COLUMNS = 120
#: Lines that a library writes for a table.
_MAX_LINES = 40
#: Characters of a string in a tagged object that cannot be decoded; longer ones are cut.
_MAX_PAYLOAD = 60


class TaggedCodec(Codec):
    """Decodes no rich values: results keep their tagged objects, as the server would send them in text."""

    def holds_tags(self, line: bytes | bytearray) -> bool:
        """True for a message whose payloads stand beside its JSON."""
        return isinstance(line, CutLine)

    def decode(self, value: object, *_: object) -> object:
        """The value with its payloads as base64."""
        return with_strings(value)


class Terminal:
    """The width of a terminal in columns, and whether it shows colours (24 bit)."""

    __slots__ = ("colour", "width")

    def __init__(self, width: int = 80, colour: bool = False) -> None:
        self.width = width
        self.colour = colour

    def paint(self, style: str, text: str) -> str:
        """The text with the escape sequences of a style; unchanged on a terminal without colours."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text


_PLAIN = Terminal()


def format_for_terminal(value: Any, terminal: Terminal, codec: Codec) -> str:
    """Indented JSON, in which arrays, images and bytes are described instead of written out."""
    out: list[str] = []
    try:
        _write(value, 0, terminal, codec, out)
    except RecursionError:  # from a server that does not limit the depth
        return visible(codec.dumps(value).decode())
    return "".join(out)


def format_line(value: Any, terminal: Terminal, codec: Codec) -> str:
    """JSON on one line for a terminal, in which arrays, images and bytes are described instead of written out."""
    try:
        return _line(value, terminal, codec)
    except RecursionError:  # from a server that does not limit the depth
        return visible(codec.dumps(value).decode())


def format_json(value: Any, codec: Codec) -> bytes:
    """JSON on one line with a line end, rich values as their tagged objects."""
    return codec.dumps(value) + b"\n"


def format_error(code: int, message: str, data: Any, terminal: Terminal) -> str:
    """`error -32602: Invalid params, data {...}`; a traceback in the data (from a server in debug mode) below it."""
    below = ""
    if isinstance(data, dict) and isinstance(data.get("traceback"), str):
        below = "\n" + visible(data["traceback"].rstrip(), keep="\n\t")
        data = {key: value for key, value in data.items() if key != "traceback"}
    message, data = readable(code, message, data)
    text = terminal.paint("error", f"error {code}:") + " " + visible(message)
    if data is not None and data != {}:
        text += f", data {_json(data)}"
    return text + below


def _write(value: Any, depth: int, terminal: Terminal, codec: Codec, out: list[str]) -> None:
    """Append the text of a value to `out`; its first line continues the last one there."""
    if isinstance(value, dict) and value:
        if TAG_KEY in value and (rich := _rich(value, depth, terminal, codec)) is not None:
            out.append(rich)
            return
        opening, closing = "{}"
    elif isinstance(value, list) and value:
        if (line := _one_line(value, depth, terminal)) is not None:
            out.append(line)
            return
        opening, closing = "[]"
    else:
        out.append(_scalar(value, terminal))
        return
    tagged = isinstance(value, dict) and TAG_KEY in value
    inner = "\n" + "  " * (depth + 1)
    out.append(opening)
    for number, key in enumerate(value):
        out.append("," + inner if number else inner)
        member = key
        if isinstance(value, dict):
            out.append(terminal.paint("key", _json(key)) + ": ")
            member = value[key]
        if tagged and isinstance(member, str):
            member = shortened(member)
        _write(member, depth + 1, terminal, codec, out)
    out.append("\n" + "  " * depth + closing)


def _scalar(value: Any, terminal: Terminal) -> str:
    if isinstance(value, str):
        style = "str"
    elif value is None or isinstance(value, bool):
        style = "word"
    else:
        style = "number"
    return terminal.paint(style, _json(value))


def _one_line(values: list[Any], depth: int, terminal: Terminal) -> str | None:
    """A list of plain values on one line; None if it is too long or holds arrays or objects."""
    room = min(terminal.width, _MAX_COLUMNS) - 2 * depth - 1
    if len(values) * 3 > room or any(isinstance(member, list | dict) for member in values):
        return None
    if len(_json(values)) > room:
        return None
    return "[" + ", ".join(_scalar(member, terminal) for member in values) + "]"


def _line(value: Any, terminal: Terminal, codec: Codec) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_line(member, terminal, codec) for member in value) + "]"
    if not isinstance(value, dict):
        return _scalar(value, terminal)
    if TAG_KEY in value and (rich := _rich(value, 0, _PLAIN, codec)) is not None:
        title, _, body = rich.partition("\n")
        # A short array is shown whole.
        return terminal.paint("rich", f"{title} {body.strip()}" if body and "\n" not in body else title)
    members = []
    for key, member in value.items():
        cut = shortened(member) if TAG_KEY in value and isinstance(member, str) else member
        members.append(f"{terminal.paint('key', _json(key))}: {_line(cut, terminal, codec)}")
    return "{" + ", ".join(members) + "}"


def _rich(tagged: dict[str, Any], depth: int, terminal: Terminal, codec: Codec) -> str | None:
    """The description of a rich value; None where its tag is unknown or its data broken: it is shown as JSON then."""
    try:
        value = codec.decode(tagged)
    except (ValueError, ImportError):
        return None
    if value is tagged or isinstance(value, dict):
        return None
    body = _body_of(value, terminal, terminal.width - 2 * (depth + 1))
    indent = "\n" + "  " * (depth + 1)
    return terminal.paint("rich", visible(title_of(value, tagged))) + "".join(indent + line for line in body)


def title_of(value: Any, tagged: dict[str, Any]) -> str:
    """The description of a rich value in a few words: `ndarray float32 (3, 4)`; text from the server is not escaped."""
    if isinstance(value, bytes | bytearray):
        return f"bytes ({len(value):,})"
    if type(value).__module__ == "numpy":
        return f"ndarray {value.dtype} {value.shape}"
    if hasattr(value, "getbands"):
        return f"image {str(tagged.get('format', '')).upper()} {value.width} x {value.height} {value.mode}"
    if hasattr(value, "shape"):  # a table, a sparse array
        return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__} {tuple(value.shape)}"
    return str(value)


def _body_of(value: Any, terminal: Terminal, width: int) -> list[str]:
    """The lines below the title of a rich value."""
    if isinstance(value, bytes | bytearray):
        preview = repr(bytes(value[:24])) + ("..." if len(value) > 24 else "")
        return [terminal.paint("dim", preview)] if value else []
    if type(value).__module__ == "numpy":
        return array_lines(value, width)
    if hasattr(value, "getbands"):
        if not terminal.colour:
            return []
        from .media import half_blocks

        return half_blocks(value, columns=min(width, 64))
    return visible(str(value), keep="\n").splitlines()[:_MAX_LINES] if hasattr(value, "shape") else []


def array_lines(array: Any, width: int) -> list[str]:
    """A numpy array, abbreviated, as lines of text; no lines for an empty one."""
    if array.size == 0:
        return []
    import numpy as np

    with np.printoptions(threshold=60, edgeitems=3, linewidth=max(width, 20)):
        return visible(np.array2string(array), keep="\n").split("\n")


def shortened(text: str) -> str:
    """A long string cut to its beginning, with its length; a short one as it is."""
    return text if len(text) <= _MAX_PAYLOAD else f"{text[:_MAX_PAYLOAD]}... ({len(text):,} characters)"


def _json(value: Any) -> str:
    """JSON on one line, with letters of all scripts as they are and control characters escaped."""
    return visible(json.dumps(value, ensure_ascii=False))
