"""Events of a service, for a client: NATS brings them, whether an instance runs or not.

Owns the client's subscriptions on one connection, each with the last values before what is published from then on, and
publishing. Knows neither local subscribers nor how a value is encoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import ConnectionLost, wrong_parameter
from ..events.patterns import RESERVED, fault_of_pattern, fault_of_topic, matches
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.buffers import Encoded
from .asking import denied
from .event_messages import NoEvent, payload_of, prefix_of_marks, read_event
from .last_values import LastValues, NoLastValues, number_of
from .link import NatsLink, NatsMessage, Subscription
from .subjects import decoded, event_prefix, event_subject

log = get_logger("rpcstream.nats")

#: Events that may wait while the last values are read: what comes in a second to a busy subscriber, or two.
EARLY_MAX = 10_000

#: Called with the params of an event's message, and the message.
OnEvent = Callable[[dict[str, Any], bytes], object]


class ClientEvents:
    """The events of one service, on one connection of a client.

    Args:
        link: the connection.
        service: the service.
        limits: of the client.
        address: of the service, for errors.
    """

    def __init__(self, link: NatsLink, service: str, limits: Limits, address: str) -> None:
        self.limits = limits
        self.log = LimitedLog(log)
        self.last_values = LastValues(link, service)
        self._link = link
        self._service = service
        self._address = address
        self._subscriptions: dict[str, ClientSubscription] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._marks = prefix_of_marks(link.client.new_inbox())
        self._last = 0
        #: How many wait for NATS to permit something, and what it did not permit of that.
        self._asked: dict[str, int] = {}
        self._denied: set[str] = set()
        link.denied.append(self._on_denied)

    # -- subscribing --------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, on_event: OnEvent, confirmed: Callable[[], object]) -> None:
        """Have a function called with each event of a topic, or of those that match a pattern; last values first.

        Args:
            topic: the topic or pattern; there is one subscription to each.
            on_event: the function.
            confirmed: called once, before the first event is given.

        Raises:
            InvalidParams: it is neither a topic nor a pattern.
            NotPermitted: NATS does not permit this login to subscribe to it.
            ServerBusy: JetStream does not give the last values in time.
            ConnectionLost: the connection to NATS has ended.
        """
        fault = fault_of_pattern(topic) or _fault_of_name(topic)
        if fault is not None:
            raise wrong_parameter("topic", f"the topic {fault}")
        known = self._subscriptions.get(topic)
        if known is not None:
            await asyncio.shield(known.begun)
            confirmed()
            return
        made = self._subscriptions[topic] = ClientSubscription(self, topic, on_event)
        try:
            await self._begin(made, confirmed)
        except BaseException as error:
            self.unsubscribe(topic)
            made.end(error)
            raise

    async def _begin(self, made: ClientSubscription, confirmed: Callable[[], object]) -> None:
        try:
            subject = event_subject(self._service, made.topic)
        except ValueError as error:
            raise wrong_parameter("topic", str(error)) from error
        try:
            made.subscription = await self._link.subscribe(subject, made.on_message)
            await self._permitted("subscription", subject)
            try:
                values = await self.last_values.read(made.topic)
            except NoLastValues:
                values = []
        except ConnectionError as error:
            raise ConnectionLost(f"the connection to NATS ended: {error}", address=self._address) from error
        confirmed()
        for value in values:
            if value.data and not value.is_end:
                made.give(value.topic, value.data)
        made.go_on(values[-1].number if values else 0)

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic or pattern, if there is one."""
        made = self._subscriptions.pop(topic, None)
        if made is not None:
            made.has_ended = True
            if made.subscription is not None:
                task = asyncio.get_running_loop().create_task(made.subscription.drop())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, message: Encoded, *, retain: bool, is_end: bool) -> int:
        """Publish an event.

        Args:
            topic: it.
            message: of the event.
            retain: it becomes the last value of its topic.
            is_end: with `retain`: there is no last value any more.

        Returns:
            1: NATS does not say how many subscribers there are.

        Raises:
            InvalidParams: that is no topic; or `retain` where there are no last values.
            MessageTooLarge: it is over NATS's `max_payload`.
            NotPermitted: NATS does not permit this login to publish it.
            ServerBusy: the service has no room for one more last value.
            ConnectionLost: the connection to NATS has ended; whether it was published is unknown.
        """
        fault = fault_of_topic(topic) or _fault_of_name(topic)
        if fault is not None:
            raise wrong_parameter("topic", f"the topic {fault}")
        payload = payload_of(message, self._link.max_payload)
        try:
            subject = event_subject(self._service, topic)
        except ValueError as error:
            raise wrong_parameter("topic", str(error)) from error
        try:
            if retain:
                await self.last_values.start()
                await self.last_values.put(topic, payload, is_end=is_end)
            else:
                self._last += 1
                self._link.publish(subject, payload, f"{self._marks}{self._last}")
                await self._permitted("publish", subject)
            return 1
        except NoLastValues as error:
            raise wrong_parameter("retain", f"last values cannot be kept: {error}") from error
        except ConnectionError as error:
            raise ConnectionLost(f"the connection to NATS ended: {error}", address=self._address) from error

    # -- permissions --------------------------------------------------------------------------------------------------

    async def _permitted(self, what: str, subject: str) -> None:
        """Wait until NATS has handled what was sent. Raises NotPermitted if it does not permit this."""
        key = f"{what} {subject.lower()}"
        self._asked[key] = self._asked.get(key, 0) + 1
        try:
            await self._link.flush()
            if key in self._denied:
                raise denied(what, subject)
        finally:
            self._asked[key] -= 1
            if not self._asked[key]:
                del self._asked[key]
                self._denied.discard(key)

    def _on_denied(self, what: str, subject: str) -> None:
        key = f"{what} {subject.lower()}"
        if key in self._asked:
            self._denied.add(key)


