"""A connection to NATS: the order of what comes, what waits to be written, and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, Server
from rpcstream.nats import link as nats_link
from rpcstream.nats.link import NatsLink, NatsMessage, is_unanswerable, size_of
from rpcstream.nats.options import NatsLogin, NatsOptions

from ..kit import until
from ..kit.nats_server import NatsCluster, NatsServer

pytestmark = pytest.mark.nats


def options_of(nats: NatsServer, **more: Any) -> NatsOptions:
    return NatsOptions(servers=(f"127.0.0.1:{nats.port}",), **more)


@asynccontextmanager
async def connected(nats: NatsServer, **more: Any) -> AsyncIterator[NatsLink]:
    link = await NatsLink.connect(options_of(nats, **more))
    try:
        yield link
    finally:
        await link.close()


async def test_messages_of_all_subscriptions_come_in_one_order(shared_nats: NatsServer) -> None:
    async with connected(shared_nats) as link, connected(shared_nats) as sender:
        got: list[bytes] = []
        for number in range(5):
            await link.subscribe(f"{link.inbox}.{number}", lambda message: got.append(message.data))
        await link.flush()
        for number in range(1000):
            sender.publish(f"{link.inbox}.{number % 5}", b"%d" % number)
        await until(lambda: len(got) == 1000)
        assert got == [b"%d" % number for number in range(1000)]


async def test_after_a_flush_all_that_the_server_had_has_come(shared_nats: NatsServer) -> None:
    async with connected(shared_nats) as link:
        got: list[NatsMessage] = []
        subscription = await link.subscribe(f"{link.inbox}.a", got.append)
        for number in range(100):
            link.publish(f"{link.inbox}.a", b"%d" % number)
        await link.flush()
        assert len(got) == subscription.received == 100
        await subscription.end()
        await link.flush()
        link.publish(f"{link.inbox}.a", b"late", f"{link.inbox}.b")
        await link.flush()
        assert len(got) == 100


async def test_nats_says_that_a_subject_has_no_subscriber(shared_nats: NatsServer) -> None:
    async with connected(shared_nats) as link:
        got: list[NatsMessage] = []
        await link.subscribe(f"{link.inbox}.answers", got.append)
        link.publish("a.subject.without.subscribers", b"x", f"{link.inbox}.answers")
        await until(lambda: got)
        assert is_unanswerable(got[0])
        link.publish(f"{link.inbox}.answers", b"")
        await link.flush()
        assert [is_unanswerable(message) for message in got] == [True, False]


async def test_a_function_that_fails_loses_its_message_only(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(shared_nats) as link:
        got: list[bytes] = []

        def take(message: NatsMessage) -> None:
            got.append(message.data)
            if message.data == b"bad":
                raise KeyError("what the test raises")

        await link.subscribe(f"{link.inbox}.a", take)
        for data in (b"bad", b"good"):
            link.publish(f"{link.inbox}.a", data)
        await link.flush()
        assert got == [b"bad", b"good"]
        assert "what the test raises" in caplog.text


async def test_what_nats_would_end_the_connection_for_is_not_sent(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(shared_nats) as link:
        got: list[int] = []
        subject = f"{link.inbox}.a"
        await link.subscribe(subject, lambda message: got.append(len(message.data)))
        most, head = link.max_payload, {"Authorization": "Bearer ä"}
        for size, headers in ((most, None), (most + 1, None), (most - size_of(head), head), (most, head)):
            link.publish(subject, bytes(size), headers=headers)
        link.publish(subject, b"", "x" * 5000)
        link.publish("x" * 5000, b"")
        link.publish(subject, b"last")
        await link.flush()
        assert got == [most, most - size_of(head), 4]
        assert link.is_open
        assert caplog.text.count("not sent") == 4


class StalledServer:
    """Speaks as a NATS server until it has answered the login, and then reads no more until it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.11.0", "headers": true, "max_payload": 1048576}\r\n')
        try:
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            await self.reads.wait()
            while data := await reader.read(1 << 20):
                self.taken += len(data)
        finally:
            writer.close()


async def test_producers_are_told_when_much_waits_to_be_written() -> None:
    stalled = StalledServer()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    server = await asyncio.start_server(stalled.serve, sock=listening, limit=1000)
    link = await NatsLink.connect(NatsOptions(servers=(f"127.0.0.1:{listening.getsockname()[1]}",)))
    try:
        told: list[bool] = []
        link.on_full = told.append
        sent = 0
        while not told:
            link.publish("a", bytes(100_000))
            sent += 100_000
            await asyncio.sleep(0)
            assert sent < 100 << 20, "nothing was said"
        assert told == [True]
        stalled.reads.set()
        await until(lambda: len(told) == 2)
        assert told == [True, False]
        await until(lambda: stalled.taken > sent)
    finally:
        await link.close()
        server.close()
        await server.wait_closed()


