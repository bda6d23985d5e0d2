"""What a server counts about itself.

Plain integers that only the event loop writes (those of events: whoever has the lock of the topics): counting must
cost next to nothing on the path of a call.
"""

from __future__ import annotations

from typing import Any


class Counters:
    """The numbers behind `rpc.stats`, since the server object was made."""

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
        "handler_failures",
        "replies_dropped",
        "requests",
        "subscriptions",
        "turned_away",
    )

    def __init__(self) -> None:
        #: Open now, and ever.
        self.connections = 0
        self.connections_total = 0
        #: Turned away because `max_connections` were open.
        self.connections_refused = 0
        #: Closed because a time limit passed, or too much waited to be read by the peer.
        self.closed_for_limits = 0
        #: Requests and notifications taken, each member of a batch by itself.
        self.requests = 0
        #: Error replies sent.
        self.errors = 0
        #: Handlers that raised something other than an RpcError.
        self.handler_failures = 0
        #: Calls that ended because somebody cancelled them: their caller, or the loss of its connection.
        self.cancelled = 0
        #: Requests answered with -32002 since too many of one connection were worked on.
        self.turned_away = 0
        #: Replies that nobody waited for.
        self.replies_dropped = 0
        #: Open now: topics, counted for each connection that has subscribed to them.
        self.subscriptions = 0
        #: Values, however many have subscribed to their topic.
        self.events_published = 0
        #: Handed to a connection; and not, since its subscriber was too slow, or left. Each counts for each subscriber.
        self.events_sent = 0
        self.events_dropped = 0

    def as_dict(self) -> dict[str, Any]:
        """Name to number, sorted by name."""
        return {name: getattr(self, name) for name in sorted(self.__slots__)}
