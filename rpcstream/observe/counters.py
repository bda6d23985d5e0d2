"""Counters of a server, and of a method that is called in micro-batches.

Plain numbers, so that counting costs next to nothing on the path of a call. Only the event loop writes them; those of
events are written under the lock of the topics.
"""

from __future__ import annotations

from typing import Any


class Counters:
    """The counters that `rpc.stats` returns, from the creation of the server object on."""

    __slots__ = (
        "cancelled",
        "closed_for_limits",
        "connections",
        "connections_refused",
        "connections_total",
        "errors",
        "events_dropped",
        "events_published",
        "events_sent",
        "frames_received",
        "frames_sent",
        "handler_failures",
        "handshakes_refused",
        "logins_refused",
        "not_authenticated",
        "replies_dropped",
        "requests",
        "shared_received",
        "shared_sent",
        "subscriptions",
        "tickets_claimed",
        "tickets_expired",
        "tickets_made",
        "tickets_refused",
        "turned_away",
    )

    def __init__(self) -> None:
        #: Open connections, and all since the start.
        self.connections = 0
        self.connections_total = 0
        #: Refused because `max_connections` were open.
        self.connections_refused = 0
        #: TLS handshakes that failed or were tried where there is no TLS, and WebSocket handshakes that were refused.
        self.handshakes_refused = 0
        #: Requests refused since their peer was not authenticated: 401 by HTTP, -32005 elsewhere; and how often one had
        #: shown a token, or other credentials, that are not accepted.
        self.not_authenticated = 0
        self.logins_refused = 0
        #: Closed because a time limit passed, or because the peer left too many bytes unread.
        self.closed_for_limits = 0
        #: Accepted requests and notifications; each member of a batch counts.
        self.requests = 0
        #: Error replies sent.
        self.errors = 0
        #: Handlers that raised something other than an RpcError.
        self.handler_failures = 0
        #: Calls that were cancelled by their caller, or by the loss of its connection.
        self.cancelled = 0
        #: Requests answered with -32002 because too many calls of the connection were running.
        self.turned_away = 0
        #: Received replies for which no call was waiting.
        self.replies_dropped = 0
        #: Present subscriptions: topics, counted for each connection that has subscribed to them.
        self.subscriptions = 0
        #: Published values; each counts once for all subscribers.
        self.events_published = 0
        #: Events sent, and events dropped since the subscriber was too slow or left; each counts for each subscriber.
        self.events_sent = 0
        self.events_dropped = 0
        #: Messages with large payloads that came and went as binary frames; and how many of their payloads went by
        #: shared memory.
        self.frames_received = 0
        self.frames_sent = 0
        self.shared_received = 0
        self.shared_sent = 0
        #: Direct connections for messages over NATS's `max_payload`: offered, made, and not made in time (as calls that
        #: had a place and did not come); and secrets and requests for a place that were refused.
        self.tickets_made = 0
        self.tickets_claimed = 0
        self.tickets_expired = 0
        self.tickets_refused = 0

    def as_dict(self) -> dict[str, Any]:
        """The counters by name, sorted."""
        return {name: getattr(self, name) for name in sorted(self.__slots__)}


class BatchCounters:
    """The counters of a method that is called in micro-batches, from its registration on."""

    def __init__(self) -> None:
        #: Runs of the handler, and items in them; `retries` are runs that repeat items of a failed run.
        self.runs = 0
        self.items = 0
        self.retries = 0
        #: Items whose caller left before they were run.
        self.cancelled = 0
        self.largest = 0
        self._total_wait = 0.0
        self._longest_wait = 0.0
        #: Runs by size, in groups of 1, 2, 3 to 4, 5 to 8, …
        self._sizes: list[int] = []

    def count_run(self, waits: list[float]) -> None:
        """Count a run that begins; `waits` has the seconds that each of its items has waited."""
        size = len(waits)
        self.runs += 1
        self.items += size
        self.largest = max(self.largest, size)
        self._total_wait += sum(waits)
        self._longest_wait = max(self._longest_wait, *waits)
        power = (size - 1).bit_length()
        self._sizes += [0] * (power + 1 - len(self._sizes))
        self._sizes[power] += 1

    def as_dict(self) -> dict[str, Any]:
        """The counters by name; `sizes` has the runs by the largest size of each group. Times are in seconds."""
        return {
            "runs": self.runs,
            "items": self.items,
            "retries": self.retries,
            "cancelled": self.cancelled,
            "largest": self.largest,
            "mean_size": self.items / self.runs if self.runs else 0.0,
            "sizes": {str(2**power): count for power, count in enumerate(list(self._sizes)) if count},
            "mean_wait": self._total_wait / self.items if self.items else 0.0,
            "max_wait": self._longest_wait,
        }
