"""The server of a soak, with every kind of method. Each answer has the arguments of its call in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from rpcstream import Context, Limits, Logs, RpcError, Server
from rpcstream.server.program import loop_factory

from .tally import Tally, answer, obey

#: Looked at three times a second: who is gone, and who does not read, is to be found out between two rests.
LIMITS = Limits(write_timeout=1.5, max_calls=256)

#: Seconds that what was given up may take to be over.
CALM = 8.0

Floats = NDArray[np.float32]


def make_server(tally: Tally) -> Server:
    server = Server(limits=LIMITS, threads=8, drain_timeout=2.0, logs=Logs(slow_call=5.0))
    _add_plain(server)
    _add_conversing(server, tally)
    _add_streams(server)
    _add_values(server)
    return server


def _add_plain(server: Server) -> None:
    @server
    def echo(value: Any) -> Any:
        return value

    @server
    async def later(token: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return token

    @server(offload="thread")
    def threaded(token: str, seconds: float) -> str:
        time.sleep(seconds)
        return token

    @server(timeout=0.02)
    async def too_late(token: str) -> str:
        await asyncio.sleep(100)
        return token

    @server
    def fails(token: str) -> None:
        raise RpcError(7, token)

    finished: set[str] = set()

    @server(detached=True)
    async def detached(token: str) -> None:
        await asyncio.sleep(0.03)
        finished.add(token)

    @server
    def has_finished(token: str) -> bool:
        found = token in finished
        finished.discard(token)
        return found

    @server
    def blob(size: int) -> str:
        return "x" * size


def _add_conversing(server: Server, tally: Tally) -> None:
    at_work: set[int] = set()

    @server(ordered=True)
    async def ordered(number: int, ctx: Context) -> int:
        if id(ctx.session) in at_work:
            tally.mistake("ordered", "two at once")
        at_work.add(id(ctx.session))
        try:
            await asyncio.sleep(0)
        finally:
            at_work.discard(id(ctx.session))
        return number

    @server
    async def steps(token: str, n: int, ctx: Context) -> str:
        for number in range(n):
            ctx.progress([token, number])
            await asyncio.sleep(0)
        return token

    @server
    async def ask(token: str, ctx: Context) -> Any:
        return await ctx.peer.confirm(token)

    @server(offload="thread")
    def ask_in_thread(token: str, ctx: Context) -> Any:
        return ctx.peer.confirm(token)

    @server
    async def ask_for_stream(token: str, n: int, ctx: Context) -> list[Any]:
        return [item async for item in ctx.peer.stream.confirmations(token, n)]

    @server
    def tell(topic: str, value: Any) -> int:
        return server.publish(topic, value)


def _add_streams(server: Server) -> None:
    @server
    async def count(n: int, size: int) -> AsyncIterator[Floats]:
        for number in range(n):
            yield np.full(size, number, np.float32)

    @server(offload="thread")
    def count_in_thread(n: int) -> Iterator[int]:
        yield from range(n)

    @server
    async def endless(token: str) -> AsyncIterator[str]:
        while True:
            yield token

    @server
    async def total(arrays: AsyncIterator[Floats]) -> float:
        return sum([float(array.sum()) async for array in arrays])

    @server(offload="thread")
    def total_in_thread(numbers: Iterator[int]) -> int:
        return sum(numbers)

    @server
    async def mirror(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for item in items:
            yield item


def _add_values(server: Server) -> None:
    @server
    def negative(array: Floats) -> Floats:
        return -array

    @server
    def inverted(photo: Image.Image) -> Image.Image:
        return ImageOps.invert(photo)

    @server.batched(max_size=16)
    def doubled(vector: Floats) -> Floats:
        return 2 * vector


def left_over(server: Server) -> list[str]:
    """List what is still there (calls, tasks, connections) though no client is at work."""
    running = server._running
    assert running is not None
    found = []
    for session in running.listener.sessions:
        kept = {
            "calls": [waiter.method for _, waiter in session.pending.items()],
            "handlers": [str(message)[:100] for message in session.running.handlers.values()],
            "members": len(session.running.batch_members),
            "items out": list(session.streams.senders),
            "items in": list(session.streams.receivers),
            "messages": session.busy,
        }
        found += [f"{name} of a session: {what}" for name, what in kept.items() if what]
    if running.invoker.threads.waiting:
        found.append(f"{len(running.invoker.threads.waiting)} calls that wait for threads")
    return found + [f"items of {name} wait" for name, each in server.batches.items() if each.stats()["waiting"]]


async def serve() -> None:
    tally = Tally()
    server = make_server(tally)

    async def rest() -> None:
        deadline = time.monotonic() + CALM
        while True:
            left = left_over(server)
            left += [str(task)[:200] for task in asyncio.all_tasks() if "_call_later" in str(task)]
            if not left or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        counters = server.counters.as_dict()
        if counters["handler_failures"]:
            left.append(f"{counters['handler_failures']} handlers failed")
        sample = tally.sample(left)
        sample.update(connections=counters["connections"], requests=counters["requests"])
        sample.update(tasks=len(asyncio.all_tasks()), topics=len(server.topics))
        answer(sample)

    ended = asyncio.Event()

    async def end() -> None:
        ended.set()

    async with server.listening(port=0) as address:
        answer({"address": address})
        obey(asyncio.get_running_loop(), {"rest": rest, "end": end})
        await ended.wait()


def main() -> None:
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        runner.run(serve())
