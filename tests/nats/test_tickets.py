"""Messages over NATS's `max_payload`: they go by a direct connection, in the order of the others, or fail clearly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import orjson
import pytest

pytest.importorskip("nats")

from rpcstream import (
    AsyncClient,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    Context,
    MessageTooLarge,
    MethodNotFound,
    RpcError,
    Server,
    ServerBusy,
)
from rpcstream.limits import Limits
from rpcstream.nats import client_way, direct, instance_way, places
from rpcstream.tls import client_context

from ..internals import carrier_of, direct_port_of, direct_ways_of, memory_of, places_of
from ..kit import authority, server_tls, until
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client

pytestmark = pytest.mark.nats

SERVICE = "tickets"

#: Over the default `max_payload` of 1 MiB.
SIZE = 3 * 1024 * 1024

StartNats = Callable[..., NatsServer]


def array(size: int = SIZE, start: int = 0) -> np.ndarray:
    return (np.arange(size) + start).astype(np.uint8)


def make_server(**options: Any) -> Server:
    server = Server(**options)

    @server
    def echo(values: np.ndarray) -> np.ndarray:
        return values

    @server(idempotent=True)
    def size_of(values: np.ndarray) -> int:
        return values.size

    @server(idempotent=True)
    def make(size: int) -> np.ndarray:
        return array(size)

    @server
    def repeat(text: str) -> str:
        return text

    @server
    async def arrays(count: int) -> AsyncIterator[np.ndarray]:
        for number in range(count):
            yield array(SIZE if number % 2 else 10, number)

    @server
    async def total(parts: AsyncIterator[np.ndarray]) -> list[int]:
        return [int(part[0]) async for part in parts]

    @server
    async def ask_back(ctx: Context, size: int) -> np.ndarray:
        return await ctx.peer.call("mirror", array(size))

    @server
    async def make_with_progress(ctx: Context, size: int) -> np.ndarray:
        for number in range(3):
            ctx.progress(number)
        return array(size)

    return server


@contextlib.asynccontextmanager
async def joined(server: Server, nats: NatsServer, **options: Any) -> AsyncIterator[Server]:
    server.join_nats(nats.url, service=SERVICE, only=True, **options)
    listening = asyncio.Event()
    serving = asyncio.create_task(server.serve(on_listening=lambda address: listening.set()))
    started = asyncio.create_task(listening.wait())
    await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if serving.done():
        serving.result()
    try:
        yield server
    finally:
        server.stop()
        await serving


@pytest.fixture
def nats(start_nats: StartNats) -> NatsServer:
    return start_nats()


def client_of(nats: NatsServer, **options: Any) -> AsyncClient:
    return AsyncClient(f"{nats.url}/{SERVICE}", timeout=20, **options)


def tickets(server: Server) -> dict[str, int]:
    found = server.counters.as_dict()
    return {name.removeprefix("tickets_"): found[name] for name in found if name.startswith("tickets_")}


# -- what goes by tickets ---------------------------------------------------------------------------------------------


async def test_arguments_and_results_of_any_size(nats: NatsServer) -> None:
    async with joined(make_server(), nats) as server, client_of(nats) as client:
        values = array()
        assert await client.call("size_of", values) == SIZE
        assert np.array_equal(await client.call("make", SIZE), values)
        assert np.array_equal(await client.call("echo", values), values)
        assert (await client.call("repeat", "é" * SIZE)) == "é" * SIZE
        # One connection, made once, for all of them.
        assert tickets(server) == {"made": 1, "claimed": 1, "expired": 0, "refused": 0}


async def test_a_result_is_the_first_that_needs_the_connection(nats: NatsServer) -> None:
    async with joined(make_server(), nats) as server, client_of(nats) as client:
        found = await asyncio.gather(*[client.call("make", SIZE + number) for number in range(5)])
        assert [each.size - SIZE for each in found] == list(range(5))
        assert tickets(server)["claimed"] == 1


async def test_many_calls_at_a_time_get_each_their_own(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats) as client:
        sent = [array(SIZE + number, number) for number in range(24)]
        found = await asyncio.gather(*[client.call("echo", values) for values in sent])
        assert all(np.array_equal(*pair) for pair in zip(sent, found, strict=True))


async def test_items_keep_their_order_whichever_way_they_go(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats) as client:
        items = [item async for item in client.stream("arrays", 40)]
        assert [int(item[0]) for item in items] == list(range(40))
        assert [item.size for item in items] == [10, SIZE] * 20


async def test_streams_as_arguments(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats) as client:
        parts = (array(SIZE if number % 2 else 10, number) for number in range(20))
        assert await client.call("total", parts) == list(range(20))


async def test_progress_comes_before_a_result_that_goes_another_way(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats) as client:
        await client.call("make", SIZE)  # the connection stands
        for _ in range(5):
            reports: list[Any] = []
            await client.make_with_progress(SIZE, on_progress=reports.append)
            assert reports[-1:] == [2]  # those that wait to be sent are overtaken by the next


async def test_calls_back(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats) as client:

        @client
        def mirror(values: np.ndarray) -> np.ndarray:
            return values

        assert np.array_equal(await client.call("ask_back", SIZE), array())


async def test_notifications_and_batches(nats: NatsServer) -> None:
    server, heard = make_server(), asyncio.Queue[int]()

    @server
    def hear(values: np.ndarray) -> None:
        heard.put_nowait(values.size)

    async with joined(server, nats), client_of(nats) as client:
        await client.notify.hear(array())
        assert await asyncio.wait_for(heard.get(), 20) == SIZE
        async with client.batch() as batch:
            first, second = batch.call("repeat", "a" * SIZE), batch.call("size_of", array(10))
        assert (len(first.result()), second.result()) == (SIZE, 10)


async def test_text_where_frames_are_switched_off(nats: NatsServer) -> None:
    async with joined(make_server(binary=False), nats), client_of(nats, binary=False) as client:
        assert np.array_equal(await client.call("echo", array()), array())


async def test_text_waits_like_frames_where_there_is_no_room(nats: NatsServer) -> None:
    server, may_end, begun = make_server(binary=False, limits=Limits(max_calls=2)), asyncio.Event(), list[str]()

    @server
    async def late(text: str) -> str:
        begun.append(text[-1])
        await may_end.wait()
        return text[-1]

    async def send_batch(client: AsyncClient) -> list[str]:
        async with client.batch() as batch:
            calls = batch.late("b" * SIZE), batch.late("c")
        return [call.result() for call in calls]

    async with joined(server, nats), client_of(nats, binary=False) as client:
        sent = [client.late("a" * SIZE + str(number)) for number in range(6)]
        calls = asyncio.gather(*sent, send_batch(client))
        await until(lambda: len(begun) == 2)
        may_end.set()
        assert await calls == [*"012345", ["b", "c"]]


# -- clear errors -----------------------------------------------------------------------------------------------------


def assert_names_limit(error: MessageTooLarge, *words: str) -> None:
    assert error.data["limit"] == 1024 * 1024
    assert error.data["size"] >= SIZE
    for word in ("max_payload", "1048576", str(error.data["size"]), "direct=", *words):
        assert word in str(error)


async def test_switched_off(nats: NatsServer) -> None:
    async with joined(make_server(), nats, direct=False), client_of(nats) as client:
        with pytest.raises(MessageTooLarge) as argument:
            await client.call("size_of", array())
        assert_names_limit(argument.value, "direct=False")
        with pytest.raises(MessageTooLarge) as result:
            await client.call("make", SIZE)
        assert_names_limit(result.value, "direct=False")
        with pytest.raises(MessageTooLarge):
            [item async for item in client.stream("arrays", 4)]
        with pytest.raises(RpcError):
            await client.call("total", (array() for _ in range(3)))
        assert await client.call("size_of", array(10)) == 10


async def test_nothing_listens_where_the_ticket_says(nats: NatsServer, unused_port: int) -> None:
    direct = f"127.0.0.1:0=127.0.0.1:{unused_port}"
    async with joined(make_server(), nats, direct=direct) as server, client_of(nats) as client:
        for _ in range(2):
            with pytest.raises(MessageTooLarge) as argument:
                await client.call("size_of", array())
            assert_names_limit(argument.value, f"127.0.0.1:{unused_port}", "refused")
            with pytest.raises(MessageTooLarge) as result:
                await client.call("make", SIZE)
            assert_names_limit(result.value, f"127.0.0.1:{unused_port}", "refused")
        with pytest.raises(MessageTooLarge):
            [item async for item in client.stream("arrays", 4)]
        assert await client.call("size_of", array(10)) == 10
        assert memory_of(server).waiting == 0


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_a_method_that_no_instance_has(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats) as client:
        with pytest.raises(MethodNotFound):
            await client.call("missing", array())
        with pytest.raises(CallTimeout):
            await client.call("echo", array(), timeout=1e-6)
        assert await client.call("size_of", array()) == SIZE


async def test_over_the_limit_of_the_server(nats: NatsServer) -> None:
    limits = Limits(max_message_size=2 * 1024 * 1024)
    async with joined(make_server(limits=limits), nats), client_of(nats) as client:
        with pytest.raises(MessageTooLarge) as caught:
            await client.call("size_of", array())
        assert caught.value.data["limit"] == limits.max_message_size


async def test_a_caller_that_knows_no_tickets(nats: NatsServer) -> None:
    async with joined(make_server(), nats), plain_client(nats.url) as caller:
        call = {"jsonrpc": "2.0", "id": 1, "method": "make", "params": [SIZE]}
        reply = await caller.request(f"rpc.{SERVICE}.make", orjson.dumps(call), timeout=20)
        error = orjson.loads(reply.data)["error"]
        assert (error["code"], error["data"]["limit"]) == (-32001, 1024 * 1024)
        assert "max_payload" in error["data"]["reason"]


@pytest.mark.parametrize(
    ("direct", "has_certificate", "works"), [(None, False, False), (True, False, True), (None, True, True)]
)
async def test_bytes_do_not_leave_an_encrypted_nats_unasked(
    start_nats: StartNats, direct: bool | None, has_certificate: bool, works: bool
) -> None:
    nats, trusted = start_nats(tls=True), client_context(ca=authority())
    server = make_server(tls=server_tls() if has_certificate else None)
    server.join_nats(f"nats+tls://127.0.0.1:{nats.port}", service=SERVICE, only=True, tls=trusted, direct=direct)
    await server.start()
    try:
        address = f"nats+tls://127.0.0.1:{nats.port}/{SERVICE}"
        async with AsyncClient(address, ca=authority(), timeout=20) as client:
            if works:
                assert np.array_equal(await client.call("echo", array()), array())
            else:
                with pytest.raises(MessageTooLarge, match="no certificate"):
                    await client.call("echo", array())
    finally:
        await server.close()


async def test_a_port_that_is_taken(nats: NatsServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConnectFailed, match=r"direct=.*in use"):
            async with joined(make_server(), nats, direct=f"127.0.0.1:{port}"):
                pass


@pytest.mark.parametrize("direct", ["nonsense", "host:99999", "::1:5", "a:1=b", ":x"])
def test_addresses_that_are_none(direct: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        make_server().join_nats("nats://127.0.0.1", service=SERVICE, direct=direct)


async def test_direct_connections_have_the_certificate_of_the_server(nats: NatsServer) -> None:
    async with joined(make_server(tls=server_tls()), nats) as server, client_of(nats) as client:
        assert np.array_equal(await client.call("echo", array()), array())
        (way,) = direct_ways_of(server)
        assert carrier_of(way) == "tls"


async def test_another_certificate_than_the_ticket_says(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "fingerprint_of", lambda tls: "00" * 32)
    async with joined(make_server(tls=server_tls()), nats), client_of(nats) as client:
        with pytest.raises(MessageTooLarge, match="another certificate"):
            await client.call("echo", array())


# -- what is lost -----------------------------------------------------------------------------------------------------


class Proxy:
    """Stands between a client and the port for direct connections; loses them when it is told."""

    def __init__(self) -> None:
        self.target = 0
        self.cut_after: int | None = None
        self.stalls = False
        self.pace = 0.0
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
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
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += writer, back
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(64 * 1024):
                await asyncio.sleep(self.pace)
                if self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after < 0:
                        self.cut_after = None
                        self.cut()
                        return
                writer.write(data)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def proxied(server: Server, nats: NatsServer) -> AsyncIterator[Proxy]:
    async with Proxy() as proxy, joined(server, nats, direct=f"127.0.0.1:0=127.0.0.1:{proxy.port}"):
        proxy.target = direct_port_of(server)
        yield proxy


async def test_the_connection_is_lost_in_the_middle_of_a_result(nats: NatsServer) -> None:
    server = make_server()
    async with proxied(server, nats) as proxy, client_of(nats, retries=0) as client:
        await client.call("make", SIZE)
        proxy.cut_after = SIZE // 2
        with pytest.raises(ConnectionLost):
            await client.call("make", SIZE)
        # The next one makes another connection.
        assert (await client.call("make", SIZE)).size == SIZE
        assert proxy.connections == 2
        assert memory_of(server).waiting == 0


@pytest.mark.parametrize("is_connected", [False, True], ids=["by ticket", "without"])
async def test_a_result_that_is_long_on_its_way_is_not_given_up(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    """Its call was answered before it was acknowledged, and is asked for again and again meanwhile."""
    for name in ("WATCH_EVERY", "LATE_AFTER", "ANSWER_TIME"):
        monkeypatch.setattr(places, name, 0.03)
    async with proxied(make_server(), nats) as proxy, client_of(nats, retries=0) as client:
        if is_connected:
            await client.call("make", SIZE)
        proxy.pace = 0.02
        assert (await client.call("make", SIZE)).size == SIZE


async def test_the_connection_is_lost_in_the_middle_of_an_argument(nats: NatsServer) -> None:
    server = make_server()
    async with proxied(server, nats) as proxy, client_of(nats, retries=0) as client:
        await client.call("make", SIZE)
        proxy.cut_after = SIZE // 2
        with pytest.raises(ConnectionLost):
            await client.call("size_of", array())
        assert await client.call("size_of", array()) == SIZE
        assert memory_of(server).waiting == 0


async def test_the_connection_is_lost_in_the_middle_of_a_stream(nats: NatsServer) -> None:
    server = make_server()
    async with proxied(server, nats) as proxy, client_of(nats, retries=0) as client:
        items = client.stream("arrays", 1000)
        for _ in range(4):
            await anext(items)
        proxy.cut_after = SIZE // 2
        with pytest.raises(ConnectionLost):
            async for _ in items:
                pass
        await until(lambda: not any(way.channel.session.busy for way in direct_ways_of(server)))
        assert (await client.call("make", SIZE)).size == SIZE


async def test_an_idempotent_call_is_made_again(nats: NatsServer) -> None:
    async with proxied(make_server(), nats) as proxy, client_of(nats, retries=3) as client:
        await client.call("make", SIZE)
        proxy.cut_after = SIZE // 2
        assert (await client.call("make", SIZE)).size == SIZE
        proxy.cut_after = SIZE // 2
        assert await client.call("size_of", array()) == SIZE


# -- limits of time ---------------------------------------------------------------------------------------------------


async def test_a_client_that_never_connects(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_way, "CLAIM_TIME", 0.2)
    never = asyncio.Event()

    async def connect(offer: Any) -> Any:
        await never.wait()

    monkeypatch.setattr(client_way, "connect", connect)
    server = make_server()
    async with joined(server, nats), client_of(nats) as client:
        call = asyncio.create_task(client.call("make", SIZE))
        await until(lambda: memory_of(server).waiting >= SIZE)
        await until(lambda: memory_of(server).waiting == 0)
        assert tickets(server)["expired"] == 1
        call.cancel()


async def test_a_cancel_before_the_call_has_come(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server, begun = make_server(), []

    @server
    def begin(values: np.ndarray) -> None:
        begun.append(values.size)

    may_go, real = asyncio.Event(), direct.connect

    async def connect(offer: Any) -> Any:
        await may_go.wait()
        return await real(offer)

    monkeypatch.setattr(client_way, "connect", connect)
    async with joined(server, nats), client_of(nats) as client:
        call = asyncio.create_task(client.call("begin", array()))
        await until(lambda: direct_ways_of(server) and direct_ways_of(server)[0].call_ids)
        call.cancel()
        await until(lambda: all(place.is_cancelled for place in places_of(server)))
        may_go.set()
        assert await client.call("size_of", array()) == SIZE
        await until(lambda: not direct_ways_of(server)[0].call_ids)
        assert begun == []


async def test_too_much_waits_for_one_client(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(max_message_size=SIZE + 64 * 1024, write_buffer=1024)
    may_go, real = asyncio.Event(), direct.connect

    async def connect(offer: Any) -> Any:
        await may_go.wait()
        return await real(offer)

    monkeypatch.setattr(client_way, "connect", connect)
    server = make_server(limits=limits)
    async with joined(server, nats), client_of(nats, retries=0) as client:
        first = asyncio.create_task(client.call("make", SIZE))
        await until(lambda: direct_ways_of(server) and direct_ways_of(server)[0].is_busy)
        second = asyncio.create_task(client.call("make", SIZE))
        await until(lambda: server.counters.requests == 2)
        may_go.set()
        assert (await first).size == SIZE
        with pytest.raises(ServerBusy, match="direct connection"):
            await second
        assert memory_of(server).waiting == 0


# -- the end of a server ----------------------------------------------------------------------------------------------


async def test_a_server_that_stops_sends_what_it_has(nats: NatsServer) -> None:
    server, may_end = make_server(), asyncio.Event()

    @server
    async def late(size: int) -> np.ndarray:
        await may_end.wait()
        return array(size)

    async with client_of(nats, retries=0) as client, joined(server, nats):
        call = asyncio.create_task(client.call("late", SIZE))
        await until(lambda: [way for way in direct_ways_of(server) if way.channel.session.busy])
        server.stop()
        may_end.set()
        assert (await call).size == SIZE


async def test_calls_go_to_another_instance_when_one_stops(nats: NatsServer) -> None:
    async with joined(make_server(), nats), client_of(nats, retries=0) as client:
        first = make_server()
        answered = 0
        async with joined(first, nats):
            while not first.counters.requests:
                assert await client.call("size_of", array()) == SIZE

            async def keep_calling() -> None:
                nonlocal answered
                while not is_over.is_set():
                    assert await client.call("size_of", array()) == SIZE
                    answered += 1

            is_over = asyncio.Event()
            calling = [asyncio.create_task(keep_calling()) for _ in range(3)]
            await until(lambda: answered > 20)
        before = answered
        await until(lambda: answered > before + 20)
        is_over.set()
        await asyncio.gather(*calling)
