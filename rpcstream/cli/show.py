"""Shows results and errors: readable on a terminal, JSON on one line in a pipe, or in a file, as the options say.

A result comes as plain JSON data in which rich values are still the tagged objects of the wire page, so a pipe gets
exactly the data that the server sent, and numpy is imported only to show an array.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from ..codec import TAG_KEY, Codec
from ..codec.attachments import CutLine
from ..codec.payloads import with_strings
from ..errors import CallTimeout, DeadlineExceeded, RpcError, readable
from ..text import visible
from .options import UsageError

OK, ERROR_REPLY, USAGE, NO_CONNECTION, TIME_OUT = 0, 1, 2, 3, 4
INTERRUPTED, BROKEN_PIPE = 130, 141  # as the shell reports a death by SIGINT and SIGPIPE

_STYLES = {"key": 34, "str": 32, "number": 36, "word": 35, "rich": 33, "dim": 2, "error": 31, "bold": 1}
#: A list of plain values is shown on one line if it takes at most this many columns.
_MAX_COLUMNS = 120
#: Lines that a library writes for a table.
_MAX_LINES = 40
#: Characters of a string in a tagged object that cannot be decoded; longer ones are cut.
_MAX_PAYLOAD = 60
#: Names of members that an error lists.
_SHOWN_NAMES = 20


class TaggedCodec(Codec):
    """Decodes no rich values: results keep their tagged objects, as the server would send them in text."""

    def holds_tags(self, line: bytes | bytearray) -> bool:
        """True for a message whose payloads stand beside its JSON."""
        return isinstance(line, CutLine)

    def decode(self, value: object, *_: object) -> object:
        """The value with its payloads as base64."""
        return with_strings(value)


class Terminal:
    """The width of a terminal in columns, and whether it shows colours."""

    __slots__ = ("colour", "width")

    def __init__(self, width: int = 80, colour: bool = False) -> None:
        self.width = width
        self.colour = colour

    def paint(self, style: str, text: str) -> str:
        """The text with the escape sequences of a style; unchanged on a terminal without colours."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text


_PLAIN = Terminal()


def terminal_of(stream: TextIO, width: int = 80) -> Terminal:
    """The terminal that a stream is connected to; one without colours, of the given width, where there is none."""
    if not stream.isatty():
        return Terminal(width)
    try:
        width = os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        width = 80
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return Terminal(width, not is_plain and (stream.encoding or "").lower().startswith("utf"))


# -- errors


def status_of(error: Exception) -> int:
    """The exit status for what a call raised."""
    if isinstance(error, CallTimeout | DeadlineExceeded):
        return TIME_OUT
    return ERROR_REPLY if isinstance(error, RpcError) else NO_CONNECTION


def print_error(text: str) -> None:
    """Write a line of the command's own to standard error."""
    print(f"rpcstream: {visible(text)}", file=sys.stderr)


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


# -- results


def show(options: argparse.Namespace, value: Any, number: int | None = None) -> int:
    """Write a result as the options say; returns the exit status.

    Args:
        options: of the command line.
        value: the result.
        number: of an item of a stream; each has a file of its own.

    Raises:
        UsageError: --select names a member that the result does not have.
    """
    return write_result(options, selected(value, options.select), number)


def selected(value: Any, path: str | None) -> Any:
    """The member of a result that a dotted path names, such as `boxes.0.label`; all of it where there is no path.

    Raises:
        UsageError: there is no such member.
    """
    for name in path.split(".") if path is not None else ():
        if isinstance(value, dict):
            names = [key for key in value if key != TAG_KEY]
        else:
            names = [str(at) for at in range(len(value))] if isinstance(value, list) else []
        if name not in names:
            known = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
            raise UsageError(f"--select {path}: the result has no {name!r}; it has {known or 'no members'}")
        value = value[name] if isinstance(value, dict) else value[int(name)]
    return value


def write_result(options: argparse.Namespace, value: Any, number: int | None = None) -> int:
    """As `show`, for a value of which nothing is selected."""
    codec = Codec()
    if options.output is not None and not (options.output == "-" and sys.stdout.isatty()):
        return _save(options, value, number, codec)
    return _show(options, value, codec)


