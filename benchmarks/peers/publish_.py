"""Events through a hub: `load` publishes to `--connections` subscribers, each on a connection of its own.

What is measured of an event is the time until all subscribers have it; `--in-flight` are on their way at once. All
connections are one process's, since what they do is next to nothing: compare bytes.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import cast

from _common import HOST, Options, Result, Tally, WrongReply, main, needs, ready, seven_digits
from _provider import PACKAGES
from hub_ import run_hub

with needs("rpcstream", "uvloop"):
    import uvloop

TOPIC = "sensors.room1"
SUBSCRIBE = b'{"jsonrpc":"2.0","id":1,"method":"rpc.subscribe","params":{"topic":"%b"}}\n' % TOPIC.encode()
PUBLISH = b'{"jsonrpc":"2.0","id":%d,"method":"rpc.publish","params":{"topic":"%b","value":%d}}\n'
EVENT = b'{"jsonrpc":"2.0","method":"$/event","params":{"topic":"%b","value":%d}}\n'
PUBLISHED = b'{"jsonrpc":"2.0","id":%d,"result":%d}\n'


def serve(options: Options) -> None:
    run_hub(lambda port: ready(port, *PACKAGES))


def load(options: Options) -> Result:
    return uvloop.run(load_async(options))


async def load_async(options: Options) -> Result:
    loop = asyncio.get_running_loop()
    publishing = Publishing(options.connections)
    for _ in range(options.connections):
        await loop.create_connection(lambda: Subscriber(publishing), HOST, options.port)
    await publishing.subscribed
    await loop.create_connection(lambda: Publisher(publishing), HOST, options.port)
    return await publishing.run(options)


class Publishing:
    """The events that have been published and not yet received by all subscribers.

    Attributes:
        subscribed: done when all connections have subscribed.
        publisher: sends them.
    """

    def __init__(self, subscribers: int) -> None:
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.publisher: asyncio.Transport
        self._over: asyncio.Future[None] = loop.create_future()
        self._subscribers = self._unsubscribed = subscribers
        self._begun = self._done = 0
        #: Of each event on its way: its line, how many do not have it yet, when it was sent.
        self._lines: dict[int, bytes] = {}
        self._missing: dict[int, int] = {}
        self._times: dict[int, float] = {}

    async def run(self, options: Options) -> Result:
        self._tally = Tally(options)
        for _ in range(options.in_flight):
            self._begin()
        await self._over
        return self._tally.result()

    def _begin(self) -> None:
        place, number = self._begun, seven_digits(self._begun)
        self._begun += 1
        self._lines[place] = EVENT % (TOPIC.encode(), number)
        self._missing[place] = self._subscribers
        self._times[place] = perf_counter()
        self.publisher.write(PUBLISH % (number, TOPIC.encode(), number))

    def has_subscribed(self, reply: bytes) -> None:
        if b'"result"' not in reply:
            self.fail(WrongReply(f"subscribed, and got {reply!r:.300}"))
            return
        self._unsubscribed -= 1
        if not self._unsubscribed:
            self.subscribed.set_result(None)

    def came(self, first: int, lines: list[bytes]) -> int:
        """Check events that a subscriber received; `first` is the number of the first. Return that of the next."""
        for line in lines:
            if line != self._lines.get(first):
                self.fail(WrongReply(f"published {self._lines.get(first)!r}, got {line!r:.300}"))
                return first
            self._missing[first] -= 1
            if not self._missing[first]:
                self._complete(first)
            first += 1
        return first

    def replied(self, place: int, line: bytes) -> None:
        if line != PUBLISHED % (seven_digits(place), self._subscribers):
            self.fail(WrongReply(f"published, and got {line!r:.300}"))

    def _complete(self, place: int) -> None:
        del self._lines[place], self._missing[place]
        if self._tally.add(self._times.pop(place), perf_counter()):
            self._begin()
        elif not self._over.done():
            self._over.set_result(None)

    def fail(self, error: Exception) -> None:
        waiting = self._over if self.subscribed.done() else self.subscribed
        if not waiting.done():
            waiting.set_exception(error)


class Lines(asyncio.Protocol):
    """A protocol that collects bytes into whole lines."""

    def __init__(self, publishing: Publishing) -> None:
        self.publishing = publishing
        self.place = 0
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        self.take(lines)

    def take(self, lines: list[bytes]) -> None:
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        self.publishing.fail(exc or EOFError("the hub closed the connection"))


class Subscriber(Lines):
    """A subscriber: its first line is the reply to the subscription, all others are events."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._is_subscribed = False
        cast(asyncio.Transport, transport).write(SUBSCRIBE)

    def take(self, lines: list[bytes]) -> None:
        if not self._is_subscribed and lines:
            self._is_subscribed = True
            self.publishing.has_subscribed(lines.pop(0))
        self.place = self.publishing.came(self.place, lines)


class Publisher(Lines):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.publishing.publisher = cast(asyncio.Transport, transport)

    def take(self, lines: list[bytes]) -> None:
        for line in lines:
            self.publishing.replied(self.place, line)
            self.place += 1


if __name__ == "__main__":
    main(serve, load, topics=[])
