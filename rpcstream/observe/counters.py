"""Counters of a server, and of a method that is called in micro-batches.

Plain numbers, so that counting costs next to nothing on the path of a call. Only the event loop writes them; those of
events are written under the lock of the topics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Counters:
    """The counters that `rpc.stats` returns, from the creation of the server object on."""

    #: Pauses in accepting, since the system gave no connection for want of descriptors or memory.
    accept_pauses: int = 0
    #: Calls that were cancelled by their caller, or by the loss of its connection.
    cancelled: int = 0
    #: Connections closed because a time limit passed, or because the peer left too many bytes unread.
    closed_for_limits: int = 0
    #: Open connections, and all since the start.
    connections: int = 0
    #: Refused because `max_connections` were open.
    connections_refused: int = 0
    connections_total: int = 0
    #: Error replies sent.
    errors: int = 0
    #: Events dropped since the subscriber was too slow or left; each counts for each subscriber.
    events_dropped: int = 0
    #: Published values; each counts once for all subscribers.
    events_published: int = 0
    #: Events sent; each counts for each subscriber.
    events_sent: int = 0
    #: Messages with large payloads that came and went as binary frames.
    frames_received: int = 0
    frames_sent: int = 0
    #: Handlers that raised something other than an RpcError.
    handler_failures: int = 0
    #: TLS handshakes that failed or were tried where there is no TLS, and WebSocket handshakes that were refused.
    handshakes_refused: int = 0
    #: How often a peer had shown a token, or other credentials, that are not accepted.
    logins_refused: int = 0
    #: Requests refused since their peer was not authenticated: 401 by HTTP, -32005 elsewhere.
    not_authenticated: int = 0
    #: Received replies for which no call was waiting.
    replies_dropped: int = 0
    #: Accepted requests and notifications; each member of a batch counts.
    requests: int = 0
    #: Payloads of binary frames that came and went by shared memory.
    shared_received: int = 0
    shared_sent: int = 0
    #: Present subscriptions: topics, counted for each connection that has subscribed to them.
    subscriptions: int = 0
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
