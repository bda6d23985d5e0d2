"""Standard error during a call: a line that shows the progress, or the messages on the wire (-v).

Several threads may use its classes.
"""

from __future__ import annotations

import json
import re
from _thread import allocate_lock
from time import perf_counter
from typing import Any, TextIO

from ..text import visible
from ..wire.envelope import read_progress
from .show import Terminal

#: Characters of a full bar.
_BAR_WIDTH = 30

_JSON_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
#: With -v: longer strings inside a message are cut to this many characters.
_MAX_STRING = 60
#: With -v: messages that are still longer after that, such as a list of a million numbers, are cut to this many.
_MAX_MESSAGE = 4000


class StatusLine:
    """A line of text on a terminal that each new text replaces.

    As a context manager (`with line:`) it clears the line, and shows no text until other output is written.

    Args:
        stream: standard error.
        width: columns of the terminal.
        is_rewritten: the stream is a terminal. Elsewhere each text gets a line of its own.
    """

    def __init__(self, stream: TextIO, width: int = 80, *, is_rewritten: bool = True) -> None:
        self._stream = stream
        self._room = width - 1  # after a letter in the last column, a terminal begins a new line
        self._is_rewritten = is_rewritten
        self._lock = allocate_lock()
        self._shown = ""
        self._percent: int | None = None

    def show(self, text: str) -> None:
        """Replace the text of the line."""
        with self._lock:
            if text == self._shown:
                return
            self._shown = text
            self._write(f"\r{_fitted(text, self._room)}" if self._is_rewritten else f"{text}\n")

    def show_progress(self, value: Any) -> None:
        """Show the progress that a handler reports, as a bar if it has numbers; in a pipe each whole percent once."""
        done, total, message = read_progress(value)
        if done is not None and done is value and done <= 1:  # a share
            total = 1
        if done is None or done < 0 or total is None or total <= 0:
            self.show(visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
            return
        share = done / total if done < total else 1.0
        before, self._percent = self._percent, int(100 * share)
        if self._is_rewritten or self._percent != before:
            numbers = "" if done is value else f" {_number(done)} of {_number(total)}"
            self.show(visible(f"{_bar(share)}{numbers}{f' {message}' if message else ''}"))

    def show_upload(self, sent: int, total: int) -> None:
        """Show a bar while a large message is sent, and remove it after that."""
        if sent < total:
            self.show(f"sending {_bar(sent / total)} of {total / 2**20:.1f} MiB")
        else:
            self.clear()

    def clear(self) -> None:
        """Remove the text, so that the next output begins on an empty line."""
        with self:
            pass

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._shown and self._is_rewritten:
            self._write("\r" + " " * self._room + "\r")
        self._shown = ""

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class MessageLog:
    """Shows messages with -v, and at the end of the `with` block how long it took, unless Ctrl-C ended it.

    Args:
        stream: standard error.
        terminal: with or without colours.
    """

    def __init__(self, stream: TextIO, terminal: Terminal) -> None:
        self._stream = stream
        self._terminal = terminal
        self._began = perf_counter()

    def show(self, direction: str, message: bytes) -> None:
        """Show a message; for the `Trace` of a client."""
        self._write(">" if direction == "send" else "<", _shortened_message(message))

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self._write("*", f"done in {1000 * (perf_counter() - self._began):.2f} ms, connecting included")

    def _write(self, mark: str, text: str) -> None:
        self._stream.write(f"{self._terminal.paint('dim', mark)} {text}\n")
        self._stream.flush()


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _bar(share: float) -> str:
    filled = int(share * _BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%}"


def _fitted(text: str, columns: int) -> str:
    """The text, cut or with blanks behind it, for these columns. A letter that is not ASCII may take two."""
    shown = ""
    for letter in text:
        columns -= 1 if letter.isascii() else 2
        if columns < 0:
            return shown
        shown += letter
    return shown + " " * columns


def _shortened_message(message: bytes | bytearray | memoryview) -> str:
    """A message as one line of text: long strings (base64) cut, with their length; control characters escaped.

    Behind the JSON of a binary frame stand the sizes of its payloads.
    """
    text = bytes(message).decode(errors="replace").strip("\r\n")
    text = visible(_JSON_STRING.sub(_shorten, text))
    if len(text) > _MAX_MESSAGE:
        text = f"{text[:_MAX_MESSAGE]}... ({len(message):,} bytes in all)"
    return text


def _shorten(found: re.Match[str]) -> str:
    inside = found[1]
    return found[0] if len(inside) <= _MAX_STRING else f'"{inside[:_MAX_STRING]}..." ({len(inside):,} characters)'
