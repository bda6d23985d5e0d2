"""`--stream`: the items of a method on standard output, or in files, as they come.

Owns where each item goes. What an item looks like is the same as for a result; the stream is the client's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .progress import StatusLine
from .save import check_writable, is_regular

if TYPE_CHECKING:
    from ..client.loop_bridge import ClientStream

#: Writes a value where the options say; returns the exit status.
Show = Callable[[argparse.Namespace, Any], int]


def numbered(path: str, number: int) -> str:
    """The file for an item: `out-0001.png` for `out.png`; standard output and devices take all items."""
    if path == "-" or not is_regular(path):
        return path
    root, ending = os.path.splitext(path)
    return f"{root}-{number:04d}{ending}"


def check_output(options: argparse.Namespace) -> None:
    """Find out before the call whether its first item could be saved. UsageError if not."""
    if options.output is not None:
        check_writable(numbered(options.output, 1))


def show_items(stream: ClientStream, options: argparse.Namespace, show: Show, line: StatusLine | None) -> int:
    """Write each item as soon as it is there; returns the worst exit status.

    The method's return value is not written, unless there was no item: then it may be no stream at all.
    """
    path, status, number = options.output, 0, 0
    with stream:
        for number, item in enumerate(stream, 1):
            if path is not None:
                options.output = numbered(path, number)
            with line or nullcontext():
                status = max(status, show(options, item))
    options.output = path
    if not number and stream.result is not None:
        with line or nullcontext():
            return show(options, stream.result)
    return status
