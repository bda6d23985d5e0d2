"""Instances of a service that are stopped in order and replaced under load: the run `rolling` of `endurance`.

Each instance is told to stop with SIGTERM, as by a restart. No call may fail then, whether its method is idempotent or
not, and clients repeat none. Each call is carried out once, notifications among them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import numpy as np
import orjson

from rpcstream import AsyncClient, ConnectionLost, Context

from .endurance import Instances, Load, MakeCall, Outcome

APP = """
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import rpcstream
from rpcstream import Context

notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(tag: str) -> None:
    os.write(notes, tag.encode() + b"\\n")

@asynccontextmanager
async def noting(server: rpcstream.Server) -> AsyncIterator[None]:
    note(f"started-{os.getpid()}")
    yield

server = rpcstream.Server(lifespan=noting, drain_delay=float(os.environ["DRAIN_DELAY"]))

@server
def plain(tag: str, filling: str) -> tuple[str, str]:
    note(tag)
    return tag, filling

@server
async def half_a_second(tag: str, filling: str) -> tuple[str, str]:
    note(tag)
    await asyncio.sleep(0.5)
    return tag, filling

@server(offload="thread")
def in_a_thread(tag: str, filling: str) -> tuple[str, str]:
    note(tag)
    return tag, filling

@server
async def array(tag: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    note(tag)
    await asyncio.sleep(0.01)
    return tag, values

@server
async def items(tag: str, count: int) -> AsyncIterator[tuple[str, int]]:
    note(tag)
    for number in range(count):
        yield tag, number
        await asyncio.sleep(0.002)

@server
async def upload(tag: str, values: AsyncIterator[tuple[str, int]]) -> tuple[str, list[tuple[str, int]]]:
    note(tag)
    return tag, [value async for value in values]

@server
async def calls_back(tag: str, ctx: Context) -> tuple[str, list[Any]]:
    note(tag)
    answers = []
    for number in range(4):
        answers.append(await ctx.peer.answer(tag, number))
        await asyncio.sleep(0.05)
    return tag, answers

@server
async def there_and_back(tag: str, ctx: Context) -> tuple[str, list[Any]]:
    note(tag)
    await asyncio.sleep(0.05)
    return tag, [await ctx.peer.call_again(tag, number) for number in range(3)]

@server
async def again(tag: str, number: int) -> tuple[str, int]:
    await asyncio.sleep(0.01)
    return tag, number

@server
async def progress(tag: str, ctx: Context) -> str:
    note(tag)
    for number in range(5):
        ctx.progress((tag, number))
        await asyncio.sleep(0.05)
    return tag

if __name__ == "__main__":
    server.join_nats(os.environ["SERVICE"], only=True)
    server.run(on_listening=lambda address: print(address, flush=True))
"""

#: How the tag begins that each process notes at its start.
STARTED = "started-"

#: Items of a stream, and of an argument; more than their credit at the beginning.
ITEMS = 100

#: Kinds of calls, one for each caller of a client.
KINDS = (
    "plain",
    "half_a_second",
    "in_a_thread",
    "array",
    "large_array",
    "items",
    "upload",
    "calls_back",
    "there_and_back",
    "progress",
    "batch",
    "notification",
    "foreign",
)


class RollingLoad(Load):
    """Calls of every kind. None is repeated, and none may fail."""

    methods = dict.fromkeys(KINDS, True)

    def __init__(self, address: str, options: argparse.Namespace) -> None:
        self._numbers: dict[AsyncClient, int] = {}
        self._nats: Any = None
        self._address = address
        #: Tags of what was noted, if all is right.
        self.expected: list[str] = []
        self._lock = asyncio.Lock()
        super().__init__(address, argparse.Namespace(**{**vars(options), "each": len(KINDS)}))

    def _make_client(self, address: str) -> AsyncClient:
        client = AsyncClient(address, timeout=self._timeout)
        number = self._numbers[client] = len(self._numbers)

        @client
        async def answer(tag: str, asked: int) -> tuple[str, int, int]:
            await asyncio.sleep(0.02)
            return tag, asked, number

        @client
        async def call_again(tag: str, asked: int, ctx: Context) -> Any:
            return await ctx.peer.again(tag, asked)

        return client

    def _maker(self, kind: str) -> MakeCall:
        make: MakeCall = getattr(self, f"_{kind}", self._plain)
        return make

    def _failed(self, method: str, tag: str, error: ConnectionLost) -> None:
        self.outcome.faults.append(f"{tag} was lost: {error!r}")

    async def end(self) -> Outcome:
        outcome = await super().end()
        if self._nats is not None:
            await self._nats.close()
        return outcome

    def check_notes(self, notes: Counter[str]) -> list[str]:
        """Faults: what was answered, and carried out no time, or twice."""
        faults = [f"{tag} was carried out {notes[tag]} times" for tag in self.expected if notes[tag] != 1]
        return faults + [f"{tag} was carried out {count} times" for tag, count in notes.items() if count > 1]

    def _check(self, tag: str, answer: Any, expected: Any) -> None:
        if answer != expected:
            self.outcome.faults.append(f"{tag} was answered with {str(answer)[:80]}")
        self.expected.append(tag)

    # -- one call of each kind ----------------------------------------------------------------------------------------

    async def _plain(self, client: AsyncClient, method: str, tag: str) -> None:
        filling = tag * random.randrange(1, 50)
        self._check(tag, await client.call(method, tag, filling), [tag, filling])

    async def _array(self, client: AsyncClient, method: str, tag: str) -> None:
        values = np.full(random.randrange(1, 20_000), hash(tag), dtype=np.int64)
        told, answer = await client.array(tag, values)
        self._check(tag, (told, np.array_equal(answer, values)), (tag, True))

    async def _large_array(self, client: AsyncClient, method: str, tag: str) -> None:
        """More than NATS carries: it goes by ticket."""
        values = np.full(200_000, hash(tag), dtype=np.int64)
        told, answer = await client.array(tag, values)
        self._check(tag, (told, np.array_equal(answer, values)), (tag, True))
        await asyncio.sleep(0.1)

    async def _items(self, client: AsyncClient, method: str, tag: str) -> None:
        found = [item async for item in client.stream_request(method, [tag, ITEMS], timeout=self._timeout)]
        self._check(tag, found, [[tag, number] for number in range(ITEMS)])

    async def _upload(self, client: AsyncClient, method: str, tag: str) -> None:
        async def values() -> AsyncIterator[tuple[str, int]]:
            for number in range(ITEMS):
                yield tag, number
                await asyncio.sleep(0.002)

        self._check(tag, await client.upload(tag, values()), [tag, [[tag, number] for number in range(ITEMS)]])

    async def _calls_back(self, client: AsyncClient, method: str, tag: str) -> None:
        mine = self._numbers[client]
        self._check(tag, await client.calls_back(tag), [tag, [[tag, number, mine] for number in range(4)]])

    async def _there_and_back(self, client: AsyncClient, method: str, tag: str) -> None:
        self._check(tag, await client.there_and_back(tag), [tag, [[tag, number] for number in range(3)]])

    async def _progress(self, client: AsyncClient, method: str, tag: str) -> None:
        seen: list[Any] = []
        answer = await client.call(method, tag, on_progress=seen.append)
        told = [number for told, number in seen if told == tag]
        self._check(tag, (answer, told == sorted(told), len(told) == len(seen) > 0), (tag, True, True))

    async def _batch(self, client: AsyncClient, method: str, tag: str) -> None:
        async with client.batch() as batch:
            calls = [batch.plain(f"{tag}.0", tag), batch.half_a_second(f"{tag}.1", tag), batch.plain(f"{tag}.2", tag)]
        for number, call in enumerate(calls):
            self._check(f"{tag}.{number}", call.result(), [f"{tag}.{number}", tag])

    async def _notification(self, client: AsyncClient, method: str, tag: str) -> None:
        await client.notify.plain(tag, "")
        self.expected.append(tag)
        await asyncio.sleep(0.01)

    async def _foreign(self, client: AsyncClient, method: str, tag: str) -> None:
        url, _, service = self._address.rpartition("/")
        async with self._lock:
            if self._nats is None:
                self._nats = await nats.connect([f"nats://{each}" for each in url.partition("://")[2].split(",")])
        method = random.choice(("plain", "half_a_second"))
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": [tag, tag]}
        reply = await self._nats.request(f"rpc.{service}.{method}", orjson.dumps(message), timeout=self._timeout)
        self._check(tag, orjson.loads(reply.data).get("result"), [tag, tag])


async def replace_before(instances: Instances, options: argparse.Namespace) -> str:
    """Stop the oldest instance again and again, each after another one serves that has been started for it."""

    async def replace() -> None:
        await instances.start(1)
        await instances.stop_oldest()

    return await _again_and_again(instances, options, replace)


async def replace_after(instances: Instances, options: argparse.Namespace) -> str:
    """Stop the oldest instance again and again; another one is started when it has ended."""

    async def replace() -> None:
        await instances.stop_oldest()
        await instances.start(1)

    return await _again_and_again(instances, options, replace)


async def _again_and_again(
    instances: Instances, options: argparse.Namespace, replace: Callable[[], Awaitable[None]]
) -> str:
    start, count = time.monotonic(), 0
    while time.monotonic() - start < options.seconds:
        await replace()
        count += 1
    seconds = time.monotonic() - start
    return f"{count} instances replaced in {seconds:.0f} s, the slowest ended in {instances.slowest:.2f} s"


async def reload(instances: Instances, options: argparse.Namespace) -> str:
    """Have one instance after the other replace its workers, each while those of the one before may still end."""
    start, count, before = time.monotonic(), 0, _started(instances)
    while time.monotonic() - start < options.seconds:
        noted = _started(instances)
        instances.reload_oldest()
        count += 1
        while _started(instances) < noted + options.workers:
            await asyncio.sleep(0.1)
        await asyncio.sleep(options.every)
    return f"{count} reloads, {_started(instances) - before} new workers in {time.monotonic() - start:.0f} s"


def _started(instances: Instances) -> int:
    """How many processes have begun to serve."""
    return sum(tag.startswith(STARTED) for tag in instances.notes())
