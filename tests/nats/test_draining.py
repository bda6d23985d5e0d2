"""An instance that stops while calls of every kind are under way: each is answered, new ones go to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, Context, Server

from ..internals import joined_services
from ..kit import until
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client

pytestmark = pytest.mark.nats


class InstanceUnderTest:
    """An instance of a service, whose calls wait for `released`.

    Attributes:
        begun: what is under way there.
        carried_out: how often each tag was.
        stops_at: it stops while it carries out the call with this number.
    """

    def __init__(self, nats: NatsServer, service: str, name: str, **options: Any) -> None:
        self.begun: list[str] = []
        self.released = asyncio.Event()
        self.carried_out: Counter[str] = Counter()
        self.stops_at: int | None = None
        self.server = Server(**options)
        self.server.join_nats(nats.url, service=service, only=True)
        self._add_methods(name)

    async def _reached(self, kind: str) -> None:
        self.begun.append(kind)
        await self.released.wait()

    def _add_methods(self, name: str) -> None:
        server = self.server

        @server
        def where(tag: str = "") -> str:
            self.carried_out[tag] += 1
            if self.carried_out.total() == self.stops_at:
                server.stop()
            return name

        @server
        async def wait() -> str:
            await self._reached("wait")
            return name

        @server
        async def note(tag: str) -> None:
            await self._reached("note")
            self.carried_out[tag] += 1

        @server
        async def items() -> AsyncIterator[int]:
            for number in range(100):
                if number == 1:
                    await self._reached("items")
                yield number

        @server
        async def total(values: AsyncIterator[int]) -> int:
            found = await anext(values)
            await self._reached("total")
            return found + sum([value async for value in values])

        @server
        async def ask(ctx: Context) -> tuple[str, Any]:
            await self._reached("ask")
            return name, await ctx.peer.answer()

        @server
        async def work(ctx: Context) -> str:
            await self._reached("work")
            ctx.progress("nearly done")
            return name

    async def stop_new_calls(self) -> asyncio.Task[None]:
        """Tell it to stop, and wait until NATS sends no more calls there."""
        (service,) = joined_services(self.server)
        self.server.stop()
        await until(lambda: service.is_draining)
        return asyncio.create_task(self.server.close())


async def values() -> AsyncIterator[int]:
    """More than the credit at the beginning."""
    for number in range(100):
        yield number


async def foreign(nats: NatsServer, service: str) -> str:
    """A call of a program that knows NATS alone."""
    async with plain_client(nats.url) as plain:
        message = {"jsonrpc": "2.0", "id": 1, "method": "wait", "params": []}
        reply = await plain.request(f"rpc.{service}.wait", orjson.dumps(message), timeout=20)
    name: str = orjson.loads(reply.data)["result"]
    return name


async def batch_of(client: AsyncClient) -> list[Any]:
    async with client.batch() as batch:
        calls = [batch.wait(), batch.where(), batch.wait()]
    return [call.result() for call in calls]


async def test_calls_of_every_kind_are_answered(shared_nats: NatsServer) -> None:
    one = InstanceUnderTest(shared_nats, "stopping", "one")
    other = InstanceUnderTest(shared_nats, "stopping", "other")
    told: list[Any] = []

    async def items_of(client: AsyncClient) -> list[Any]:
        return [item async for item in client.stream.items()]

    async with AsyncExitStack() as stack:
        await one.server.start()
        client = await stack.enter_async_context(AsyncClient(f"{shared_nats.url}/stopping", timeout=20))

        @client
        async def answer(ctx: Context) -> Any:
            return await ctx.peer.where("of an answer")  # the instance that asks, although it stops

        under_way: list[Coroutine[Any, Any, Any]] = [
            client.call("wait"),
            items_of(client),
            client.call("total", values()),
            client.call("ask"),
            client.call("work", on_progress=told.append),
            batch_of(client),
            foreign(shared_nats, "stopping"),
        ]
        calls = [asyncio.ensure_future(each) for each in under_way]
        await client.notify.note("notified")
        expected = ["ask", "items", "note", "total", "wait", "wait", "wait", "wait", "work"]
        await until(lambda: sorted(one.begun) == expected)
        await other.server.start()
        stack.push_async_callback(other.server.close)

        closing = await one.stop_new_calls()
        assert [await client.where() for _ in range(20)] == ["other"] * 20
        assert not any(call.done() for call in calls)
        one.released.set()
        wait, items, total, ask, work, batch, plain = await asyncio.gather(*calls)
        await closing
    assert wait == work == plain == "one"
    assert items == list(range(100))
    assert total == sum(range(100))
    assert ask == ["one", "one"]
    assert told == ["nearly done"]
    assert batch == ["one"] * 3
    assert one.carried_out == {"": 1, "of an answer": 1, "notified": 1}
    assert other.carried_out == {"": 20}


async def test_a_large_result_arrives_although_its_instance_has_ended_the_session(shared_nats: NatsServer) -> None:
    one = InstanceUnderTest(shared_nats, "large_results", "one")

    @one.server
    async def large(size: int) -> bytes:
        if size > 2_000_000:
            await one.released.wait()
        return bytes(size)

    await one.server.start()
    async with AsyncClient(f"{shared_nats.url}/large_results", timeout=20) as client:
        assert len(await client.large(2_000_000)) == 2_000_000  # there is a direct connection now
        call = client.submit.large(12_000_000)
        await client.where()
        closing = await one.stop_new_calls()
        one.released.set()
        assert len(await call) == 12_000_000
        await closing


@pytest.mark.slow
async def test_calls_on_their_way_are_carried_out_once(shared_nats: NatsServer) -> None:
    """NATS sends calls to an instance until it knows that this stops; those are answered, too."""
    instances = [InstanceUnderTest(shared_nats, "on_their_way", name) for name in ("one", "two", "three")]
    async with AsyncExitStack() as stack:
        for instance in instances:
            await instance.server.start()
            stack.push_async_callback(instance.server.close)
        client = await stack.enter_async_context(AsyncClient(f"{shared_nats.url}/on_their_way", timeout=20))
        instances[0].stops_at, instances[1].stops_at = 10, 200
        answers = Counter(await asyncio.gather(*(client.where(f"{number}") for number in range(2000))))
        assert {await client.where(f"later.{number}") for number in range(20)} == {"three"}
    assert answers["one"] >= 10
    assert answers["two"] >= 200
    assert answers["three"] > 0
    carried_out = sum((instance.carried_out for instance in instances), Counter[str]())
    assert carried_out.total() == len(carried_out) == 2020


async def test_what_has_begun_is_known_until_it_is_answered(shared_nats: NatsServer) -> None:
    """An instance that stops answers who asks where calls are."""
    one = InstanceUnderTest(shared_nats, "asked", "one")
    async with plain_client(shared_nats.url) as plain:
        inbox = f"{plain.new_inbox()}.rpcstream"
        received = await plain.subscribe(f"{inbox}.*")

        async def at(token: str) -> Any:
            async for message in received.messages:
                if message.subject == f"{inbox}.{token}":
                    return orjson.loads(message.data)

        await one.server.start()
        message = {"jsonrpc": "2.0", "id": 7, "method": "wait", "params": []}
        await plain.publish("rpc.asked.wait", orjson.dumps(message), reply=f"{inbox}.7")
        await plain.flush()
        await until(lambda: one.begun)
        closing = await one.stop_new_calls()
        await plain.publish("rpc.asked.$inquiry", b"[6,7]", reply=f"{inbox}.q1")
        assert await asyncio.wait_for(at("have"), 20) == ["q1", [7]]
        one.released.set()
        assert (await asyncio.wait_for(at("m"), 20))["result"] == "one"
        await closing


async def test_the_identity_of_a_caller_is_still_looked_up(
    shared_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, shown = asyncio.Event(), list[str]()

    async def authenticate(credentials: Any) -> str:
        shown.append(credentials.token)
        if credentials.token == "slow":
            await asyncio.Event().wait()
        await looked.wait()
        return "alice"

    one = InstanceUnderTest(shared_nats, "looking_up", "one", authenticate=authenticate)
    other = InstanceUnderTest(shared_nats, "looking_up", "other", authenticate=lambda credentials: "bob")
    await one.server.start()
    address = f"{shared_nats.url}/looking_up"
    async with AsyncClient(address, token="a") as client, AsyncClient(address, token="slow") as slow:
        calls = [asyncio.ensure_future(client.where()) for _ in range(3)]
        too_slow = asyncio.ensure_future(slow.call("where", timeout=20))
        await until(lambda: len(shown) == 2)
        monkeypatch.setattr("rpcstream.nats.identity.FINISH_TIME", 0.1)
        await other.server.start()
        one.server.stop()
        looked.set()
        assert await asyncio.gather(*calls) == ["one"] * 3
        assert await too_slow == "other"  # it was told that its call was not begun, and has made it again
        await one.server.close()
        await other.server.close()
