"""Events from a server to its clients: who has subscribed to which topic, and what is on its way to them.

Owns the subscriptions and their order: an event is sent in a later turn of the loop than the request that was answered
with a subscription, so that the reply goes first; and never faster than the connection takes it (`EventQueue`). Knows
neither sockets nor what a value means. (Wire page, "Members and methods of our own".)
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..codec import Codec
from ..errors import InvalidParams, ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..wire import envelope
from ..wire.pieces import Written
from . import event_queue
from .event_queue import EventQueue, Policy
from .session import Session

log = logging.getLogger("rpcstream.server")

#: Characters of a topic. Names that people read are shorter; a subscriber may make the server keep `max_subscriptions`.
TOPIC_MAX = 256

#: Bytes of events that one connection is given before all others have had as much, and before it has shown whether it
#: takes them. Enough to make the cost of a write small.
SHARE = 64 * 1024


class Topics(Mapping[str, int]):
    """The topics of one server that anybody has subscribed to; as a mapping, how many connections that are.

    Args:
        limits: `max_subscriptions` is enforced here; `max_message_size` is also what all that waits for one connection
            may have together.
        max_events: of one topic that may wait for one connection.
        policy: what is dropped when more would wait.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    def __init__(self, *, codec: Codec, limits: Limits, counters: Counters, max_events: int, policy: Policy) -> None:
        event_queue.check(max_events, policy)
        self._codec = codec
        self._limits = limits
        self._counters = counters
        self._max_events = max_events
        self._policy: Policy = policy
        #: What follows may be used by any thread that has the lock.
        self._lock = threading.Lock()
        self._by_topic: dict[str, dict[_Subscriber, None]] = {}
        self._subscribers: dict[Session, _Subscriber] = {}
        self._due: list[_Subscriber] = []
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

    def publish(self, topic: str, value: Any) -> int:
        """Send a value to every connection that has subscribed to the topic; returns how many will be sent it.

        Never waits, and may be called from any thread. The events of one thread are sent in the order in which they
        were published. Where nobody has subscribed, the value is not looked at.

        Raises:
            TypeError, ValueError: that is no topic.
            EncodeError, MessageTooLarge: the value cannot be sent. It is sent to nobody then.
        """
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, got {type(topic).__name__}")
        fault = _fault_of(topic)
        if fault is not None:
            raise ValueError(f"the topic {topic!r:.100} {fault}")
        message = self._encoded(topic, value) if topic in self._by_topic else None
        with self._lock:
            self._counters.events_published += 1
            return 0 if message is None else self._put(topic, message)

    def _encoded(self, topic: str, value: Any) -> Written:
        message = self._codec.serialize(envelope.request(envelope.EVENT, {"topic": topic, "value": value}))
        if len(message) > self._limits.max_message_size:
            raise envelope.oversize(len(message), self._limits.max_message_size, side="server")
        return message

    def _put(self, topic: str, message: Written) -> int:
        """Let it wait for each subscriber; even those that take events at once are sent them in the next turn."""
        count = 0
        for subscriber in self._by_topic.get(topic, ()):
            queue = subscriber.queue
            if not subscriber.session.is_open or queue.has_overflowed:
                continue
            dropped = queue.dropped
            count += queue.put(topic, message, len(message))
            self._counters.events_dropped += queue.dropped - dropped
            if not subscriber.is_due or queue.has_overflowed:
                subscriber.is_due = True
                self._due.append(subscriber)
        self._schedule()
        return count

    # -- subscribing, in the event loop -----------------------------------------------------------------------------

    def subscribe(self, session: Session, topic: str) -> dict[str, Any]:
        """Send what is published to the topic on this connection; the reply to the request that asks for it.

        To be called while that request is handled, so that its reply is sent first. Once more is the same.

        Raises:
            InvalidParams: that is no topic.
            ServerBusy: the connection has as many subscriptions as it may have.
        """
        fault = _fault_of(topic)
        if fault is not None:
            data = {"parameter": "topic", "path": "$.topic", "reason": f"the topic {fault}"}
            raise InvalidParams(f"Invalid params: $.topic: the topic {fault}", data)
        with self._lock:
            subscriber = self._subscribers.get(session) or self._enter(session)
            if topic not in subscriber.topics:
                limit = self._limits.max_subscriptions
                if len(subscriber.topics) >= limit:
                    raise ServerBusy(f"Server busy: this connection has {limit} subscriptions", {"limit": limit})
                subscriber.topics.add(topic)
                self._by_topic.setdefault(topic, {})[subscriber] = None
                self._counters.subscriptions += 1
        return {"topic": topic, "queue": self._max_events, "policy": self._policy}

    def unsubscribe(self, session: Session, topic: str) -> bool:
        """Send no more of the topic, not even what waits; false if that was not subscribed to."""
        with self._lock:
            subscriber = self._subscribers.get(session)
            if subscriber is None or topic not in subscriber.topics:
                return False
            self._counters.events_dropped += subscriber.queue.forget(topic)
            self._leave(subscriber, topic)
            return True

    def _enter(self, session: Session) -> _Subscriber:
        if self._loop is not session.loop:
            # The server runs again, in another loop than before.
            self._loop, self._loop_thread = session.loop, threading.get_ident()
            self._is_scheduled = False
            self._due.clear()
        queue: EventQueue[Written] = EventQueue(self._max_events, self._limits.max_message_size, self._policy)
        subscriber = self._subscribers[session] = _Subscriber(session, queue)
        session.on_lost.append(lambda: self._remove(subscriber))
        return subscriber

    def _leave(self, subscriber: _Subscriber, topic: str) -> None:
        subscriber.topics.remove(topic)
        others = self._by_topic[topic]
        del others[subscriber]
        if not others:
            del self._by_topic[topic]
        self._counters.subscriptions -= 1

    def _remove(self, subscriber: _Subscriber) -> None:
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

    def _again(self, *subscribers: _Subscriber) -> None:
        with self._lock:
            self._due += subscribers
            self._schedule()

    def _send_share(self, subscriber: _Subscriber) -> bool:
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
            messages = queue.take_some(SHARE)
            is_more = subscriber.is_due = bool(queue)
            self._counters.events_sent += len(messages)
        for message in messages:
            session.send(message)
        return is_more

    def _disconnect(self, subscriber: _Subscriber) -> None:
        session = subscriber.session
        reason = f"it was too slow for its events (policy 'disconnect', event_queue {self._max_events})"
        address = session.channel.address if session.channel is not None else "a peer"
        log.warning("closed the connection from %s: %s", address, reason)
        self._counters.closed_for_limits += 1
        self._remove(subscriber)
        session.abort(reason)


class _Subscriber:
    """A connection with subscriptions.

    Attributes:
        is_due: something waits, and will be looked at: soon, or when the connection takes something again.
    """

    __slots__ = ("is_due", "queue", "session", "topics")

    def __init__(self, session: Session, queue: EventQueue[Written]) -> None:
        self.session = session
        self.queue = queue
        self.topics: set[str] = set()
        self.is_due = False


def _fault_of(topic: str) -> str | None:
    """Why that is no topic; None if it is one. Names of patterns and of rpcstream's own topics are kept free."""
    if not topic:
        return "is empty"
    if len(topic) > TOPIC_MAX:
        return f"has more than {TOPIC_MAX} characters"
    if "*" in topic or ">" in topic:
        return "must not contain '*' or '>', which are reserved for patterns"
    return "begins with 'rpc.', which is reserved" if topic.startswith("rpc.") else None
