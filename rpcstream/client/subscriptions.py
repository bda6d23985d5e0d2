"""Events at a client: `async for value in client.subscribe("ticks")`.

Owns who reads which topic, and the one subscription at the server that all readers of a topic share: made with the
first of them, made again on a new connection, given up with the last. What waits for a reader, and what is dropped, is
the `EventQueue`'s matter; what a value looks like, the marshaller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from ..errors import ConnectionLost, RpcError
from ..peer.call import NOT_GIVEN, Call, Marshaller
from ..peer.deadline import INFINITE, time_left
from ..peer.event_queue import EventQueue, Policy
from ..peer.interfaces import Channel
from .address import check_lasting
from .link import Link
from .links import Links
from .settings import Settings

#: An event as it came: the params of its message, and the message.
Event = tuple[dict[str, Any], bytes | bytearray]


class Subscriptions:
    """All subscriptions of one client. They live on one of its connections."""

    def __init__(self, links: Links, marshaller: Marshaller, settings: Settings) -> None:
        self.marshaller = marshaller
        self._links = links
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers: dict[str, list[Reader]] = {}
        #: The connection that events come on, and the topics that the server has confirmed on it.
        self._link: Link | None = None
        self._confirmed: set[str] = set()
        links.greetings.append(self._greet)

    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Subscription:
        """The values that the server publishes to a topic: `async for value in client.subscribe("ticks")`.

        Args:
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
        return Subscription(self, Reader(topic, queue), returns)

    # -- readers come and go ----------------------------------------------------------------------------------------

    async def add(self, reader: Reader) -> None:
        """Let a reader have the events of its topic from now on; subscribe to it, unless that has been done.

        Raises what a call raises; nothing has been subscribed to then.
        """
        loop = asyncio.get_running_loop()
        seconds = time_left(self._settings.timeout)
        deadline = INFINITE if seconds is None else loop.time() + seconds
        self._enter(loop)
        # Before the reply is there: the first events may come with it.
        readers = self._readers.setdefault(reader.topic, [])
        if reader not in readers:
            readers.append(reader)
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

    def remove(self, reader: Reader) -> None:
        """It reads no more. With the last reader of a topic the server is told, as far as it is there."""
        link = self._link
        if self._forget(reader) and link is not None and link.is_open and not link.loop.is_closed():
            link.calls.send(self.marshaller.notification("rpc.unsubscribe", {"topic": reader.topic}))

    def _forget(self, reader: Reader) -> bool:
        """Was that the last reader of its topic?"""
        readers = self._readers.get(reader.topic, [])
        if reader not in readers:
            return False
        readers.remove(reader)
        if not readers:
            del self._readers[reader.topic]
            self._confirmed.discard(reader.topic)
        return not readers

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

    async def _greet(self, link: Link) -> None:
        """On a new connection, before calls are sent on it: what was subscribed to on one that was lost."""
        self._enter(link.loop)
        if self._readers:
            seconds = self._settings.timeout
            await self._take(link, INFINITE if seconds is None else link.loop.time() + seconds)

    async def _take(self, link: Link, deadline: float) -> None:
        """Have events come on this connection, unless there is one; those of topics that are read already, too."""
        if self._link is not None and self._link.is_open:
            return
        self._link, self._confirmed = link, set()
        channel = link.session.channel
        link.session.on_event = self._event
        link.session.on_lost.append(lambda: self._lost(link, channel))
        again = [topic for topic, readers in self._readers.items() if any(reader.has_begun for reader in readers)]
        await asyncio.gather(*(self._ask_again(link, topic, deadline) for topic in again))

    async def _ask(self, link: Link, topic: str, deadline: float) -> None:
        call = Call(self.marshaller, "rpc.subscribe", {"topic": topic}, NOT_GIVEN, NOT_GIVEN)
        await link.calls.ask(call, deadline)
        if link is self._link and topic in self._readers:
            self._confirmed.add(topic)

    async def _ask_again(self, link: Link, topic: str, deadline: float) -> None:
        if not link.is_open:
            return  # lost at once: the next connection has its turn
        try:
            await self._ask(link, topic, deadline)
        except RpcError as error:
            # The server does not want this topic any more: that is no reason to be without the connection.
            for reader in self._readers.pop(topic, []):
                reader.end(error)
        else:
            for reader in self._readers.get(topic, []):
                reader.reconnects += reader.has_begun

    def _lost(self, link: Link, channel: Channel | None) -> None:
        if link is not self._link:
            return
        self._link = None
        self._confirmed.clear()
        if self._settings.reconnect is None:
            reason = (channel and channel.reason) or "the peer closed the connection"
            self._end(lambda topic: self._loss(topic, reason))

    def _end(self, make_error: Callable[[str], Exception | None]) -> None:
        ended, self._readers = self._readers, {}
        self._confirmed.clear()
        for topic, readers in ended.items():
            for reader in readers:
                reader.end(make_error(topic))

    def _loss(self, topic: str, reason: str) -> ConnectionLost:
        return ConnectionLost(f"no more events of {topic!r}: {reason}", address=self.marshaller.address)

    # -- events -----------------------------------------------------------------------------------------------------

    def _event(self, params: dict[str, Any], line: bytes | bytearray) -> None:
        topic = params.get("topic")
        # One that was on its way when the last reader left has nobody to go to.
        readers = self._readers.get(topic, []) if type(topic) is str else []
        for reader in list(readers):
            reader.put((params, line))
            if reader.queue.has_overflowed:
                reader.end(self._loss(reader.topic, "the reader was too slow (policy 'disconnect')"))
                self.remove(reader)


