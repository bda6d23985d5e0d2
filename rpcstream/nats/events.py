"""Events of one instance of a service: to NATS, and from there to the subscribers at its own port.

An instance sends its own events to its own subscribers at once, and publishes them on NATS, which does not send them
back. An event that arrives by several overlapping subscriptions counts where it arrives by the oldest one. The
processes of one server send each other events without NATS, but last values by NATS, where they are stamped.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

from ..errors import MessageTooLarge, RpcError, wrong_parameter
from ..events.patterns import fault_of_pattern, fault_of_topic
from ..events.subscriptions import Subscriber
from ..events.topics import CARRIED_COST, CARRIED_MAX, LATE_MAX, MAX_EVENT_SIZE, Keep, Topics
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.buffers import Encoded
from .event_messages import (
    OF_PROCESSES,
    Answers,
    LastValue,
    PassedEvent,
    Stamp,
    Stamps,
    passed_on,
    payload_of,
    read_values,
    send_answer,
    topic_of,
    value_in,
)
from .link import NatsLink, Subscription
from .messages import (
    EVENT,
    INBOX,
    KEEP,
    LAST,
    NO_INBOX,
    QUEUE,
    RETAIN,
    event_prefix,
    event_subject,
    event_tokens,
    reason_of,
)
from .protocol import NatsMessage

log = get_logger("rpcstream.nats")

#: Seconds that a subscriber waits for its reply, at most, until NATS sends the events.
SETTLE_TIME = 2.0

#: Last values that are sent late in one turn of the event loop, and the seconds between two turns.
LATE_AT_ONCE, LATE_PAUSE = 500, 0.1


class NatsEvents:
    """Shares the events of one process with all that is in the same service (`events.topics.Carrier`).

    Args:
        service: the service.
        limits: of the server.
    """

    _topics: Topics
    _stamps: Stamps

    def __init__(self, service: str, limits: Limits) -> None:
        self._service = service
        self._limits = limits
        self._log = LimitedLog(log)
        self._lock = threading.Lock()
        self._link: NatsLink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The reply subject of events of this server, where it has several processes.
        self._own = ""
        #: Events to be published in the next turn of the loop, and the bytes they take.
        self._out: list[tuple[str, Encoded | None, Keep, Stamp | None]] = []
        self._out_size = 0
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        #: Topics whose last value NATS has not got; whether it has changed since, so that it is the latest one.
        self._late: dict[str, bool] = {}
        #: Subscriptions at NATS by the name of the topic or pattern.
        self._subscriptions: dict[str, Subscription] = {}
        #: How often these have changed, and how many of the changes NATS knows.
        self._changes = self._settled = 0

    # -- for the topics of this process, under their lock -------------------------------------------------------------

    def join(self, topics: Topics) -> None:
        """As `Carrier.join`."""
        self._topics, self._lock = topics, topics.lock
        self._stamps = Stamps(topics, self._limits.max_retained)

    def wants(self, topic: str) -> bool:
        """As `Carrier.wants`; who has subscribed on NATS is not known."""
        return True

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> bool:
        """As `Carrier.publish`."""
        size = CARRIED_COST + (len(message) if message is not None else 0)
        if self._link is None:  # subscribers on NATS do not get it; a last value is sent later
            if keep:
                self._send_later(topic)
            return False
        if self._out and self._out_size + size > CARRIED_MAX:
            self._drop(topic, keep)
        else:
            self._out.append((topic, message, keep, self._stamps.make(topic) if keep else None))
            self._out_size += size
            self._schedule()
        return bool(keep)

    def _schedule(self) -> None:
        if not self._is_scheduled and self._loop is not None:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _drop(self, topic: str, keep: Keep) -> None:
        """Count an event for which there is no room; a last value is sent later."""
        self._topics.count_dropped()
        if keep:
            self._send_later(topic)

    def _send_later(self, topic: str, is_changed: bool = True) -> None:
        self._late[topic] = is_changed or self._late.get(topic, False)
        if len(self._late) > LATE_MAX:
            self._late.popitem()

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
        """Use a connection, which stands: learn the last values of the service, and send those that it has not got.

        Raises:
            ConnectionError: it has ended meanwhile.
        """
        topics, self._loop = self._topics, asyncio.get_running_loop()
        self._own = f"{OF_PROCESSES}{topics.group}" if topics.group else ""
        self._subscriptions, self._timer = {}, None
        answers = Answers(link, topics, self._stamps)
        link.ended.append(lambda reason: self._forget_link(answers))
        link.subscribe(event_prefix(self._service, KEEP) + ">", self._on_value)
        await link.flush()
        known = await self._read_values(link)
        with self._lock:
            self._link = link
            for name in topics.own.by_topic:
                if not name.startswith("rpc."):
                    self._subscribe(name)
            link.subscribe(event_prefix(self._service, LAST) + ">", partial(self._on_ask, link, answers), QUEUE)
            link.subscribe(event_prefix(self._service, RETAIN) + ">", partial(self._on_retain, link), QUEUE)
            self._changes += 1
            for topic in topics.retained.messages:
                if topic not in self._stamps.by_topic:
                    self._send_later(topic)
            for topic, stamp in self._stamps.by_topic.items():
                if topic not in known or known[topic] < stamp:
                    self._send_later(topic, is_changed=False)
            self._schedule()
        await self.settled()

    async def _read_values(self, link: NatsLink) -> dict[str, Stamp]:
        """Learn the last values that another instance has; return their stamps."""
        try:
            values = await read_values(link, self._service, ">")
        except (TimeoutError, RpcError) as error:
            reason = "no answer" if isinstance(error, TimeoutError) else reason_of(error)
            log.warning("the last values of the service %s could not be read: %s", self._service, reason)
            return {}
        for value in values:
            self._take(value)
        return {value.topic: value.stamp for value in values}

    def _forget_link(self, answers: Answers | None = None) -> None:
        if answers is not None:
            answers.stop()
        with self._lock:
            self._link = None
            for topic, _, keep, _ in self._out:
                if keep:
                    self._send_later(topic)
            self._out.clear()
            self._out_size = 0
        self._subscriptions = {}

    async def leave(self) -> None:
        """Publish what waits, before the connection is closed."""
        self._flush()
        link = self._link
        self._forget_link()
        if link is not None:
            with contextlib.suppress(ConnectionError):
                await link.flush()

    # -- to NATS ------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Publish the events that were added since the last turn of the event loop, and last values that are late."""
        with self._lock:
            self._is_scheduled = False
            out, self._out, self._out_size = self._out, [], 0
        for topic, message, keep, stamp in out:
            self._send(topic, message, keep, stamp)
        with self._lock:
            late = list(self._late.items())[:LATE_AT_ONCE] if self._link is not None else []
            for topic, is_changed in late:
                del self._late[topic]
                if is_changed:
                    self._stamps.make(topic)
        for topic, is_changed in late:
            message = self._topics.retained.messages.get(topic)
            self._send(
                topic,
                message,
                "forget" if message is None else "keep",
                self._stamps.by_topic.get(topic),
                is_event=is_changed,
            )
        if self._late and self._link is not None and self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(LATE_PAUSE, self._flush_late)

    def _flush_late(self) -> None:
        self._timer = None
        self._flush()

    def _send(
        self, topic: str, message: Encoded | None, keep: Keep, stamp: Stamp | None, *, is_event: bool = True
    ) -> None:
        """Publish an event, or a last value.

        Args:
            is_event: subscribers have not had it; otherwise it is for the other instances.
        """
        link = self._link
        if link is None or not link.is_open:
            if keep:
                with self._lock:
                    self._send_later(topic)
            return
        try:
            tokens = event_tokens(topic)
            payload = b"" if message is None else payload_of(message, link.max_payload)
        except (MessageTooLarge, ValueError) as error:
            self._log.warning(topic, "an event of %s was not published on NATS: %s", topic, reason_of(error))
            with self._lock:
                self._drop(topic, "")
                if keep:  # the last value stays here until there is another one
                    self._stamps.by_topic.pop(topic, None)
            return
        if link.unsent > CARRIED_MAX:
            self._log.warning(None, "events were not published on NATS, because its server reads too slowly")
            with self._lock:
                self._drop(topic, keep)
            return
        headers = None
        if stamp is not None:
            headers = stamp.headers(keep)
            link.publish(event_prefix(self._service, KEEP) + tokens, payload, headers=headers)
        if payload and is_event:
            link.publish(event_prefix(self._service, EVENT) + tokens, payload, self._own, headers)

    # -- subscriptions at NATS ----------------------------------------------------------------------------------------

    def _subscribe(self, name: str) -> None:
        """Have NATS send the events of this topic or pattern if it has subscribers here, and else not."""
        link, made = self._link, self._subscriptions
        if link is None or not link.is_open or (name in self._topics.own.by_topic) == (name in made):
            return
        if name in made:
            made.pop(name).drop()
        else:
            try:
                made[name] = link.subscribe(event_subject(self._service, name), partial(self._on_event, name))
            except ValueError as error:
                self._log.warning(name, "events of %s cannot be received from NATS: %s", name, error)
        self._changes += 1

    # -- from NATS ----------------------------------------------------------------------------------------------------

    def _on_event(self, name: str, message: NatsMessage) -> None:
        """Take an event that arrives by the subscription of this name."""
        if self._own and message.reply == self._own:
            return  # another process of this server has sent it here
        topic = self._topic_of(message, EVENT)
        if topic is None or not message.data or value_in(message, topic) is not None:
            return  # last values arrive by a subscription of their own
        if self._is_oldest(name, topic) and (event := self._read(topic, message.data)) is not None:
            with self._lock:
                self._topics.receive(topic, event.message, "")

    def _is_oldest(self, name: str, topic: str) -> bool:
        """Whether the subscription of this name is the oldest one that events of a topic arrive by."""
        made = self._subscriptions
        numbers = [made[each].number for each in self._topics.own.names_for(topic) if each in made]
        return not numbers or (name in made and made[name].number == min(numbers))

    def _on_value(self, message: NatsMessage) -> None:
        """Take a last value of another instance."""
        topic = self._topic_of(message, KEEP)
        if topic is not None and (value := value_in(message, topic)) is not None:
            self._take(value)

    def _take(self, value: LastValue) -> None:
        """Keep a last value of another instance and send it to the subscribers here, unless a later one is known."""
        topic = value.topic
        event = self._read(topic, value.data) if value.data else None
        if event is None and (value.data or value.keep == "keep"):
            return
        message = None if event is None else event.message
        with self._lock:
            if self._stamps.take(topic, value.stamp) and not self._late.get(topic):
                self._topics.receive(topic, message, value.keep)

    def _read(self, topic: str, data: bytes) -> PassedEvent | None:
        """An event for the subscribers here; None, and it is logged, where it is no event."""
        try:
            if fault_of_topic(topic) is not None or topic.startswith("rpc."):
                raise ValueError("that is no topic")
            if len(data) > MAX_EVENT_SIZE:
                raise ValueError(f"it has {len(data)} bytes, {MAX_EVENT_SIZE} are allowed")
            return passed_on(data, topic, self._limits)
        except ValueError as error:
            self._log.warning(topic, "a message for the topic %s on NATS was not passed on: %s", topic, error)
            return None

    def _topic_of(self, message: NatsMessage, kind: str) -> str | None:
        return topic_of(message, len(event_prefix(self._service, kind)), self._log)

    # -- requests about last values -----------------------------------------------------------------------------------

    def _on_ask(self, link: NatsLink, answers: Answers, message: NatsMessage) -> None:
        """Send the last values of the topics that match a pattern."""
        pattern = self._topic_of(message, LAST)
        if pattern is None or not message.reply or not self._is_inbox(message.reply):
            return
        # NATS permits subjects: a wildcard in one stands as it is.
        if fault_of_pattern(pattern) or event_subject(self._service, pattern, LAST) != message.subject:
            send_answer(link, message.reply, wrong_parameter("topic", "the subject names no topic or pattern"))
        else:
            answers.add(pattern, message.reply)

    def _is_inbox(self, reply: str) -> bool:
        """Whether answers may go to this subject: an inbox, of an instance or anything else."""
        of_instances, shared = (event_prefix(self._service, kind) for kind in (INBOX, KEEP))
        return not reply.startswith(NO_INBOX) or (reply.startswith(of_instances) and not f"{reply}.".startswith(shared))

    def _on_retain(self, link: NatsLink, message: NatsMessage) -> None:
        """Publish an event of a client that becomes a last value."""
        topic = self._topic_of(message, RETAIN)
        if topic is None or message.reply.startswith(NO_INBOX):
            return
        event = self._read(topic, message.data)
        error: RpcError | None = None
        try:
            if event is None:
                error = wrong_parameter("topic", "the message is not an event of this topic")
            elif event.is_null:
                self._topics.publish(topic, None, retain=True)
            else:
                self._topics.forward(topic, event.message, retain=True)
        except RpcError as refusal:
            error = refusal
        if message.reply:
            send_answer(link, message.reply, error)
