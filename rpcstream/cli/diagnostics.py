"""Standard error during a call: a line that shows the progress, or with -v the messages on the wire.

Its classes may be used from several threads.
"""

from __future__ import annotations

import json
import re
from _thread import allocate_lock
from time import perf_counter
from typing import Any, TextIO

from ..text import visible
from ..wire.envelope import read_progress
from .output import Terminal

#: Characters of a full bar.
_BAR_WIDTH = 30

_JSON_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
#: With -v: longer strings inside a message are cut to this many characters.
_MAX_STRING = 60
#: With -v: messages that are still longer after that, such as a list of a million numbers, are cut to this many.
_MAX_MESSAGE = 4000

#: The answer to `rpc.hello`, which the client sends by itself ahead of a call.
_ANSWER_TO_HELLO = re.compile(rb'\{"jsonrpc":"2\.0","id":\d{1,20},"result":\{"binary":[01]\b.{0,600}\}')


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
        self.is_rewritten = is_rewritten
        self._lock = allocate_lock()
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the text of the line."""
        with self._lock:
            if text == self._shown:
                return
            self._shown = text
            self._write(f"\r{_fitted(text, self._room)}" if self.is_rewritten else f"{text}\n")

    def clear(self) -> None:
        """Remove the text, so that the next output begins on an empty line."""
        with self:
            pass

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._shown and self.is_rewritten:
            self._write("\r" + " " * self._room + "\r")
        self._shown = ""

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Timeline:
    """Shows messages with -v, and at the end of the `with` block the times of the call, unless Ctrl-C ended it.

    Its methods are for the `Trace` of a client.

    Args:
        stream: standard error.
        terminal: with or without colours.
    """

    def __init__(self, stream: TextIO, terminal: Terminal) -> None:
        self._stream = stream
        self._terminal = terminal
        self.begin()

    def begin(self) -> None:
        """Begin again, with the next call."""
        self._began = perf_counter()
        self._connected = self._sent = self._answered = 0.0

    def trace(self, direction: str, message: bytes) -> None:
        """Show a message. The first one that is sent shows that there is a connection; the last one is the call."""
        if direction == "send":
            self._sent, self._answered = perf_counter(), 0.0
            self._connected = self._connected or self._sent
        elif _ANSWER_TO_HELLO.fullmatch(message):
            self._answered = 0.0
        else:
            self._answered = self._answered or perf_counter()
        mark = self._terminal.paint("dim", ">" if direction == "send" else "<")
        self._stream.write(f"{mark} {shortened_message(message)}\n")
        self._stream.flush()

    def on_send(self, sent: int, total: int) -> None:
        """Note when a long message was sent."""
        if sent >= total:
            self._sent = perf_counter()

    def on_receive(self, _size: int) -> None:
        """Note when the answer begins: the first bytes after the call was sent."""
        if self._sent and not self._answered:
            self._answered = perf_counter()

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            return
        steps = {"connect": self._connected, "sent": self._sent, "first byte": self._answered, "done": perf_counter()}
        texts = [f"{name} {1000 * (at - self._began):.2f} ms" for name, at in steps.items() if at]
        self._stream.write(f"{self._terminal.paint('dim', '*')} {', '.join(texts)}\n")
        self._stream.flush()


class UploadBar:
    """For `Trace(on_send=...)`: shows a bar while a large message is sent, and removes it after that."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line

    def __call__(self, sent: int, total: int) -> None:
        if sent < total:
            self._line.show(f"sending {_bar(sent / total)} of {total / 2**20:.1f} MiB")
        else:
            self._line.clear()


class HandlerProgress:
    """For `on_progress=`: shows the progress that the handler reports; in a pipe each whole percent once."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        self._percent: int | None = None

    def __call__(self, value: Any) -> None:
        done, total, message = read_progress(value)
        if done is not None and done is value and done <= 1:  # a share
            total = 1
        if done is None or done < 0 or total is None or total <= 0:
            self._line.show(visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
            return
        share = done / total if done < total else 1.0
        before, self._percent = self._percent, int(100 * share)
        if self._line.is_rewritten or self._percent != before:
            numbers = "" if done is value else f" {_number(done)} of {_number(total)}"
            self._line.show(visible(f"{_bar(share)}{numbers}{f' {message}' if message else ''}"))


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


def shortened_message(message: bytes | bytearray | memoryview) -> str:
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
