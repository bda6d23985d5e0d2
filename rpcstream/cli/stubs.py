"""`rpcstream --stubs LANGUAGE [FILE]`: types of the methods of a server, or of a document in a file; and `--check`."""

from __future__ import annotations

import argparse
import difflib
import os
from itertools import islice, zip_longest
from typing import Any

import orjson

from ..stubs import DocumentError, stubs
from ..text import visible
from .items import UsageError
from .show import ERROR_REPLY, OK, print_error, write_bytes
from .values import ValueReader

#: Lines of a difference that are shown; and lines that are compared, since the time for that grows with their square.
_SHOWN_LINES, _COMPARED_LINES = 200, 5_000


def read_document(path: str) -> Any:
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
    try:
        text = stubs(document, options.stubs)
    except (DocumentError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        print_error(f"no types can be written for this document: {reason}")
        return ERROR_REPLY
    if options.check is not None:
        return _check(options, text)
    data = text.encode()
    if options.output in (None, "-"):
        write_bytes(data)
        return OK
    try:
        if (
            not os.path.isfile(options.output) or ValueReader().read(options.output) != data
        ):  # what looks at its time stays quiet
            with open(options.output, "wb") as file:
                file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {options.output!r}: {error.strerror or error}") from error
    return OK


def _check(options: argparse.Namespace, text: str) -> int:
    """Compare the types with those in a file, whatever its line ends are; shows the difference."""
    found = ValueReader().read(options.check).decode(errors="backslashreplace").replace("\r\n", "\n")
    if found == text:
        return OK
    old, new = found.split("\n"), text.split("\n")
    first = next(at for at, (one, other) in enumerate(zip_longest(old, new), 1) if one != other)
    if max(len(old), len(new)) <= _COMPARED_LINES:
        difference = difflib.unified_diff(old, new, options.check, f"--stubs {options.stubs}", lineterm="")
        shown = [visible(line, keep="\t") for line in islice(difference, _SHOWN_LINES)]
        print("\n".join([*shown, *(["..."] if len(shown) == _SHOWN_LINES else [])]))
    whose = f"in {options.method!r}" if options.method else "that the server offers now"
    print_error(f"{options.check!r} does not have the types {whose} (from line {first} on)")
    return ERROR_REPLY
