"""Payloads by shared memory on a Unix socket: both clients, what is counted, and ends that do not keep to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import (
    AsyncClient,
    Client,
    ConnectionLost,
    Limits,
    MessageTooLarge,
    MethodNotFound,
    RpcError,
    Server,
    shared_memory,
)
from rpcstream.shared_memory import FIRST, RING_SIZE, SharedMemory
from rpcstream.testing import connections_of, serve_in_thread
from rpcstream.transports import stream

from ..internals import ring_memory
from ..kit import until, until_in_thread
from ..kit.raw_connection import RawConnection
from .test_binary_peers import Traced
from .test_fork import in_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no files in memory that can be sealed")

#: Bytes from which on payloads go by the ring in these tests: short ones are sent faster.
SHARED_MIN = 32 * 1024
LARGE = np.arange(SHARED_MIN, dtype=np.float32)
SHARED = re.compile(rb"@\d+ \d+:\d+ \{")


@pytest.fixture(autouse=True)
def _shared_from_less_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SHARED_MIN", SHARED_MIN)


def make_server(**options: Any) -> Server:
    server = Server(**options)

    @server
    def echo(*arrays: np.ndarray) -> list[np.ndarray]:
        return list(arrays)

    @server
    async def items(count: int) -> AsyncIterator[np.ndarray]:
        for number in range(count):
            yield LARGE + number

    return server


@pytest.fixture
def server() -> Server:
    return make_server()


@pytest.fixture
def address(server: Server, tmp_path: Path) -> Iterator[str]:
    with serve_in_thread(server, unix=tmp_path / "socket") as address:
        yield address


def echoed(client: Client, *arrays: np.ndarray) -> None:
    """Have arrays echoed; each comes back exactly, in memory of its own."""
    for sent, got in zip(arrays, client.call("echo", *arrays), strict=True):
        np.testing.assert_array_equal(got, sent)
        assert got.flags.writeable
        assert not np.shares_memory(got, sent)


# -- who uses it -----------------------------------------------------------------------------------------------------


def test_large_arrays_go_by_shared_memory_both_ways(server: Server, address: str) -> None:
    traced = Traced()
    with Client(address, trace=traced) as client:
        echoed(client, LARGE)  # as text: the server is asked by this call
        for number in range(10):
            echoed(client, LARGE + number)
        stats = client.call("rpc.stats")
    assert (stats["frames_received"], stats["frames_sent"]) == (10, 11)
    assert stats["shared_received"] == 10
    assert stats["shared_sent"] in (10, 11)  # perhaps the client has taken the ring before the first call is answered
    for direction in ("send", "receive"):
        assert sum(way == direction and SHARED.match(message) is not None for way, message in traced.messages) >= 10


def test_large_and_small_ones_of_one_message(server: Server, address: str) -> None:
    sizes = [SHARED_MIN - 1, SHARED_MIN, 3, 5000, SHARED_MIN + 13, 4097, 2 * SHARED_MIN]
    arrays = [np.arange(size, dtype=np.uint32).astype(np.uint8) for size in sizes]
    with Client(address) as client:
        for start in range(len(arrays)):
            echoed(client, *arrays[start:], *arrays[:start])
        echoed(client, *reversed(arrays))
    assert server.counters.shared_received == 3 * 7


async def test_the_async_client(server: Server, address: str) -> None:
    async with AsyncClient(address) as client:
        await client.call("echo", LARGE)
        results = await asyncio.gather(*(client.call("echo", LARGE + number) for number in range(30)))
        for number, (got,) in enumerate(results):
            np.testing.assert_array_equal(got, LARGE + number)
        assert server.counters.shared_received == 30
        count = 0
        async for item in client.stream("items", 20):
            np.testing.assert_array_equal(item, LARGE + count)
            count += 1
        assert server.counters.shared_sent >= 50
        async with client.subscribe("news") as events:
            server.publish("news", LARGE)
            np.testing.assert_array_equal(await anext(aiter(events)), LARGE)


def test_more_than_the_ring_has_room_for_goes_with_the_message(tmp_path: Path) -> None:
    limits = Limits(max_message_size=2 * RING_SIZE)
    whole = np.zeros(RING_SIZE // 8 + 1, dtype=np.float64)
    whole[-1] = 7
    server = make_server(limits=limits)
    with serve_in_thread(server, unix=tmp_path / "wide") as address, Client(address, limits=limits) as client:
        echoed(client, LARGE)
        echoed(client, LARGE)
        echoed(client, LARGE, whole, LARGE)
        assert server.counters.shared_received == 3


@pytest.mark.parametrize(("at_server", "at_client"), [(False, True), (True, False)])
def test_it_is_switched_off(tmp_path: Path, at_server: bool, at_client: bool) -> None:
    server = make_server(shared_memory=at_server)
    with (
        serve_in_thread(server, unix=tmp_path / "socket") as address,
        Client(address, shared_memory=at_client) as client,
    ):
        for _ in range(3):
            echoed(client, LARGE)
        assert server.counters.frames_received == 2
        assert server.counters.shared_received == server.counters.shared_sent == 0


def test_not_over_tcp(server: Server) -> None:
    with serve_in_thread(server) as address, Client(address) as client:
        for _ in range(3):
            echoed(client, LARGE)
        assert server.counters.frames_received == 2
        assert server.counters.shared_received == 0


def rings() -> int:
    """Descriptors of rings that this process has open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rpcstream")
    return found


