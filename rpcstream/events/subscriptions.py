"""The subscriptions of a server: which connections have subscribed to what, and how they are sent their events.

The table and the queues are used under the lock of `Topics`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from ..errors import ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.session import Session
from .event_queue import EventQueue, QueuedEvent
from .patterns import PatternTable, is_pattern, matches

log = logging.getLogger("rpcstream.server")

#: Topics and patterns that all connections have subscribed to together. Each takes about 0.7 KiB: 140 MiB; enough for
#: 2,000 connections with 100 topics.
MAX_SUBSCRIPTIONS_TOTAL = 200_000

#: Bytes of events that one connection is sent before all others have had as many, and before it has shown whether it
#: takes them. Enough to make the cost of a write small.
SHARE = 64 * 1024


@dataclass(slots=True, eq=False, repr=False)
class Subscriber:
    """One connection with its subscriptions, and the events that wait for it.

    Attributes:
        queue: the events that wait, by the name of the subscription.
        topics: the topics and patterns, each with the patterns of topics that are denied.
        is_due: events wait and will be sent: soon, or when the connection takes something again.
        has_left: it is no longer in the table.
        holds: replies that are to be sent before its next event.
        last: the number of the event that was queued for it last.
        number: by which the other processes of this server know it.
    """

    connection: Session
    queue: EventQueue[QueuedEvent]
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    is_due: bool = field(default=False, init=False)
    has_left: bool = field(default=False, init=False)
    holds: int = field(default=0, init=False)
    last: int = field(default=0, init=False)
    number: int = field(default_factory=count(1).__next__, init=False)

    def takes(self, topic: str, name: str) -> bool:
        """Tell whether events of a topic that a subscription matches are not denied to that subscription."""
        denied = self.topics[name]
        return not (denied and any(matches(each, topic) for each in denied))


S = TypeVar("S", bound=Hashable)


class SubscriptionTable(Generic[S]):
    """Who has subscribed to what: connections of this process, or of the other processes of its server.

    Attributes:
        by_topic: the subscribers by topic and by pattern.
        patterns: the patterns among these names, to be found by topic.
        count: the number of subscriptions.
    """

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[S, None]] = {}
        self.patterns = PatternTable()
        self.count = 0

    def has(self, topic: str) -> bool:
        """Tell whether there may be subscribers of a topic; may be called in any thread, without the lock."""
        return topic in self.by_topic or (bool(self.patterns) and bool(self.patterns.find(topic)))

    def names_for(self, topic: str) -> list[str]:
        """Return the topic, if it has subscribers, and the patterns that match it."""
        names = [topic] if topic in self.by_topic else []
        return names + self.patterns.find(topic) if self.patterns else names

    def add(self, subscriber: S, name: str) -> None:
        """Add a subscription; adding it again changes nothing."""
        subscribers = self.by_topic.get(name)
        if subscribers is None:
            subscribers = self.by_topic[name] = {}
            if is_pattern(name):
                self.patterns.add(name)
        if subscriber not in subscribers:
            subscribers[subscriber] = None
            self.count += 1

    def remove(self, subscriber: S, name: str) -> None:
        """Remove a subscription, if it is there."""
        subscribers = self.by_topic.get(name, {})
        if subscriber not in subscribers:
            return
        del subscribers[subscriber]
        self.count -= 1
        if not subscribers:
            del self.by_topic[name]
            if is_pattern(name):
                self.patterns.remove(name)


def check_limits(limits: Limits, subscriber: Subscriber, total: int) -> None:
    """Raise ServerBusy if a subscriber, or all in `total`, have as many subscriptions as they may have."""
    for counted, limit, what in (
        (len(subscriber.topics), limits.max_subscriptions, "subscriptions of one connection (max_subscriptions)"),
        (total, MAX_SUBSCRIPTIONS_TOTAL, "subscriptions of all connections"),
    ):
        if counted >= limit:
            raise ServerBusy(f"Server busy: {limit} {what} are allowed", {"limit": limit})


class EventDelivery:
    """Sends the events of one server, in the event loop, never faster than a connection takes them.

    Args:
        lock: guards the queues; `wake`, `release` and `schedule` are called with it.
        remove: takes a subscriber out of the table.
        max_events: events of one subscription that may wait, for the log.
    """

    def __init__(
        self, lock: threading.Lock, remove: Callable[[Subscriber], None], *, counters: Counters, max_events: int
    ) -> None:
        self._lock = lock
        self._remove = remove
        self._counters = counters
        self._max_events = max_events
        self._log = LimitedLog(log)
        #: The subscribers that events are to be sent to.
        self._due: list[Subscriber] = []
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send in this event loop, from which it is called; a server that runs again may have another than before."""
        if self._loop is not loop:
            self._loop, self._loop_thread = loop, threading.get_ident()
            self._is_scheduled = False
            self._due.clear()

    def wake(self, subscriber: Subscriber) -> None:
        """Note that events wait for a subscriber; `schedule` comes next."""
        subscriber.is_due = True
        self._due.append(subscriber)

    def release(self, subscriber: Subscriber) -> None:
        """Go on sending events, in the next turn of the loop, when nothing holds the subscriber any more."""
        subscriber.holds -= 1
        if not subscriber.holds and subscriber.is_due:
            self.wake(subscriber)
            self.schedule()

    def schedule(self) -> None:
        """Send in the next turn of the loop, once for however many events; may be called in any thread."""
        if self._due and not self._is_scheduled:
            assert self._loop is not None
            self._is_scheduled = True
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(self._send)
            else:
                self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """Send a share to each subscriber that is due; more of it in the next turn, so that this is written first."""
        with self._lock:
            self._is_scheduled = False
            due, self._due = self._due, []
        rest = [subscriber for subscriber in due if self._send_share(subscriber)]
        if rest:
            self._send_later(*rest)

    def _send_later(self, *subscribers: Subscriber) -> None:
        with self._lock:
            self._due += subscribers
            self.schedule()

    def _send_share(self, subscriber: Subscriber) -> bool:
        """Send what a subscriber takes now; return whether more is to be sent in the next turn."""
        connection, queue = subscriber.connection, subscriber.queue
        if subscriber.has_left or subscriber.holds:
            return False
        if queue.has_overflowed:
            self._disconnect(subscriber)
            return False
        if not connection.is_open:
            self._remove(subscriber)  # it takes no more requests, and ends when the last one is answered
            return False
        if connection.write_gate.stalled:
            connection.write_gate.when_open(lambda: self._send_later(subscriber))
            return False
        if not connection.write_gate.is_open:
            return True
        with self._lock:
            events = queue.take_some(SHARE)
            is_more = subscriber.is_due = bool(queue)
            self._counters.events_sent += len(events)
        for event in events:
            connection.send(event.message)
        return is_more

    def _disconnect(self, subscriber: Subscriber) -> None:
        connection = subscriber.connection
        reason = f"it was too slow for its events (policy 'disconnect', event_queue {self._max_events})"
        address = connection.channel.address if connection.channel is not None else "a peer"
        self._log.warning(None, "closed the connection from %s: %s", address, reason)
        self._counters.closed_for_limits += 1
        self._remove(subscriber)
        connection.abort(reason)
