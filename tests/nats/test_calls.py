"""Calls of a client to a service: which instance has them, and what becomes of those that none has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("nats")

from rpcstream import ConnectFailed, ConnectionLost, Logs, MethodNotFound, Server
from rpcstream.errors import MessageTooLarge
from rpcstream.testing import serve_in_thread

from ..kit import PATIENCE, UsualServer, until
from ..kit.nats_server import NatsServer
from .conftest import Clock
from .service import Service

pytestmark = pytest.mark.nats

NO_INSTANCE = "no instance of the service '{}'"


async def test_a_method_that_no_instance_has_is_not_found_at_once(service: Service) -> None:
    async with service.serving(), service.client() as client:
        with pytest.raises(MethodNotFound, match=f"nothing: {NO_INSTANCE.format(service.name)} offers it") as failed:
            await client.call("nothing", 1, 2)
        assert failed.value.data == {"no_provider": True, "service": service.name}
        async with client.batch() as batch:
            results = [batch.nothing(), batch.add(2, 3)]
        with pytest.raises(MethodNotFound):
            results[0].result()
        assert results[1].result() == 5
        await client.notify("nothing", 1, 2)


async def test_where_no_instance_is_each_kind_of_call_fails_as_one_that_was_not_sent(service: Service) -> None:
    async with service.client() as client:

        async def batch() -> None:
            async with client.batch() as batch:
                batch.call("add", 1, 2)

        calls = [client.call("add"), anext(client.stream("count")), batch(), client.call("echo", "x" * 2_000_000)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ConnectFailed), error
            assert (error.executed, error.is_permanent) == (False, False)
            assert NO_INSTANCE.format(service.name) in error.reason


async def test_wait_for_waits_for_an_instance(service: Service) -> None:
    async with service.client(wait_for=20) as client:
        stream = client.stream("count", 1)
        waiting = asyncio.ensure_future(asyncio.gather(client.call("add", 1, 2), anext(stream)))
        with pytest.raises(ConnectFailed, match="is there now"):
            await client.call("add", 1, 2, wait_for=None)
        async with service.serving():
            assert await waiting == [3, 0]
            await stream.aclose()


async def test_a_call_that_no_instance_has_is_lost(clock: Clock, service: Service) -> None:
    """It was on its way to a process that has died: nothing acknowledges it, and those that are there answer."""
    async with service.raw() as dying, service.client(timeout=None) as client:
        await dying.subscribe(f"{service.root}only_there", "rpc")
        waiting = asyncio.create_task(client.call("only_there"))
        await dying.next()
        async with service.serving():
            await dying.close()
            await clock.until(waiting.done)
            with pytest.raises(ConnectionLost, match="is gone, or the message was lost"):
                await waiting


@contextmanager
def kept_instance(service: Service) -> Iterator[tuple[threading.Event, threading.Event]]:
    """An instance whose method `keep` keeps its event loop: set when that has begun, and to let it end."""
    server, begun, go_on = Server(logs=Logs(slow_call=3600)), threading.Event(), threading.Event()

    @server
    def keep() -> str:
        begun.set()
        go_on.wait(PATIENCE)
        return "done"

    server.join_nats(service.url, service=service.name)
    with serve_in_thread(server):
        try:
            yield begun, go_on
        finally:
            go_on.set()


async def test_an_instance_whose_loop_is_kept_by_a_handler_is_waited_for(clock: Clock, service: Service) -> None:
    """It acknowledges nothing meanwhile, and NATS does not say that it is gone."""
    with kept_instance(service) as (begun, go_on):
        async with (
            service.client(timeout=None) as first,
            service.client(timeout=None) as second,
        ):
            calls = [asyncio.create_task(first.call("keep"))]
            await until(begun.is_set)
            calls.append(asyncio.create_task(second.call("keep")))
            ends = asyncio.get_running_loop().time() + 20
            await clock.until(lambda: asyncio.get_running_loop().time() > ends)
            assert not any(call.done() for call in calls)
            go_on.set()
            assert await asyncio.gather(*calls) == ["done", "done"]


async def test_a_token_leaves_less_room_for_a_message(service: Service) -> None:
    """NATS counts headers, and would end the connection for one byte too many."""
    server = UsualServer(authenticate=lambda credentials: credentials.token)
    async with service.serving(server, direct=False), service.client(token="t" * 1000) as client:
        # Short of it, at it, and over it by what the header has.
        texts = ["x" * length for length in range((1 << 20) - 1400, (1 << 20) + 100, 100)]
        outcomes = [(await asyncio.gather(client.note(text), return_exceptions=True))[0] for text in texts]
        assert (outcomes[0], type(outcomes[-1])) == (None, MessageTooLarge)
        assert all(outcome is None or type(outcome) is MessageTooLarge for outcome in outcomes)
        assert await client.add(1, 2) == 3


async def test_a_lost_connection_fails_what_waits_and_the_next_call_connects(
    start_nats: Callable[..., NatsServer],
) -> None:
    service, server = Service(start_nats()), UsualServer()
    async with service.serving(server), service.client(timeout=60, wait_for=30) as client:
        waiting = asyncio.create_task(client.call("wait"))
        await until(lambda: server.begun)
        service.nats.kill()
        with pytest.raises(ConnectionLost, match="the connection to NATS was lost"):
            await waiting
        await asyncio.to_thread(service.nats.restart)
        assert await client.call("add", 1, 2) == 3
        await until(lambda: server.stats()["connections"] == 1)
