"""Write results, descriptions and errors to standard output and standard error, as the options say.

Chooses the form of a result by `--format`, `-o`, and whether the output is a terminal.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, TextIO

from ..codec import TAG_KEY, Codec
from ..errors import CallTimeout, DeadlineExceeded, RpcError
from ..text import visible
from .items import UsageError
from .output import Terminal, format_for_terminal, format_json

OK, ERROR_REPLY, USAGE, NO_CONNECTION, TIME_OUT = 0, 1, 2, 3, 4
INTERRUPTED, BROKEN_PIPE = 130, 141  # as the shell reports a death by SIGINT and SIGPIPE

#: Names of members that an error lists.
_SHOWN_NAMES = 20

#: The width of a terminal that cuts no line.
_WHOLE_LINES = 10_000


def status_of(error: Exception) -> int:
    """The exit status for what a call raised."""
    if isinstance(error, CallTimeout | DeadlineExceeded):
        return TIME_OUT
    return ERROR_REPLY if isinstance(error, RpcError) else NO_CONNECTION


def show_description(options: argparse.Namespace, document: Any) -> int:
    """Write the methods (--list) or one of them (--describe) from an OpenRPC document; returns the exit status."""
    from ..openrpc.document import read_document
    from ..openrpc.types import DocumentError
    from .describe import list_text, method_text

    is_for_people = options.output is None and options.format in ("auto", "text")
    try:
        api = read_document(document, None if options.list else options.method)
    except DocumentError as error:
        print_error(str(error))
        return ERROR_REPLY
    if options.list and options.format == "raw" and options.output is None:
        sys.stdout.write("".join(f"{visible(method.name)}\n" for method in api.methods))
    elif options.list and is_for_people:
        print(list_text(api, terminal_of(sys.stdout, _WHOLE_LINES)))
    elif options.list:
        return show(options, [method.described for method in api.methods])
    elif not api.methods:
        return _no_such_method(options.method, [method.name for method in read_document(document).methods])
    elif is_for_people and (options.format == "text" or sys.stdout.isatty()):
        print(method_text(api.methods[0], api, terminal_of(sys.stdout)))
    else:
        return show(options, api.methods[0].described)
    return OK


def _no_such_method(name: str, names: list[str]) -> int:
    from ..nearest import did_you_mean, nearest

    near = did_you_mean(nearest(name, names))
    print_error(f"the server has no method {name!r}{near}; --list shows its methods")
    return ERROR_REPLY


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
        _print(format_json(value, codec))
    else:
        write_bytes(format_json(value, codec))
    return OK


def _save(options: argparse.Namespace, value: Any, number: int | None, codec: Codec) -> int:
    from .save import content_for, is_folder, item_path, save

    path, saved, is_raw = options.output, value, options.format == "raw"
    if number is not None:
        path = item_path(path, number)
        saved = {f"{number:04d}": value} if is_folder(path) else value
    if path == "-":
        write_bytes(content_for(path, value, codec, raw=is_raw))
        return OK
    try:
        save(path, saved, codec, raw=is_raw)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        print_error(f"cannot write {path!r}: {reason or error}; here is the result")
        _show(options, value, codec)
        return USAGE
    return OK


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


def print_error(text: str) -> None:
    """Write a line of the command's own to standard error."""
    print(f"rpcstream: {visible(text)}", file=sys.stderr)


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
