"""The subscriptions of a server: which connections have subscribed to what, and how they are sent their events.

Owns the table of subscriptions and its limits, for each subscriber the events that wait for it, and when it is sent its
next share of them: never faster than its connection takes them. Knows neither how events are made nor which are dropped
when a queue is full. The table and the queues are to be used under the lock of `Topics`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from ..errors import ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.write_gate import WriteGate
from ..wire.buffers import Encoded
from .event_queue import EVENT_COST, EventQueue, QueuedEvent
from .patterns import PatternTable, compiled, is_pattern, matches, overlaps

log = logging.getLogger("rpcstream.server")

#: Subscriptions of a connection that may take over the waiting events of one that ends. A program has fewer that
#: overlap; with a thousand events that wait, it is a few milliseconds.
HEIRS_MAX = 16

#: Bytes of events that one connection is sent before all others have had as many, and before it has shown whether it
#: takes them. Enough to make the cost of a write small.
SHARE = 64 * 1024


class Peer(Protocol):
    """The other end of a connection, in messages about it."""

    @property
    def address(self) -> str: ...


class SubscribedConnection(Protocol):
    """A connection that events are sent on; a `Session` is one."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def channel(self) -> Peer | None: ...

    @property
    def write_gate(self) -> WriteGate: ...

    def send(self, message: Encoded) -> None: ...

    def abort(self, reason: str) -> None: ...

    def add_lost_callback(self, function: Callable[[], object]) -> None: ...


class Subscriptions:
    """The topics and patterns that one connection has subscribed to.

    Attributes:
        key: of the connection, in the table.
        topics: each with the patterns of what is denied of it.
        patterns: those of them that are patterns; None as long as there are none.
        has_left: it is no longer in the table.
    """

    __slots__ = ("has_left", "key", "patterns", "topics")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.topics: dict[str, tuple[str, ...]] = {}
        self.patterns: PatternTable[None] | None = None
        self.has_left = False

    def add(self, topic: str, denied: tuple[str, ...]) -> None:
        """Add a topic or pattern."""
        self.topics[topic] = denied
        if is_pattern(topic):
            if self.patterns is None:
                self.patterns = PatternTable()
            self.patterns.add(topic, None)

    def remove(self, topic: str) -> None:
        """Remove a topic or pattern."""
        del self.topics[topic]
        if is_pattern(topic) and self.patterns is not None:
            self.patterns.remove(topic, None)

    @property
    def steps(self) -> int:
        """The most steps that a search of its patterns takes; see `PatternTable`."""
        return self.patterns.steps if self.patterns is not None else 0

    def takes(self, topic: str, pattern: str) -> bool:
        """Tell whether events of a topic that the pattern matches are not denied to that subscription."""
        denied = self.topics[pattern]
        return not (denied and any(matches(each, topic) for each in denied))


class Subscriber(Subscriptions):
    """One connection of this process with its subscriptions, and the events that wait for it.

    Attributes:
        queue: the events that wait, by the name of the subscription.
        is_due: events wait and will be sent: soon, or when the connection takes something again.
        holds: replies that are to be sent before its next event.
        number: by which other processes of this server know it; 0: they do not.
    """

    __slots__ = ("connection", "holds", "is_due", "number", "queue")

    def __init__(self, connection: SubscribedConnection, queue: EventQueue[QueuedEvent]) -> None:
        super().__init__(connection)
        self.connection = connection
        self.queue = queue
        self.is_due = False
        self.holds = 0
        self.number = 0

    def put_last_values(self, name: str, events: list[QueuedEvent], most: int) -> int:
        """Queue last values for a subscription, the newest for which there is room; return their number.

        They push no other events out, and their subscriber is not disconnected for them.

        Args:
            name: the topic or pattern of the subscription.
            events: the newest first.
            most: so many at most.
        """
        if self.queue.has_overflowed:
            return 0
        free = self.queue.free
        chosen: list[QueuedEvent] = []
        for event in events[: max(0, most)]:
            free -= len(event) + EVENT_COST
            if free < 0 and (chosen or len(self.queue)):
                break
            chosen.append(event)
        for event in reversed(chosen):
            self.queue.put(name, event, len(event) + EVENT_COST)
        return len(chosen)

    def hand_on(self, ended: str) -> int:
        """Move the waiting events of a subscription that ended to others that match; return how many were removed."""
        if not self.queue:
            return 0
        names = list(islice((each for each in self.topics if overlaps(each, ended)), HEIRS_MAX))
        if not names:
            return self.queue.forget(ended)
        heirs = [(name, compiled(name).fullmatch) for name in names]

        def choose(event: QueuedEvent) -> str | None:
            topic = event.topic
            return next((name for name, fits in heirs if fits(topic) and self.takes(topic, name)), None)

        return self.queue.move(ended, choose)


S = TypeVar("S", bound=Subscriptions)


