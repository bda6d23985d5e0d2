"""Events at a client: `async for value in client.subscribe("ticks")`.

All local subscribers of a topic or pattern share one subscription at the server: made for the first of them, made again
on a new connection, ended with the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

from ..codec.payloads import size_with_payloads
from ..errors import AT_CALLER, CallTimeout, ConnectionLost, RpcError
from ..events.event_queue import EventQueue, Policy
from ..events.patterns import is_pattern, matches
from ..peer.calls import Call
from ..peer.deadline import INFINITE, deadline_in
from ..peer.marshal import NOT_GIVEN
from ..peer.outgoing import AwaitedCall
from ..wire import envelope
from .address import check_lasting
from .connection import ClientConnection
from .pool import ConnectionPool, Persist

#: The params of an event's message, and the message.
Event = tuple[dict[str, Any], bytes | bytearray]


class _Topic:
    """A topic or pattern with its subscribers here, at least one.

    Attributes:
        is_confirmed: the server has confirmed the subscription on the present connection.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: A subscriber that its reader has dropped is removed soon after.
        self.references: set[ReferenceType[Subscription]] = set()
        self.is_confirmed = False

    @property
    def subscribers(self) -> list[Subscription]:
        """Those that still have a reader."""
        return [each for reference in self.references if (each := reference()) is not None]


