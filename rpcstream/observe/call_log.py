"""Logs of calls: the access log, one line for each call, and the log of calls that took long.

Owns what a line says and how many lines there may be. Never has params, results or tokens: a record of a call holds
none. Which logging handlers write the lines is up to the program.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from ..text import get_logger, visible
from .calls import EndedCall
from .limited_log import LimitedLog

#: The logger of the access log.
ACCESS_LOGGER = "rpcstream.access"

AccessLogFormat = Literal["text", "json"]

#: Lines of the access log in a second: about a hundredth of a processor's time. Beyond that they are counted.
MAX_LINES = 1000

#: Characters of a value that a peer has chosen.
VALUE_MAX = 200

#: Text that stands in a line without quotes.
_PLAIN = re.compile(r"[\w.:/$@+-]+", re.ASCII)


class AccessLog:
    """Writes a line for each call when it has ended, at INFO, but `MAX_LINES` a second at most.

    The first line of the next second says how many were left out.

    Args:
        format: "text", or "json" for one JSON object a line.
        logger: gets the lines.
        clock: seconds, monotonic.
        now: seconds since 1970.

    Attributes:
        dropped: lines that were left out so far.
    """

    def __init__(
        self,
        format: AccessLogFormat,
        *,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        if format not in ("text", "json"):
            raise ValueError(f"access_log must be 'text', 'json' or None, got {format!r}")
        self._logger = get_logger(ACCESS_LOGGER) if logger is None else logger
        if self._logger.level == logging.NOTSET:  # or the level of the root, usually WARNING, would hide the lines
            self._logger.setLevel(logging.INFO)
        self._write = _json_line if format == "json" else _text_line
        self._say_dropped = _json_dropped if format == "json" else _text_dropped
        self._clock = clock
        self._now = now
        self._ends = 0.0
        self._lines = self._left_out = self.dropped = 0

    def __call__(self, call: EndedCall) -> None:
        """Write the line of a call."""
        if not self._logger.isEnabledFor(logging.INFO):
            return
        clock = self._clock()
        if clock >= self._ends:
            self._ends, self._lines = clock + 1.0, 0
        elif self._lines >= MAX_LINES:
            self._left_out += 1
            self.dropped += 1
            return
        self._lines += 1
        when = _time(self._now())
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._logger.info("%s", self._say_dropped(when, left_out))
        self._logger.info("%s", self._write(when, call))


class SlowCallLog:
    """Writes a warning for a call that took long; of each method a limited number a minute (see `LimitedLog`).

    Args:
        seconds: from which on a call takes long; for the text.
        log: gets the lines.
    """

    def __init__(self, seconds: float, log: LimitedLog) -> None:
        self._seconds = seconds
        self._log = log

    def __call__(self, call: EndedCall) -> None:
        """Write the warning."""
        kind = "slow call: %s took %.3f s from its request to its reply (log_slow_calls: %g s); id %s, code %d, from %s"
        shown = (_value(call.method), call.seconds, self._seconds, _id_text(call.call_id), call.code, call.address)
        self._log.warning(shown[0], kind, *shown)


# -- lines ------------------------------------------------------------------------------------------------------------


def _text_line(when: str, call: EndedCall) -> str:
    return (
        f"{when} {call.address or '-'} {call.transport or '-'} {_value(name_of(call.identity))} {_value(call.method)} "
        f"id={_id_text(call.call_id)} code={call.code} ms={call.seconds * 1000:.3f} "
        f"in={_or_dash(call.request_size)} out={_or_dash(call.reply_size)}"
    )


def _json_line(when: str, call: EndedCall) -> str:
    line = {
        "time": when,
        "address": call.address or None,
        "transport": call.transport or None,
        "identity": _cut(name_of(call.identity)),
        "method": _cut(call.method),
        "id": _id_value(call.call_id),
        "code": call.code,
        "ms": round(call.seconds * 1000, 3),
        "request_bytes": call.request_size,
        "reply_bytes": call.reply_size,
    }
    return orjson.dumps(line).decode()


def _text_dropped(when: str, count: int) -> str:
    return f"{when} - dropped={count}"


def _json_dropped(when: str, count: int) -> str:
    return orjson.dumps({"time": when, "dropped": count}).decode()


def name_of(identity: Any) -> str | None:
    """The name of an identity: itself if it is text, else its `name`, else its type; never what else it holds."""
    if identity is None or isinstance(identity, str):
        return None if identity is None else str(identity)
    name = getattr(identity, "name", None)
    return name if isinstance(name, str) else type(identity).__name__


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _or_dash(size: int | None) -> str:
    return "-" if size is None else str(size)


def _cut(value: Any) -> str | None:
    """Text of a peer as JSON may have it; None for what is no text."""
    if not isinstance(value, str):
        return None
    text = value if len(value) <= VALUE_MAX else value[:VALUE_MAX] + "…"
    return text.encode(errors="replace").decode()


def _value(value: Any) -> str:
    """Text of a peer as one word: in quotes, with escapes, unless it is plain; "-" for what is no text."""
    text = _cut(value)
    if text is None:
        return "-"
    return text if _PLAIN.fullmatch(text) and text != "-" else visible(orjson.dumps(text).decode())


def _id_value(call_id: Any) -> int | str | None:
    if call_id is None or (type(call_id) is int and abs(call_id) < 2**63):
        return call_id
    return _cut(call_id) if type(call_id) is str else _cut(_written(call_id))


def _id_text(call_id: Any) -> str:
    if call_id is None:
        return "-"
    return visible(orjson.dumps(_cut(call_id)).decode()) if type(call_id) is str else visible(str(_id_value(call_id)))


def _written(call_id: Any) -> str:
    """An id that is a float, or an integer of any length, as the caller wrote it; of anything else the type."""
    try:
        return orjson.dumps(call_id).decode() if type(call_id) is not int else str(call_id)
    except (TypeError, ValueError):
        return f"({type(call_id).__name__})"
