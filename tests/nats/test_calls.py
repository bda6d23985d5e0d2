"""Calls of a client to a service: which instance has them, and what becomes of those that none has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, Client, ConnectFailed, ConnectionLost, MessageTooLarge, MethodNotFound, Server
from rpcstream.nats import places
from rpcstream.testing import serve_in_thread

from ..kit import PATIENCE, until
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer
from .test_hostile_instances import hostile, raw_instance, until_method

pytestmark = pytest.mark.nats


async def test_a_method_that_no_instance_has_is_not_found_at_once(shared_nats: NatsServer) -> None:
    server = Server()
    server.join_nats(shared_nats.url, service="lacks-it", only=True)
    async with server.listening(), AsyncClient(f"{shared_nats.url}/lacks-it", timeout=20) as client:
        with pytest.raises(MethodNotFound, match="add: no instance of the service 'lacks-it' offers it") as failed:
            await client.call("add", 1, 2)
        assert failed.value.data == {"no_provider": True, "service": "lacks-it"}
        async with client.batch() as batch:
            results = [batch.add(1, 2), batch.add(2, 3)]
        for result in results:
            with pytest.raises(MethodNotFound):
                result.result()
        await client.notify("add", 1, 2)
        with Client(f"{shared_nats.url}/lacks-it", timeout=20) as blocking, pytest.raises(MethodNotFound):
            await asyncio.to_thread(blocking.call, "add", 1, 2)


async def test_wait_for_waits_for_an_instance(shared_nats: NatsServer) -> None:
    async with AsyncClient(f"{shared_nats.url}/comes-later", timeout=20) as client:
        waiting = asyncio.create_task(client.call("add", 1, 2, wait_for=20))
        with pytest.raises(ConnectFailed, match="no instance of the service 'comes-later' is there now"):
            await client.call("add", 1, 2)
        server = Server()

        @server
        def add(a: int, b: int) -> int:
            return a + b

        server.join_nats(shared_nats.url, service="comes-later", only=True)
        async with server.listening():
            assert await waiting == 3


async def test_a_cancel_before_the_acknowledgement_is_sent_when_it_comes(shared_nats: NatsServer) -> None:
    async with hostile(shared_nats, timeout=20) as (client, instance):
        await instance.raw.subscribe(instance.own)
        waiting = asyncio.create_task(client.call("one"))
        call = await instance.next_call()
        waiting.cancel()
        await asyncio.wait({waiting})
        instance.send("ack", [call["id"]])
        cancel = await instance.raw.next()
        assert (cancel.subject, cancel.json["method"]) == (instance.own, "$/cancelRequest")
        assert cancel.json["params"] == {"id": call["id"]}


async def test_an_acknowledged_call_is_lost_with_its_instance_and_no_other(shared_nats: NatsServer) -> None:
    """NATS says that nothing subscribes to the subject of the session; the instance that is there keeps its calls."""
    async with hostile(shared_nats, timeout=60) as (client, instance):
        other = f"{instance.own}-other"
        await instance.raw.subscribe(other)
        lost, kept = (asyncio.create_task(client.call(name)) for name in ("lost", "kept"))
        one = await until_method(instance, "lost")
        two = await until_method(instance, "kept")
        instance.send("ack", [one["id"]])  # nothing subscribes to its subject
        instance.send("ack", [two["id"]], other)
        with pytest.raises(ConnectionLost, match="the instance is gone"):
            await lost
        instance.send("m", {"jsonrpc": "2.0", "id": two["id"], "result": "right"}, other)
        assert await kept == "right"


async def test_a_call_that_no_instance_has_is_lost(shared_nats: NatsServer) -> None:
    """It was on its way to a process that has died: nothing acknowledges it, and all that are there deny it."""
    async with hostile(shared_nats, timeout=60) as (client, dying):
        server = Server()

        @server
        def add(a: int, b: int) -> int:
            return a + b

        service = dying.own.split(".")[1]
        waiting = asyncio.create_task(client.call("only_there"))
        await dying.next_call()
        server.join_nats(shared_nats.url, service=service, only=True)
        async with server.listening():
            await dying.raw.close()
            with pytest.raises(ConnectionLost, match="is gone, or the message was lost"):
                await waiting


@contextmanager
def kept_instance(nats: NatsServer, service: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """An instance whose method `keep` keeps its event loop: set when that has begun, and to let it end."""
    server, begun, go_on = Server(slow_call=3600), threading.Event(), threading.Event()

    @server
    def keep() -> str:
        begun.set()
        go_on.wait(PATIENCE)
        return "done"

    server.join_nats(nats.url, service=service)
    with serve_in_thread(server):
        try:
            yield begun, go_on
        finally:
            go_on.set()


async def test_an_instance_whose_loop_is_kept_by_a_handler_is_waited_for(
    shared_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers no question meanwhile, and NATS does not say that it is gone."""
    for name in ("WATCH_EVERY", "LATE_AFTER", "ANSWER_TIME"):
        monkeypatch.setattr(places, name, 0.02)
    service = "kept-by-a-handler"
    address = f"{shared_nats.url}/{service}"
    raw = await RawClient.connect(shared_nats.port)
    await raw.subscribe(f"rpc.{service}.$inquiry")
    with kept_instance(shared_nats, service) as (begun, go_on):
        async with AsyncClient(address, timeout=60) as first, AsyncClient(address, timeout=60) as second:
            calls = [asyncio.create_task(first.call("keep"))]
            await until(begun.is_set)
            calls.append(asyncio.create_task(second.call("keep")))
            for _ in range(5):
                await raw.next()
            assert not any(call.done() for call in calls)
            go_on.set()
            assert await asyncio.gather(*calls) == ["done", "done"]
    await raw.close()


