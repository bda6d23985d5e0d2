"""The methods of the server and of its clients. Each returns its name, the caller's name and the call's number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rpcstream import Limits, Logs, RpcError, Server
from rpcstream.peer.context import CallContext

from .reference_model import ReferenceModel

#: Small, so that a few calls are enough to reach them.
SERVER_LIMITS = Limits(max_calls=4, stream_window=2, write_buffer=600, max_batch=10)
CLIENT_LIMITS = Limits(max_calls=3, stream_window=3, write_buffer=900)

#: The code of the error of `fails` is this plus the call's number.
FAILURE = 1000

#: Methods by kind: plain ones, those that call back, and streams.
PLAIN = ("now", "later", "threaded", "ordered", "detached", "fails")
BACK = ("back", "back_threaded", "back_stream")
STREAMS = ("count", "count_threaded")


def answer_of(kind: str, who: str, number: int) -> Any:
    """The right result."""
    if kind in BACK:
        return [kind, who, number, ["confirm", who, number]]
    return [kind, who, number]


def make_server(model: ReferenceModel) -> Server:
    server = Server(limits=SERVER_LIMITS, threads=3, drain_timeout=5.0, logs=Logs(slow_call=1000.0))

    @server
    def now(who: str, number: int) -> Any:
        model.ran[number] += 1
        return ["now", who, number]

    @server
    async def later(who: str, number: int, ctx: CallContext) -> Any:
        model.ran[number] += 1
        ctx.progress([who, number])
        await model.gate(number).passed()
        return ["later", who, number]

    @server(offload="thread")
    def threaded(who: str, number: int) -> Any:
        model.ran[number] += 1
        model.gate(number).passed_in_thread()
        return ["threaded", who, number]

    inside: set[str] = set()

    @server(ordered=True)
    async def ordered(who: str, number: int, ctx: CallContext) -> Any:
        model.ran[number] += 1
        if str(id(ctx.session)) in inside:
            model.wrong.append(f"call {number} did not wait for its turn")
        inside.add(str(id(ctx.session)))
        try:
            await model.gate(number).passed()
        finally:
            inside.discard(str(id(ctx.session)))
        return ["ordered", who, number]

    @server(detached=True)
    async def detached(who: str, number: int) -> Any:
        model.ran[number] += 1
        await model.gate(number).passed()
        return ["detached", who, number]

    @server
    async def fails(who: str, number: int) -> None:
        model.ran[number] += 1
        await asyncio.sleep(0)
        raise RpcError(FAILURE + number, f"{who} asked for it")

    @contextmanager
    def errors_of_the_peer_are_ours() -> Iterator[None]:
        try:
            yield
        except RpcError as error:
            raise RpcError(error.code, error.message) from None

    @server
    async def back(who: str, number: int, ctx: CallContext) -> Any:
        model.ran[number] += 1
        with errors_of_the_peer_are_ours():
            return ["back", who, number, await ctx.peer.confirm(who, number)]

    @server(offload="thread")
    def back_threaded(who: str, number: int, ctx: CallContext) -> Any:
        model.ran[number] += 1
        with errors_of_the_peer_are_ours():
            return ["back_threaded", who, number, ctx.peer.confirm(who, number)]

    @server
    async def back_stream(who: str, number: int, ctx: CallContext) -> Any:
        model.ran[number] += 1
        with errors_of_the_peer_are_ours():
            items = [item async for item in ctx.peer.stream.confirmations(who, number)]
        if items != [["confirm", who, number]] * len(items):
            model.wrong.append(f"call {number} was answered with items {items}")
        return ["back_stream", who, number, items[-1] if items else None]

    @server
    async def count(who: str, number: int, n: int) -> AsyncIterator[Any]:
        model.ran[number] += 1
        for place in range(n):
            yield [who, number, place]
            if place == 2:
                await model.gate(number).passed()

    @server(offload="thread")
    def count_threaded(who: str, number: int, n: int) -> Iterator[Any]:
        model.ran[number] += 1
        for place in range(n):
            yield [who, number, place]

    @server
    async def total(who: str, number: int, items: AsyncIterator[Any]) -> Any:
        model.ran[number] += 1
        place = 0
        async for item in items:
            if item != [who, number, place]:
                model.wrong.append(f"call {number} got {item} in place {place}")
            place += 1
        return ["total", who, number, place]

    return server


def offered(model: ReferenceModel, name: str) -> list[Callable[..., Any]]:
    """What the client of this name offers."""

    async def confirm(who: str, number: int) -> Any:
        _check(who, number)
        await asyncio.sleep(0)
        return ["confirm", who, number]

    async def confirm_later(who: str, number: int) -> Any:
        _check(who, number)
        await model.gate(number).passed()
        return ["confirm_later", who, number]

    async def confirmations(who: str, number: int) -> AsyncIterator[Any]:
        _check(who, number)
        for _ in range(5):
            yield ["confirm", who, number]

    def _check(who: str, number: int) -> None:
        if who != name:
            model.wrong.append(f"call {number} to {who} came to {name}")

    return [confirm, confirm_later, confirmations]
