"""Counters of a server, with their metrics, and of a method that is called in micro-batches.

Plain numbers, so that counting costs next to nothing on the path of a call. Only the event loop writes them; those of
events are written under the lock of the topics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .metrics import Kind


def _metric(name: str, kind: Kind, text: str) -> int:
    """A counter that is also a metric."""
    counter: int = field(default=0, metadata={"metric": (name, kind, text)})
    return counter


@dataclass(slots=True)
class Counters:
    """The counters that `rpc.stats` returns, from the creation of the server object on."""

    accept_pauses: int = _metric(
        "accept_pauses_total",
        "counter",
        "Pauses in accepting, and connections that a worker closed, for want of descriptors or memory.",
    )
    #: Calls that were cancelled by their caller, or by the loss of its connection.
    cancelled: int = 0
    closed_for_limits: int = _metric(
        "connections_closed_for_limits_total",
        "counter",
        "Connections closed since a time limit passed, or their peer left too much unread.",
    )
    #: Open connections.
    connections: int = 0
    connections_refused: int = _metric(
        "connections_refused_total", "counter", "Connections refused since max_connections were open."
    )
    connections_total: int = _metric("connections_accepted_total", "counter", "Connections that were accepted.")
    #: Error replies sent.
    errors: int = 0
    events_dropped: int = _metric(
        "events_dropped_total",
        "counter",
        "Events dropped since their subscriber was too slow or left; each counts for each subscriber.",
    )
    events_published: int = _metric("events_published_total", "counter", "Published events; each counts once.")
    events_sent: int = _metric("events_sent_total", "counter", "Events sent; each counts for each subscriber.")
    frames_received: int = _metric("frames_received_total", "counter", "Messages received as binary frames.")
    frames_sent: int = _metric("frames_sent_total", "counter", "Messages sent as binary frames.")
    handler_failures: int = _metric(
        "handler_failures_total", "counter", "Handlers that raised an exception other than an RpcError."
    )
    handshakes_refused: int = _metric(
        "handshakes_refused_total", "counter", "TLS and WebSocket handshakes that failed."
    )
    logins_refused: int = _metric("logins_refused_total", "counter", "Credentials that were not accepted.")
    not_authenticated: int = _metric(
        "requests_not_authenticated_total", "counter", "Requests refused since their peer was not authenticated."
    )
    #: Received replies for which no call was waiting.
    replies_dropped: int = 0
    #: Accepted requests and notifications; each member of a batch counts.
    requests: int = 0
    #: Payloads of binary frames that came and went by shared memory.
    shared_received: int = 0
    shared_sent: int = 0
    subscriptions: int = _metric("subscriptions", "gauge", "Present subscriptions to topics and patterns.")
    #: Requests answered with -32002 because too many calls of the connection were running.
    turned_away: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)


@dataclass
class BatchCounters:
    """The counters of a method that is called in micro-batches, from its registration on.

    Attributes:
        runs: of the handler.
        items: in all runs.
        retries: runs that repeat items of a failed run.
        cancelled: items whose caller left before they were run.
        sizes: runs by size, in groups of 1, 2, 3 to 4, 5 to 8, …, each by the largest size that falls into it.
    """

    runs: int = 0
    items: int = 0
    retries: int = 0
    cancelled: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    total_wait: float = 0.0

    def count_run(self, waits: list[float]) -> None:
        """Count a run that begins; `waits` has the seconds that each of its items has waited."""
        size = len(waits)
        self.runs += 1
        self.items += size
        self.total_wait += sum(waits)
        self.sizes[2 ** (size - 1).bit_length()] += 1

    def as_dict(self) -> dict[str, Any]:
        """The counters by name. Times are in seconds."""
        return {
            **{name: getattr(self, name) for name in ("runs", "items", "retries", "cancelled")},
            "mean_size": self.items / self.runs if self.runs else 0.0,
            "sizes": {str(size): count for size, count in sorted(self.sizes.copy().items())},
            "mean_wait": self.total_wait / self.items if self.items else 0.0,
        }
