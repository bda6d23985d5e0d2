"""Events from a server to its clients: who has subscribed to what, and what is on its way to them.

Owns the subscriptions, to topics and to patterns of topics, and their order: an event is sent in a later turn of the
loop than the request that was answered with a subscription, so that the reply goes first; and never faster than the
connection takes it (`EventQueue`). Knows neither sockets nor what a value means. (Wire page, "Members and methods of
our own".)
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..codec import Codec
from ..errors import InvalidParams, NotPermitted, ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.state import ConversationState
from ..wire import envelope
from ..wire.pieces import Written, kept
from . import queue
from .patterns import RESERVED, PatternTable, fault_of_pattern, fault_of_topic, is_pattern, matches
from .queue import EVENT_COST, EventQueue, Policy, Room, Waiting
from .retained import Retained
from .subscriber import Event, Subscriber, weight_of

log = logging.getLogger("rpcstream.server")

#: Bytes of events that one connection is given before all others have had as much, and before it has shown whether it
#: takes them. Enough to make the cost of a write small.
SHARE = 64 * 1024


class Topics(Mapping[str, int]):
    """The topics and patterns of one server that anybody has subscribed to; a mapping: how many connections that are.

    Args:
        limits: `max_event_size`, those of subscriptions, patterns and last values, and `max_waiting_total` are enforced
            here; `max_message_size` is also what all that waits for one connection may have together.
        max_events: of one subscription that may wait for one connection.
        policy: what is dropped when more would wait.
        system: topics with this prefix, which begins with "rpc.", may be subscribed to; `announce` publishes to them.
            "" for none.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    def __init__(
        self, *, codec: Codec, limits: Limits, counters: Counters, max_events: int, policy: Policy, system: str = ""
    ) -> None:
        queue.check(max_events, policy)
        #: What all that waits for slow connections may take together.
        self.room = Room(limits.max_waiting_total)
        self._codec = codec
        self._limits = limits
        self._counters = counters
        self._log = LimitedLog(log)
        self._max_events = max_events
        self._max_size = min(limits.max_event_size, limits.max_message_size)
        self._policy: Policy = policy
        self._system = system
        #: What follows may be used by any thread that has the lock.
        self._lock = threading.Lock()
        #: By topic and by pattern: the subscribers, and that name, under which events wait for them.
        self._by_topic: dict[str, dict[Subscriber, str]] = {}
        self._patterns: PatternTable[str] = PatternTable()
        self._has_patterns = False
        #: Topics, and levels of patterns, of all connections together.
        self._weight = 0
        self._retained = Retained(limits.max_retained, limits.max_retained_size)
        self._subscribers: dict[ConversationState, Subscriber] = {}
        self._due: list[Subscriber] = []
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    def __getitem__(self, topic: str) -> int:
        return len(self._by_topic[topic])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._by_topic))

    def __len__(self) -> int:
        return len(self._by_topic)

    def __repr__(self) -> str:
        return f"<topics: {dict(self)}>"

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, value: Any, *, retain: bool = False) -> int:
        """Send a value to every connection that has subscribed to the topic, or to patterns that match it, once.

        Never waits, and may be called from any thread. The events of one thread are sent in the order in which they
        were published. Where nobody has subscribed, the value is not looked at.

        Args:
            retain: keep the value as the topic's last one: whoever subscribes later is sent it first. In the place of
                the one before; None is sent, and nothing is kept any more.

        Returns:
            How many connections will be sent it.

        Raises:
            TypeError, ValueError: that is no topic.
            EncodeError, MessageTooLarge: the value cannot be sent. It is sent to nobody then.
            ServerBusy: it cannot be kept, for `max_retained` or `max_retained_size`. It is sent to nobody then.
        """
        self._check(topic)
        return self._publish(topic, value, retain)

    def announce(self, topic: str, value: Any) -> int:
        """As `publish`, for topics of rpcstream's own: the name is not looked at."""
        return self._publish(topic, value, False)

    def forward(self, topic: str, message: Written, *, retain: bool = False) -> int:
        """As `publish`, for a `$/event` message that is ready to be sent, with this topic in it. `forget` is for those
        whose value is null."""
        self._check(topic)
        message = self._checked(message)
        with self._lock:
            if retain:
                self._retained.keep(topic, message)
            return self._put(topic, message)

    def forget(self, topic: str) -> bool:
        """Keep no last value of the topic; false if none was kept. Nobody is told."""
        with self._lock:
            return self._retained.forget(topic)

    def _check(self, topic: str) -> None:
        """Raises TypeError or ValueError unless it may be published to."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, got {type(topic).__name__}")
        fault = _fault_of_published(topic)
        if fault is not None:
            raise ValueError(f"the topic {topic!r:.100} {fault}")

    def _publish(self, topic: str, value: Any, retain: bool) -> int:
        # Only the tables are read here, each at one stroke: that needs no lock.
        if retain or topic in self._by_topic or (self._has_patterns and self._patterns.find(topic)):
            message = self._encoded(topic, value)
            with self._lock:
                if retain and value is None:
                    self._retained.forget(topic)
                elif retain:
                    self._retained.keep(topic, message)
                return self._put(topic, message)
        with self._lock:
            self._counters.events_published += 1
        return 0

    def _encoded(self, topic: str, value: Any) -> Written:
        message = self._codec.serialize(envelope.request(envelope.EVENT, {"topic": topic, "value": value}))
        return kept(self._checked(message))

    def _checked(self, message: Written) -> Written:
        """The message, which is no longer than an event may be. Raises MessageTooLarge."""
        if len(message) > self._max_size:
            raise envelope.oversize(len(message), self._max_size, side="server")
        return message

    def _put(self, topic: str, message: Written) -> int:
        """Let it wait for each subscriber; even those that take events at once are sent them in the next turn."""
        self._counters.events_published += 1
        event = Waiting(topic, message)
        size = len(message) + EVENT_COST
        found = self._by_topic.get(topic, {})
        if self._has_patterns:
            found = self._found(topic, found)
        count = 0
        for subscriber, name in found.items():
            queue = subscriber.queue
            if not subscriber.session.is_open or queue.has_overflowed:
                continue
            dropped = queue.dropped
            count += queue.put(name, event, size)
            self._counters.events_dropped += queue.dropped - dropped
            if not subscriber.is_due or queue.has_overflowed:
                self._wake(subscriber)
        self._schedule()
        return count

    def _found(self, topic: str, exact: dict[Subscriber, str]) -> dict[Subscriber, str]:
        """Those who have subscribed to the topic, and those who have to patterns, each with one that matches."""
        patterns = self._patterns.find(topic)
        if not patterns:
            return exact
        found = dict(exact)
        for pattern in patterns:
            for subscriber in self._by_topic[pattern]:
                if subscriber not in found and subscriber.takes(topic, pattern):
                    found[subscriber] = pattern
        return found

    def _wake(self, subscriber: Subscriber) -> None:
        subscriber.is_due = True
        self._due.append(subscriber)

    # -- subscribing, in the event loop -----------------------------------------------------------------------------

    def subscribe(self, session: ConversationState, topic: str, *, denied: tuple[str, ...] = ()) -> dict[str, Any]:
        """Send what is published to the topic, or to those that the pattern matches, on this connection.

        To be called while the request that asks for it is handled, so that its reply is sent first; the last values
        that are kept come next. Once more is the same, but for what is denied.

        Args:
            denied: patterns; what is published to topics that they match is not sent for this subscription.

        Returns:
            The reply to the request.

        Raises:
            InvalidParams: that is no topic and no pattern.
            NotPermitted: the topic is denied.
            ServerBusy: the connection has as many subscriptions as it may have.
        """
        self.check_subscription(topic)
        if not is_pattern(topic) and any(matches(each, topic) for each in denied):
            raise NotPermitted(data={"topic": topic})
        with self._lock:
            subscriber = self._subscribers.get(session) or self._enter(session)
            if topic in subscriber.topics:
                subscriber.topics[topic] = denied
            else:
                self._join(subscriber, topic, denied)
                self._put_retained(subscriber, topic, denied)
        return {"topic": topic, "queue": self._max_events, "policy": self._policy}

    def check_subscription(self, topic: str) -> None:
        """Raises InvalidParams unless it is a topic or a pattern that may be subscribed to."""
        fault = fault_of_pattern(topic) or _fault_of_name(topic, self._system)
        if fault is not None:
            data = {"parameter": "topic", "path": "$.topic", "reason": f"the topic {fault}"}
            raise InvalidParams(f"Invalid params: $.topic: the topic {fault}", data)

    def unsubscribe(self, session: ConversationState, topic: str) -> bool:
        """Send no more of the topic or pattern, not even what waits; false if that was not subscribed to.

        What waits goes on to wait for other subscriptions of the connection that would have taken it.
        """
        with self._lock:
            subscriber = self._subscribers.get(session)
            if subscriber is None or topic not in subscriber.topics:
                return False
            self._leave(subscriber, topic)
            dropped = subscriber.queue.dropped
            forgotten = subscriber.hand_on(topic)
            self._counters.events_dropped += forgotten + subscriber.queue.dropped - dropped
            return True

    def _join(self, subscriber: Subscriber, topic: str, denied: tuple[str, ...]) -> None:
        limits = self._limits
        if len(subscriber.topics) >= limits.max_subscriptions:
            limit = limits.max_subscriptions
            raise ServerBusy(f"Server busy: this connection has {limit} subscriptions", {"limit": limit})
        if self._weight + weight_of(topic) > limits.max_subscriptions_total:
            limit = limits.max_subscriptions_total
            raise ServerBusy(f"Server busy: all connections have {limit} subscriptions together", {"limit": limit})
        self._weight += weight_of(topic)
        subscriber.enter(topic, denied)
        others = self._by_topic.get(topic)
        if others is None:
            others = self._by_topic[topic] = {}
            if is_pattern(topic):
                self._patterns.add(topic, topic)
                self._has_patterns = True
        others[subscriber] = topic
        self._counters.subscriptions += 1
        self._check_steps(subscriber, topic)

    def _check_steps(self, subscriber: Subscriber, topic: str) -> None:
        """Take a pattern back with which publishing would cost too much."""
        if not is_pattern(topic):
            return
        own, every = self._limits.max_pattern_steps, self._limits.max_pattern_steps_total
        if subscriber.steps > own:
            self._leave(subscriber, topic)
            text = f"Server busy: too many patterns of this connection match the same topics, over {own} steps"
            raise ServerBusy(text, {"limit": own})
        if self._patterns.steps > every:
            self._leave(subscriber, topic)
            text = f"Server busy: too many patterns of all connections match the same topics, over {every} steps"
            raise ServerBusy(text, {"limit": every})

    def _put_retained(self, subscriber: Subscriber, topic: str, denied: tuple[str, ...]) -> None:
        """Let the last values wait for a new subscription, as far as there is room for them."""
        events = [Waiting(*each) for each in self._retained.newest(topic, denied)]
        # However many patterns match the same topics, no more of their last values wait than there may be.
        most = min(self._max_events, self._limits.max_retained - len(subscriber.queue))
        count = subscriber.put_last_values(topic, events, most)
        self._counters.events_dropped += len(events) - count
        if count and not subscriber.is_due:
            self._wake(subscriber)
        self._schedule()

    def _enter(self, session: ConversationState) -> Subscriber:
        if self._loop is not session.loop:
            # The server runs again, in another loop than before.
            self._loop, self._loop_thread = session.loop, threading.get_ident()
            self._is_scheduled = False
            self._due.clear()
        queue: EventQueue[Event] = EventQueue(self._max_events, self._limits.max_message_size, self._policy, self.room)
        subscriber = self._subscribers[session] = Subscriber(session, queue)
        session.add_lost_callback(lambda: self._remove(subscriber))
        return subscriber

    def _leave(self, subscriber: Subscriber, topic: str) -> None:
        subscriber.leave(topic)
        self._weight -= weight_of(topic)
        others = self._by_topic[topic]
        del others[subscriber]
        if not others:
            del self._by_topic[topic]
            if is_pattern(topic):
                self._patterns.remove(topic, topic)
                self._has_patterns = len(self._patterns) > 0
        self._counters.subscriptions -= 1

    def _remove(self, subscriber: Subscriber) -> None:
        """The connection is over, or is to end."""
        with self._lock:
            self._counters.events_dropped += subscriber.queue.clear()
            for topic in list(subscriber.topics):
                self._leave(subscriber, topic)
            self._subscribers.pop(subscriber.session, None)

    # -- sending, in the event loop ---------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Send soon, once however many events ask for it."""
        if self._due and not self._is_scheduled:
            assert self._loop is not None
            self._is_scheduled = True
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(self._send)
            else:
                self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """A share for everybody for whom something waits; then the next turn, so that it is written."""
        with self._lock:
            self._is_scheduled = False
            due, self._due = self._due, []
        rest = [subscriber for subscriber in due if self._send_share(subscriber)]
        if rest:
            self._again(*rest)

    def _again(self, *subscribers: Subscriber) -> None:
        with self._lock:
            self._due += subscribers
            self._schedule()

    def _send_share(self, subscriber: Subscriber) -> bool:
        """Is more to be sent in the next turn?"""
        session, queue = subscriber.session, subscriber.queue
        if session not in self._subscribers:
            return False
        if queue.has_overflowed:
            self._disconnect(subscriber)
            return False
        if not session.is_open:
            self._remove(subscriber)  # it takes no more requests, and ends when the last one is answered
            return False
        if session.flows.stalled:
            session.flows.when_flowing(lambda: self._again(subscriber))
            return False
        if not session.flows.is_free:
            return True
        with self._lock:
            events = queue.take_some(SHARE)
            is_more = subscriber.is_due = bool(queue)
            self._counters.events_sent += len(events)
        for event in events:
            session.send(event.message)
        return is_more

    def _disconnect(self, subscriber: Subscriber) -> None:
        session = subscriber.session
        reason = f"it was too slow for its events (policy 'disconnect', event_queue {self._max_events})"
        address = session.channel.address if session.channel is not None else "a peer"
        self._log.warning(None, "closed the connection from %s: %s", address, reason)
        self._counters.closed_for_limits += 1
        self._remove(subscriber)
        session.abort(reason)


@functools.lru_cache(maxsize=1024)  # most are published to again and again, and a look costs a quarter of an event
def _fault_of_published(topic: str) -> str | None:
    return fault_of_topic(topic) or _fault_of_name(topic)


def _fault_of_name(topic: str, system: str = "") -> str | None:
    """Why it must not be used, though it may be a topic or pattern; None if it may."""
    if not topic.startswith(RESERVED) or (system and topic.startswith(system)):
        return None
    return f"begins with {RESERVED!r}, which is reserved"