class SubscriptionTable(Generic[S]):
    """All subscriptions of one process, or those of the others of its server.

    Args:
        limits: `max_subscriptions`, `max_pattern_steps` and their totals are enforced here; None: no limits.

    Attributes:
        by_topic: by topic and by pattern: the subscribers, each with that name, under which events wait for it.
        patterns: the patterns among these, to be found by topic.
        has_patterns: there are any.
        subscribers: by connection.
        count: the number of subscriptions.
        weight: the same, but a pattern counts once for each of its levels.
        others: counts towards the totals as well: the table of the other processes of the server.
    """

    def __init__(self, limits: Limits | None) -> None:
        self._limits = limits
        self.by_topic: dict[str, dict[S, str]] = {}
        self.patterns: PatternTable[str] = PatternTable()
        self.has_patterns = False
        self.subscribers: dict[Any, S] = {}
        self.count = self.weight = 0
        self.others: SubscriptionTable[Any] | None = None

    def has(self, topic: str) -> bool:
        """Tell whether there may be subscribers of a topic; needs no lock."""
        return topic in self.by_topic or (self.has_patterns and bool(self.patterns.find(topic)))

    def find(self, topic: str) -> dict[S, str]:
        """Return the subscribers of a topic, or of patterns that match it, each with the name of one subscription."""
        exact = self.by_topic.get(topic, {})
        patterns = self.patterns.find(topic) if self.has_patterns else ()
        if not patterns:
            return exact
        found = dict(exact)
        for pattern in patterns:
            for subscriber in self.by_topic[pattern]:
                if subscriber not in found and subscriber.takes(topic, pattern):
                    found[subscriber] = pattern
        return found

    def add_subscriber(self, subscriber: S) -> None:
        """Add a connection that has no subscriptions yet."""
        self.subscribers[subscriber.key] = subscriber

    def add(self, subscriber: S, topic: str, denied: tuple[str, ...]) -> None:
        """Add a subscription that the subscriber does not have.

        Raises:
            ServerBusy: it would be one too many, or make publishing too slow; nothing has changed.
        """
        if self._limits is not None:
            self._check_number(self._limits, subscriber, topic)
        subscriber.add(topic, denied)
        self.count += 1
        self.weight += weight_of(topic)
        others = self.by_topic.get(topic)
        if others is None:
            others = self.by_topic[topic] = {}
            if is_pattern(topic):
                self.patterns.add(topic, topic)
                self.has_patterns = True
        others[subscriber] = topic
        if self._limits is not None and is_pattern(topic):
            try:
                self._check_steps(self._limits, subscriber)
            except ServerBusy:
                self.remove(subscriber, topic)
                raise

    def _check_number(self, limits: Limits, subscriber: S, topic: str) -> None:
        if len(subscriber.topics) >= limits.max_subscriptions:
            limit = limits.max_subscriptions
            text = f"Server busy: this connection may have {limit} subscriptions (max_subscriptions)"
            raise ServerBusy(text, {"limit": limit})
        weight = self.weight + (self.others.weight if self.others is not None else 0)
        if weight + weight_of(topic) > limits.max_subscriptions_total:
            limit = limits.max_subscriptions_total
            text = f"Server busy: all connections may have {limit} subscriptions together (max_subscriptions_total)"
            raise ServerBusy(text, {"limit": limit})

    def _check_steps(self, limits: Limits, subscriber: S) -> None:
        own, every = limits.max_pattern_steps, limits.max_pattern_steps_total
        if subscriber.steps > own:
            text = "Server busy: too many patterns of this connection match the same topics (max_pattern_steps)"
            raise ServerBusy(text, {"limit": own})
        others = self.others.patterns.steps if self.others is not None else 0
        if self.patterns.steps + others > every:
            text = "Server busy: too many patterns of all connections match the same topics (max_pattern_steps_total)"
            raise ServerBusy(text, {"limit": every})

    def remove(self, subscriber: S, topic: str) -> None:
        """Remove a subscription."""
        subscriber.remove(topic)
        self.count -= 1
        self.weight -= weight_of(topic)
        others = self.by_topic[topic]
        del others[subscriber]
        if not others:
            del self.by_topic[topic]
            if is_pattern(topic):
                self.patterns.remove(topic, topic)
                self.has_patterns = len(self.patterns) > 0

    def remove_subscriber(self, subscriber: S) -> None:
        """Remove a subscriber with all its subscriptions."""
        for topic in list(subscriber.topics):
            self.remove(subscriber, topic)
        self.subscribers.pop(subscriber.key, None)
        subscriber.has_left = True


def weight_of(topic: str) -> int:
    """Return what a subscription counts in `max_subscriptions_total`: 1, or for a pattern its levels."""
    return topic.count(".") + 1 if is_pattern(topic) else 1


class EventDelivery:
    """Sends the events of one server, in the event loop, never faster than a connection takes them.

    Args:
        lock: guards the queues; `wake` and `schedule` are called with it.
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
        self.log = LimitedLog(log)
        #: The subscribers that events are to be sent to.
        self.due: list[Subscriber] = []
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send in this event loop, from which it is called; a server that runs again may have another than before."""
        if self._loop is not loop:
            self._loop, self._loop_thread = loop, threading.get_ident()
            self._is_scheduled = False
            self.due.clear()

    def wake(self, subscriber: Subscriber) -> None:
        """Note that events wait for a subscriber; `schedule` comes next."""
        subscriber.is_due = True
        self.due.append(subscriber)

    def hold(self, subscriber: Subscriber) -> None:
        """Send the subscriber no event until `release` is called as often."""
        subscriber.holds += 1

    def release(self, subscriber: Subscriber) -> None:
        """Go on sending events, in the next turn of the loop."""
        subscriber.holds -= 1
        if not subscriber.holds and subscriber.is_due:
            self.due.append(subscriber)
            self.schedule()

    def schedule(self) -> None:
        """Send in the next turn of the loop, once for however many events; may be called in any thread."""
        if self.due and not self._is_scheduled:
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
            due, self.due = self.due, []
        rest = [subscriber for subscriber in due if self._send_share(subscriber)]
        if rest:
            self._send_later(*rest)

    def _send_later(self, *subscribers: Subscriber) -> None:
        with self._lock:
            self.due += subscribers
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
        connection: SubscribedConnection = subscriber.connection
        reason = f"it was too slow for its events (policy 'disconnect', event_queue {self._max_events})"
        address = connection.channel.address if connection.channel is not None else "a peer"
        self.log.warning(None, "closed the connection from %s: %s", address, reason)
        self._counters.closed_for_limits += 1
        self._remove(subscriber)
        connection.abort(reason)
