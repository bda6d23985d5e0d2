"""Messages over NATS's `max_payload`: they go by a direct connection, in the order of the others, or fail clearly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trustme

pytest.importorskip("nats")

from rpcstream import (
    AsyncClient,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    Limits,
    MethodNotFound,
    NotAuthenticated,
    Retry,
    Server,
    ServerBusy,
)
from rpcstream.errors import MessageTooLarge
from rpcstream.tls import client_context

from ..kit import UsualServer, authority, server_tls, until
from ..kit.nats_server import NatsServer, skip_without_program
from .conftest import Clock
from .service import Service, call_of

pytestmark = pytest.mark.nats

MAX_PAYLOAD = 64 * 1024

#: Of messages that NATS does not carry here.
SIZE = 400_000


def array(size: int = SIZE, start: int = 0) -> np.ndarray:
    return (np.arange(size) + start).astype(np.uint8)


def make_server(**options: Any) -> UsualServer:
    server = UsualServer(**options)

    @server(idempotent=True)
    def size_of(values: np.ndarray) -> int:
        return values.size

    @server(idempotent=True)
    def make(size: int) -> np.ndarray:
        return array(size)

    @server
    async def arrays(count: int) -> AsyncIterator[np.ndarray]:
        for number in range(count):
            yield array(SIZE if number % 2 else 10, number)

    @server
    async def firsts(parts: AsyncIterator[np.ndarray]) -> list[int]:
        return [int(part[0]) async for part in parts]

    return server


@pytest.fixture(scope="module")
def small_nats() -> Iterator[NatsServer]:
    skip_without_program()
    with NatsServer(max_payload=MAX_PAYLOAD) as server:
        yield server


@pytest.fixture
def service(small_nats: NatsServer) -> Service:
    return Service(small_nats)


@pytest.mark.parametrize("binary", [True, False])
async def test_whatever_is_over_the_limit_goes_by_direct_connections(service: Service, binary: bool) -> None:
    server = make_server(binary=binary)
    async with service.serving(server), service.client(binary=binary) as client:

        @client
        def mirror(values: np.ndarray) -> np.ndarray:
            return values

        assert await client.size_of(array()) == SIZE
        assert np.array_equal(await client.make(SIZE), array())
        assert await client.echo("é" * SIZE) == "é" * SIZE
        assert np.array_equal(await client.ask("mirror", array()), array())
        await client.notify.note(array())
        await until(lambda: server.noted)
        async with client.batch() as batch:
            first, second = batch.echo("a" * SIZE), batch.size_of(array(10))
        assert (first.result(), second.result()) == ("a" * SIZE, 10)
        sent = [array(SIZE + number, number) for number in range(24)]
        found = await asyncio.gather(*[client.echo(values) for values in sent])
        assert all(np.array_equal(*pair) for pair in zip(sent, found, strict=True))


async def test_a_large_notification_before_any_call(service: Service) -> None:
    server = make_server()
    async with service.serving(server), service.client() as client:
        await client.notify.note(array())
        await until(lambda: server.noted)


async def test_items_keep_their_order_whichever_way_they_go(service: Service) -> None:
    async with service.serving(make_server()), service.client() as client:
        items = [item async for item in client.stream("arrays", 20)]
        assert [(int(item[0]), item.size) for item in items] == [(n, SIZE if n % 2 else 10) for n in range(20)]
        parts = (array(SIZE if number % 2 else 10, number) for number in range(20))
        assert await client.firsts(parts) == list(range(20))


async def test_an_instance_acknowledges_a_stream_that_begins_with_a_large_item(service: Service) -> None:
    server = make_server()

    @server
    async def slow(count: int) -> AsyncIterator[np.ndarray]:
        for number in range(count):
            yield array(SIZE if number == 0 else 10, number)
            await asyncio.sleep(0.8)  # in all longer than an instance may take to acknowledge a call

    async with service.serving(server), service.client() as client:
        items = [item async for item in client.stream("slow", 3)]
        assert [item.size for item in items] == [SIZE, 10, 10]


async def test_what_an_instance_sent_directly_still_arrives_when_nats_says_that_it_is_gone(service: Service) -> None:
    server, go_on = make_server(), asyncio.Event()

    @server
    async def parts() -> AsyncIterator[np.ndarray]:
        yield array(SIZE)
        await go_on.wait()
        yield array(10)

    async with service.serving(server), service.client() as client, service.raw(f"{service.root}parts") as raw:
        items = client.stream("parts")
        assert (await anext(items)).size == SIZE
        inbox = (await raw.next()).reply.rpartition(".")[0]
        # As NATS answers a message to an instance that has left: nothing subscribes there.
        raw.publish(f"{inbox}.i1", b"", head=b"NATS/1.0 503\r\n\r\n")
        await raw.flush()
        go_on.set()
        assert [item.size async for item in items] == [10]


async def test_a_large_call_waits_for_the_identity_of_its_caller(service: Service) -> None:
    looked, seen = asyncio.Event(), list[str]()

    async def authenticate(shown: Any) -> str | None:
        seen.append(shown.token)
        await looked.wait()
        return "alice" if shown.token == "a" else None

    async with (
        service.serving(make_server(authenticate=authenticate)),
        service.client(token="a") as client,
        service.client(token="b") as other,
    ):
        call, refused = [asyncio.ensure_future(each.size_of(array())) for each in (client, other)]
        await until(lambda: sorted(seen) == ["a", "b"])
        looked.set()
        assert await call == SIZE
        with pytest.raises(NotAuthenticated):
            await refused


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("is_off", [True, False], ids=["switched off", "nothing listens there"])
async def test_no_direct_connection(service: Service, is_off: bool) -> None:
    port = unused_port()
    direct, words = (False, ["direct=False"]) if is_off else (f":0=127.0.0.1:{port}", [f"127.0.0.1:{port}", "refused"])
    of_calls = MessageTooLarge if is_off else ConnectFailed
    async with service.serving(make_server(), direct=direct), service.client() as client:
        for method, argument, kind in (("size_of", array(), of_calls), ("make", SIZE, MessageTooLarge)) * 2:
            with pytest.raises(kind) as failed:
                await client.call(method, argument)
            assert not [word for word in ("max_payload", "direct=", *words) if word not in str(failed.value)]
        with pytest.raises(MessageTooLarge):
            [item async for item in client.stream("arrays", 4)]
        with pytest.raises(MessageTooLarge):
            await client.firsts(array() for _ in range(3))
        assert await client.size_of(array(10)) == 10


async def test_calls_that_would_fail_anyway(service: Service) -> None:
    limits = Limits(max_message_size=2 * SIZE)
    async with service.serving(make_server(limits=limits)), service.client() as client:
        with pytest.raises(MethodNotFound):
            await client.call("missing", array())
        with pytest.raises(CallTimeout):
            await client.call("echo", array(), timeout=1e-6)
        with pytest.raises(MessageTooLarge) as caught:
            await client.size_of(array(3 * SIZE))
        assert caught.value.data["limit"] == limits.max_message_size
        assert await client.size_of(array()) == SIZE


async def test_a_caller_without_a_session(service: Service) -> None:
    async with service.serving(make_server()), service.raw("answers.*") as raw:
        error = (await raw.request(f"{service.root}make", call_of("make", SIZE))).json["error"]
        assert (error["code"], error["data"]["limit"]) == (-32001, MAX_PAYLOAD)
        assert "max_payload" in error["data"]["reason"]


@pytest.mark.parametrize(
    ("direct", "has_certificate", "works"), [(None, False, False), (True, False, True), (None, True, True)]
)
async def test_bytes_do_not_leave_an_encrypted_nats_unasked(
    start_nats: Callable[..., NatsServer], direct: bool | None, has_certificate: bool, works: bool
) -> None:
    service = Service(start_nats(tls=True, max_payload=MAX_PAYLOAD))
    server = make_server(tls=server_tls() if has_certificate else None)
    trusted = client_context(authority())
    async with service.serving(server, tls=trusted, direct=direct), service.client(tls=authority()) as client:
        if works:
            assert np.array_equal(await client.echo(array()), array())
        else:
            with pytest.raises(MessageTooLarge, match="no certificate"):
                await client.echo(array())


async def test_addresses_that_are_none_or_taken(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConnectFailed, match=r"direct=.*in use"):
        async with service.serving(direct=f"127.0.0.1:{taken.getsockname()[1]}"):
            pass
    for direct in ("nonsense", "host:99999", "::1:5", "a:1=b", ":x"):
        with pytest.raises(ValueError, match="host:port"):
            Server().join_nats("nats://127.0.0.1", service="vision", direct=direct)


async def test_another_certificate_than_the_instance_says(service: Service) -> None:
    """Direct connections have the certificate of the server, and no other is taken for it."""
    async with service.serving(make_server(tls=server_tls())), service.client() as client:
        assert np.array_equal(await client.echo(array()), array())
    between = server_tls().context()
    trustme.CA().issue_cert("127.0.0.1").configure_cert(between)
    async with Proxy(tls=between) as proxy:
        server = make_server(tls=server_tls())
        async with service.serving(server, direct=proxy.direct), service.client() as client:
            with pytest.raises(ConnectFailed, match="another certificate"):
                await client.echo(array())


class Proxy:
    """Stands between clients and the port for direct connections; loses them when it is told, or lets none through.

    Attributes:
        direct: the option of the server.
        opened: set: connections go on to the server.
    """

    def __init__(self, **listening: Any) -> None:
        self.cut_after: int | None = None
        self.pace = 0.0
        self.connections = 0
        self.opened = asyncio.Event()
        self.opened.set()
        self._target = unused_port()
        self._listening = {"ssl": listening.pop("tls", None)}
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, **self._listening)
        self.direct = f"127.0.0.1:{self._target}=127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        await self.opened.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.append(back)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 * 1024):
                await asyncio.sleep(self.pace)
                if self.cut_after is not None and len(data) > self.cut_after:
                    self.cut_after = None
                    self.cut()
                    return
                if self.cut_after is not None:
                    self.cut_after -= len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy() as proxy:
        yield proxy


async def read_all(client: AsyncClient) -> None:
    async for _ in client.stream("arrays", 1000):
        pass


#: What is lost in the middle of a result, an argument, and a stream.
LARGE: dict[str, Callable[[AsyncClient], Any]] = {
    "result": lambda client: client.make(SIZE),
    "argument": lambda client: client.size_of(array()),
    "stream": read_all,
}


@pytest.mark.parametrize(
    ("lost", "retries"), [("result", 0), ("argument", 0), ("stream", 0), ("result", 3), ("argument", 3)]
)
async def test_the_connection_is_lost_in_the_middle(
    clock: Clock, service: Service, proxy: Proxy, lost: str, retries: int
) -> None:
    """The next call makes another one, and what the lost message held is free again; idempotent calls are repeated."""
    server = make_server(limits=Limits(max_message_size=2 * SIZE, max_held_total=2 * SIZE))
    async with (
        service.serving(server, direct=proxy.direct),
        service.client(retry=Retry(times=retries), timeout=None) as client,
    ):
        await client.make(SIZE)
        proxy.cut_after = SIZE // 2
        call = asyncio.ensure_future(LARGE[lost](client))
        await clock.until(call.done)
        with contextlib.nullcontext() if retries else pytest.raises(ConnectionLost):
            await call
        assert (await client.make(SIZE)).size == await client.size_of(array()) == SIZE
        assert proxy.connections == 2


@pytest.mark.parametrize("is_connected", [False, True], ids=["first", "later"])
async def test_a_result_that_is_long_on_its_way_is_not_given_up(
    clock: Clock, service: Service, proxy: Proxy, is_connected: bool
) -> None:
    """Its call was answered before it was acknowledged, and is asked for again and again meanwhile."""
    async with (
        service.serving(make_server(), direct=proxy.direct),
        service.client(
            timeout=None,
        ) as client,
    ):
        if is_connected:
            await client.make(SIZE)
        proxy.pace = 1.0
        call = asyncio.create_task(client.make(SIZE))
        await clock.until(call.done)
        assert (await call).size == SIZE


async def test_a_cancel_before_the_call_has_come(service: Service, proxy: Proxy) -> None:
    server = make_server()
    proxy.opened.clear()
    async with service.serving(server, direct=proxy.direct), service.client() as client:
        call = asyncio.create_task(client.note(array()))
        await until(lambda: proxy.connections)
        call.cancel()
        await client.add(1, 2)  # the instance has the cancel
        proxy.opened.set()
        assert await client.size_of(array()) == SIZE
        assert server.noted == []


async def test_too_much_waits_for_one_client(service: Service, proxy: Proxy) -> None:
    limits = Limits(max_message_size=SIZE + 64 * 1024, write_buffer=1024)
    server = make_server(limits=limits)
    proxy.opened.clear()
    async with service.serving(server, direct=proxy.direct), service.client() as client:
        first = asyncio.create_task(client.make(SIZE))
        await until(lambda: proxy.connections)
        second = asyncio.create_task(client.make(SIZE))
        await until(lambda: server.stats()["requests"] == 2)
        proxy.opened.set()
        assert (await first).size == SIZE
        with pytest.raises(ServerBusy, match="direct connection"):
            await second
        assert (await client.make(SIZE)).size == SIZE


async def test_a_connection_that_is_lost_while_it_is_made(service: Service, proxy: Proxy) -> None:
    """The call was not sent, and is made again, although nothing says that this is permitted."""
    server = make_server()
    proxy.opened.clear()
    async with service.serving(server, direct=proxy.direct), service.client() as client:
        call = asyncio.create_task(client.note(array()))
        await until(lambda: proxy.connections)
        proxy.cut()
        proxy.opened.set()
        await call
        assert len(server.noted) == 1


async def test_an_instance_that_answers_no_connection(clock: Clock, service: Service, proxy: Proxy) -> None:
    proxy.opened.clear()
    async with service.serving(make_server(), direct=proxy.direct), service.client(timeout=None) as client:
        call = asyncio.create_task(client.size_of(array()))
        await clock.until(call.done)
        with pytest.raises(ConnectFailed, match="no answer within 5 s"):
            await call


async def test_calls_go_to_another_instance_when_one_stops(service: Service) -> None:
    answered, is_over, first = 0, asyncio.Event(), make_server()

    async def keep_calling() -> None:
        nonlocal answered
        while not is_over.is_set():
            assert await client.size_of(array()) == SIZE
            answered += 1

    async with service.serving(make_server()), service.client() as client:
        async with service.serving(first):
            calling = [asyncio.create_task(keep_calling()) for _ in range(3)]
            await until(lambda: answered > 20 and first.stats()["requests"])
        before = answered
        await until(lambda: answered > before + 20)
        is_over.set()
        await asyncio.gather(*calling)
