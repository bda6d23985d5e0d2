"""Payloads by shared memory on a Unix socket: both clients, what is counted, and ends that do not keep to it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import AsyncClient, Client, ConnectionLost, Limits, MethodNotFound, RpcError
from rpcstream.errors import MessageTooLarge
from rpcstream.testing import serve_in_thread

from ..kit import RawPeer, UsualServer, request, until_in_thread
from .conftest import Traced, in_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no files in memory that can be sealed")

MIB = 1024 * 1024
#: Large enough for the ring: short ones are sent faster.
LARGE = np.arange(MIB // 4, dtype=np.float32)
SIZE = LARGE.nbytes
RING = 64 * MIB
#: Where the first payload stands in a ring.
FIRST = 4096


@pytest.fixture
def server() -> UsualServer:
    return UsualServer(drain_timeout=0.2)


@pytest.fixture
def address(server: UsualServer, tmp_path: Path) -> Iterator[str]:
    with serve_in_thread(server, unix=tmp_path / "socket") as address:
        yield address


def shared(server: UsualServer) -> tuple[int, int]:
    """Payloads that a server has received and sent by shared memory."""
    stats = server.stats()
    return stats["shared_received"], stats["shared_sent"]


def echoed(client: Client, *arrays: np.ndarray) -> None:
    """Have arrays echoed; each comes back exactly, in memory of its own."""
    for sent, got in zip(arrays, client.echo(list(arrays)), strict=True):
        np.testing.assert_array_equal(got, sent)
        assert got.flags.writeable
        assert not np.shares_memory(got, sent)


async def test_large_arrays_go_by_shared_memory_both_ways(server: UsualServer, address: str) -> None:
    traced = Traced()
    with Client(address, trace=traced) as client:
        echoed(client, LARGE)  # as text: the server is asked by this call
        for number in range(10):
            echoed(client, LARGE + number)
        received, sent = shared(server)
    assert received == 10
    assert sent in (10, 11)  # perhaps the client has taken the ring before the first call is answered
    for direction in ("send", "receive"):
        found = [message for way, message in traced.messages if way == direction]
        assert sum(b" + payloads of " in message for message in found) >= 10
    async with AsyncClient(address) as other:
        await other.call("echo", LARGE)
        results = await asyncio.gather(*(other.call("echo", LARGE + number) for number in range(10)))
        assert all(np.array_equal(got, LARGE + number) for number, got in enumerate(results))
        assert shared(server)[0] == received + 10
        async with other.subscribe("news") as events:
            server.publish("news", LARGE)
            np.testing.assert_array_equal(await anext(aiter(events)), LARGE)


@pytest.mark.slow
def test_more_than_the_ring_has_room_for_goes_with_the_message(tmp_path: Path) -> None:
    limits = Limits(max_message_size=2 * RING)
    whole = np.zeros(RING // 8 + 1, dtype=np.float64)
    whole[-1] = 7
    server = UsualServer(limits=limits)
    with serve_in_thread(server, unix=tmp_path / "wide") as address, Client(address, limits=limits) as client:
        echoed(client, LARGE)
        echoed(client, LARGE)
        echoed(client, LARGE, whole, LARGE)
        assert shared(server)[0] == 3


@pytest.mark.parametrize(("binary", "unix"), [(False, True), (True, False)])
def test_it_is_not_used_without_binary_frames_nor_over_tcp(tmp_path: Path, binary: bool, unix: bool) -> None:
    server = UsualServer()
    where = {"unix": tmp_path / "socket"} if unix else {}
    with serve_in_thread(server, **where) as address, Client(address, binary=binary) as client:  # type: ignore[arg-type]
        for _ in range(3):
            echoed(client, LARGE)
        assert server.stats()["frames_received"] == (2 if binary else 0)
        assert shared(server) == (0, 0)


def rings() -> int:
    """Descriptors of rings that this process has open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rpcstream")
    return found


@pytest.mark.slow
def test_each_process_has_a_ring_and_no_file_stays_open_behind_a_connection(server: UsualServer, address: str) -> None:
    for _ in range(3):
        with Client(address) as client:
            echoed(client, LARGE)
            echoed(client, LARGE)
            assert rings() >= 4
            before = shared(server)[0]

            def work(client: Client = client) -> None:
                for number in range(5):
                    echoed(client, LARGE - number)
                client.close()

            assert in_child(work) == 0
            echoed(client, LARGE + 1)
            assert shared(server)[0] == before + 4 + 1
    until_in_thread(lambda: not rings())  # the server closes its ends a moment later


