"""The load of a soak from an event loop, by clients that stay connected. Each worker repeats one feature at random.

Owns the clients that stay and the workers that use them, and makes them rest. Connections that come and go, and those
that misbehave, are in `churn`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
from PIL import Image

from rpcstream import AsyncClient, CallTimeout, Limits, RpcError
from rpcstream.backoff import Backoff
from rpcstream.errors import DeadlineExceeded

from .tally import Tally

#: Clients that stay.
STAYING = 4

#: Seconds between two things that one worker does, at most.
PAUSE = 0.02

#: Seconds after which something that was asked hangs.
HANGS = 20.0

Feature = Callable[["Load", random.Random], Awaitable[None]]
FEATURES: dict[str, Feature] = {}


def feature(function: Feature) -> Feature:
    """Register a function that a worker repeats."""
    FEATURES[function.__name__] = function
    return function


class Load:
    """Clients and workers of one process.

    Args:
        seed: of all random choices.
    """

    def __init__(self, address: str, seed: str, tally: Tally) -> None:
        self.address = address
        self.tally = tally
        self.clients = [self._client(number) for number in range(STAYING)]
        self._seed = seed
        self._goes = asyncio.Event()
        self._goes.set()
        self._at_work = 0
        self._is_calm = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._last = 0

    def _client(self, number: int) -> AsyncClient:
        reconnect = Backoff(first=0.01, longest=0.1) if number == 0 else False
        limits = Limits(stream_window=2 + 4 * number)
        return self.offering(AsyncClient(self.address, pool=1 + number % 2, reconnect=reconnect, limits=limits))

    def offering(self, client: AsyncClient) -> AsyncClient:
        """Offer the methods that the server calls back, and return the client."""

        @client
        async def confirm(token: str) -> str:
            await asyncio.sleep(0)
            return token[::-1]

        @client
        async def confirmations(token: str, n: int) -> AsyncIterator[Any]:
            for number in range(n):
                yield [token, number]

        return client

    def token(self) -> str:
        """Make a token that no call has used before."""
        self._last += 1
        return f"{self._seed}.{self._last}"

    def one(self, choose: random.Random) -> AsyncClient:
        """Choose a client whose connection no feature breaks."""
        return choose.choice(self.clients[1:])

    def start(self) -> None:
        self._workers = [
            asyncio.get_running_loop().create_task(self._work(name, function, random.Random(f"{self._seed} {name}")))
            for name, function in FEATURES.items()
        ]

    async def _work(self, name: str, function: Feature, choose: random.Random) -> None:
        while True:
            await self._goes.wait()
            self._at_work += 1
            self._is_calm.clear()
            try:
                async with asyncio.timeout(HANGS):
                    await function(self, choose)
                self.tally.right(name)
            except TimeoutError as error:
                self.tally.mistake(name, f"hung, or {error!r}")
            except Exception as error:
                self.tally.mistake(name, repr(error))
            finally:
                self._at_work -= 1
                if not self._at_work:
                    self._is_calm.set()
            await asyncio.sleep(choose.random() * PAUSE)

    async def rest(self) -> list[str]:
        """Pause the workers, and list what has not ended."""
        self._goes.clear()
        try:
            async with asyncio.timeout(2 * HANGS):
                while self._at_work:
                    await self._is_calm.wait()
        except TimeoutError:
            return [f"{self._at_work} workers do not come to rest"]
        await asyncio.sleep(0.1)
        return [what for client in self.clients for what in self._left(client)]

    def _left(self, client: AsyncClient) -> list[str]:
        found = []
        for connection in client._pool.open_connections:
            session = connection.session
            if session.pending or session.streams or session.running.handlers:
                found.append(f"{session.pending.items()} {session.streams.senders} {session.running.handlers}"[:200])
        return found

    def go(self) -> None:
        self._goes.set()

    async def end(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self.clients))


# -- calls --------------------------------------------------------------------------------------------------------


@feature
async def calls(load: Load, choose: random.Random) -> None:
    client = load.one(choose)
    tokens = [load.token() for _ in range(choose.randrange(1, 20))]
    load.tally.expect("calls", await asyncio.gather(*(client.echo([token]) for token in tokens)), [[t] for t in tokens])
    await client.notify.echo("to nobody")


@feature
async def calls_that_wait(load: Load, choose: random.Random) -> None:
    client, tokens = load.one(choose), [load.token() for _ in range(5)]
    tasks = [client.submit.later(token, choose.random() * 0.01) for token in tokens]
    load.tally.expect("calls_that_wait", await asyncio.gather(*tasks), tokens)


@feature
async def calls_in_threads(load: Load, choose: random.Random) -> None:
    client, tokens = load.one(choose), [load.token() for _ in range(3)]
    answers = await asyncio.gather(*(client.threaded(token, 0.001) for token in tokens))
    load.tally.expect("calls_in_threads", answers, tokens)


@feature
async def calls_in_order(load: Load, choose: random.Random) -> None:
    client = load.clients[2]
    answers = [client.submit.ordered(number) for number in range(6)]
    load.tally.expect("calls_in_order", await asyncio.gather(*answers), list(range(6)))


@feature
async def errors(load: Load, choose: random.Random) -> None:
    token = load.token()
    try:
        await load.one(choose).fails(token)
    except RpcError as error:
        load.tally.expect("errors", (error.code, error.message), (7, token))
    else:
        load.tally.mistake("errors", "no error")


@feature
async def cancels(load: Load, choose: random.Random) -> None:
    client = load.one(choose)
    tasks = [client.submit(choose.choice(["later", "threaded"]), load.token(), 0.02) for _ in range(4)]
    await asyncio.sleep(choose.random() * 0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@feature
async def timeouts(load: Load, choose: random.Random) -> None:
    client = load.one(choose)
    for call in (client.later(load.token(), 100, timeout=choose.random() * 0.02), client.too_late(load.token())):
        try:
            load.tally.mistake("timeouts", f"an answer: {await call}")
        except (CallTimeout, DeadlineExceeded):
            pass


@feature
async def batches(load: Load, choose: random.Random) -> None:
    token, other = load.token(), load.token()
    async with load.one(choose).batch() as batch:
        answers = [batch.echo(token), batch.later(other, 0.001), batch.threaded(token, 0.001), batch.fails(other)]
        batch.notify.echo(token)
    load.tally.expect("batches", [answer.result() for answer in answers[:3]], [token, other, token])
    load.tally.expect("batches", getattr(answers[3].error, "message", None), other)


@feature
async def progress(load: Load, choose: random.Random) -> None:
    token, told = load.token(), []
    load.tally.expect("progress", await load.one(choose).steps(token, 5, on_progress=told.append), token)
    load.tally.expect("progress", told[-1:], [[token, 4]])


@feature
async def calls_back(load: Load, choose: random.Random) -> None:
    client, token = load.one(choose), load.token()
    method = choose.choice(["ask", "ask_in_thread"])
    load.tally.expect("calls_back", await client.call(method, token), token[::-1])
    items = await client.ask_for_stream(token, 20)
    load.tally.expect("calls_back", items, [[token, number] for number in range(20)])


# -- streams and events ---------------------------------------------------------------------------------------------


@feature
async def streams(load: Load, choose: random.Random) -> None:
    client, n = load.one(choose), choose.randrange(30)
    numbers = [array.tolist() async for array in client.stream.count(n, 3)]
    load.tally.expect("streams", numbers, [[number] * 3 for number in range(n)])
    load.tally.expect("streams", [number async for number in client.stream.count_in_thread(9)], list(range(9)))


@feature
async def streams_that_are_left(load: Load, choose: random.Random) -> None:
    client, token, left = load.one(choose), load.token(), choose.randrange(1, 40)
    async for item in client.stream.endless(token):
        load.tally.expect("streams_that_are_left", item, token)
        left -= 1
        if not left:
            break
    async with client.stream.endless(token) as stream:
        if choose.random() < 0.5:
            await anext(stream)


@feature
async def uploads(load: Load, choose: random.Random) -> None:
    client, n = load.one(choose), choose.randrange(30)

    async def arrays() -> AsyncIterator[Any]:
        for number in range(n):
            yield np.full(10, number, np.float32)

    load.tally.expect("uploads", await client.total(arrays()), 10.0 * sum(range(n)))
    load.tally.expect("uploads", await client.total_in_thread(iter(range(n))), sum(range(n)))


@feature
async def uploads_that_break_off(load: Load, choose: random.Random) -> None:
    async def arrays() -> AsyncIterator[Any]:
        yield np.ones(3, np.float32)
        await asyncio.sleep(choose.random() * 0.005)
        if choose.random() < 0.5:
            raise KeyError("on purpose")
        await asyncio.sleep(100)

    task = load.one(choose).submit.total(arrays())
    await asyncio.sleep(0.01)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, KeyError | asyncio.CancelledError):
        load.tally.mistake("uploads_that_break_off", repr(ended))


@feature
async def mirrors(load: Load, choose: random.Random) -> None:
    items = [load.token() for _ in range(choose.randrange(20))]
    mirrored = [item async for item in load.one(choose).stream.mirror(iter(items))]
    load.tally.expect("mirrors", mirrored, items)


@feature
async def events(load: Load, choose: random.Random) -> None:
    reader, teller, topic = load.one(choose), load.one(choose), f"topic {choose.randrange(3)} of {load.token()}"
    async with reader.subscribe(topic) as values:
        sent = await teller.tell(topic, 1), await teller.tell(topic, 2)
        load.tally.expect("events", sent, (1, 1))
        load.tally.expect("events", [await anext(values), await anext(values)], [1, 2])


# -- values ---------------------------------------------------------------------------------------------------------


@feature
async def arrays(load: Load, choose: random.Random) -> None:
    array = np.arange(choose.randrange(1, 40_000), dtype=np.float32)
    answer = await load.one(choose).negative(array)
    load.tally.expect("arrays", bool((answer == -array).all()), True)


@feature
async def images(load: Load, choose: random.Random) -> None:
    shade = choose.randrange(256)
    answer = await load.one(choose).inverted(Image.new("RGB", (64, 48), (shade, 0, 255)))
    load.tally.expect("images", answer.getpixel((5, 5)), (255 - shade, 255, 0))


@feature
async def items_in_batches(load: Load, choose: random.Random) -> None:
    client, numbers = load.one(choose), [choose.randrange(1000) for _ in range(choose.randrange(1, 30))]
    vectors = await asyncio.gather(*(client.doubled(np.full(4, number, np.float32)) for number in numbers))
    load.tally.expect("items_in_batches", [vector.tolist() for vector in vectors], [[2.0 * n] * 4 for n in numbers])