class Reader:
    """What has come for one reader of a topic, and how that ends.

    Attributes:
        has_begun: the server has confirmed the subscription once.
        reconnects: how often it was made again since then.
    """

    __slots__ = ("_error", "_wake", "has_begun", "has_ended", "queue", "reconnects", "topic")

    def __init__(self, topic: str, queue: EventQueue[Event]) -> None:
        self.topic = topic
        self.queue = queue
        self.has_begun = self.has_ended = False
        self.reconnects = 0
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        self.queue.put(self.topic, event, len(event[1]))
        self._wake.set()

    def end(self, error: Exception | None = None) -> None:
        """No more will come; the error is raised behind what waits. Only the first end counts."""
        if not self.has_ended:
            self.has_ended, self._error = True, error
            self._wake.set()

    async def get(self) -> Event:
        """The next event. StopAsyncIteration, or the error once, if there are no more."""
        while not self.queue:
            if self.has_ended:
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self.queue.take()


class Subscription(AsyncIterator[Any]):
    """The values that are published to a topic, as they come. For one reader, in the event loop of the client.

    The server is asked with the first value that is wanted, or by `async with`, which returns when it has confirmed:
    what is published from then on comes. Leaving the loop early, `aclose`, and the end of the `async with` block end
    the subscription. So does `client.close()`: the loop ends behind what waits.

    Several readers of one topic in one client may be given the very same objects.

    Attributes:
        topic: its name.

    Raises, while it is read:
        RpcError: the server refuses the topic (InvalidParams, ServerBusy, …).
        ConnectFailed, ConnectionLost, CallTimeout: as for a call. A connection that is lost ends the loop with
            ConnectionLost behind what waits; a client with `reconnect` subscribes again, see `reconnects`.
        TypeError: a value does not fit `returns`. The next one can be read.
    """

    def __init__(self, subscriptions: Subscriptions, reader: Reader, returns: Any) -> None:
        self.topic = reader.topic
        self._subscriptions = subscriptions
        self._reader = reader
        self._returns = returns
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

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Any:
        await self._begin()
        params, line = await self._reader.get()
        marshaller = self._subscriptions.marshaller
        value = marshaller.member(self.topic, params, line, "value")
        return value if self._returns is NOT_GIVEN else marshaller.checked(self.topic, value, self._returns)

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
