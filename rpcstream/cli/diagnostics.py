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
        self._width = width
        self.is_rewritten = is_rewritten
        self._lock = allocate_lock()
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the text of the line."""
        with self._lock:
            if text == self._shown:
                return
            if self.is_rewritten:
                text = _cut(text, self._width - 1)
                # Blanks overwrite a longer text; not in the last column, after which a terminal begins a new line.
                blanks = " " * min(_columns(self._shown) - _columns(text), self._width - 1 - _columns(text))
                self._stream.write("\r" + text + blanks)
            else:
                self._stream.write(text + "\n")
            self._stream.flush()
            self._shown = text

    def clear(self) -> None:
        """Remove the text, so that the next output begins on an empty line."""
        with self:
            pass

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._shown and self.is_rewritten:
            self._stream.write("\r" + " " * _columns(self._shown) + "\r")
            self._stream.flush()
        self._shown = ""

    def __exit__(self, *_: object) -> None:
        self._lock.release()


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
        share = min(sent / total, 1.0) if total else 1.0
        if share < 1.0:
            self._line.show(f"sending {_bar(share)} of {total / 2**20:.1f} MiB")
        else:
            self._line.clear()


class HandlerProgress:
    """For `on_progress=`: shows the progress that the handler reports; in a pipe each whole percent once."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        self._percent: int | None = None

    def __call__(self, value: Any) -> None:
        done, total = _done_and_total(value)
        if total and not self._line.is_rewritten:
            before, self._percent = self._percent, int(100 * _share(done, total))
            if self._percent == before:
                return
        self._line.show(progress_text(value))


def progress_text(value: Any) -> str:
    """The text for a progress value: a bar for a number from 0 to 1, `{"done": 2, "total": 5}` or `[2, 5]`.

    Further strings of the object stand behind the bar. Any other value is shown as JSON on one line.
    """
    done, total = _done_and_total(value)
    if not total:
        return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if _is_number(value):
        return _bar(value)
    texts = [text for text in value.values() if isinstance(text, str)] if isinstance(value, dict) else []
    return visible(" ".join((_bar(_share(done, total)), f"{_number(done)} of {_number(total)}", *texts)))


def _done_and_total(value: Any) -> tuple[float, float]:
    """How much of how much a progress value says is done; a total of 0 where it says something else."""
    done: Any = None
    total: Any = None
    if isinstance(value, dict):
        done, total = value.get("done"), value.get("total")
    elif isinstance(value, list) and len(value) == 2:
        done, total = value
    elif _is_number(value) and value <= 1:
        done, total = value, 1
    return (done, total) if _is_number(done) and _is_number(total) and done >= 0 and total > 0 else (0, 0)


def _share(done: float, total: float) -> float:
    return done / total if done < total else 1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _bar(share: float) -> str:
    filled = int(share * _BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%}"


def _columns(text: str) -> int:
    """The columns that a text takes at most: a letter that is not ASCII may be a wide one."""
    return len(text) if text.isascii() else sum(1 if letter.isascii() else 2 for letter in text)


def _cut(text: str, columns: int) -> str:
    while _columns(text) > columns:
        text = text[: len(text) - max((_columns(text) - columns) // 2, 1)]
    return text


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