def test_no_file_stays_open_behind_a_connection(address: str) -> None:
    for _ in range(5):
        with Client(address) as client:
            echoed(client, LARGE)
            echoed(client, LARGE)
            assert rings() >= 4
    until_in_thread(lambda: not rings())  # the server closes its ends a moment later


def test_a_forked_process_has_a_ring_of_its_own(server: Server, address: str) -> None:
    with Client(address) as client:
        echoed(client, LARGE)
        echoed(client, LARGE)

        def work() -> None:
            for number in range(5):
                echoed(client, LARGE - number)
            client.close()

        assert in_child(work) == 0
        echoed(client, LARGE + 1)
    assert server.counters.shared_received == 1 + 4 + 1


# -- memory ----------------------------------------------------------------------------------------------------------


def test_what_is_refused_leaves_no_memory_in_use(server: Server, address: str) -> None:
    big = np.zeros(4 * 1024 * 1024, dtype=np.uint8)
    with Client(address) as client:
        echoed(client, LARGE)
        for _ in range(40):  # more than the ring has room for
            with pytest.raises(MethodNotFound):
                client.call("nothing", big)
            with pytest.raises(RpcError):
                client.call("items", big)
        before = server.counters.shared_received
        assert before == 80
        echoed(client, big)
        assert server.counters.shared_received == before + 1


def test_a_message_in_shared_memory_has_the_same_limit(tmp_path: Path) -> None:
    server = make_server(limits=Limits(max_message_size=1024 * 1024))
    with serve_in_thread(server, unix=tmp_path / "socket") as address, Client(address) as client:
        echoed(client, LARGE)
        echoed(client, LARGE)
        with pytest.raises(MessageTooLarge):
            client.call("echo", np.zeros(1024 * 1024, dtype=np.uint8))
        echoed(client, LARGE)


async def test_memory_that_is_not_used_is_given_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "IDLE", 0.01)
    async with server.listening(unix=tmp_path / "socket") as address, AsyncClient(address) as client:
        for _ in range(3):
            await client.call("echo", LARGE)
        await until(lambda: ring_memory(server) == RING_SIZE)  # the ring of the client
        sent = server.counters.shared_sent
        (got,) = await client.call("echo", LARGE)
        np.testing.assert_array_equal(got, LARGE)
        assert server.counters.shared_sent == sent + 1


