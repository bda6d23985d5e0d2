"""Write results, descriptions and errors to standard output and standard error, as the options say.

Chooses the form of a result by `--format`, `-o`, and whether the output is a terminal.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, TextIO

from ..codec import TAG_KEY, Codec
from ..text import visible
from .output import Terminal, format_for_terminal, format_json

OK, ERROR_REPLY, USAGE, NO_CONNECTION, TIME_OUT = 0, 1, 2, 3, 4
INTERRUPTED, BROKEN_PIPE = 130, 141  # as the shell reports a death by SIGINT and SIGPIPE

#: The width of a terminal that cuts no line.
_WHOLE_LINES = 10_000


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


def show(options: argparse.Namespace, value: Any) -> int:
    """Write a result as the options say; returns the exit status."""
    codec = Codec()
    if options.output is not None and not (options.output == "-" and sys.stdout.isatty()):
        return _save(options, value, codec)
    if options.format == "raw" and _show_raw(value, codec):
        return OK
    is_terminal = sys.stdout.isatty()
    if options.format == "text" or (is_terminal and options.format != "json"):
        print(format_for_terminal(value, terminal_of(sys.stdout), codec))
        sys.stdout.flush()
    elif is_terminal:
        _print(format_json(value, codec))
    else:
        _write(format_json(value, codec))
        return _check_redirection(value)
    return OK


def _save(options: argparse.Namespace, value: Any, codec: Codec) -> int:
    from .save import save

    try:
        complaint = save(options.output, value, codec, raw=options.format == "raw")
    except BrokenPipeError:
        raise
    except OSError as error:
        print_error(f"cannot write {options.output!r}: {error.strerror or error}; here is the result")
        options.output = None
        show(options, value)
        return USAGE
    if complaint is not None:
        print_error(complaint)
    return OK if complaint is None else USAGE


def _show_raw(value: Any, codec: Codec) -> bool:
    """Write a result as plain bytes; False if that is not for a terminal, where its description is to be shown."""
    from .save import raw_form

    data, is_text = raw_form(value, codec)
    if not sys.stdout.isatty():
        _write(data)
    elif is_text:
        _print(data)
    else:
        print_error("the result is binary data; here is its description (-o FILE saves it)")
        return False
    return True


def _check_redirection(value: Any) -> int:
    """Complain where an array or an image went as JSON into a file whose name says something else (`> t.png`)."""
    if not isinstance(value, dict) or TAG_KEY not in value:
        return OK
    from .save import complaint_of_redirection

    complaint = complaint_of_redirection(value, sys.stdout.fileno())
    if complaint is None:
        return OK
    print_error(complaint)
    return USAGE


def _write(data: bytes) -> None:
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
