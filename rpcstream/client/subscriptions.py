"""Events at a client: `async for value in client.subscribe("ticks")`.

Owns the one subscription at the server that all readers of a topic, or of a pattern of topics, share: made with the
first of them, made again on a new connection, given up with the last. Who is given which event is the matter of
`LocalSubscribers`; what waits and what is dropped, the `EventQueue`'s; what a value looks like, the marshaller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from ..errors import ConnectionLost, RpcError
from ..events.queue import EventQueue, Policy
from ..peer.deadline import INFINITE, time_left
from ..peer.interfaces import Channel
from ..peer.marshal import NOT_GIVEN, Call, Marshaller
from ..peer.outgoing import AsyncWaiter
from .address import check_lasting
from .connection import ClientConnection
from .options import Settings
from .pool import ConnectionPool
from .readers import Event, LocalSubscriber, LocalSubscribers


class Subscriptions:
    """All subscriptions of one client. They live on one of its connections."""

    def __init__(self, links: ConnectionPool, marshaller: Marshaller, settings: Settings) -> None:
        self.marshaller = marshaller
        self._links = links
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = LocalSubscribers()
        #: The connection that events come on, and what the server has confirmed on it.
        self._link: ClientConnection | None = None
        self._confirmed: set[str] = set()
        links.greetings.append(self._greet)

    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Subscription:
        """The values that are published to a topic: `async for value in client.subscribe("ticks")`.

        Args:
            topic: or a pattern of topics: in "sensors.*" the star stands for one whole level, in "sensors.>" what comes
                last for one or more. The topics come too with
                `async for topic, value in client.subscribe("sensors.*").with_topics()`.
            returns: a type hint; each value is checked against it and given in that type.
            max_queue: events that may wait for the reader here. All of them together may have `max_message_size` bytes.
            policy: what is dropped when more would wait: "drop_oldest"; "drop_newest"; or "disconnect": the iteration
                ends with ConnectionLost behind what waits.

        Raises:
            TypeError: the topic is no str.
            ValueError: `max_queue` or the policy makes no sense.
            RuntimeError: the client calls over HTTP, which has no connection that lasts.
        """
        check_lasting(self._settings.address, "subscribe")
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, got {type(topic).__name__}")
        queue: EventQueue[Event] = EventQueue(max_queue, self._settings.limits.max_message_size, policy)
        return Subscription(self, LocalSubscriber(topic, queue), returns)

    # -- readers come and go ----------------------------------------------------------------------------------------

    async def add(self, reader: LocalSubscriber) -> None:
        """Let a reader have the events of its topic from now on; subscribe to it, unless that has been done.

        Raises what a call raises; nothing has been subscribed to then.
        """
        loop = asyncio.get_running_loop()
        seconds = time_left(self._settings.timeout)
        deadline = INFINITE if seconds is None else loop.time() + seconds
        self._enter(loop)
        # Before the reply is there: the first events may come with it.
        self._readers.add(reader)
        try:
            while not reader.has_ended:
                try:
                    if self._link is None or not self._link.is_open:
                        link = self._links.ready(loop) or await self._links.get("rpc.subscribe", deadline)
                        await self._take(link, deadline)
                    elif reader.topic not in self._confirmed:
                        await self._ask(self._link, reader.topic, deadline)
                    else:
                        break
                except ConnectionLost:
                    if self._settings.reconnect is None:
                        raise
        except RpcError:
            self._forget(reader)
            raise
        except BaseException:
            self.remove(reader)
            raise
        reader.has_begun = True

    def remove(self, reader: LocalSubscriber) -> None:
        """It reads no more. With the last reader of a topic the server is told, as far as it is there."""
        link = self._link
        if self._forget(reader) and link is not None and link.is_open and not link.loop.is_closed():
            link.calls.send(self.marshaller.notification("rpc.unsubscribe", {"topic": reader.topic}))

    def _forget(self, reader: LocalSubscriber) -> bool:
        """Was that the last reader of its topic?"""
        is_last = self._readers.remove(reader)
        if is_last:
            self._confirmed.discard(reader.topic)
        return is_last

    def close(self) -> None:
        """The client is closed: readers get what waits for them, and no more."""
        self._end(lambda topic: None)

    # -- the connection ---------------------------------------------------------------------------------------------

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Readers in an event loop that the client was used in before are left behind."""
        if self._loop is not loop:
            self._loop, self._link = loop, None
            self._readers.clear()
            self._confirmed.clear()

    async def _greet(self, link: ClientConnection) -> None:
        """On a new connection, before calls are sent on it: what was subscribed to on one that was lost."""
        self._enter(link.loop)
        if self._readers:
            seconds = self._settings.timeout
            await self._take(link, INFINITE if seconds is None else link.loop.time() + seconds)

    async def _take(self, link: ClientConnection, deadline: float) -> None:
        """Have events come on this connection, unless there is one; those of topics that are read already, too."""
        if self._link is not None and self._link.is_open:
            return
        self._link, self._confirmed = link, set()
        channel = link.session.channel
        link.session.on_event = self._event
        link.session.on_lost.append(lambda: self._lost(link, channel))
        again = [topic for topic, readers in self._readers.items() if any(reader.has_begun for reader in readers)]
        await asyncio.gather(*(self._ask_again(link, topic, deadline) for topic in again))

    async def _ask(self, link: ClientConnection, topic: str, deadline: float) -> None:
        def confirmed() -> None:
            if link is self._link and topic in self._readers:
                self._confirmed.add(topic)

        call = Call(self.marshaller, "rpc.subscribe", {"topic": topic}, NOT_GIVEN, NOT_GIVEN)
        waiter = _Confirmation(link.loop.create_future(), deadline, confirmed)
        link.calls.begin(call, waiter)
        try:
            reply, line = await waiter.future
        except BaseException:
            link.calls.give_up(call)
            raise
        call.outcome(reply, line)

    async def _ask_again(self, link: ClientConnection, topic: str, deadline: float) -> None:
        if not link.is_open:
            return  # lost at once: the next connection has its turn
        try:
            await self._ask(link, topic, deadline)
        except RpcError as error:
            # The server does not want this topic any more: that is no reason to be without the connection.
            for reader in self._readers.pop(topic):
                reader.end(error)
        else:
            for reader in self._readers.get(topic, []):
                reader.reconnects += reader.has_begun

    def _lost(self, link: ClientConnection, channel: Channel | None) -> None:
        if link is not self._link:
            return
        self._link = None
        self._confirmed.clear()
        if self._settings.reconnect is None:
            reason = (channel and channel.reason) or "the peer closed the connection"
            self._end(lambda topic: self._loss(topic, reason))

    def _end(self, make_error: Callable[[str], Exception | None]) -> None:
        ended, self._readers = self._readers, LocalSubscribers()
        self._confirmed.clear()
        for topic, readers in ended.items():
            for reader in readers:
                reader.end(make_error(topic))

    def _loss(self, topic: str, reason: str) -> ConnectionLost:
        return ConnectionLost(f"no more events of {topic!r}: {reason}", address=self.marshaller.address)

    # -- events -----------------------------------------------------------------------------------------------------

    def _event(self, params: dict[str, Any], line: bytes | bytearray) -> None:
        topic = params.get("topic")
        # One that was on its way when the last reader left has nobody to go to. One that comes before the reply to a
        # subscription comes for another one: its reader would have a gap when that ends.
        for reader in self._readers.of(topic) if type(topic) is str else ():
            if reader.topic not in self._confirmed:
                continue
            reader.put((params, line))
            if reader.queue.has_overflowed:
                reader.end(self._loss(reader.topic, "the reader was too slow (policy 'disconnect')"))
                self.remove(reader)