# -- a peer that does not keep to it -----------------------------------------------------------------------------------


class RawSharer:
    """A client with a ring, which sends whatever it likes."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection
        self.memory = SharedMemory(connection.writer.get_extra_info("socket"))

    @classmethod
    async def open(cls, address: str) -> RawSharer:
        return cls(await RawConnection.open(address))

    async def greet(self) -> None:
        reply = await self.connection.call("rpc.hello", {"binary": 1, "shm": self.memory.offer()})
        assert self.memory.accept(reply["result"]["shm"])

    async def send(self, entry: str, *, behind: bytes = b"") -> None:
        tagged = {"$type": "ndarray", "dtype": "|u1", "shape": [LARGE.nbytes], "data": {"$bin": 0}}
        json = orjson.dumps({"jsonrpc": "2.0", "id": 5, "method": "echo", "params": [tagged]}) + b"\n"
        await self.connection.send(f"@{len(json)} {entry}\n".encode() + json + behind)

    async def frame(self) -> bytes:
        """The header of the next message of the server."""
        return await asyncio.wait_for(self.connection.reader.readline(), 20)

    def close(self) -> None:
        self.memory.close()
        self.connection.writer.close()


@pytest.fixture
async def sharer(address: str) -> AsyncIterator[RawSharer]:
    sharer = await RawSharer.open(address)
    await sharer.greet()
    yield sharer
    sharer.close()


SIZE = LARGE.nbytes


@pytest.mark.parametrize(
    "entry",
    [
        f"0:{SIZE}",
        f"{FIRST + 8}:{SIZE}",
        f"{RING_SIZE}:{SIZE}",
        f"{RING_SIZE - SIZE + 64}:{SIZE}",
        f"{FIRST}:{RING_SIZE}",
        f"999999999999:{SIZE}",
        f":{SIZE}",
        f"{FIRST}:",
        f"{FIRST}:0",
        f"-{FIRST}:{SIZE}",
        f"{FIRST}:1:{SIZE}",
        f"{FIRST} :{SIZE}",
        f"0x1000:{SIZE}",
        " ".join([f"{FIRST}:{RING_SIZE - FIRST}"] * 2),
    ],
)
async def test_a_place_that_is_none_ends_the_connection(sharer: RawSharer, server: Server, entry: str) -> None:
    await sharer.send(entry)
    reply = await sharer.connection.reply()
    assert reply["error"]["code"] == -32700
    assert reply["id"] is None
    assert await sharer.connection.reply() is None
    assert server.counters.frames_received == 0


async def test_a_ring_of_holes_is_not_read(sharer: RawSharer, server: Server) -> None:
    """Reading it would take memory that nobody has counted, and that is there for as long as the connection."""
    assert sharer.memory.ring is not None
    ring = Path(f"/proc/self/fd/{sharer.memory.ring.description['fd']}")
    before = ring.stat().st_blocks
    await sharer.send(f"{FIRST}:{SIZE}")
    assert (await sharer.connection.reply())["error"]["code"] == -32700
    assert await sharer.connection.reply() is None
    assert ring.stat().st_blocks == before
    assert server.counters.frames_received == 0


async def test_a_place_without_a_ring_ends_the_connection(address: str) -> None:
    stranger = await RawSharer.open(address)
    assert "shm" not in (await stranger.connection.call("rpc.hello", {"binary": 1}))["result"]
    await stranger.send(f"{FIRST}:{SIZE}")
    assert (await stranger.connection.reply())["error"]["code"] == -32700
    assert await stranger.connection.reply() is None
    stranger.close()


@pytest.mark.parametrize("shm", [[], "x", 1, {}, {"pid": 1, "fd": 0, "size": RING_SIZE, "nonce": "0" * 32}])
async def test_an_offer_that_is_none_is_answered_without_a_word(address: str, shm: Any) -> None:
    stranger = await RawSharer.open(address)
    assert (await stranger.connection.call("rpc.hello", {"binary": 1, "shm": shm}))["result"] == {"binary": 1}
    stranger.close()


async def test_a_ring_that_is_rewritten_changes_nothing_that_was_read(sharer: RawSharer) -> None:
    assert sharer.memory.place([LARGE.tobytes()]) == [FIRST]
    await sharer.send(f"{FIRST}:{SIZE}")
    header = await sharer.frame()
    place = re.fullmatch(rb"@\d+ (\d+):(\d+) *\n", header)
    assert place is not None
    # What the client writes after the answer came is not in the answer; the server's memory is its own.
    assert sharer.memory.ring is not None
    sharer.memory.ring.take_back(1)
    sharer.memory.place([b"\xff" * SIZE])
    memory = bytearray(SIZE)
    sharer.memory.read(int(place[1]), memoryview(memory))
    assert bytes(memory) == LARGE.tobytes()


@pytest.mark.parametrize("count", [0, 5, 2**63, 2**64 - 1])
async def test_a_count_that_cannot_be_makes_the_server_send_with_the_message(sharer: RawSharer, count: int) -> None:
    assert sharer.memory.ring is not None
    for _ in range(2):
        sharer.memory.ring.publish(count)
        await sharer.send(str(SIZE), behind=LARGE.tobytes())
        header = await sharer.frame()
        assert re.fullmatch(rb"@\d+ %d *\n" % SIZE, header), header
        json = await sharer.frame()
        assert json.endswith(b"\n")
        assert await sharer.connection.reader.readexactly(SIZE) == LARGE.tobytes()


@pytest.mark.parametrize("step", ["offered", "greeted", "placed", "announced", "half announced", "answered"])
async def test_a_client_that_is_gone_at_any_step(server: Server, address: str, step: str) -> None:
    """Also its ring is gone, as when its process was killed: the server goes on, and keeps nothing."""
    client = await RawSharer.open(address)
    if step == "offered":
        offer = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "rpc.hello", "params": [1, client.memory.offer()]})
        client.memory.close()
        assert (await client.connection.ask(offer))["result"] == {"binary": 1}
    else:
        await client.greet()
    if step in ("placed", "announced", "half announced", "answered"):
        client.memory.place([LARGE.tobytes()])
    if step == "half announced":
        await client.connection.send(f"@100 {FIRST}:{SIZE}\n{{".encode())
    if step in ("announced", "answered"):
        if step == "announced":
            client.memory.close()  # what the server has opened stays
        await client.send(f"{FIRST}:{SIZE}")
        await client.frame()
    client.close()
    await until(lambda: connections_of(server) == [])
    with Client(address) as other:
        echoed(other, LARGE)
        echoed(other, LARGE)


async def test_one_place_again_and_again_takes_no_more_memory_than_a_ring(sharer: RawSharer) -> None:
    json = b'{"jsonrpc":"2.0","method":"echo","params":[{"$type":"bytes","data":{"$bin":0}}]}\n'
    frame = b"@%d %d:%d\n" % (len(json), FIRST, RING_SIZE - FIRST) + json
    await sharer.connection.send(frame * 100)
    assert (await sharer.connection.reply())["error"]["code"] == -32700
    assert await sharer.connection.reply() is None


def test_a_server_that_names_a_place_where_there_is_none(tmp_path: Path) -> None:
    import threading

    path = str(tmp_path / "liar")

    def lie() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.recv(1 << 20)
            json = b'{"jsonrpc":"2.0","id":1,"result":{"$bin":0}}\n'
            sock.sendall(b"@%d 4096:100\n" % len(json) + json)
            sock.recv(1 << 20)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        thread = threading.Thread(target=lie)
        thread.start()
        with Client(f"unix://{path}") as client, pytest.raises(ConnectionLost, match="shared memory"):
            client.call("echo", LARGE)
        thread.join()
