"""What is told of a call when it has ended, and to whom.

Owns the record of an ended call. Does not measure calls (`methods.observed` does); knows neither Prometheus nor the
format of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .metrics import CallMetrics


class EndedCall(NamedTuple):
    """One call, or one member of a batch, that has ended.

    Attributes:
        address: of the caller; "" where its connection is lost.
        identity: who the caller is, as authentication found; None without.
        transport: how it came: "tcp", "tls", "unix", "memory", "http" or "websocket".
        method: as the caller wrote it, of any type and length.
        call_id: as the caller wrote it; None for a notification.
        code: the error code of the reply; 0 for a result.
        seconds: from being read to the reply, or to the end of a notification.
        request_size: bytes of the request; None for a member of a batch.
        reply_size: bytes of the reply; None where there is none.
    """

    address: str
    identity: Any
    transport: str
    method: Any
    call_id: Any
    code: int
    seconds: float
    request_size: int | None
    reply_size: int | None


#: Gets each call that has ended.
CallLog = Callable[[EndedCall], None]


class CallObserver:
    """Passes calls that have ended to the metrics and to logs.

    Args:
        metrics: counts every call; None: calls are not counted.
        logs: each with the seconds from which on it is told of a call; 0 for every call.
    """

    def __init__(self, metrics: CallMetrics | None, logs: Sequence[tuple[CallLog, float]] = ()) -> None:
        self.metrics = metrics
        self._logs = tuple(logs)
        #: Seconds from which on a call is reported to a log; infinite without one.
        self.reports_from = min((seconds for _, seconds in logs), default=float("inf"))

    def report(self, call: EndedCall) -> None:
        """Pass a call on to the logs that want it."""
        for log, seconds in self._logs:
            if call.seconds >= seconds:
                log(call)