def test_what_is_refused_leaves_no_memory_in_use(tmp_path: Path) -> None:
    server = UsualServer(limits=Limits(max_message_size=5 * MIB))
    big = np.zeros(4 * MIB, dtype=np.uint8)
    with serve_in_thread(server, unix=tmp_path / "socket") as address, Client(address) as client:
        echoed(client, LARGE)
        for _ in range(9):  # more than the ring has room for
            with pytest.raises(MethodNotFound):
                client.call("nothing", big)
            with pytest.raises(RpcError):
                client.call("count", big)
        assert shared(server)[0] == 18
        with pytest.raises(MessageTooLarge):  # a message has the same limit there
            client.call("echo", np.zeros(5 * MIB, dtype=np.uint8))
        echoed(client, big)


class Ring:
    """A ring as the wire page has it, made by hand."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("rpcstream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, RING)
        self.map = mmap.mmap(self.fd, RING)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.map[:16] = nonce = os.urandom(16)
        self.description = {"pid": os.getpid(), "fd": self.fd, "size": RING, "nonce": nonce.hex()}

    def place(self, data: bytes = LARGE.tobytes(), at: int = FIRST) -> None:
        os.posix_fallocate(self.fd, at, len(data))
        self.map[at : at + len(data)] = data

    def count(self, number: int) -> None:
        """Say how many payloads were read, and one more."""
        self.map[64:72] = struct.pack("=Q", number)

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


def echo_frame(entry: str, behind: bytes = b"") -> bytes:
    tagged = {"$type": "ndarray", "dtype": "|u1", "shape": [SIZE], "data": {"$bin": 0}}
    json = orjson.dumps(request("echo", tagged, id=5)) + b"\n"
    return f"@{len(json)} {entry}\n".encode() + json + behind


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    with contextlib.suppress(OSError, ValueError):
        ring.close()


@pytest.fixture
async def sharer(address: str, ring: Ring) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.open(address)
    answer = await peer.result("rpc.hello", params={"binary": 1, "shm": ring.description})
    assert answer["shm"]["size"] == RING
    ring.count(1)
    yield peer
    peer.close()


@pytest.mark.parametrize(
    "entry",
    [
        f"0:{SIZE}",
        f"{FIRST + 8}:{SIZE}",
        f"{RING}:{SIZE}",
        f"{RING - SIZE + 64}:{SIZE}",
        f"{FIRST}:{RING}",
        f"{FIRST}:0",
        f"-{FIRST}:{SIZE}",
        f"0x1000:{SIZE}",
        " ".join([f"{FIRST}:{RING - FIRST}"] * 2),
        f"{FIRST + 16 * MIB}:{SIZE}",  # a hole: reading it would take memory that nobody has counted
    ],
)
async def test_a_place_that_is_none_ends_the_connection(
    sharer: RawPeer, ring: Ring, server: UsualServer, entry: str
) -> None:
    before = os.fstat(ring.fd).st_blocks
    sharer.write(echo_frame(entry))
    reply = await sharer.reply()
    assert (reply["error"]["code"], reply["id"]) == (-32700, None)
    assert await sharer.receive() is None
    assert server.stats()["frames_received"] == 0
    assert os.fstat(ring.fd).st_blocks == before


@pytest.mark.parametrize("shm", [None, [], "x", 1, {}, {"pid": 1, "fd": 0, "size": RING, "nonce": "0" * 32}])
async def test_an_offer_that_is_none_is_answered_without_a_word(address: str, shm: Any) -> None:
    stranger = await RawPeer.open(address)
    params = {"binary": 1} if shm is None else {"binary": 1, "shm": shm}
    assert await stranger.result("rpc.hello", params=params) == {"binary": 1}
    stranger.write(echo_frame(f"{FIRST}:{SIZE}"))
    assert await stranger.code() == -32700
    assert await stranger.receive() is None
    stranger.close()


@pytest.mark.parametrize("count", [0, 5, 2**63, 2**64 - 1])
async def test_a_count_that_cannot_be_makes_the_server_send_with_the_message(
    sharer: RawPeer, ring: Ring, count: int
) -> None:
    ring.count(count)
    for _ in range(2):
        sharer.write(echo_frame(str(SIZE), behind=LARGE.tobytes()))
        _, payloads = await sharer.receive_frame()
        assert payloads == [LARGE.tobytes()]


def test_a_server_that_names_a_place_where_there_is_none(tmp_path: Path) -> None:
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