def _show(options: argparse.Namespace, value: Any, codec: Codec) -> int:
    if options.format == "raw" and _show_raw(value, codec):
        return OK
    is_terminal = sys.stdout.isatty()
    if options.format == "text" or (is_terminal and options.format != "json"):
        print(format_for_terminal(value, terminal_of(sys.stdout), codec), flush=True)
    elif is_terminal:
        _print(codec.dumps(value) + b"\n")
    else:
        write_bytes(codec.dumps(value) + b"\n")
    return OK


def _save(options: argparse.Namespace, value: Any, number: int | None, codec: Codec) -> int:
    from .files import content_for, item_path, save

    path, is_raw = item_path(options.output, number), options.format == "raw"
    if path == "-":
        write_bytes(content_for(path, value, codec, raw=is_raw))
        return OK
    try:
        save(path, value, codec, raw=is_raw, number=number)
    except BrokenPipeError:
        raise
    except OSError as error:
        print_error(f"cannot write {path!r}: {error.strerror or error}; here is the result")
        _show(options, value, codec)
    except ValueError as error:
        advice = _advice_about_members(options, path, value, codec)
        print_error(f"cannot write {path!r}: {error}{advice}; here is the result")
        if options.format == "auto" and not sys.stdout.isatty():
            print(format_for_terminal(value, _PLAIN, codec, is_one_line=True), flush=True)
        else:
            _show(options, value, codec)
    else:
        return OK
    return USAGE


def _advice_about_members(options: argparse.Namespace, path: str, value: Any, codec: Codec) -> str:
    """Which options save members of a result that a file cannot contain; "" if no member fits."""
    from .files import fitting_member

    if not isinstance(value, list | dict) or TAG_KEY in value:
        return ""
    found = fitting_member(path, value, codec)
    if found is None:
        return ""
    name, noun = found
    select = name if options.select is None else f"{options.select}.{name}"
    is_one = not options.stream and options.subscribe is None  # a folder gets one file for each item of a stream
    return f"; --select {select} writes the {noun}{', -o DIR/ writes all members' if is_one else ''}"


def _show_raw(value: Any, codec: Codec) -> bool:
    """Write a result as plain bytes; False if that is not for a terminal, where its description is to be shown."""
    from .files import file_of

    data, ending = file_of(value, codec)
    if not sys.stdout.isatty():
        write_bytes(data)
    elif ending in (".txt", ".json"):
        _print(data)
    else:
        print_error("the result is binary data; here is its description (-o FILE saves it)")
        return False
    return True


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output, after the text that was printed."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print(data: bytes) -> None:
    """Write text from the server to a terminal, with control characters escaped (in a pipe they are not)."""
    print(visible(data.decode(errors="backslashreplace"), keep="\n\t"), end="", flush=True)


# -- as text


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
        yield terminal.paint("key", _json(key)) + ": ", _shortened(member) if is_payload else member


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
    from .files import title_of

    title = terminal.paint("rich", visible(title_of(value, tagged)))
    indent = "  " * (depth + 1)
    return "\n".join([title, *(indent + line for line in _body_of(value, terminal, terminal.width - len(indent)))])


def _body_of(value: Any, terminal: Terminal, width: int) -> list[str]:
    """The lines below the title of a rich value."""
    from .files import kind_of

    kind = kind_of(value)
    if kind == "bytes":
        preview = repr(bytes(value[:24])) + ("..." if len(value) > 24 else "")
        return [terminal.paint("dim", preview)] if value else []
    if kind == "ndarray":
        return _array_lines(value, width)
    return visible(str(value), keep="\n").splitlines()[:_MAX_LINES] if hasattr(value, "shape") else []


def _array_lines(array: Any, width: int) -> list[str]:
    """A numpy array, abbreviated, as lines of text; no lines for an empty one."""
    if array.size == 0:
        return []
    import numpy as np

    with np.printoptions(threshold=60, edgeitems=3, linewidth=max(width, 20)):
        return visible(np.array2string(array), keep="\n").split("\n")


def _shortened(text: str) -> str:
    """A long string cut to its beginning, with its length; a short one as it is."""
    return text if len(text) <= _MAX_PAYLOAD else f"{text[:_MAX_PAYLOAD]}... ({len(text):,} characters)"


def _json(value: Any) -> str:
    """JSON on one line, with letters of all scripts as they are and control characters escaped."""
    return visible(json.dumps(value, ensure_ascii=False))
