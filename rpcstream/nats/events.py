"""Events of one instance of a service: to NATS, and from there to the subscribers at its own port.

An instance sends its own events to its own subscribers at once, and publishes them on NATS, which does not send them
back. An event that arrives by several subscriptions that overlap counts where it arrives by the oldest one. The
processes of one server send each other events without NATS, but last values by NATS, where JetStream decides their
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

from ..errors import MessageTooLarge
from ..events.patterns import fault_of_topic
from ..events.subscriptions import Subscriber
from ..events.topics import CARRIED_COST, CARRIED_MAX, MAX_EVENT_SIZE, Keep, Topics
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.buffers import Encoded
from .event_messages import OF_PROCESSES, passed_on, payload_of, topic_of
from .last_values import revision_of
from .link import NatsLink, Subscription
from .protocol import NatsMessage
from .shared_values import SharedValues
from .subjects import event_prefix, event_subject

log = get_logger("rpcstream.nats")

#: Seconds that a subscriber waits for its reply, at most, until NATS sends the events.
SETTLE_TIME = 2.0

#: Seconds that a server waits at its end until JetStream has the last values.
LEAVE_TIME = 2.0


class NatsEvents:
    """Shares the events of one process with all that is in the same service (`events.topics.Carrier`).

    Args:
        service: the service.
        limits: of the server.
    """

    def __init__(self, service: str, limits: Limits) -> None:
        self._service = service
        self._limits = limits
        self._prefix = len(event_prefix(service))
        self._log = LimitedLog(log)
        self._topics: Topics | None = None
        self._lock = threading.Lock()
        self._values = SharedValues(service, limits, self.receive)
        self._link: NatsLink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The reply subject of events of this server, where it has several processes.
        self._own = ""
        #: Events to be published in the next turn of the loop, and the bytes they take.
        self._out: list[tuple[str, Encoded | None, Keep]] = []
        self._out_size = 0
        self._is_scheduled = False
        #: Subscriptions at NATS by the name of the topic or pattern.
        self._subscriptions: dict[str, Subscription] = {}
        #: How often these have changed, and how many of the changes NATS knows.
        self._changes = self._settled = 0

    # -- for the topics of this process, under their lock -------------------------------------------------------------

    def join(self, topics: Topics) -> None:
        """As `Carrier.join`."""
        self._topics, self._lock = topics, topics.lock
        self._values.join(topics)

    def wants(self, topic: str) -> bool:
        """As `Carrier.wants`; who has subscribed on NATS is not known."""
        return True

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> bool:
        """As `Carrier.publish`."""
        is_stored = bool(keep) and self._values.is_shared
        size = CARRIED_COST + (len(message) if message is not None else 0)
        if self._link is None:  # subscribers on NATS do not get it; a last value is stored later
            if keep:
                self._values.put_later((topic,))
        elif self._out and self._out_size + size > CARRIED_MAX:
            self._drop(topic, keep)
        else:
            self._out.append((topic, message, keep))
            self._out_size += size
            if not self._is_scheduled and self._loop is not None:
                self._is_scheduled = True
                self._loop.call_soon_threadsafe(self._flush)
        return is_stored

    def changed(self, subscriber: Subscriber, name: str) -> None:
        """As `Carrier.changed`."""
        if not name.startswith("rpc."):
            self._subscribe(name)

    async def settled(self) -> None:
        """As `Carrier.settled`."""
        changes = self._changes
        if self._link is not None and self._settled < changes:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(SETTLE_TIME):
                    await self._link.flush()
            self._settled = max(self._settled, changes)

    # -- the connection -----------------------------------------------------------------------------------------------

    async def joined(self, link: NatsLink) -> None:
        """Use a connection, which stands.

        Raises:
            ConnectionError: it has ended meanwhile.
        """
        topics = self._topics
        assert topics is not None
        self._loop = asyncio.get_running_loop()
        self._own = f"{OF_PROCESSES}{topics.group}" if topics.group else ""
        self._subscriptions = {}
        link.ended.append(lambda reason: self._forget_link())
        await self._values.begin(link)
        with self._lock:
            self._link = link
            for name in topics.own.by_topic:
                if not name.startswith("rpc."):
                    self._subscribe(name)
        await self.settled()
        self._values.put_waiting()

    def _forget_link(self) -> None:
        with self._lock:
            self._link = None
            self._values.put_later(topic for topic, _, keep in self._out if keep)
            self._values.end()
            self._out.clear()
            self._out_size = 0
        self._subscriptions = {}

    async def leave(self) -> None:
        """Publish what waits, before the connection is closed."""
        self._flush()
        await self._values.settle(LEAVE_TIME)
        link = self._link
        self._forget_link()
        if link is not None:
            with contextlib.suppress(ConnectionError):
                await link.flush()

    # -- to NATS ------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Publish the events that were added since the last turn of the event loop."""
        with self._lock:
            self._is_scheduled = False
            out, self._out, self._out_size = self._out, [], 0
        for topic, message, keep in out:
            if keep:
                self._values.use()
            sent = self._as_sent(topic, message, keep)
            if sent is None:
                continue
            if keep and self._values.is_shared:
                self._values.put(topic, sent[1], is_end=keep == "forget", on_refused=partial(self._publish, *sent))
                continue
            self._publish(*sent)
            if keep:
                self._values.put_later((topic,))

    def _as_sent(self, topic: str, message: Encoded | None, keep: Keep) -> tuple[str, bytes] | None:
        """Return the subject and the payload of an event; None if NATS cannot carry it now."""
        link = self._link
        if link is None or not link.is_open:
            if keep:
                self._values.put_later((topic,))
            return None
        try:
            subject = event_subject(self._service, topic)
            payload = b"" if message is None else payload_of(message, link.max_payload)
        except (MessageTooLarge, ValueError) as error:
            reason = error.data["reason"] if isinstance(error, MessageTooLarge) else error
            self._log.warning(topic, "an event of %s is not on NATS: %s", topic, reason)
            keep = ""  # neither would its last value be
        else:
            if link.unsent <= CARRIED_MAX:
                return subject, payload
            self._log.warning(None, "events are not on NATS: its server takes them too slowly")
        with self._lock:
            self._drop(topic, keep)
        return None

    def _publish(self, subject: str, payload: bytes) -> None:
        if self._link is not None and payload:
            self._link.publish(subject, payload, self._own)

    def _drop(self, topic: str, keep: Keep) -> None:
        """Count an event for which there is no room; a last value is stored later. Under the lock."""
        assert self._topics is not None
        self._topics.count_dropped()
        if keep:
            self._values.put_later((topic,))

    # -- subscriptions at NATS ----------------------------------------------------------------------------------------

    def _subscribe(self, name: str) -> None:
        """Have NATS send the events of this topic or pattern if it has subscribers here, and else not."""
        assert self._topics is not None
        link, made = self._link, self._subscriptions
        if link is None or not link.is_open or (name in self._topics.own.by_topic) == (name in made):
            return
        if name in made:
            made.pop(name).drop()
        else:
            try:
                made[name] = link.subscribe(event_subject(self._service, name), partial(self._on_event, name))
            except ValueError as error:
                self._log.warning(name, "events of %s do not come from NATS: %s", name, error)
        self._changes += 1

    # -- from NATS ----------------------------------------------------------------------------------------------------

    def _on_event(self, name: str, message: NatsMessage) -> None:
        """Take an event that arrives by the subscription of this name."""
        if message.headers and self._values.is_shared and revision_of(message):
            return  # a last value, which arrives from the bucket
        if self._own and message.reply == self._own:
            return  # another process of this server has sent it here
        topic = topic_of(message, self._prefix, self._log)
        if topic is not None and message.data and self._is_oldest(name, topic):
            self.receive(topic, message.data, "")

    def _is_oldest(self, name: str, topic: str) -> bool:
        """Whether the subscription of this name is the oldest one that events of a topic arrive by."""
        assert self._topics is not None
        made = self._subscriptions
        numbers = [made[each].number for each in self._topics.own.names_for(topic) if each in made]
        return not numbers or (name in made and made[name].number == min(numbers))

    def receive(self, topic: str, data: bytes, keep: Keep) -> bool:
        """Give an event of another publisher to the subscribers here.

        Args:
            topic: of the event.
            data: its payload; empty: there is nothing to send.
            keep: what becomes of the last value; where one of this instance is on its way, nothing is done.

        Returns:
            False if nothing was done.
        """
        topics, limits = self._topics, self._limits
        assert topics is not None
        message: Encoded | None = None
        try:
            if fault_of_topic(topic) is not None or topic.startswith("rpc."):
                raise ValueError("that is no topic")
            if len(data) > MAX_EVENT_SIZE:
                raise ValueError(f"it has {len(data)} bytes, {MAX_EVENT_SIZE} are allowed")
            if data:
                message = passed_on(data, topic, limits)
        except ValueError as error:
            self._log.warning(topic, "what was published to %s on NATS is not passed on: %s", topic, error)
            return True
        with self._lock:
            if keep and (self._values.expects(topic) or any(topic == each for each, _, _ in self._out)):
                return False
            topics.receive(topic, message, keep)
        return True