class Subscriptions:
    """The subscriptions of one client at its server, all on one of its connections.

    Args:
        pool: the connections of the client.
        persist: repeats what fails, see `AsyncClient`.
    """

    def __init__(self, pool: ConnectionPool, persist: Persist) -> None:
        self.marshaller = pool.marshaller
        self._pool = pool
        self._persist = persist
        self._settings = pool.settings
        self._loop: asyncio.AbstractEventLoop | None = None
        #: By name; and the patterns among them.
        self._topics: dict[str, _Topic] = {}
        self._patterns: dict[str, _Topic] = {}
        #: The connection that events arrive on.
        self._connection: ClientConnection | None = None
        pool.greetings.append(self._greet)

    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Subscription:
        """A subscription that has not begun, see `BaseClient.subscribe`."""
        check_lasting(self._settings.address, "subscribe")
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, got {type(topic).__name__}")
        queue: EventQueue[Event] = EventQueue(max_queue, self._settings.limits.max_message_size, policy)
        return Subscription(self, topic, queue, returns)

    async def publish(self, params: dict[str, Any], timeout: Any = NOT_GIVEN) -> int:
        """Publish an event on NATS, see `BaseClient.publish`.

        Args:
            params: of `rpc.publish`.
            timeout: seconds; None: no limit.
        """
        topic, value = params["topic"], params["value"]
        message = self.marshaller.notification(envelope.EVENT, {"topic": topic, "value": value})

        async def attempt(deadline: float, once: bool) -> int:
            connection = await self._pool.get("rpc.publish", deadline, once=once)
            assert connection.events is not None
            async with self._in_time("rpc.publish", deadline):
                return await connection.events.publish(topic, message, retain=params.get("retain", False))

        seconds = self._settings.timeout if timeout is NOT_GIVEN else timeout
        count: int = await self._persist("rpc.publish", attempt, seconds)
        return count

    @asynccontextmanager
    async def _in_time(self, method: str, deadline: float) -> AsyncIterator[None]:
        """Raise CallTimeout at the deadline, for what NATS does in place of a call."""
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                yield
        except TimeoutError as error:
            raise CallTimeout("no answer in time", method=method, address=self.marshaller.address) from error

    # -- subscribers ------------------------------------------------------------------------------------------------

    async def add(self, subscriber: Subscription) -> None:
        """Give a subscriber the events of its topic from now on; subscribe at the server unless that has been done.

        Raises what a call raises; there is no subscription then.
        """
        self._use_loop(asyncio.get_running_loop())
        # Before the reply arrives: the first events may arrive together with it.
        topic = self._take_in(subscriber)
        try:
            await self._persist("rpc.subscribe", partial(self._confirm, subscriber, topic), self._settings.timeout)
        except BaseException as error:
            self.remove(subscriber.topic, subscriber, is_refused=isinstance(error, RpcError))
            raise
        subscriber._has_begun = True

    async def _confirm(self, subscriber: Subscription, topic: _Topic, deadline: float, once: bool) -> None:
        """Have the server confirm the subscription to a topic, on the connection for events."""
        while not (subscriber._has_ended or topic.is_confirmed):
            if self._connection is None or not self._connection.is_open:
                await self._use_connection(await self._pool.get("rpc.subscribe", deadline, once=once), deadline)
            else:
                await self._request(self._connection, topic, deadline)

    def remove(self, name: str, subscriber: Subscription | None = None, *, is_refused: bool = False) -> None:
        """End the subscription to a topic at the server, unless there are subscribers besides this one.

        Args:
            name: the topic or pattern.
            subscriber: is removed; None: it exists no longer.
            is_refused: the server has refused the subscription.
        """
        topic, connection = self._topics.get(name), self._connection
        if topic is None:
            return
        topic.references = {each for each in topic.references if each() not in (None, subscriber)}
        if topic.references:
            return
        self._end([topic])
        if is_refused or connection is None or not connection.is_open or connection.loop.is_closed():
            return
        if connection.events is not None:
            connection.events.unsubscribe(name)
        else:
            message = self.marshaller.notification("rpc.unsubscribe", {"topic": name})
            connection.calls.notify(message, "rpc.unsubscribe")

    def _take_in(self, subscriber: Subscription) -> _Topic:
        """Add a subscriber here, unless it is there; gives its topic."""
        name = subscriber.topic
        topic = self._topics.setdefault(name, _Topic(name))
        topic.references.add(ref(subscriber))
        if is_pattern(name):
            self._patterns[name] = topic
        return topic

    def _end(self, topics: Iterable[_Topic], make_error: Callable[[str], Exception | None] = lambda name: None) -> None:
        """Forget topics and patterns; those who still subscribe to them get no more events."""
        for topic in topics:
            self._topics.pop(topic.name, None)
            self._patterns.pop(topic.name, None)
            topic.is_confirmed = False
            for subscriber in topic.subscribers:
                subscriber._end(make_error(topic.name))

    def close(self) -> None:
        """End all subscriptions; subscribers still get the events that wait for them."""
        self._end(list(self._topics.values()))

    # -- the connection ---------------------------------------------------------------------------------------------

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the subscribers of another event loop, in which the client was used before."""
        if self._loop is not loop:
            self._loop, self._connection = loop, None
            self._topics.clear()
            self._patterns.clear()

    async def _greet(self, connection: ClientConnection) -> None:
        """Subscribe on a new connection to what was subscribed to on a lost one, before calls are sent on it."""
        self._use_loop(connection.loop)
        if self._topics:
            await self._use_connection(connection, deadline_in(self._settings.timeout))

    async def _use_connection(self, connection: ClientConnection, deadline: float) -> None:
        """Receive events on this connection, unless they arrive on another; subscribe again to confirmed topics."""
        if self._connection is not None and self._connection.is_open:
            return
        self._connection = connection
        for topic in self._topics.values():
            topic.is_confirmed = False
        connection.session.on_event = self._deliver
        connection.session.on_lost.append(partial(self._was_lost, connection))
        again = [topic for topic in self._topics.values() if any(each._has_begun for each in topic.subscribers)]
        await asyncio.gather(*(self._request_again(connection, topic, deadline) for topic in again))

    async def _request(self, connection: ClientConnection, topic: _Topic, deadline: float) -> None:
        """Subscribe at the server, and wait until it has confirmed. Raises what a call raises."""

        def confirmed() -> None:
            topic.is_confirmed = connection is self._connection and bool(topic.subscribers)

        if connection.events is not None:
            async with self._in_time("rpc.subscribe", deadline):
                await connection.events.subscribe(topic.name, partial(self._deliver_to, topic), confirmed)
            return
        call = Call(self.marshaller, "rpc.subscribe", {"topic": topic.name}, NOT_GIVEN, NOT_GIVEN)
        pending = _Confirmation(connection.loop.create_future(), deadline, confirmed)
        connection.calls.begin(call, pending)
        try:
            reply, line = await pending.future
        except BaseException:
            connection.calls.give_up(call)
            raise
        call.outcome(reply, line)

    async def _request_again(self, connection: ClientConnection, topic: _Topic, deadline: float) -> None:
        if not connection.is_open:
            return  # lost again: the next connection subscribes
        try:
            await self._request(connection, topic, deadline)
        except RpcError as error:
            # The server now refuses this topic: its subscribers end, the connection stays.
            refusal = error
            self._end([topic], lambda name: refusal)
        else:
            for subscriber in topic.subscribers:
                subscriber.reconnects += subscriber._has_begun

    def _was_lost(self, connection: ClientConnection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        for topic in self._topics.values():
            topic.is_confirmed = False
        if self._settings.reconnect is None:
            reason = connection.reason or "the peer closed the connection"
            self._end(list(self._topics.values()), lambda name: self._loss(name, reason))

    def _loss(self, topic: str, reason: str) -> ConnectionLost:
        return ConnectionLost(f"no more events of {topic!r}: {reason}", address=self.marshaller.address)

    # -- events -----------------------------------------------------------------------------------------------------

    def _deliver(self, params: dict[str, Any], line: bytes | bytearray) -> None:
        """Give an event to its subscribers."""
        name = params.get("topic")
        if type(name) is not str:
            return
        # An event may arrive after its last subscriber was removed. One that arrives before the reply to a subscription
        # was sent for another subscription: giving it out would leave a gap when that one ends.
        found = [topic for pattern, topic in self._patterns.items() if pattern != name and matches(pattern, name)]
        if (topic := self._topics.get(name)) is not None:
            found.insert(0, topic)
        for each in found:
            self._deliver_to(each, params, line)

    def _deliver_to(self, topic: _Topic, params: dict[str, Any], line: bytes | bytearray) -> None:
        """Give an event to the subscribers of one topic or pattern; NATS has sent it for these alone."""
        if topic.is_confirmed:
            for subscriber in topic.subscribers:
                subscriber._put((params, line))
                if subscriber._queue.has_overflowed:
                    subscriber._end(self._loss(topic.name, "the reader was too slow (policy 'disconnect')"))
                    self.remove(topic.name, subscriber)


class _Confirmation(AwaitedCall):
    """Waits for the reply to a subscription, and marks it as confirmed before the next message is handled."""

    __slots__ = ("_confirmed",)

    def __init__(self, future: asyncio.Future[Any], deadline: float, confirmed: Callable[[], object]) -> None:
        super().__init__(future, "rpc.subscribe", deadline)
        self._confirmed = confirmed

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        super().answer(reply, line)
        if "result" in reply:
            self._confirmed()


class Subscription(AsyncIterator[Any]):
    """Iterates over the values published to a topic, or to all topics that match a pattern.

    For one reader, in the event loop of the client. The subscription begins with the first iteration, or with
    `async with`, which waits until the server has confirmed it. It ends when you leave the loop or the block, and with
    `aclose` or `client.close()`.

    Several subscriptions of one client to one topic may yield the same objects.

    Attributes:
        topic: the topic or pattern.
        reconnects: how often the client subscribed again after a lost connection; the events in between are missing.

    Raises, in the iteration:
        RpcError: the server refuses the topic (InvalidParams, ServerBusy, …).
        ConnectFailed, ConnectionLost, CallTimeout: as for a call. A lost connection ends the loop with ConnectionLost
            after the queued events; a client with `reconnect` subscribes again, see `reconnects`.
        TypeError: a value does not fit `returns`. You can read the next one.
    """

    def __init__(self, subscriptions: Subscriptions, topic: str, queue: EventQueue[Event], returns: Any) -> None:
        self.topic = topic
        self.reconnects = 0
        self._subscriptions = subscriptions
        self._queue = queue
        self._returns = returns
        self._gives_topics = False
        #: The server has confirmed the subscription once; no more events will be added.
        self._has_begun = self._has_ended = False
        #: Raised after the waiting events.
        self._error: Exception | None = None
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def dropped(self) -> int:
        """The number of events that this client dropped because they were read too slowly."""
        return self._queue.dropped

    def with_topics(self) -> Subscription:
        """Yield pairs of topic and value, for patterns. Returns the subscription itself."""
        self._gives_topics = True
        return self

    async def __anext__(self) -> Any:
        await self._begin()
        while not self._queue:
            if self._has_ended:
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        params, line = self._queue.take()
        marshaller, topic = self._subscriptions.marshaller, params["topic"]
        value = marshaller.item(topic, params, line, self._returns)
        return (topic, value) if self._gives_topics else value

    async def aclose(self) -> None:
        """End the subscription, without waiting for the server."""
        self._end()
        self._queue.clear()
        self._subscriptions.remove(self.topic, self)

    async def __aenter__(self) -> Subscription:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # After a `break` out of the loop only this tells the server that the events are not wanted.
        loop = self._loop
        if loop is not None and not self._has_ended and not loop.is_closed():
            loop.call_soon_threadsafe(self._subscriptions.remove, self.topic)

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "open" if self._has_begun else "not started"
        return f"<subscription to {self.topic!r}, {state}>"

    async def _begin(self) -> None:
        if not (self._has_begun or self._has_ended):
            self._loop = asyncio.get_running_loop()
            with AT_CALLER:
                await self._subscriptions.add(self)

    def _put(self, event: Event) -> None:
        """Add an event; which one is dropped if there are too many is up to the queue."""
        self._queue.put(self.topic, event, size_with_payloads(event[1]))
        self._wake.set()

    def _end(self, error: Exception | None = None) -> None:
        """Add no more events; the error is raised after those that wait. Only the first call counts."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._wake.set()
