"""Observes a server: metrics for `/metrics`, the access log, and the log of slow calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..observe.call_log import AccessLog, CallLog, slow_call_log
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..observe.metrics import CONTENT_TYPE, CallMetrics, Family, Numbers, labels, process_families, render, single
from ..text import get_logger
from ..transports.listen import transport_of
from ..wire.http_messages import NOSNIFF, Response
from .options import Logs, Metrics

if TYPE_CHECKING:
    from .life import RunningServer

log = get_logger("rpcstream.server")

#: The metrics among the counters of a process: those that only grow, and present values.
METRIC_NUMBERS = ("metrics", "metrics_present")

#: The prefix of all metrics but those of the process.
PREFIX = "rpcstream_"


class Observation:
    """The observers of one server.

    Args:
        logs: what is logged of calls.
        metrics: the option of the server.
        counters: of the server.
        is_known: see `CallMetrics`.
        running: returns the running server; None while it does not run.
        more: returns metrics of this kind of server.

    Attributes:
        calls: counts calls; None: there are no metrics.
        logs: log calls.

    Raises:
        ValueError: `metrics` makes no sense.
    """

    def __init__(
        self,
        logs: Logs,
        metrics: Metrics,
        *,
        counters: Counters,
        is_known: Callable[[str], bool],
        running: Callable[[], RunningServer | None],
        more: Callable[[], Iterable[Family]],
    ) -> None:
        if metrics not in (True, False, "public"):
            raise ValueError(f"metrics must be True, False or 'public', got {metrics!r}")
        self.calls = CallMetrics(is_known) if metrics else None
        self.logs: list[CallLog] = []
        self._counters = counters
        self._running = running
        self._more = more
        self._access_log = None
        if logs.access_log is not None:
            self._access_log = AccessLog(logs.access_log)
            self.logs.append(self._access_log)
        if logs.log_slow_calls is not None:
            self.logs.append(slow_call_log(logs.log_slow_calls, LimitedLog(log)))

    def __bool__(self) -> bool:
        """Whether calls are observed."""
        return self.calls is not None or bool(self.logs)

    def text(self) -> str:
        """The metrics of a server in the format of Prometheus.

        Raises:
            RuntimeError: there are no metrics.
        """
        if self.calls is None:
            raise RuntimeError("this server has no metrics: Server(metrics=True)")
        return render([*self._families(), *self._more()], prefix=PREFIX) + render(process_families())

    def numbers(self) -> dict[str, Numbers]:
        """The same as numbers, to be added to those of the server's other processes; empty without metrics.

        Metrics of the process itself have its id as a label, because they must not be added.
        """
        if self.calls is None:
            return {}
        families = self._families()
        own = labels(pid=str(os.getpid()))
        return {
            "metrics": {each.name: each.samples for each in families if each.kind != "gauge"},
            "metrics_present": {
                **{each.name: each.samples for each in families if each.kind == "gauge"},
                **{each.name: {own: each.samples[""]} for each in process_families()},
            },
        }

    def text_of(self, counted: Mapping[str, Any]) -> str:
        """The text for the added numbers of all processes."""
        found: dict[str, Any] = {}
        for name in METRIC_NUMBERS:
            found.update(counted.get(name, {}))
        return (
            render(self._families(), found, prefix=PREFIX)
            + render(_worker_families(counted.get("workers", []), counted.get("supervisor", {})), prefix=PREFIX)
            + render(process_families(), found)
        )

    def _families(self) -> list[Family]:
        families: list[Family] = [] if self.calls is None else self.calls.families()
        for each in fields(Counters):
            if each.metadata:
                name, kind, text = each.metadata["metric"]
                families.append(single(name, kind, text, getattr(self._counters, each.name)))
        if self._access_log is not None:
            text = "Lines of the access log that were left out, since there were too many."
            families.append(single("access_log_dropped_total", "counter", text, self._access_log.dropped))
        if (running := self._running()) is not None:
            families += _running_families(running)
        return families


def _worker_families(workers: list[Mapping[str, Any]], supervisor: Mapping[str, Any]) -> list[Family]:
    running = sum(each["pid"] is not None for each in workers)
    restarts = sum(each["restarts"] for each in workers)
    return [
        single("workers", "gauge", "Workers that serve; another one starts where one has died.", running),
        single("worker_restarts_total", "counter", "Workers that have died and were replaced.", restarts),
        Family(
            "workers_replaced_total",
            "counter",
            "Workers that were replaced, by reason: died, start_timeout, max_requests, memory_limit.",
            {labels(reason=reason): number for reason, number in sorted(supervisor.get("replaced", {}).items())},
        ),
        single(
            "reloads_failed_total",
            "counter",
            "Reloads whose new workers did not start, so that the old ones go on.",
            supervisor.get("failed_reloads", 0),
        ),
    ]


def _running_families(running: RunningServer) -> list[Family]:
    """The present values of sessions, connections and pools."""
    in_flight = waiting = streams = 0
    for session in running.listener.sessions:
        in_flight += session.ledger.calls
        waiting += len(session.intake.queue)
        streams += len(session.streams.senders) + len(session.streams.receivers)
    transports = Counter(map(transport_of, running.listener.connections.all()))
    invoker = running.invoker
    pools = {"thread": invoker.threads, "process": invoker.workers.threads}
    return [
        single("calls_in_flight", "gauge", "Calls whose handler or provider is at work.", in_flight),
        single("requests_waiting", "gauge", "Requests that wait for room for calls.", waiting),
        single("streams_open", "gauge", "Open streams of items, in both directions.", streams),
        Family(
            "connections",
            "gauge",
            "Open connections; unknown: nothing was received yet, or the TLS handshake is not complete.",
            {labels(transport=name): count for name, count in sorted(transports.items())},
        ),
        Family(
            "offload_busy",
            "gauge",
            "Handlers at work in threads and worker processes.",
            {labels(kind=kind): len(pool.running) for kind, pool in pools.items()},
        ),
        Family(
            "offload_waiting",
            "gauge",
            "Calls that wait for a thread or a worker process.",
            {labels(kind=kind): len(pool.waiting) for kind, pool in pools.items()},
        ),
        single("worker_processes", "gauge", "Worker processes that run.", len(invoker.workers.process_ids)),
    ]


def metrics_response(text: str) -> Response:
    """The answer to `GET /metrics`."""
    return Response(200, text.encode(), CONTENT_TYPE, [NOSNIFF, ("Cache-Control", "no-store")])
