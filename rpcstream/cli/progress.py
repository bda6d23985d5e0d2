"""One line of standard error that is written over and over: how far an upload is, and how far the handler says it is.

Owns that line, and what a value that a handler reports looks like in it. May be used from several threads.
"""

from __future__ import annotations

import json
from _thread import allocate_lock
from typing import Any, TextIO

from ..text import visible

_BAR = 30


class StatusLine:
    """The line. As a context (`with line:`) it is out of the way, for what else is to be written on the terminal.

    Args:
        width: columns of the terminal.
        is_rewritten: it is a terminal. Elsewhere each text gets a line of its own.
    """

    def __init__(self, stream: TextIO, width: int = 80, *, is_rewritten: bool = True) -> None:
        self._stream = stream
        self._width = width
        self._is_rewritten = is_rewritten
        self._lock = allocate_lock()
        self._shown = ""

    def show(self, text: str) -> None:
        """Put this text in place of what is there."""
        with self._lock:
            if text == self._shown:
                return
            if self._is_rewritten:
                text = _cut(text, self._width - 1)
                # Blanks behind it for what was longer; not up to the last column, where a terminal would go on below.
                blanks = " " * min(_columns(self._shown) - _columns(text), self._width - 1 - _columns(text))
                self._stream.write("\r" + text + blanks)
            else:
                self._stream.write(text + "\n")
            self._stream.flush()
            self._shown = text

    def clear(self) -> None:
        """Take the text away, so that what comes next stands on a clean line."""
        with self:
            pass

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._shown and self._is_rewritten:
            self._stream.write("\r" + " " * _columns(self._shown) + "\r")
            self._stream.flush()
        self._shown = ""

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Sending:
    """For `Client(on_send=...)`: a bar that grows while a large message goes out, and vanishes after it."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line

    def __call__(self, sent: int, total: int) -> None:
        share = min(sent / total, 1.0) if total else 1.0
        if share < 1.0:
            self._line.show(f"sending {_bar(share)} of {total / 2**20:.1f} MiB")
        else:
            self._line.clear()


class Progress:
    """For `on_progress=`: what the handler says."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line

    def __call__(self, value: Any) -> None:
        self._line.show(progress_text(value))


def progress_text(value: Any) -> str:
    """A bar for a share from 0 to 1, `{"done": 2, "total": 5}` or `[2, 5]`; anything else as it is, on one line.

    Further texts in the object stand behind the bar.
    """
    if _is_number(value) and 0 <= value <= 1:
        return _bar(value)
    done: Any = None
    total: Any = None
    words: list[str] = []
    if isinstance(value, dict):
        done, total = value.get("done"), value.get("total")
        words = [word for word in value.values() if isinstance(word, str)]
    elif isinstance(value, list) and len(value) == 2:
        done, total = value
    if _is_number(done) and _is_number(total) and done >= 0 and total > 0:
        share = done / total if done < total else 1.0
        return visible(" ".join((_bar(share), f"{_number(done)} of {_number(total)}", *words)))
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _bar(share: float) -> str:
    filled = int(share * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {share:4.0%}"


def _columns(text: str) -> int:
    """The most columns that the text can take: a letter that is not ASCII may be a wide one."""
    return len(text) if text.isascii() else sum(1 if letter.isascii() else 2 for letter in text)


def _cut(text: str, columns: int) -> str:
    while _columns(text) > columns:
        text = text[: len(text) - max((_columns(text) - columns) // 2, 1)]
    return text
