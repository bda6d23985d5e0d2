"""The topics of a server: values are published to them, and connections subscribe to them.

An event is sent in a later turn of the event loop than the reply to the subscription, so that the reply goes first.
(Wire page, "Members and methods of our own".)
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Literal, Protocol

from ..codec import Codec
from ..errors import InvalidParams, NotPermitted, ServerBusy
from ..limits import MIB, Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.session import Session
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded, size_as_text, trimmed_message
from .event_queue import EventQueue, Policy, QueuedEvent, QueueMemory, check_options
from .patterns import RESERVED, fault_of_pattern, fault_of_topic, is_pattern, matches
from .subscriptions import EventDelivery, Subscriber, SubscriptionTable, check_limits, log

#: Bytes of all retained events of a server together, as text. As much as one message may have, so that the largest can
#: be retained, and little beside the other memory of a server.
MAX_RETAINED_SIZE = 64 * MIB


class Retained:
    """The last message of each topic that retains one, in the order in which they were published.

    For one thread at a time.

    Args:
        max_topics: topics that may have one.

    Attributes:
        messages: the messages by topic, the oldest first; changed here only.
    """

    def __init__(self, max_topics: int) -> None:
        self._max_topics = max_topics
        self._size = 0
        self.messages: dict[str, Encoded] = {}

    def keep(self, topic: str, message: Encoded) -> None:
        """Keep the last message of a topic, in place of the one before.

        Raises:
            ServerBusy: there is no room for it; nothing has changed.
        """
        before = self.messages.get(topic)
        size = self._size + size_as_text(message) - (0 if before is None else size_as_text(before))
        for counted, limit, what in (
            (len(self.messages) + (before is None), self._max_topics, "topics with a last value (max_retained)"),
            (size, MAX_RETAINED_SIZE, "bytes of last values"),
        ):
            if counted > limit:
                raise ServerBusy(f"Server busy: {limit} {what} are allowed", {"limit": limit})
        self.messages.pop(topic, None)
        self.messages[topic] = message
        self._size = size

    def forget(self, topic: str) -> bool:
        """Remove the last message of a topic; return False if there was none."""
        message = self.messages.pop(topic, None)
        if message is not None:
            self._size -= size_as_text(message)
        return message is not None

    def newest(self, pattern: str, denied: tuple[str, ...] = ()) -> list[tuple[str, Encoded]]:
        """Return topics that the pattern matches and no denied pattern does, with their messages; the newest first."""
        known = reversed(self.messages) if is_pattern(pattern) else [pattern] if pattern in self.messages else []
        topics = [topic for topic in known if matches(pattern, topic)]
        for each in denied:
            topics = [topic for topic in topics if not matches(each, topic)]
        return [(topic, self.messages[topic]) for topic in topics]


#: Bytes of one event, as a message. It may wait for every subscriber at once: 30 different ones fit into the memory for
#: that. A raw 2000 x 2000 RGB image fits.
MAX_EVENT_SIZE = 16 * MIB

#: Bytes of events that wait for one process or server, or on the way there. A single event may have more.
CARRIED_MAX = 32 * MIB

#: Bytes of memory that an event takes there besides its message.
CARRIED_COST = 500

#: Topics whose last value is carried later, since there was no room for it.
LATE_MAX = 20_000

#: What becomes of the last value of a topic: nothing, this is it, there is none any more.
Keep = Literal["", "keep", "forget"]


class Carrier(Protocol):
    """Carries events to other processes or servers, and theirs to `Topics.receive`: `EventRelay`, or NATS.

    All but `wants` and `settled` is called under the lock of the topics.
    """

    def join(self, topics: Topics) -> None:
        """Carry the events of these topics."""

    def wants(self, topic: str) -> bool:
        """Whether others may have subscribers of a topic; may be called in any thread."""

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> int:
        """Carry an event; None: only what becomes of the last value.

        Returns:
            How many subscribers in other processes of this server get it. NATS tells these only of last values that it
            stores; it returns True then.
        """

    def changed(self, subscriber: Subscriber, name: str) -> None:
        """A subscription has begun or ended; called in the event loop."""

    async def settled(self) -> None:
        """Wait until others know of all subscriptions, for a limited time."""


class Topics(Mapping[str, int]):
    """The topics and patterns of one server with subscriptions; a mapping to the number of connections of each.

    Where a server has several processes, this is the part of one of them; the numbers are of all.

    Args:
        limits: those of subscriptions, of retained events, and `max_waiting` are enforced here; `max_message_size` is
            also the most that all events that wait for one connection may have together.
        max_events: events of one subscription that may wait for one connection.
        policy: what is dropped when more would wait.
        system: topics with this prefix, which begins with "rpc.", may be subscribed to; `announce` publishes to them.
            "" for none.

    Attributes:
        lock: guards all that is here, so that any thread may publish.
        memory: counts the events that wait for slow connections, all together.
        own: the subscriptions of this process.
        others: the subscriptions of the other processes, by process and number of the connection.
        retained: the last values.
        group: the id of the server that this process is one of several of; empty where it is the only one.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    def __init__(
        self, *, codec: Codec, limits: Limits, counters: Counters, max_events: int, policy: Policy, system: str = ""
    ) -> None:
        check_options(max_events, policy)
        self.lock = threading.Lock()
        self.memory = QueueMemory(limits.max_waiting)
        self.own: SubscriptionTable[Subscriber] = SubscriptionTable()
        self.others: SubscriptionTable[tuple[int, int]] = SubscriptionTable()
        self.retained = Retained(limits.max_retained)
        self.group = ""
        self._codec = codec
        self._limits = limits
        self._counters = counters
        self._max_events = max_events
        self._max_size = min(MAX_EVENT_SIZE, limits.max_message_size)
        self._policy: Policy = policy
        self._system = system
        self._subscribers: dict[Session, Subscriber] = {}
        self._relay: Carrier | None = None
        self._sharing: list[Carrier] = []
        #: The number of the event that was queued last.
        self._last = 0
        self._log = LimitedLog(log)
        self._delivery = EventDelivery(self.lock, self._remove, counters=counters, max_events=max_events)

    def __getitem__(self, topic: str) -> int:
        count = len(self.own.by_topic.get(topic, ())) + len(self.others.by_topic.get(topic, ()))
        if not count:
            raise KeyError(topic)
        return count

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*list(self.own.by_topic), *list(self.others.by_topic))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def join(self, relay: Carrier, group: str = "") -> None:
        """Be the topics of one of several processes, whose events go through this object.

        Args:
            relay: to and from the others.
            group: an id that all of these processes have, and no others.
        """
        self.group = group
        self._relay = relay
        relay.join(self)

    def share(self, sharing: Carrier) -> None:
        """Share the events with other servers as well; all are published there."""
        with self.lock:
            sharing.join(self)
            self._sharing.append(sharing)

    # -- publishing, in any thread ------------------------------------------------------------------------------------

    def publish(self, topic: str, value: Any, *, retain: bool = False) -> int:
        """Send a value to every connection that has subscribed to the topic, or to patterns that match it, once.

        Never waits, and may be called from any thread. The events of one thread are sent in the order in which they
        were published. Without subscribers, the value is not encoded, unless other servers may have some (NATS).

        Args:
            topic: a name, not a pattern.
            value: anything that a method may return.
            retain: keep the value as the last one of the topic, for later subscribers; None forgets it.

        Returns:
            The number of connections that will be sent it; those of this server, where others share its events.

        Raises:
            TypeError, ValueError: that is no topic.
            EncodeError, MessageTooLarge: the value cannot be sent. It is sent to none.
            ServerBusy: it cannot be retained, for `max_retained` or `MAX_RETAINED_SIZE`. It is sent to none.
        """
        _check_topic(topic)
        return self._publish(topic, value, "" if not retain else "forget" if value is None else "keep")

    def announce(self, topic: str, value: Any) -> int:
        """Publish to a topic of rpcstream's own, whose name is not checked. It is not shared with other servers."""
        return self._publish(topic, value, "")

    def forward(self, topic: str, message: Encoded, *, retain: bool = False) -> int:
        """Publish a `$/event` message of this topic that is ready to be sent.

        Its value is kept with `retain`, also if that is null: use `forget` then.
        """
        _check_topic(topic)
        return self._put(topic, message, "keep" if retain else "")

    def forget(self, topic: str) -> bool:
        """Remove the last value of a topic, without telling subscribers; return False if there was none."""
        with self.lock:
            self._carry(topic, None, "forget")
            return self.retained.forget(topic)

    def receive(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        """Send an event that another process or server has published to the subscribers here; under the lock.

        Args:
            topic: of the event.
            message: None: there is nothing to send.
            keep: what becomes of the last value.
        """
        try:
            self._keep(topic, message, keep)
        except ServerBusy as error:
            self._log.warning(topic, "a last value of another process is not kept: %s", error)
        if message is not None:
            self._put_here(topic, message)

    def count_dropped(self) -> None:
        """Count an event that another process, or the way to other servers, was too slow for; under the lock."""
        self._counters.events_dropped += 1

    def _publish(self, topic: str, value: Any, keep: Keep) -> int:
        relay = self._relay
        # The tables are only read here, each at one stroke: that needs no lock.
        if not (keep or self._sharing or self.own.has(topic) or (relay is not None and relay.wants(topic))):
            with self.lock:
                self._counters.events_published += 1
            return 0
        event = envelope.request(envelope.EVENT, {"topic": topic, "value": value})
        message = self._codec.serialize(event, binary=True)
        if isinstance(message, AttachedMessage):
            message.secure()
        return self._put(topic, trimmed_message(message), keep)

    def _put(self, topic: str, message: Encoded, keep: Keep) -> int:
        """Keep a last value, queue an event for each subscriber, and send it to other processes and servers."""
        if (size := size_as_text(message)) > self._max_size:
            raise envelope.oversize(size, self._max_size, side="server", name="one event")
        with self.lock:
            self._keep(topic, message, keep)
            self._counters.events_published += 1
            return self._put_here(topic, message) + self._carry(topic, message, keep)

    def _keep(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        if keep == "forget":
            self.retained.forget(topic)
        elif keep and message is not None:
            self.retained.keep(topic, message)

    def _carry(self, topic: str, message: Encoded | None, keep: Keep) -> int:
        """Send an event to other servers and processes; return the number of subscribers in other processes."""
        sharing = [] if topic.startswith(RESERVED) else self._sharing
        is_told = [carrier.publish(topic, message, keep) for carrier in sharing]
        return 0 if self._relay is None or any(is_told) else self._relay.publish(topic, message, keep)

    def _put_here(self, topic: str, message: Encoded) -> int:
        """Queue an event for each subscriber; even those that take events at once are sent it in the next turn."""
        event = QueuedEvent(topic, message)
        counters, by_topic = self._counters, self.own.by_topic
        self._last = number = self._last + 1
        count = 0
        for name in self.own.names_for(topic):
            for subscriber in by_topic[name]:
                queue = subscriber.queue
                if subscriber.last == number or not subscriber.takes(topic, name):
                    continue
                subscriber.last = number
                if subscriber.connection.is_open and not queue.has_overflowed:
                    dropped = queue.dropped
                    count += queue.put(name, event, event.size)
                    counters.events_dropped += queue.dropped - dropped
                    if not subscriber.is_due or queue.has_overflowed:
                        self._delivery.wake(subscriber)
        self._delivery.schedule()
        return count

    # -- subscribing, in the event loop -------------------------------------------------------------------------------

    def subscribe(self, connection: Session, topic: str, *, denied: tuple[str, ...] = ()) -> dict[str, Any]:
        """Send events of the topic, or of topics that the pattern matches, on this connection from now on.

        To be called while the request to subscribe is handled, so that its reply is sent first; the last values of the
        topics come next. Subscribing again changes only `denied`.

        Args:
            connection: that sent the request.
            topic: a topic or pattern.
            denied: patterns; events of topics that they match are not sent for this subscription.

        Returns:
            The result of the request.

        Raises:
            InvalidParams: it is neither a topic nor a pattern.
            NotPermitted: the topic is denied.
            ServerBusy: the connection, or all of them together, have as many subscriptions as they may have.
        """
        self.check_subscription(topic)
        if not is_pattern(topic) and any(matches(each, topic) for each in denied):
            raise NotPermitted(data={"topic": topic})
        with self.lock:
            subscriber = self._subscribers.get(connection) or self._add_subscriber(connection)
            if topic in subscriber.topics:
                subscriber.topics[topic] = denied
            else:
                check_limits(self._limits, subscriber, self.own.count + self.others.count)
                subscriber.topics[topic] = denied
                self.own.add(subscriber, topic)
                self._counters.subscriptions += 1
                self._put_last_values(subscriber, topic)
                self._changed(subscriber, topic)
        return {"topic": topic, "queue": self._max_events, "policy": self._policy}

    async def subscribe_everywhere(
        self, connection: Session, topic: str, *, denied: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Subscribe, and return when other processes and servers know of it.

        So none of them publishes past the subscriber. Its events wait meanwhile, and until the task that handles the
        request has ended, so that the reply is sent first.
        """
        is_new = topic not in self.subscriptions_of(connection)
        result = self.subscribe(connection, topic, denied=denied)
        subscriber = self._subscribers[connection]
        subscriber.holds += 1
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: connection.loop.call_soon(self._release, subscriber))
        try:
            for carrier in self._carriers:
                await carrier.settled()
        except BaseException:
            if is_new:
                self.unsubscribe(connection, topic)
            raise
        return result

    def _release(self, subscriber: Subscriber) -> None:
        with self.lock:
            self._delivery.release(subscriber)

    def check_subscription(self, topic: str) -> None:
        """Raise InvalidParams unless it is a topic or a pattern that may be subscribed to."""
        fault = fault_of_pattern(topic) or _fault_of_name(topic, self._system)
        if fault is not None:
            data = {"parameter": "topic", "path": "$.topic", "reason": f"the topic {fault}"}
            raise InvalidParams(f"Invalid params: topic: the topic {fault}", data)

    def unsubscribe(self, connection: Session, topic: str) -> bool:
        """Queue no more events of the topic or pattern; return False if it was not subscribed to."""
        with self.lock:
            subscriber = self._subscribers.get(connection)
            if subscriber is None or topic not in subscriber.topics:
                return False
            self._end(subscriber, topic)
            return True

    def subscriptions_of(self, connection: Session) -> dict[str, tuple[str, ...]]:
        """Return the topics and patterns that a connection has subscribed to, each with the patterns denied of it."""
        with self.lock:
            subscriber = self._subscribers.get(connection)
            return {} if subscriber is None else dict(subscriber.topics)

    @property
    def _carriers(self) -> list[Carrier]:
        return self._sharing if self._relay is None else [self._relay, *self._sharing]

    def _changed(self, subscriber: Subscriber, name: str) -> None:
        for carrier in self._carriers:
            carrier.changed(subscriber, name)

    def _add_subscriber(self, connection: Session) -> Subscriber:
        self._delivery.use_loop(connection.loop)
        queue = EventQueue[QueuedEvent](self._max_events, self._limits.max_message_size, self._policy, self.memory)
        subscriber = self._subscribers[connection] = Subscriber(connection, queue)
        connection.on_lost.append(lambda: self._remove(subscriber))
        return subscriber

    def _put_last_values(self, subscriber: Subscriber, name: str) -> None:
        """Queue the last values for a new subscription, the newest for which there is room.

        They push no other events out, and their subscriber is not disconnected for them. However many patterns match
        the same topics, no more of their last values wait than there may be.
        """
        queue, free = subscriber.queue, subscriber.queue.free
        found = self.retained.newest(name, subscriber.topics[name])
        room = min(self._max_events, self._limits.max_retained - len(queue))
        events = [QueuedEvent(*each) for each in found[: max(0, room)]]
        sizes = accumulate([event.size for event in events])
        count = 0 if queue.has_overflowed else sum(size <= free for size in sizes)
        for event in reversed(events[:count]):
            queue.put(name, event, event.size)
        self._counters.events_dropped += len(found) - count
        if count and not subscriber.is_due:
            self._delivery.wake(subscriber)
        self._delivery.schedule()

    def _end(self, subscriber: Subscriber, name: str) -> None:
        del subscriber.topics[name]
        self.own.remove(subscriber, name)
        self._counters.subscriptions -= 1
        self._changed(subscriber, name)

    def _remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber whose connection is over, or is to end, with the events that wait for it."""
        with self.lock:
            self._counters.events_dropped += subscriber.queue.clear()
            for name in list(subscriber.topics):
                self._end(subscriber, name)
            self._subscribers.pop(subscriber.connection, None)
            subscriber.has_left = True


@functools.lru_cache(maxsize=1024)  # most are published to again and again, and the check costs a quarter of an event
def _check_topic(topic: str) -> None:
    """Raise TypeError or ValueError unless it is a topic that may be published to."""
    fault = fault_of_topic(topic) or _fault_of_name(topic)
    if fault is not None:
        raise ValueError(f"the topic {topic!r:.100} {fault}")


def _fault_of_name(topic: str, system: str = "") -> str | None:
    """Return why a topic or pattern must not be used; None if it may be."""
    if not topic.startswith(RESERVED) or (system and topic.startswith(system)):
        return None
    return f"begins with {RESERVED!r}, which is reserved"
