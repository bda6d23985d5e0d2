"""Events of a service for a client: NATS sends them, whether an instance runs or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import ConnectFailed, ConnectionLost, wrong_parameter
from ..events.event_queue import EventQueue
from ..events.patterns import RESERVED, fault_of_pattern, fault_of_topic, matches
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.buffers import Encoded
from .event_messages import (
    ANSWER_TIME,
    LastValue,
    Stamp,
    check_answer,
    payload_of,
    read_event,
    read_values,
    topic_of,
    value_in,
)
from .link import NatsLink, Subscription, is_unanswerable
from .messages import EVENT, RETAIN, event_prefix, event_subject
from .protocol import NatsMessage

log = get_logger("rpcstream.nats")

#: Events that may wait while the last values are read: those of a second or two for a busy subscriber.
EARLY_MAX = 10_000

#: Called with the params of an event's message, and the message.
OnEvent = Callable[[dict[str, Any], bytes], object]


class ClientEvents:
    """The events of one service, on one connection of a client.

    Args:
        link: the connection.
        service: the name of the service.
        limits: of the client.
        address: of the service, for errors.
    """

    def __init__(self, link: NatsLink, service: str, limits: Limits, address: str) -> None:
        self._link = link
        self._service = service
        self._limits = limits
        self._address = address
        self._log = LimitedLog(log)
        self._readers: dict[str, _Reader] = {}

    async def subscribe(self, topic: str, on_event: OnEvent, confirmed: Callable[[], object]) -> None:
        """Have a function called with each event of a topic, or of those that match a pattern; last values first.

        Args:
            topic: the topic or pattern; all subscribers of it share the first one's subscription.
            on_event: the function.
            confirmed: called before the first event; perhaps once more.

        Raises:
            InvalidParams: it is neither a topic nor a pattern.
            NotPermitted: NATS does not permit this login to subscribe to it, or to ask for its last values.
            ServerBusy: the service does not send the last values.
            TimeoutError: it does not send them in time.
            ConnectionLost: the connection to NATS has ended.
        """
        reader = self._readers.get(topic)
        if reader is None:
            subject = self._subject(topic, fault_of_pattern(topic), EVENT)
            reader = self._readers[topic] = _Reader(topic, self._service, self._limits, on_event, self._log)
            reader.beginning = asyncio.get_running_loop().create_task(self._begin(subject, reader, confirmed))
        reader.waiting += 1
        try:
            with self._explained():
                await asyncio.shield(reader.beginning)
        finally:
            reader.waiting -= 1
            if not reader.waiting and reader.subscription is None:
                self._end(reader)
        confirmed()

    async def _begin(self, subject: str, reader: _Reader, confirmed: Callable[[], object]) -> None:
        made = self._link.subscribe(subject, reader.on_message)
        try:
            await self._link.confirm(subject, "subscription")
            values = await read_values(self._link, self._service, reader.pattern)
        except BaseException:
            made.drop()
            raise
        reader.subscription = made
        confirmed()
        reader.begin(values)

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic or pattern, if there is one."""
        reader = self._readers.get(topic)
        if reader is not None:
            self._end(reader)

    def _end(self, reader: _Reader) -> None:
        if self._readers.get(reader.pattern) is reader:
            del self._readers[reader.pattern]
        reader.beginning.cancel()
        if reader.subscription is not None:
            reader.subscription.drop()

    async def publish(self, topic: str, message: Encoded, *, retain: bool) -> int:
        """Publish an event.

        Args:
            topic: the topic.
            message: the message of the event.
            retain: it becomes the last value of its topic; null ends that.

        Returns:
            1: NATS does not say how many subscribers there are.

        Raises:
            InvalidParams: it is not a topic.
            ConnectFailed: with `retain`, no instance runs that could keep it.
            MessageTooLarge: it is over NATS's `max_payload`.
            NotPermitted: NATS does not permit this login to publish it.
            ServerBusy: the service has no room for one more last value.
            TimeoutError: the service does not answer in time.
            ConnectionLost: the connection to NATS has ended; whether it was published is unknown.
        """
        subject = self._subject(topic, fault_of_topic(topic), RETAIN if retain else EVENT)
        payload = payload_of(message, self._link.max_payload)
        with self._explained():
            if not retain:
                self._link.publish(subject, payload)
                await self._link.confirm(subject)
                return 1
            answer = await self._link.request(subject, payload, seconds=ANSWER_TIME)
        if is_unanswerable(answer):
            reason = (
                f"no instance of the service {self._service!r} is there now to keep the event; wait_for= waits for one"
            )
            raise ConnectFailed(reason, method="rpc.publish", address=self._address)
        check_answer(answer)
        return 1

    def _subject(self, topic: str, fault: str | None, kind: str) -> str:
        """Return the subject of a topic or pattern. Raises InvalidParams if it is none."""
        if fault is None and topic.startswith(RESERVED):
            fault = f"begins with {RESERVED!r}, which is reserved"
        if fault is not None:
            raise wrong_parameter("topic", f"the topic {fault}")
        try:
            return event_subject(self._service, topic, kind)
        except ValueError as error:
            raise wrong_parameter("topic", str(error)) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the error of a lost connection into the one that calls raise."""
        try:
            yield
        except ConnectionError as error:
            raise ConnectionLost(f"the connection to NATS ended: {error}", address=self._address) from error


class _Reader:
    """Gives a client the events of one subscription: the last values, and what has arrived meanwhile, first.

    Args:
        pattern: the topic or pattern.
        service: the service.
        limits: of the client.
        on_event: gets the events.
        events_log: gets what is no event.

    Attributes:
        pattern: the topic or pattern.
        subscription: at NATS; None until the last values are read.
        beginning: the task that makes it; `waiting` counts those who wait for it.
    """

    beginning: asyncio.Task[None]

    def __init__(self, pattern: str, service: str, limits: Limits, on_event: OnEvent, events_log: LimitedLog) -> None:
        self.pattern = pattern
        self.subscription: Subscription | None = None
        self.waiting = 0
        self._prefix = len(event_prefix(service))
        self._limits = limits
        self._on_event = on_event
        self._log = events_log
        #: Topics and messages that arrive while the last values are read; None after that.
        self._early: EventQueue[tuple[str, NatsMessage]] | None
        self._early = EventQueue(EARLY_MAX, limits.max_message_size, "drop_oldest")
        #: The stamps of the last values. An event with one of these or an older one was given before.
        self._stamps: dict[str, Stamp] = {}

    def on_message(self, message: NatsMessage) -> None:
        """Take an event from NATS."""
        topic = topic_of(message, self._prefix, self._log)
        if topic is None:
            return
        if self._early is not None:
            self._early.put(self.pattern, (topic, message), len(message.data))
        else:
            self._take(topic, message)

    def begin(self, values: list[LastValue]) -> None:
        """Give the last values, what has arrived since, and then each event as it arrives."""
        early, self._early = self._early, None
        assert early is not None
        if early.dropped:
            text = "%d events of %s were dropped: too many arrived while the last values were read"
            self._log.warning(self.pattern, text, early.dropped, self.pattern)
        for value in values:
            self._stamps[value.topic] = value.stamp
            if value.keep == "keep":
                self._give(value.topic, value.data)
        while early:
            self._take(*early.take())

    def _take(self, topic: str, message: NatsMessage) -> None:
        known = self._stamps.get(topic)
        value = None if known is None else value_in(message, topic)
        if value is None or known is None or value.stamp > known:
            self._give(topic, message.data)

    def _give(self, topic: str, data: bytes) -> None:
        """Give an event to the client, if it is one."""
        if not matches(self.pattern, topic):
            return
        try:
            event = read_event(data, topic, self._limits)
        except ValueError as error:
            self._log.warning(topic, "a message for the topic %s on NATS was ignored: %s", topic, error)
        else:
            self._on_event(event.params, event.line)
