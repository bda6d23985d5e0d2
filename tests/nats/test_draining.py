"""An instance that stops while calls of every kind are under way: each is answered, new ones go to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, Context

from ..kit import UsualServer, until
from .conftest import Clock
from .service import Service, call_of

pytestmark = pytest.mark.nats


def instance(name: str, **options: Any) -> UsualServer:
    """An instance whose method `where` gives this name; what that was called with is noted."""
    server = UsualServer(**options)

    @server
    def where(tag: Any = None) -> str:
        server.noted.append(tag)
        return name

    return server


@asynccontextmanager
async def started(service: Service, server: UsualServer) -> AsyncIterator[UsualServer]:
    """It joins, and `stop` is what a signal does."""
    server.join_nats(service.url, service=service.name, only=True)
    async with server.listening():
        try:
            yield server
        finally:
            server.release()


async def test_calls_of_every_kind_are_answered(service: Service) -> None:
    one, other, go_on, reached = instance("one"), instance("other"), asyncio.Event(), list[str]()

    async def values() -> AsyncIterator[int]:
        yield 1
        reached.append("values")
        await go_on.wait()
        for _ in range(100):  # more than the credit at the beginning
            yield 1

    async def batch_of(client: AsyncClient) -> list[Any]:
        async with client.batch() as batch:
            calls = [batch.wait(1), batch.where("batch"), batch.wait(2)]
        return [call.result() for call in calls]

    async with service.client() as client, service.raw("answers.*") as raw, started(service, one):

        @client
        async def answer(ctx: Context) -> Any:
            reached.append("answer")
            await go_on.wait()
            return await ctx.peer.where("answer")  # the instance that asks, although it stops

        kinds = [
            client.wait(3),
            client.wait("x" * 12_000_000),  # by a direct connection, which outlives the session
            client.total(values()),
            client.ask("answer"),
            batch_of(client),
        ]
        calls = [asyncio.ensure_future(each) for each in kinds]
        items = client.stream.count(100)
        assert await anext(items) == 0
        await client.notify.wait("notified")
        raw.publish(service.root + "wait", call_of("wait", "plain"), "answers.here")
        await until(lambda: len(one.begun) == 6 and len(reached) == 2)

        async with service.serving(other):
            one.stop()
            await until(lambda: len(service.subscribed("where")) == 1)
            assert [await client.where() for _ in range(20)] == ["other"] * 20
            assert not any(call.done() for call in calls)
            go_on.set()
            one.release()
            waited, long, total, asked, batch = await asyncio.gather(*calls)
            assert (waited, len(long), total, asked, batch) == (3, 12_000_000, 101, "one", [1, "one", 2])
            assert [item async for item in items] == list(range(1, 100))
            assert (await raw.next_but_acks()).json["result"] == "plain"
            assert ("notified", "whole") in one.ended
    assert sorted(one.noted) == ["answer", "batch"]
    assert len(other.noted) == 20


async def test_calls_on_their_way_are_carried_out_once(service: Service) -> None:
    """NATS sends calls to an instance until it knows that this stops; those are answered, too."""
    one, two, three = servers = [instance(name) for name in ("one", "two", "three")]
    async with (
        service.client() as client,
        started(service, one),
        started(service, two),
        started(service, three),
    ):
        calls = [asyncio.ensure_future(client.where(number)) for number in range(1000)]
        await until(lambda: len(one.noted) >= 10)
        one.stop()
        await until(lambda: len(two.noted) >= 100)
        two.stop()
        answers = await asyncio.gather(*calls)
        await until(lambda: len(service.subscribed("where")) == 1)
        assert {await client.where(number) for number in range(1000, 1020)} == {"three"}
    assert [answers.count(name) for name in ("one", "two")] == [len(one.noted), len(two.noted)]
    assert sorted(tag for server in servers for tag in server.noted) == list(range(1020))


async def test_an_instance_that_stops_is_none_for_new_calls(clock: Clock, service: Service) -> None:
    async with (
        service.raw("mine.rpcstream.*") as raw,
        started(service, UsualServer()) as server,
        service.client() as client,
    ):

        async def told(token: str) -> Any:
            while not (message := await raw.next_but_acks()).subject.endswith(f".{token}") or not message.data:
                pass
            return message.json

        raw.publish(service.root + "wait", call_of("wait", "done", call_id=7), "mine.rpcstream.7")
        await until(lambda: server.begun)
        server.stop()
        await until(lambda: not service.subscribed("wait"))
        call = asyncio.create_task(client.add(1, 2))
        await clock.until(call.done)
        with pytest.raises(ConnectFailed, match="no instance"):
            await call
        server.release()
        assert (await told("m"))["result"] == "done"


async def test_the_identity_of_a_caller_is_still_looked_up(clock: Clock, service: Service) -> None:
    looked, shown = asyncio.Event(), list[str]()

    async def authenticate(credentials: Any) -> str:
        shown.append(credentials.token)
        if credentials.token == "slow":
            await asyncio.Event().wait()
        await looked.wait()
        return "alice"

    one, other = instance("one", authenticate=authenticate), instance("other", authenticate=lambda shown: "bob")
    async with service.client(token="a") as client, service.client(token="slow") as slow, started(service, one):
        calls = [asyncio.ensure_future(client.where()) for _ in range(3)]
        too_slow = asyncio.ensure_future(slow.where())
        await until(lambda: len(shown) == 2)
        async with service.serving(other):
            one.stop()
            looked.set()
            assert await asyncio.gather(*calls) == ["one"] * 3
            await clock.turn()
            clock.jump(5)
            assert await too_slow == "other"  # it was told that its call was not begun, and has made it again
