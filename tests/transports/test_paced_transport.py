"""Long messages that are written in shares: with a fake transport, over TLS, and with asyncio's transports."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from rpcstream import AsyncClient, Limits, Server
from rpcstream.process import LoopName, loop_factory
from rpcstream.testing import FakeTimeLoop
from rpcstream.tls import TLS, client_context
from rpcstream.transports.paced_transport import GOODBYE, SHARE, TURN, PacedTransport

from ..internals import open_connections, paced_transport, system_write_buffer, waiting_parts

MIB = 1024 * 1024


class Played(asyncio.Transport):
    """Takes what it is given, says that it is full from a share on, and lets a test read."""

    def __init__(self, *, is_tls: bool = True) -> None:
        super().__init__({"ssl_object": object()} if is_tls else {})
        self.paced: PacedTransport
        self.buffer: list[bytes] = []
        self.most = 0
        self.high = 0
        self.events: list[str] = []
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high

    def write(self, data: Any) -> None:
        assert self.events == [], "written behind its end"
        self.buffer.append(bytes(data))
        self.most = max(self.most, self.get_write_buffer_size())
        if not self.is_paused and self.get_write_buffer_size() >= self.high:
            self.is_paused = True
            self.paced.pause()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.buffer))

    def read(self) -> bytes:
        """All that is there; then there is room again."""
        data = b"".join(self.buffer)
        self.buffer.clear()
        if self.is_paused:
            self.is_paused = False
            self.paced.resume()
        return data

    def is_closing(self) -> bool:
        return "close" in self.events or "abort" in self.events

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.events.append("eof")


class Writer:
    """Notes when it is told that too much waits."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def set_full(self, is_full: bool) -> None:
        self.told.append(is_full)


class Pair:
    def __init__(self, high: int = 4 * SHARE, *, is_tls: bool = True) -> None:
        self.played, self.writer = Played(is_tls=is_tls), Writer()
        self.paced = self.played.paced = PacedTransport(self.played, self.writer)
        self.paced.set_write_buffer_limits(high=high)

    async def read_all(self) -> bytes:
        """As a peer that reads whatever there is."""
        data = b""
        while self.paced.get_write_buffer_size():
            data += self.played.read()
            await asyncio.sleep(0)
        return data


