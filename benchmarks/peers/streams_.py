"""Streams of rpcstream beside plain calls: small items and arrays, to the caller, to the server, there and back.

`load --way`: `call` is a call for each item, `back` a stream to the caller, `there` one to the server, `both` a stream
there and back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from time import perf_counter
from typing import Any

from _common import (
    HOST,
    TOPICS,
    ArrayTopic,
    Options,
    Result,
    Tally,
    Topic,
    WrongReply,
    load_with_tasks,
    main,
    needs,
    ready,
    seven_digits,
)

with needs("rpcstream", "uvloop"):
    import numpy as np
    import uvloop
    from numpy.typing import NDArray

    from rpcstream import AsyncClient, Server

Frame = NDArray[np.float32]


def make_server() -> Server:
    server = Server()

    @server
    def same_item(item: int) -> int:
        return item

    @server
    def same_frame(item: Frame) -> Frame:
        return item

    @server
    def back_item() -> Iterator[int]:
        yield from map(seven_digits, count())

    @server
    def back_frame(size: int) -> Iterator[Frame]:
        topic = ArrayTopic(Options(bytes=size, first_bytes=None))
        for number in count():
            yield topic.ask(number)[0]

    @server
    async def there_item(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    @server
    async def there_frame(items: AsyncIterator[Frame]) -> int:
        return sum([int(item[-1]) async for item in items])

    @server
    async def both_item(items: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in items:
            yield item

    @server
    async def both_frame(items: AsyncIterator[Frame]) -> AsyncIterator[Frame]:
        async for item in items:
            yield item

    return server


class NumberTopic:
    def __init__(self, options: Options) -> None: ...

    def ask(self, number: int) -> tuple[Any, ...]:
        return (seven_digits(number),)

    def fits(self, number: int, reply: Any) -> bool:
        return bool(reply == seven_digits(number))


def serve(options: Options) -> None:
    def on_listening(address: str) -> None:
        ready(int(address.rpartition(":")[2]), "rpcstream", "uvloop", "orjson", "msgspec", "numpy")

    make_server().run(host=HOST, port=0, on_listening=on_listening)


# -- the load -------------------------------------------------------------------------------------------------


def load(options: Options) -> Result:
    return uvloop.run(load_async(options))


async def load_async(options: Options) -> Result:
    kind, make_topic = ("frame", ArrayTopic) if options.topic == "array" else ("item", NumberTopic)
    async with AsyncClient(f"{HOST}:{options.port}") as client:
        if options.way == "call":
            return await load_with_tasks(options, [getattr(client, f"same_{kind}")], make_topic)
        tally, given = Tally(options), Given(make_topic(options))
        if options.way == "there":
            total = await client.call(f"there_{kind}", given.until(tally), timeout=None)
            if total != given.total:
                raise WrongReply(f"sent items with the sum {given.total}, the server got {total}")
            return tally.result()
        # What comes back is looked at while later ones are made already.
        looks, asked = make_topic(options), {"items": given.until(None)} if options.way == "both" else {}
        if (options.way, kind) == ("back", "frame"):
            asked = {"size": options.bytes}
        async with client.stream(f"{options.way}_{kind}", **asked) as stream:
            await read(stream, looks, tally)
    return tally.result()


async def read(stream: AsyncIterator[Any], topic: Topic, tally: Tally) -> None:
    """Read a stream, check its items, and count the time from one item to the next."""
    number, began = 0, perf_counter()
    async for item in stream:
        done = perf_counter()
        wanted = topic.ask(number)
        if not topic.fits(number, item):
            raise WrongReply(f"wanted {wanted!r:.300}, got {item!r:.300}")
        if not tally.add(began, done):
            return
        number, began = number + 1, done


class Given:
    """The items that are sent to the server, and their expected total."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.total = 0

    async def until(self, tally: Tally | None) -> AsyncIterator[Any]:
        began = perf_counter()
        for number in count():
            self.total += seven_digits(number)
            yield self._topic.ask(number)[0]
            done = perf_counter()
            if tally is not None and not tally.add(began, done):
                return
            began = done


if __name__ == "__main__":
    ways = {"choices": ["call", "back", "there", "both"], "default": "call"}
    main(serve, load, topics=[topic for topic in TOPICS if topic in ("sum", "array")], load_options={"--way": ways})
