"""Shows the methods of a server (--list, --describe), and writes types for clients (--stubs), from its document."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from itertools import zip_longest
from typing import Any

import orjson

from ..nearest import did_you_mean, nearest
from ..openrpc.document import read_document
from ..openrpc.types import Api, DocumentError, Method, definition_text, signature_text
from ..text import visible
from .options import UsageError
from .reading import ValueReader
from .show import ERROR_REPLY, OK, Terminal, print_error, show, terminal_of, write_bytes

#: The width of a terminal that cuts no line.
_WHOLE_LINES = 10_000

#: Characters of a text about a parameter that are shown.
_MAX_TEXT = 500


def show_description(options: argparse.Namespace, document: Any) -> int:
    """Write the methods (--list) or one of them (--describe) from an OpenRPC document; returns the exit status."""
    is_for_people = options.output is None and options.format in ("auto", "text")
    try:
        api = read_document(document, None if options.list else options.method)
    except DocumentError as error:
        print_error(str(error))
        return ERROR_REPLY
    if options.list and options.format == "raw" and options.output is None:
        sys.stdout.write("".join(f"{visible(method.name)}\n" for method in api.methods))
    elif options.list and is_for_people:
        print(_list_text(api, terminal_of(sys.stdout, _WHOLE_LINES)))
    elif options.list:
        return show(options, [method.described for method in api.methods])
    elif not api.methods:
        near = did_you_mean(nearest(options.method, [method.name for method in read_document(document).methods]))
        print_error(f"the server has no method {options.method!r}{near}; --list shows its methods")
        return ERROR_REPLY
    elif is_for_people and (options.format == "text" or sys.stdout.isatty()):
        print(_method_text(api.methods[0], api, terminal_of(sys.stdout)))
    else:
        return show(options, api.methods[0].described)
    return OK


def _list_text(api: Api, terminal: Terminal) -> str:
    """One line for each method: its signature, and its summary where there is room."""
    lines = []
    for method in api.methods:
        name, signature = _signature(method, api)
        room = terminal.width - len(name) - len(signature) - 4
        summary = visible(method.summary)
        words = textwrap.shorten(summary, room, placeholder="...") if room > 10 else ""
        comment = "  " + terminal.paint("dim", "# " + words) if words else ""
        lines.append(terminal.paint("bold", name) + signature + comment)
    return "\n".join(lines)


def _method_text(method: Method, api: Api, terminal: Terminal) -> str:
    """The signature and the documentation of the only method that was read, and the named types in it."""
    name, signature = _signature(method, api)
    text = terminal.paint("bold", name) + signature
    if method.description:
        text += "\n\n" + textwrap.indent(visible(method.description, keep="\n"), "    ")
    if method.deprecated is not None:
        text += "\n\n    deprecated" + (f": {_line(method.deprecated)}" if method.deprecated else "")
    details = [(each.name, [each.bounds, _line(each.description)]) for each in method.parameters or ()]
    details.append(("returns", [_line(method.result_description)]))
    shown = [f"    {visible(name)}: {visible('; '.join(filter(None, said)))}" for name, said in details if any(said)]
    if shown:
        text += "\n\n" + "\n".join(shown)
    types = sorted((each.hint, definition_text(each.node, api.named)) for each in api.named.values())
    if types:
        text += "\n\nwhere\n" + "\n".join(visible(f"    {name} = {definition}") for name, definition in types)
    return text


def _signature(method: Method, api: Api) -> tuple[str, str]:
    """The name of a method, and the rest of its signature."""
    name = visible(method.name)
    return name, visible(signature_text(method, api.named)).removeprefix(name)


def _line(text: str) -> str:
    return " ".join(text[:_MAX_TEXT].split())


# -- types for clients


def read_document_file(path: str) -> Any:
    """The OpenRPC document in a file (`-`: standard input); it may be the result in a whole reply.

    Raises:
        UsageError: the file cannot be read, or is no JSON.
    """
    try:
        document = orjson.loads(ValueReader().read(path))
    except ValueError as error:
        raise UsageError(f"{path!r} is not JSON: {error}") from error
    if isinstance(document, dict) and "methods" not in document and isinstance(document.get("result"), dict):
        return document["result"]
    return document


def write_stubs(options: argparse.Namespace, document: Any) -> int:
    """Write the types, or compare them with those in a file (`--check`); returns the exit status.

    Raises:
        UsageError: a file cannot be read or written.
    """
    from ..stubs import stubs

    try:
        text = stubs(document, options.stubs)
    except (DocumentError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        print_error(f"no types can be written for this document: {reason}")
        return ERROR_REPLY
    if options.check is not None:
        return _check(options, text)
    data, path = text.encode(), options.output
    if path in (None, "-"):
        write_bytes(data)
        return OK
    if os.path.isfile(path) and ValueReader().read(path) == data:
        return OK  # programs that watch the time of the file stay quiet
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {path!r}: {error.strerror or error}") from error
    return OK


def _check(options: argparse.Namespace, text: str) -> int:
    """Compare the types with those in a file, whatever its line ends are."""
    found = ValueReader().read(options.check).decode(errors="backslashreplace").replace("\r\n", "\n")
    if found == text:
        return OK
    lines = zip_longest(found.split("\n"), text.split("\n"))
    first = next(number for number, (old, new) in enumerate(lines, 1) if old != new)
    whose = f"in {options.method!r}" if options.method else "that the server offers now"
    print_error(f"{options.check!r} does not have the types {whose} (from line {first} on)")
    return ERROR_REPLY
