"""The topics of a server: values are published to them, and connections subscribe to them.

Owns which value is sent to which subscriber, in which order: an event is sent in a later turn of the loop than the
reply to the subscription, so that the reply goes first. Who has subscribed is in `SubscriptionTable`; `EventDelivery`
sends. Knows neither sockets nor what a value means. (Wire page, "Members and methods of our own".)
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..codec import Codec
from ..errors import InvalidParams, NotPermitted, ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded, size_as_text, trimmed_message
from .event_queue import EVENT_COST, EventQueue, Policy, QueuedEvent, QueueMemory, check_options
from .patterns import RESERVED, fault_of_pattern, fault_of_topic, is_pattern, matches
from .relay import EventRelay, Keep
from .retained import Retained
from .sharing import EventSharing
from .subscriptions import EventDelivery, SubscribedConnection, Subscriber, SubscriptionTable


class Topics(Mapping[str, int]):
    """The topics and patterns of one server with subscriptions; a mapping to the number of connections of each.

    Where a server has several processes, this is the part of one of them, and an `EventRelay` what it knows of the
    others: numbers are of all.

    Args:
        limits: `max_event_size`, those of subscriptions, patterns and last values, and `max_waiting_total` are enforced
            here; `max_message_size` is also the most that all events that wait for one connection may have together.
        max_events: events of one subscription that may wait for one connection.
        policy: what is dropped when more would wait.
        system: topics with this prefix, which begins with "rpc.", may be subscribed to; `announce` publishes to them.
            "" for none.

    Attributes:
        memory: counts the events that wait for slow connections, all together.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    def __init__(
        self, *, codec: Codec, limits: Limits, counters: Counters, max_events: int, policy: Policy, system: str = ""
    ) -> None:
        check_options(max_events, policy)
        self.memory = QueueMemory(limits.max_waiting_total)
        self._codec = codec
        self._limits = limits
        self._counters = counters
        self._max_events = max_events
        self._max_size = min(limits.max_event_size, limits.max_message_size)
        self._policy: Policy = policy
        self._system = system
        self._is_binary = False
        #: Guards what follows, so that any thread may publish.
        self._lock = threading.Lock()
        self._table: SubscriptionTable[Subscriber] = SubscriptionTable(limits)
        self._relay: EventRelay | None = None
        self._sharing: list[EventSharing] = []
        self._retained = Retained(limits.max_retained, limits.max_retained_size)
        self._delivery = EventDelivery(self._lock, self._remove, counters=counters, max_events=max_events)

    def __getitem__(self, topic: str) -> int:
        own = self._table.by_topic
        if self._relay is None:
            return len(own[topic])
        others = self._relay.table.by_topic
        if topic not in own:
            return len(others[topic])
        return len(own[topic]) + len(others.get(topic, ()))

    def __iter__(self) -> Iterator[str]:
        own = list(self._table.by_topic)
        return iter(own if self._relay is None else dict.fromkeys((*own, *list(self._relay.table.by_topic))))

    def __len__(self) -> int:
        return sum(1 for _ in self) if self._relay is not None else len(self._table.by_topic)

    def __repr__(self) -> str:
        return f"<topics: {dict(self)}>"

    def attach_payloads(self) -> None:
        """Attach large payloads to events from now on, since some peer reads binary frames; others are sent text."""
        if not self._is_binary:
            self._is_binary = True
            if self._relay is not None:
                with self._lock:
                    self._relay.attached()

    def join(self, relay: EventRelay, *, counts_others: bool = True) -> None:
        """Be the topics of one of several processes, whose events go through this object.

        Args:
            relay: to and from the others.
            counts_others: the subscriptions in the others count towards the limits here.
        """
        self._relay = relay
        self._table.others = relay.table if counts_others else None
        relay.join(self, self._lock)

    def share(self, sharing: EventSharing) -> None:
        """Share the events with other servers as well; all are published there, and large payloads are attached."""
        self.attach_payloads()
        with self._lock:
            topics = [topic for topic, _ in reversed(self._retained.newest(">"))]
            sharing.join(self, self._lock, topics)
            self._sharing.append(sharing)

    @property
    def group(self) -> str:
        """The id of the server that this process is one of several of; empty where it is the only one."""
        return self._relay.group if self._relay is not None else ""

    # -- publishing, in any thread ------------------------------------------------------------------------------------

    def publish(self, topic: str, value: Any, *, retain: bool = False) -> int:
        """Send a value to every connection that has subscribed to the topic, or to patterns that match it, once.

        Never waits, and may be called from any thread. The events of one thread are sent in the order in which they
        were published. Without subscribers, the value is not encoded, unless other servers may have some (NATS).

        Args:
            topic: a name of levels with dots between them, not a pattern.
            value: of any type that a method may return.
            retain: keep the value as the topic's last one, in place of the one before: connections that subscribe later
                are sent it first. None is sent, and the topic has no last value any more.

        Returns:
            The number of connections that will be sent it; those of this server, where others share its events.

        Raises:
            TypeError, ValueError: that is no topic.
            EncodeError, MessageTooLarge: the value cannot be sent. It is sent to none.
            ServerBusy: it cannot be kept, for `max_retained` or `max_retained_size`. It is sent to none.
        """
        self._check(topic)
        return self._publish(topic, value, retain)

    def announce(self, topic: str, value: Any) -> int:
        """Publish to a topic of rpcstream's own, whose name is not checked. It is not shared with other servers."""
        return self._publish(topic, value, False, is_shared=False)

    def forward(self, topic: str, message: Encoded, *, retain: bool = False) -> int:
        """Publish a `$/event` message of this topic that is ready to be sent.

        Its value is kept with `retain`, also if that is null: use `forget` then.
        """
        self._check(topic)
        message = self._checked(message)
        with self._lock:
            if retain:
                self._retained.keep(topic, message)
            return self._put(topic, message, "keep" if retain else "")

    def forget(self, topic: str) -> bool:
        """Remove the last value of a topic, without telling subscribers; return False if there was none."""
        with self._lock:
            if self._relay is not None:
                self._relay.publish(topic, None, "forget")
            for sharing in self._sharing:
                sharing.publish(topic, None, "forget")
            return self._retained.forget(topic)

    def _check(self, topic: str) -> None:
        """Raise TypeError or ValueError unless it is a topic that may be published to."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, got {type(topic).__name__}")
        fault = _fault_of_published(topic)
        if fault is not None:
            raise ValueError(f"the topic {topic!r:.100} {fault}")

    def _publish(self, topic: str, value: Any, retain: bool, *, is_shared: bool = True) -> int:
        table, relay = self._table, self._relay
        is_shared = is_shared and bool(self._sharing)
        # The tables are only read here, each at one stroke: that needs no lock.
        if retain or is_shared or table.has(topic) or (relay is not None and relay.wants(topic)):
            message = self._encoded(topic, value)
            keep: Keep = "" if not retain else "forget" if value is None else "keep"
            with self._lock:
                if keep == "forget":
                    self._retained.forget(topic)
                elif keep:
                    self._retained.keep(topic, message)
                return self._put(topic, message, keep, is_shared=is_shared)
        with self._lock:
            self._counters.events_published += 1
        return 0

    def _encoded(self, topic: str, value: Any) -> Encoded:
        event = envelope.request(envelope.EVENT, {"topic": topic, "value": value})
        message = self._checked(self._codec.serialize(event, binary=self._is_binary))
        if isinstance(message, AttachedMessage):
            message.secure()
        return trimmed_message(message)

    def _checked(self, message: Encoded) -> Encoded:
        """Return the message, or raise MessageTooLarge if it is longer than an event may be."""
        if size_as_text(message) > self._max_size:
            raise envelope.oversize(size_as_text(message), self._max_size, side="server")
        return message

    def _put(self, topic: str, message: Encoded, keep: Keep, *, is_shared: bool = True) -> int:
        """Queue an event for each subscriber, and send it to the other processes, and to other servers."""
        self._counters.events_published += 1
        count = self._put_here(topic, message)
        is_told = False
        for sharing in self._sharing if is_shared else ():
            is_told |= sharing.publish(topic, message, keep)
        return count if self._relay is None or is_told else count + self._relay.publish(topic, message, keep)

    def _put_here(self, topic: str, message: Encoded) -> int:
        """Queue an event for each subscriber; even those that take events at once are sent it in the next turn."""
        counters, delivery = self._counters, self._delivery
        event = QueuedEvent(topic, message)
        size = len(event) + EVENT_COST
        count = 0
        for subscriber, name in self._table.find(topic).items():
            queue = subscriber.queue
            if not subscriber.connection.is_open or queue.has_overflowed:
                continue
            dropped = queue.dropped
            count += queue.put(name, event, size)
            counters.events_dropped += queue.dropped - dropped
            if not subscriber.is_due or queue.has_overflowed:
                delivery.wake(subscriber)
        delivery.schedule()
        return count

    # -- from and for other processes and servers, in the event loop -------------------------------------------------

    def receive(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        """Send an event that another process has published to the subscribers of this one; under the lock.

        Args:
            topic: of the event.
            message: None: there is nothing to send.
            keep: what becomes of the last value.
        """
        if keep == "forget":
            self._retained.forget(topic)
        elif keep and message is not None:
            try:
                self._retained.keep(topic, message)
            except ServerBusy as error:
                self._delivery.log.warning(topic, "a last value of another process is not kept: %s", error)
        if message is not None:
            self._put_here(topic, message)

    def announce_here(self, topic: str, value: Any) -> None:
        """As `announce`, to the subscribers of this process alone."""
        if self._table.has(topic):
            message = self._encoded(topic, value)
            with self._lock:
                self._put_here(topic, message)

    def topics_with_values(self) -> list[str]:
        """The topics that have a last value, the newest first."""
        with self._lock:
            return [topic for topic, _ in self._retained.newest(">")]

    def last_value(self, topic: str) -> Encoded | None:
        """The message with the last value of a topic."""
        return self._retained.get(topic)

    def count_dropped(self, count: int) -> None:
        """Count events that another process, or the way to other servers, was too slow for."""
        self._counters.events_dropped += count

    def own_names(self) -> list[str]:
        """All topics and patterns with subscribers of this process."""
        return list(self._table.by_topic)

    def has_subscribers(self, name: str) -> bool:
        """Whether a topic or pattern, taken by its name, has subscribers of this process; needs no lock."""
        return name in self._table.by_topic

    def own_subscriptions(self) -> dict[int, dict[str, tuple[str, ...]]]:
        """All subscriptions of this process, by the number of the connection."""
        return {each.number: each.topics for each in self._table.subscribers.values() if each.number}

    # -- subscribing, in the event loop -------------------------------------------------------------------------------

    def subscribe(
        self, connection: SubscribedConnection, topic: str, *, denied: tuple[str, ...] = ()
    ) -> dict[str, Any]:
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
        with self._lock:
            subscriber = self._table.subscribers.get(connection) or self._add_subscriber(connection)
            if topic in subscriber.topics:
                subscriber.topics[topic] = denied
            else:
                self._table.add(subscriber, topic, denied)
                self._counters.subscriptions = self._table.count
                self._put_last_values(subscriber, topic, denied)
                self._changed(topic)
            if self._relay is not None:
                self._relay.subscribed(subscriber, topic, denied)
        return {"topic": topic, "queue": self._max_events, "policy": self._policy}

    async def subscribe_everywhere(
        self, connection: SubscribedConnection, topic: str, *, denied: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Subscribe, and return when other processes and servers know of it.

        So none of them publishes past the subscriber. Its events wait meanwhile, and until the task that handles the
        request has ended, so that the reply is sent first.
        """
        before = self._table.subscribers.get(connection)
        is_new = before is None or topic not in before.topics
        result = self.subscribe(connection, topic, denied=denied)
        subscriber = self._table.subscribers[connection]
        self._delivery.hold(subscriber)
        try:
            await asyncio.gather(
                *([self._relay.settled()] if self._relay is not None else []),
                *[sharing.settled() for sharing in self._sharing],
            )
        except BaseException:
            if is_new:
                self.unsubscribe(connection, topic)
            raise
        finally:
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(lambda _: connection.loop.call_soon(self._release, subscriber))
        return result

    def _release(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._delivery.release(subscriber)

    def check_subscription(self, topic: str) -> None:
        """Raise InvalidParams unless it is a topic or a pattern that may be subscribed to."""
        fault = fault_of_pattern(topic) or _fault_of_name(topic, self._system)
        if fault is not None:
            data = {"parameter": "topic", "path": "$.topic", "reason": f"the topic {fault}"}
            raise InvalidParams(f"Invalid params: topic: the topic {fault}", data)

    def unsubscribe(self, connection: SubscribedConnection, topic: str) -> bool:
        """Send no more events of the topic or pattern, nor those that wait; return False if it was not subscribed to.

        Waiting events that other subscriptions of the connection would have taken go on to wait for these.
        """
        with self._lock:
            subscriber = self._table.subscribers.get(connection)
            if subscriber is None or topic not in subscriber.topics:
                return False
            self._table.remove(subscriber, topic)
            self._counters.subscriptions = self._table.count
            dropped = subscriber.queue.dropped
            removed = subscriber.hand_on(topic)
            self._counters.events_dropped += removed + subscriber.queue.dropped - dropped
            if self._relay is not None:
                self._relay.unsubscribed(subscriber, topic)
            self._changed(topic)
            return True

    def subscriptions_of(self, connection: SubscribedConnection) -> dict[str, tuple[str, ...]]:
        """Return the topics and patterns that a connection has subscribed to, each with the patterns denied of it."""
        with self._lock:
            subscriber = self._table.subscribers.get(connection)
            return {} if subscriber is None else dict(subscriber.topics)

    def _add_subscriber(self, connection: SubscribedConnection) -> Subscriber:
        self._delivery.use_loop(connection.loop)
        queue: EventQueue[QueuedEvent] = EventQueue(
            self._max_events, self._limits.max_message_size, self._policy, self.memory
        )
        subscriber = Subscriber(connection, queue)
        self._table.add_subscriber(subscriber)
        connection.add_lost_callback(lambda: self._remove(subscriber))
        return subscriber

    def _put_last_values(self, subscriber: Subscriber, topic: str, denied: tuple[str, ...]) -> None:
        """Queue the last values for a new subscription, as far as there is room for them."""
        events = [QueuedEvent(*each) for each in self._retained.newest(topic, denied)]
        # However many patterns match the same topics, no more of their last values wait than there may be.
        most = min(self._max_events, self._limits.max_retained - len(subscriber.queue))
        count = subscriber.put_last_values(topic, events, most)
        self._counters.events_dropped += len(events) - count
        if count and not subscriber.is_due:
            self._delivery.wake(subscriber)
        self._delivery.schedule()

    def _remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber whose connection is over, or is to end, with the events that wait for it."""
        with self._lock:
            self._counters.events_dropped += subscriber.queue.clear()
            topics = list(subscriber.topics)
            self._table.remove_subscriber(subscriber)
            self._counters.subscriptions = self._table.count
            if self._relay is not None:
                self._relay.left(subscriber)
            self._changed(*topics)

    def _changed(self, *topics: str) -> None:
        """Tell those that the events are shared with which subscriptions may have begun or ended."""
        for sharing in self._sharing:
            for topic in topics:
                if not topic.startswith(RESERVED):
                    sharing.changed(topic)


@functools.lru_cache(maxsize=1024)  # most are published to again and again, and the check costs a quarter of an event
def _fault_of_published(topic: str) -> str | None:
    return fault_of_topic(topic) or _fault_of_name(topic)


def _fault_of_name(topic: str, system: str = "") -> str | None:
    """Return why a topic or pattern must not be used; None if it may be."""
    if not topic.startswith(RESERVED) or (system and topic.startswith(system)):
        return None
    return f"begins with {RESERVED!r}, which is reserved"
