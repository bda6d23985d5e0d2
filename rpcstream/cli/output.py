"""Format a result as text: readable on a terminal, JSON on one line in a pipe.

A result comes as plain JSON data in which rich values are still the tagged objects of the wire page, so a pipe gets
exactly the data that the server sent, and numpy is imported only to show an array on a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..codec import TAG_KEY, Codec
from ..codec.attachments import CutLine
from ..codec.payloads import with_strings
from ..errors import readable
from ..text import visible

if TYPE_CHECKING:
    from PIL.Image import Image

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
#: Characters and lines of a picture, so that the text above it stays on the screen.
_MAX_PICTURE_COLUMNS, _MAX_PICTURE_LINES = 64, 24


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


def format_for_terminal(value: Any, terminal: Terminal, codec: Codec, *, is_one_line: bool = False) -> str:
    """Indented JSON, or JSON on one line, in which arrays, images and bytes are described instead of written out."""
    out: list[str] = []
    try:
        if is_one_line:
            return _line(value, terminal, codec)
        _write(value, 0, terminal, codec, out)
    except RecursionError:  # from a server that does not limit the depth
        return visible(codec.dumps(value).decode())
    return "".join(out)


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
    rich = _rich(value, depth, terminal, codec)
    if rich is not None:
        out.append(rich)
        return
    if not isinstance(value, dict | list) or not value or _fits_on_a_line(value, depth, terminal):
        out.append(_line(value, terminal, codec))
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inner = "\n" + "  " * (depth + 1)
    out.append(opening)
    for number, (label, member) in enumerate(_members(value, terminal)):
        out.append(f"{',' if number else ''}{inner}{label}")
        _write(member, depth + 1, terminal, codec, out)
    out.append("\n" + "  " * depth + closing)


def _fits_on_a_line(value: Any, depth: int, terminal: Terminal) -> bool:
    """Whether a value is a list of plain values that is short enough."""
    if not isinstance(value, list) or any(isinstance(member, list | dict) for member in value):
        return False
    room = min(terminal.width, _MAX_COLUMNS) - 2 * depth - 1
    return len(value) * 3 <= room and len(_json(value)) <= room


def _line(value: Any, terminal: Terminal, codec: Codec) -> str:
    if not isinstance(value, dict | list):
        is_word = value is None or isinstance(value, bool)
        style = "str" if isinstance(value, str) else "word" if is_word else "number"
        return terminal.paint(style, _json(value))
    rich = _rich(value, 0, _PLAIN, codec)
    if rich is not None:
        title, _, body = rich.partition("\n")
        # A short array is shown whole.
        return terminal.paint("rich", f"{title} {body.strip()}" if body and "\n" not in body else title)
    text = ", ".join(label + _line(member, terminal, codec) for label, member in _members(value, terminal))
    return f"{{{text}}}" if isinstance(value, dict) else f"[{text}]"


def _members(value: Any, terminal: Terminal) -> Iterator[tuple[str, Any]]:
    """The members of an object or an array, each with its key as text; long payloads cut."""
    if isinstance(value, list):
        yield from (("", member) for member in value)
        return
    for key, member in value.items():
        is_payload = TAG_KEY in value and isinstance(member, str)
        yield terminal.paint("key", _json(key)) + ": ", shortened(member) if is_payload else member


def _rich(tagged: Any, depth: int, terminal: Terminal, codec: Codec) -> str | None:
    """The description of a rich value; None for any other value, and if the tag is unknown or the data broken."""
    if not isinstance(tagged, dict) or TAG_KEY not in tagged:
        return None
    try:
        value = codec.decode(tagged)
    except (ValueError, ImportError):
        return None
    if value is tagged or isinstance(value, dict):
        return None
    body = _body_of(value, terminal, terminal.width - 2 * (depth + 1))
    indent = "\n" + "  " * (depth + 1)
    return terminal.paint("rich", visible(title_of(value, tagged))) + "".join(indent + line for line in body)


def kind_of(value: Any) -> str:
    """What a decoded result is: "bytes", "ndarray", "image", "table", or "" for any other value."""
    if isinstance(value, bytes | bytearray):
        return "bytes"
    package = type(value).__module__.partition(".")[0]
    if package == "numpy":
        return "ndarray"
    if package in ("pyarrow", "pandas", "polars"):
        return "table"
    return "image" if hasattr(value, "getbands") else ""


def title_of(value: Any, tagged: dict[str, Any]) -> str:
    """The description of a rich value in a few words: `ndarray float32 (3, 4)`; text from the server is not escaped."""
    kind = kind_of(value)
    if kind == "bytes":
        return f"bytes ({len(value):,})"
    if kind == "ndarray":
        return f"ndarray {value.dtype} {value.shape}"
    if kind == "image":
        return f"image {str(tagged.get('format', '')).upper()} {value.width} x {value.height} {value.mode}"
    if hasattr(value, "shape"):  # a table, a sparse array
        return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__} {tuple(value.shape)}"
    return str(value)


def _body_of(value: Any, terminal: Terminal, width: int) -> list[str]:
    """The lines below the title of a rich value."""
    kind = kind_of(value)
    if kind == "bytes":
        preview = repr(bytes(value[:24])) + ("..." if len(value) > 24 else "")
        return [terminal.paint("dim", preview)] if value else []
    if kind == "ndarray":
        return _array_lines(value, width)
    if kind == "image":
        return _half_blocks(value, min(width, _MAX_PICTURE_COLUMNS)) if terminal.colour else []
    return visible(str(value), keep="\n").splitlines()[:_MAX_LINES] if hasattr(value, "shape") else []


def _array_lines(array: Any, width: int) -> list[str]:
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


# -- pictures


def _half_blocks(image: Image, columns: int) -> list[str]:
    """Draw an image as lines of half blocks in 24-bit colour, two pixels to a character; small ones are not enlarged.

    A character cell is taken as twice as high as wide. Where the image is transparent the terminal shows through.
    """
    import numpy as np

    if not image.width or not image.height or columns < 1:
        return []
    scale = min(1.0, columns / image.width, 2 * _MAX_PICTURE_LINES / image.height)
    width, height = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    pixels = np.asarray(_eight_bit(image).convert("RGBA").resize((width, height)))
    pixels = np.pad(pixels, ((0, height % 2), (0, 0), (0, 0)))  # a last row that is transparent
    return [_picture_line(pixels[top].tolist(), pixels[top + 1].tolist()) for top in range(0, height, 2)]


def _eight_bit(image: Image) -> Image:
    """The image with eight bits a channel; a larger range of values is mapped to black to white."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    import numpy as np
    import PIL.Image

    # No more pixels than are needed: the result of a server may be large.
    numbers = np.asarray(image)[:: image.height // 256 + 1, :: image.width // 256 + 1].astype("f8")
    numbers = np.nan_to_num(numbers)
    return PIL.Image.fromarray(np.interp(numbers, (numbers.min(), numbers.max()), (0, 255)).astype("u1"))


def _picture_line(upper: list[list[int]], lower: list[list[int]]) -> str:
    parts, before = [], ""
    for top, bottom in zip(upper, lower, strict=True):
        block, front, back = ("\u2580", top, bottom) if top[3] >= 128 else ("\u2584", bottom, top)
        if front[3] < 128:
            code, block = "\x1b[0m", " "
        else:
            behind = f"48;2;{back[0]};{back[1]};{back[2]}" if back[3] >= 128 else "49"
            code = f"\x1b[38;2;{front[0]};{front[1]};{front[2]};{behind}m"
        parts.append(block if code == before else code + block)
        before = code
    return "".join(parts) + "\x1b[0m"