class _Confirmation(AsyncWaiter):
    """Waits for the reply to a subscription, and acts on it before what comes behind it is looked at."""

    __slots__ = ("_confirmed",)

    def __init__(self, future: asyncio.Future[Any], deadline: float, confirmed: Callable[[], object]) -> None:
        super().__init__(future, "rpc.subscribe", deadline)
        self._confirmed = confirmed

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        super().answer(reply, line)
        if "result" in reply:
            self._confirmed()


class Subscription(AsyncIterator[Any]):
    """The values that are published to a topic, or to all that match a pattern, as they come. For one reader, in the
    event loop of the client.

    The server is asked with the first value that is wanted, or by `async with`, which returns when it has confirmed:
    what is published from then on comes. Leaving the loop early, `aclose`, and the end of the `async with` block end
    the subscription. So does `client.close()`: the loop ends behind what waits.

    Several readers of one topic in one client may be given the very same objects.

    Attributes:
        topic: its name, or the pattern.

    Raises, while it is read:
        RpcError: the server refuses the topic (InvalidParams, ServerBusy, …).
        ConnectFailed, ConnectionLost, CallTimeout: as for a call. A connection that is lost ends the loop with
            ConnectionLost behind what waits; a client with `reconnect` subscribes again, see `reconnects`.
        TypeError: a value does not fit `returns`. The next one can be read.
    """

    def __init__(self, subscriptions: Subscriptions, reader: LocalSubscriber, returns: Any) -> None:
        self.topic = reader.topic
        self._subscriptions = subscriptions
        self._reader = reader
        self._returns = returns
        self._gives_topics = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def dropped(self) -> int:
        """Events that were dropped here, since the reader was too slow."""
        return self._reader.queue.dropped

    @property
    def reconnects(self) -> int:
        """How often the subscription was made again after the connection was lost: events of the time between are
        missing."""
        return self._reader.reconnects

    def with_topics(self) -> Subscription:
        """Give pairs from now on, of the topic that an event was published to and its value: for patterns. `self`."""
        self._gives_topics = True
        return self

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Any:
        await self._begin()
        params, line = await self._reader.get()
        marshaller, topic = self._subscriptions.marshaller, params["topic"]
        value = marshaller.member(topic, params, line, "value")
        if self._returns is not NOT_GIVEN:
            value = marshaller.checked(topic, value, self._returns)
        return (topic, value) if self._gives_topics else value

    async def aclose(self) -> None:
        """End the subscription. Does not wait for the server."""
        self._leave()

    async def __aenter__(self) -> Subscription:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __del__(self) -> None:
        # `break` out of the loop drops the subscription: nobody else will say that it is not wanted.
        loop = self._loop
        if loop is not None and not self._reader.has_ended and not loop.is_closed():
            loop.call_soon_threadsafe(self._subscriptions.remove, self._reader)

    def __repr__(self) -> str:
        reader = self._reader
        state = "ended" if reader.has_ended else "open" if reader.has_begun else "not started"
        return f"<subscription to {self.topic!r}, {state}>"

    async def _begin(self) -> None:
        if not (self._reader.has_begun or self._reader.has_ended):
            self._loop = asyncio.get_running_loop()
            await self._subscriptions.add(self._reader)

    def _leave(self) -> None:
        self._reader.end()
        self._reader.queue.clear()
        self._subscriptions.remove(self._reader)