async def test_a_caller_is_told_of_an_instance_before_its_first_call_keeps_the_loop(shared_nats: NatsServer) -> None:
    raw = await RawClient.connect(shared_nats.port)
    await raw.subscribe("mine.rpcstream.*")
    with kept_instance(shared_nats, "kept-at-first") as (_, go_on):
        raw.publish("rpc.kept-at-first.keep", b'{"jsonrpc":"2.0","id":5,"method":"keep"}', "mine.rpcstream.5")
        told = await raw.next()  # while the handler waits for this test
        assert (told.subject, told.json) == ("mine.rpcstream.ack", [5])
        go_on.set()
        assert (await raw.next()).json["result"] == "done"  # it is not told again
    await raw.close()


async def test_a_token_leaves_less_room_for_a_message(shared_nats: NatsServer) -> None:
    """NATS counts headers, and would end the connection for one byte too many."""
    server = Server(authenticate=lambda credentials: credentials.token)

    @server
    def size(text: str) -> int:
        return len(text)

    server.join_nats(shared_nats.url, service="sized", only=True, direct=False)
    async with server.listening() as address, AsyncClient(address, token="t" * 1000, timeout=20) as client:
        # Short of it, at it, and over it by what the header has.
        texts = ["x" * length for length in range((1 << 20) - 1400, (1 << 20) + 100, 100)]
        outcomes = [(await asyncio.gather(client.call("size", text), return_exceptions=True))[0] for text in texts]
        assert outcomes[0] == len(texts[0])
        assert type(outcomes[-1]) is MessageTooLarge
        for text, outcome in zip(texts, outcomes, strict=True):
            assert outcome == len(text) or type(outcome) is MessageTooLarge
        assert await client.call("size", "x") == 1


async def test_two_instances_never_answer_for_each_other(shared_nats: NatsServer) -> None:
    async with (
        raw_instance(shared_nats, "pair") as one,
        raw_instance(shared_nats, "pair") as other,
        AsyncClient(f"{shared_nats.url}/pair", timeout=20) as client,
    ):

        async def answer(instance: object) -> None:
            while True:
                call = await instance.next_call()  # type: ignore[attr-defined]
                instance.answer(call, call["params"])  # type: ignore[attr-defined]

        answering = [asyncio.create_task(answer(instance)) for instance in (one, other)]
        results = await asyncio.gather(*[client.call("echo", number) for number in range(500)])
        assert results == [[number] for number in range(500)]
        for task in answering:
            task.cancel()
        await asyncio.wait(answering)


async def test_a_lost_connection_fails_what_waits_and_the_next_call_connects(
    start_nats: Callable[..., NatsServer],
) -> None:
    nats = start_nats()
    server = Server()
    begun = asyncio.Event()

    @server
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    server.join_nats(nats.url, service="lost", only=True)
    async with server.listening() as address, AsyncClient(address, timeout=60, wait_for=30) as client:
        waiting = asyncio.create_task(client.call("wait"))
        await begun.wait()
        nats.kill()
        with pytest.raises(ConnectionLost, match="the connection to NATS was lost"):
            await waiting
        await asyncio.to_thread(nats.restart)
        assert await client.call("add", 1, 2) == 3
        await until(lambda: server.stats()["connections"] == 1)
