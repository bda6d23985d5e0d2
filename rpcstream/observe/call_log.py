"""Logs of calls: the access log with one line for each call, and the log of calls that took long.

A line never has params, results or tokens: the record of a call holds none.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import orjson

from ..text import get_logger, visible
from .limited_log import LimitedLog, shortened

log = get_logger("rpcstream.server")

#: The logger of the access log.
ACCESS_LOGGER = "rpcstream.access"

AccessLogFormat = Literal["text", "json"]

#: Lines of the access log in a second: about a hundredth of a processor's time. Beyond that they are counted.
MAX_LINES = 1000

#: Characters of a value that a peer has chosen.
VALUE_MAX = 200

#: Text that stands in a line without quotes.
_PLAIN = re.compile(r"[\w.:/$@+\[\]-]+", re.ASCII)


class EndedCall(NamedTuple):
    """One call, or one member of a batch, that has ended.

    Attributes:
        address: of the caller; "" where its connection is lost.
        identity: who the caller is, as authentication found; None without.
        transport: how it came: "tcp", "tls", "unix", "memory", "http" or "websocket".
        method: as the caller wrote it, of any type and length.
        call_id: as the caller wrote it; None for a notification.
        code: the error code of the reply; 0 for a result.
        seconds: from being read to the reply, or to the end of a notification; None: it was never begun.
        request_size: bytes of the request; None for a member of a batch.
        reply_size: bytes of the reply; None where there is none.
    """

    address: str
    identity: Any
    transport: str
    method: Any
    call_id: Any
    code: int
    seconds: float | None
    request_size: int | None
    reply_size: int | None


#: Gets each call that has ended.
CallLog = Callable[[EndedCall], None]


class AccessLog:
    """Writes a line for each call when it has ended, at INFO, but `MAX_LINES` a second at most.

    Args:
        format: "text", or "json" for one JSON object a line.

    Attributes:
        dropped: lines that were left out so far.
    """

    def __init__(self, format: AccessLogFormat) -> None:
        self._logger = get_logger(ACCESS_LOGGER)
        if self._logger.level == logging.NOTSET:  # or the level of the root, usually WARNING, would hide the lines
            self._logger.setLevel(logging.INFO)
        self._written = _json if format == "json" else _text
        self._warnings = LimitedLog(log)
        self._ends = 0.0
        self._lines = self.dropped = 0

    def __call__(self, call: EndedCall) -> None:
        """Write the line of a call."""
        if not self._logger.isEnabledFor(logging.INFO):
            return
        now = time.monotonic()
        if now >= self._ends:
            self._ends, self._lines = now + 1.0, 0
        self._lines += 1
        if self._lines > MAX_LINES:
            self.dropped += 1
            self._warnings.warning(None, "the access log leaves out lines beyond %d a second", MAX_LINES)
            return
        self._logger.info("%s", self._written(_fields(call)))


def slow_call_log(seconds: float, log: LimitedLog) -> CallLog:
    """A log that writes a warning for a call that took long; of each method a limited number a minute.

    Args:
        seconds: from which on a call takes long; for the text.
        log: gets the lines.
    """
    kind = "slow call: %s took %.3f s from its request to its reply (log_slow_calls: %g s); id %s, code %d, from %s"

    def write(call: EndedCall) -> None:
        if (call.seconds or 0.0) >= seconds:
            method = shortened(call.method)
            log.warning(method, kind, method, call.seconds, seconds, call.call_id, call.code, call.address)

    return write


def _fields(call: EndedCall) -> dict[str, Any]:
    identity, call_id = call.identity, call.call_id
    if identity is not None and not isinstance(identity, str):  # never what else it holds
        name = getattr(identity, "name", None)
        identity = name if isinstance(name, str) else type(identity).__name__
    if type(call_id) is not int or abs(call_id) >= 2**63:  # JSON libraries may not read it exactly
        call_id = None if call_id is None else _cut(str(call_id))
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        "address": call.address or None,
        "transport": call.transport or None,
        "identity": None if identity is None else _cut(identity),
        "method": _cut(call.method) if isinstance(call.method, str) else None,
        "id": call_id,
        "code": call.code,
        "ms": round((call.seconds or 0.0) * 1000, 3),
        "request_bytes": call.request_size,
        "reply_bytes": call.reply_size,
    }


def _json(fields: dict[str, Any]) -> str:
    return orjson.dumps(fields).decode()


def _text(fields: dict[str, Any]) -> str:
    when, address, transport, identity, method, call_id, code, ms, request, reply = map(_word, fields.values())
    called = f"{when} {address} {transport} {identity} {method}"
    return f"{called} id={call_id} code={code} ms={ms} in={request} out={reply}"


def _word(value: str | float | None) -> str:
    """A value as one word: in quotes, with escapes, unless it is plain; "-" for None."""
    if value is None:
        return "-"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) and text != "-" else visible(orjson.dumps(text).decode())


def _cut(text: str) -> str:
    """Text of a peer as JSON may have it."""
    text = text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…"
    return text.encode(errors="replace").decode()