async def test_a_lost_connection_says_so_once(start_nats: Callable[..., NatsServer]) -> None:
    nats = start_nats()
    async with connected(nats) as link:
        reasons: list[str] = []
        link.on_lost = reasons.append
        nats.kill()
        await until(lambda: reasons)
        assert not link.is_open
        assert reasons == [link.reason]
        link.publish("a", b"dropped")
        with pytest.raises(ConnectionError):
            await link.flush()
        with pytest.raises(ConnectionError):
            await link.subscribe("a", print)
    assert len(reasons) == 1


async def test_a_closed_one_says_nothing(shared_nats: NatsServer) -> None:
    reasons: list[str] = []
    async with connected(shared_nats) as link:
        link.on_lost = reasons.append
        link.publish("a", b"x")
    assert reasons == []
    assert link.reason == "it was closed"


async def test_what_is_denied_is_told_with_its_subject(start_nats: Callable[..., NatsServer]) -> None:
    deny = {"deny": ["Secret.Subject"]}
    permissions = {"publish": deny, "subscribe": deny}
    nats = start_nats(users=[{"user": "a", "password": "b", "permissions": permissions}])
    async with connected(nats, login=NatsLogin(user="a", password="b")) as link:
        denied: list[tuple[str, str]] = []
        link.on_denied = lambda what, subject: denied.append((what, subject))
        await link.subscribe("Secret.Subject", print)
        link.publish("Secret.Subject", b"x")
        await link.flush()
        assert [(what, subject.lower()) for what, subject in denied] == [
            ("subscription", "secret.subject"),
            ("publish", "secret.subject"),
        ]
        assert denied[0][1] == "Secret.Subject"
        assert link.is_open


async def test_bytes_that_are_no_protocol_end_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.11.0", "headers": true, "max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\nMSG a 1 x\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    link = await NatsLink.connect(NatsOptions(servers=(f"127.0.0.1:{server.sockets[0].getsockname()[1]}",)))
    reasons: list[str] = []
    link.on_lost = reasons.append
    await until(lambda: link.reason)
    await link.close()
    server.close()
    await server.wait_closed()
    assert reasons == [link.reason]


# -- servers that others of their cluster have named -----------------------------------------------------------------


async def test_the_next_connection_is_to_a_server_that_this_one_has_named(
    start_cluster: Callable[..., NatsCluster],
) -> None:
    cluster = start_cluster(2)
    first, second = cluster.nodes
    options = options_of(first)
    link = await NatsLink.connect(options)
    assert f"127.0.0.1:{second.port}" in options.learned
    first.kill()
    await until(lambda: link.reason)
    await link.close()
    async with connected_with(options) as again:
        assert again.client.connected_url.port == second.port
    second.kill()
    with pytest.raises(ConnectFailed, match=str(second.port)):
        await NatsLink.connect(options)


@asynccontextmanager
async def connected_with(options: NatsOptions) -> AsyncIterator[NatsLink]:
    link = await NatsLink.connect(options)
    try:
        yield link
    finally:
        await link.close()


async def test_a_server_that_was_named_is_kept_when_it_names_only_others_itself() -> None:
    """As a node of a cluster does that has not noticed yet that another one is gone."""
    server = await asyncio.start_server(partial(_name_others, b'"127.0.0.1:10000"'), "127.0.0.1", 0)
    named = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = NatsOptions(servers=("127.0.0.1:10000",), learned={named: "127.0.0.1"})
    async with connected_with(options):
        assert set(options.learned) == {named, "127.0.0.1:10000"}
    server.close()
    await server.wait_closed()
    assert named in options.learned


async def _name_others(others: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection as a NATS server does that has named these others."""
    writer.write(b'INFO {"headers": true, "max_payload": 1048576, "connect_urls": [' + others + b"]}\r\n")
    await reader.readuntil(b"PING\r\n")
    writer.write(b"PONG\r\n")
    await reader.read()
    writer.close()


async def test_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_link, "LEARNED_MAX", 3)
    urls = ",".join(f'"127.0.0.1:{port}"' for port in range(10_000, 10_010)).encode()
    server = await asyncio.start_server(partial(_name_others, urls), "127.0.0.1", 0)
    options = NatsOptions(servers=(f"127.0.0.1:{server.sockets[0].getsockname()[1]}",))
    async with connected_with(options) as link:
        assert len(link.other_servers) == 10
    assert len(options.learned) == 3
    server.close()
    await server.wait_closed()


async def test_client_and_server_go_on_at_another_node_than_the_one_they_were_given(
    start_cluster: Callable[..., NatsCluster],
) -> None:
    cluster = start_cluster(2)
    first, _ = cluster.nodes
    server = Server()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    server.join_nats(first.url, service="learned", only=True)
    async with server.listening(), AsyncClient(f"{first.url}/learned", wait_for=30, timeout=30) as client:
        assert await client.call("add", 1, 2) == 3
        first.kill()
        with suppress(ConnectionLost):  # it may be sent before the loss is noticed
            await client.call("add", 2, 3)
        assert await client.call("add", 3, 3) == 6