LONG = bytes(range(256)) * (10 * MIB // 256)


async def test_short_messages_go_straight_on() -> None:
    pair = Pair()
    pair.paced.write(b"a")
    pair.paced.writelines([b"b", b"", b"c"])
    assert pair.played.buffer == [b"a", b"bc"]
    assert pair.writer.told == []


async def test_a_long_one_goes_in_shares_and_in_order() -> None:
    pair = Pair()
    pair.paced.write(b"first")
    pair.paced.writelines([b"<", LONG, b">"])
    pair.paced.write(b"second")
    pair.paced.write(LONG)
    pair.paced.write(b"last")
    assert pair.paced.get_write_buffer_size() == 2 * len(LONG) + len(b"first<>secondlast")
    assert await pair.read_all() == b"first<" + LONG + b">second" + LONG + b"last"
    assert pair.played.most <= 2 * SHARE
    assert pair.writer.told == [True, False]


async def test_what_waits_refers_to_the_message() -> None:
    pair = Pair()
    pair.paced.write(LONG)
    assert all(each.obj is LONG for each in waiting_parts(pair.paced))
    pair.paced.abort()


async def test_many_short_ones_that_wait_are_kept_together() -> None:
    pair = Pair()
    pair.paced.write(LONG[:SHARE])
    for number in range(100_000):
        pair.paced.write(b"%d\n" % number)
    assert len(waiting_parts(pair.paced)) < 10
    expected = LONG[:SHARE] + b"".join(b"%d\n" % number for number in range(100_000))
    assert await pair.read_all() == expected


async def test_a_reader_that_takes_everything_does_not_keep_the_loop() -> None:
    pair = Pair()
    pair.played.high = 100 * MIB
    pair.paced.write(LONG)
    assert pair.played.get_write_buffer_size() == TURN
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert TURN < pair.played.get_write_buffer_size() <= 3 * TURN
    assert await pair.read_all() == LONG


@pytest.mark.parametrize("high", [1000, SHARE, 4 * SHARE])
async def test_the_writer_is_told_as_by_a_plain_transport(high: int) -> None:
    pair = Pair(high)
    for _ in range(20 * SHARE // 700):
        pair.paced.write(b"x" * 700)
        assert pair.writer.told == ([True] if pair.paced.get_write_buffer_size() >= high else [])
    assert pair.writer.told == [True]
    while pair.writer.told == [True]:
        pair.played.read()
        await asyncio.sleep(0)
    assert pair.paced.get_write_buffer_size() <= max(high // 4, 2 * SHARE)
    await pair.read_all()
    assert pair.writer.told == [True, False]


async def test_close_hands_everything_over_first() -> None:
    pair = Pair(is_tls=False)
    pair.paced.write(LONG)
    pair.paced.close()
    pair.paced.write(b"too late")
    assert pair.paced.is_closing()
    assert not pair.played.is_closing()
    data = b""
    while not pair.played.is_closing():
        data += pair.played.read()
        await asyncio.sleep(0)
    assert data + pair.played.read() == LONG
    assert pair.played.events == ["close"]


async def test_the_end_of_the_stream_comes_behind_what_waits() -> None:
    pair = Pair(is_tls=False)
    pair.paced.write(LONG)
    pair.paced.write_eof()
    assert pair.played.events == []
    data = b""
    while not pair.played.events:
        data += pair.played.read()
        await asyncio.sleep(0)
    assert data + pair.played.read() == LONG


async def test_abort_drops_what_waits() -> None:
    pair = Pair()
    pair.paced.write(LONG)
    pair.paced.abort()
    assert pair.played.events == ["abort"]
    assert not waiting_parts(pair.paced)


async def test_nothing_is_written_to_a_transport_that_closes_itself() -> None:
    pair = Pair()
    pair.paced.write(LONG)
    pair.played.close()
    pair.played.read()
    assert not waiting_parts(pair.paced)
    assert pair.paced.get_write_buffer_size() == 0


@pytest.mark.parametrize(("high", "all_of_it"), [(100 * MIB, True), (4 * SHARE, False)])
async def test_the_last_word_of_a_tls_peer(high: int, all_of_it: bool) -> None:
    """What is written later is dropped by TLS, so what may wait goes at once, and what is more is not copied."""
    pair = Pair(high)
    pair.paced.write(LONG)
    assert not pair.paced.at_eof()
    assert (pair.played.get_write_buffer_size() == len(LONG)) is all_of_it


async def test_the_last_word_of_a_peer_in_the_clear() -> None:
    pair = Pair(is_tls=False)
    assert not pair.paced.at_eof()
    pair.paced.write(LONG)
    assert pair.paced.at_eof()


def test_a_tls_peer_that_does_not_say_goodbye_is_not_waited_for() -> None:
    async def main() -> None:
        pair = Pair()
        pair.paced.write(b"bye")
        pair.paced.close()
        await asyncio.sleep(1.5 * GOODBYE)
        assert pair.played.events == ["close"]  # it has not read everything
        pair.played.read()
        await asyncio.sleep(GOODBYE)
        assert pair.played.events == ["close", "abort"]

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())


# -- real connections -----------------------------------------------------------------------------------------------


class Files:
    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.server = folder / "ca.pem", folder / "server.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(self.server))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    name: LoopName = request.param
    with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
        yield runner


def publishing(tls: TLS | None, **limits: Any) -> Server:
    server = Server(tls=tls, limits=Limits(**limits))

    @server
    def tell(size: int) -> int:
        return server.publish("big", "x" * size)

    @server
    def echo(value: Any) -> Any:
        return value

    return server


@pytest.mark.parametrize("is_tls", [True, False])
def test_readers_that_stall_share_one_message(files: Files, runner: asyncio.Runner, is_tls: bool) -> None:
    """Eight subscribers stall: each has the message itself in hand, not a copy; and then gets all of it."""
    size, readers = 12 * MIB, 8
    server = publishing(TLS(certificate=files.server) if is_tls else None)

    async def main() -> None:
        async with server.listening(port=0) as address, asyncio.timeout(60):
            host, _, port = address.rpartition(":")
            tls: ssl.SSLContext | None = client_context(ca=files.ca) if is_tls else None
            ends = []
            for _ in range(readers):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, limit=4096)
                writer.write(b'{"jsonrpc":"2.0","id":1,"method":"rpc.subscribe","params":["big"]}\n')
                assert b'"result"' in await reader.readline()
                ends.append((reader, writer))
            assert await call(host, port, tls, "tell", [size]) == readers
            full = [each for each in open_connections(server) if each.is_full]
            while len(full) < readers:
                await asyncio.sleep(0.01)
                full = [each for each in open_connections(server) if each.is_full]
            paced = [each for each in map(paced_transport, full) if each is not None]
            assert len(paced) == (readers if is_tls or paced else 0)
            origins = {id(view.obj) for each in paced for view in waiting_parts(each) if len(view) > MIB}
            assert len(origins) <= 1  # the one message
            for each in paced:
                assert system_write_buffer(each) <= 3 * SHARE
                assert each.get_write_buffer_size() > MIB
            for reader, writer in ends:
                line = await read_line(reader)
                assert orjson.loads(line)["params"]["value"] == "x" * size
                writer.write(b'{"jsonrpc":"2.0","id":2,"method":"rpc.ping"}\n')
                assert b"pong" in await reader.readline()
                writer.close()

    runner.run(main())


async def call(host: str, port: str, tls: ssl.SSLContext | None, method: str, params: Any) -> Any:
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    writer.write(orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n")
    line = await reader.readline()
    writer.close()
    return orjson.loads(line)["result"]


async def read_line(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while not (parts and parts[-1].endswith(b"\n")):
        parts.append(await reader.read(MIB))
        assert parts[-1], "the connection has ended"
    return b"".join(parts)


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_long_and_short_ones_both_ways(files: Files, runner: asyncio.Runner, scheme: str) -> None:
    values = ["x" * (5 * MIB), 1, "y" * SHARE, "z" * (SHARE + 1), [1, 2], "ö" * MIB, None]
    server = publishing(TLS(certificate=files.server), write_buffer=100_000)

    async def main() -> None:
        async with server.listening(port=0) as address:
            place = address.rpartition("//")[2]
            async with AsyncClient(f"{scheme}://{place}", ca=files.ca) as client:
                for _ in range(2):
                    assert await asyncio.gather(*(client.echo(value) for value in values)) == values

    runner.run(main())


def test_a_server_that_stops_delivers_what_waits(files: Files, runner: asyncio.Runner) -> None:
    server = publishing(TLS(certificate=files.server))
    size = 6 * MIB

    async def main() -> bytes:
        async with server.listening(port=0) as address:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=client_context(ca=files.ca), limit=4096)
            question = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x" * size]}
            writer.write(orjson.dumps(question) + b"\n")
            data = await reader.readexactly(1)
            server.stop()
            reading = asyncio.create_task(read_line(reader))
        data += await reading
        writer.close()
        return data

    reply, farewell = map(orjson.loads, runner.run(main()).splitlines())
    assert (reply["result"], farewell["method"]) == ("x" * size, "$/goAway")


def test_a_peer_that_never_reads_is_closed(files: Files, runner: asyncio.Runner) -> None:
    server = publishing(TLS(certificate=files.server), write_timeout=0.3, max_json_size=64 * MIB)

    async def main() -> None:
        async with server.listening(port=0) as address, asyncio.timeout(60):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=client_context(ca=files.ca), limit=4096)
            question = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x" * (20 * MIB)]}
            writer.write(orjson.dumps(question) + b"\n")
            await reader.readexactly(1)
            while not server.counters.closed_for_limits:
                await asyncio.sleep(0.02)
            writer.transport.abort()

    runner.run(main())