class ClientSubscription:
    """One subscription of a client.

    Attributes:
        topic: the topic or pattern.
        subscription: at NATS; None until it is made.
        begun: done when events are given.
        has_ended: no more events are given.
    """

    def __init__(self, events: ClientEvents, topic: str, on_event: OnEvent) -> None:
        self.topic = topic
        self.subscription: Subscription | None = None
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_ended = False
        self._events = events
        self._on_event = on_event
        self._prefix = len(event_prefix(events._service))
        #: What has come while the last values are read: number, topic, payload. None: no more comes in here.
        self._early: deque[tuple[int, str, bytes]] | None = deque()
        self._early_size = 0
        #: Events with a number up to this one are given already, or there are later ones of their topics.
        self._number = 0

    def end(self, error: BaseException) -> None:
        """Tell those who wait for its beginning that it failed."""
        if not self.begun.done():
            if isinstance(error, Exception):
                self.begun.set_exception(error)
                self.begun.exception()  # perhaps there are none
            else:
                self.begun.cancel()

    def on_message(self, message: NatsMessage) -> None:
        """An event comes from NATS."""
        data = message.data
        if self.has_ended or not data:  # a last value was deleted without an event
            return
        number = number_of(message)
        topic = decoded(message.subject[self._prefix :])
        if topic is None:
            text = "an event on NATS is skipped, since its subject is not a topic: %s"
            self._events.log.warning(None, text, message.subject)
        elif self._early is not None:
            self._keep(number, topic, data)
        elif not number or number > self._number:
            self.give(topic, data)

    def _keep(self, number: int, topic: str, data: bytes) -> None:
        early = self._early
        assert early is not None
        early.append((number, topic, data))
        self._early_size += len(data)
        while len(early) > 1 and (len(early) > EARLY_MAX or self._early_size > self._events.limits.max_message_size):
            self._early_size -= len(early.popleft()[2])
            self._events.log.warning(self.topic, "an event of %s was dropped: too many, before its last values", topic)

    def go_on(self, number: int) -> None:
        """Give what has come meanwhile, but what stands among the last values, and then all that comes.

        Args:
            number: of the latest of the last values.
        """
        early, self._early, self._number = self._early, None, number
        for each, topic, data in early or ():
            if not each or each > number:
                self.give(topic, data)
        self.begun.set_result(None)

    def give(self, topic: str, data: bytes) -> None:
        """Give an event to the client, if it is one."""
        if self.has_ended or not matches(self.topic, topic):
            return
        try:
            read = read_event(data, topic, self._events.limits)
        except NoEvent as error:
            self._events.log.warning(topic, "what was published to %s on NATS is not read: %s", topic, error)
        else:
            self._on_event(read.params, read.line)


def _fault_of_name(topic: str) -> str | None:
    return f"begins with {RESERVED!r}, which is reserved" if topic.startswith(RESERVED) else None
