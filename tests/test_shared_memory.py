"""Payloads in shared memory: which rings are taken, what stands in them, and the memory that they take."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import resource
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import AsyncClient, Client, Limits
from rpcstream.testing import FakeTimeLoop, serve_in_thread

from .kit import RawPeer, UsualServer, request, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no files in memory that can be sealed")

MIB = 1024 * 1024
RING = 64 * MIB
#: Where the first payload stands in a ring, and from which size on payloads go by it.
FIRST, LARGE = 4096, MIB


@pytest.fixture
def server() -> UsualServer:
    return UsualServer(drain_timeout=0.2)


@pytest.fixture
def address(server: UsualServer, tmp_path: Path) -> Iterator[str]:
    with serve_in_thread(server, unix=tmp_path / "socket") as address:
        yield address


@pytest.fixture
async def peer(address: str) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.open(address)
    assert await peer.result("rpc.ping") == "pong"
    yield peer
    peer.close()


def ring_file(kind: str, nonce: bytes, folder: Path) -> int:
    """A ring as the wire page has it, or a file that is described like one, and is none."""
    if kind == "directory":
        return os.open(folder, os.O_RDONLY)
    if kind == "plain":
        fd = os.open(folder / "memfd:ring", os.O_RDWR | os.O_CREAT)
    else:
        fd = os.memfd_create("ring", 0 if kind == "never sealed" else os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, RING // 2 if kind == "shorter" else RING)
    os.pwrite(fd, b"?" * 16 if kind == "another nonce" else nonce, 0)
    seals = {"may shrink": fcntl.F_SEAL_SHRINK, "may grow": fcntl.F_SEAL_GROW, "may be sealed": fcntl.F_SEAL_SEAL}
    if kind not in ("plain", "never sealed"):
        all_seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, all_seals & ~seals.get(kind, 0))
    return fd


@contextlib.contextmanager
def offered(folder: Path, kind: str = "right", **changed: Any) -> Iterator[dict[str, Any]]:
    """The description of a ring, in `rpc.hello`."""
    nonce = bytes(range(16))
    fd = ring_file(kind, nonce, folder)
    try:
        yield {"binary": 1, "shm": {"pid": os.getpid(), "fd": fd, "size": RING, "nonce": nonce.hex(), **changed}}
    finally:
        os.close(fd)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory_of_rings() -> int:
    """Bytes of memory that the system has given for the rings of this process, and are not the first page."""
    blocks = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rpcstream"):
                blocks[os.fstat(fd).st_ino] = os.fstat(fd).st_blocks * 512 - FIRST
    return sum(blocks.values())


KINDS = ("plain", "directory", "never sealed", "may shrink", "may grow", "may be sealed", "shorter", "another nonce")


@pytest.mark.parametrize(
    "changed",
    [
        *({"kind": kind} for kind in KINDS),
        *({"pid": pid} for pid in (2**31 - 1, -1, "1", 2**63 - 1)),
        *({"fd": fd} for fd in (1_000_000, True)),
        *({"size": size} for size in (RING // 2, 2 * RING, RING + 1, 0)),
        *({"nonce": nonce} for nonce in ("0" * 32, "0" * 31, "é" * 32, "zz" * 16, None)),
    ],
    ids=repr,
)
async def test_what_is_no_ring_is_not_taken(peer: RawPeer, changed: dict[str, Any], tmp_path: Path) -> None:
    before = open_files()
    with offered(tmp_path, **changed) as params:
        assert await peer.result("rpc.hello", params=params) == {"binary": 1}
        assert await peer.result("rpc.hello", params=params) == {"binary": 1}  # only the first counts
    assert open_files() == before
    assert await peer.result("add", 1, 2) == 3


def test_a_ring_as_the_wire_page_has_it(address: str, tmp_path: Path) -> None:
    with offered(tmp_path) as params, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address.removeprefix("unix://"))
        lines = sock.makefile("rwb", buffering=0)
        lines.write(orjson.dumps(request("rpc.hello", params=params)) + b"\n")
        theirs, ours = orjson.loads(lines.readline())["result"]["shm"], params["shm"]["fd"]
        fd = os.open(f"/proc/{theirs['pid']}/fd/{theirs['fd']}", os.O_RDWR)
        with pytest.raises(PermissionError):  # sealed: nothing that is read can go away
            os.ftruncate(fd, 0)
        with mmap.mmap(fd, theirs["size"]) as ring:
            assert (ring[:16].hex(), ring[64:72]) == (theirs["nonce"], struct.pack("=Q", 1))
            for number in range(1, 4):
                data = os.urandom(LARGE)
                os.pwrite(ours, data, FIRST)
                os.pwrite(ours, struct.pack("=Q", number), 64)
                call = request("echo", {"$type": "bytes", "data": {"$bin": 0}}, id=number)
                json = orjson.dumps(call) + b"\n"
                lines.write(b"@%d %d:%d\n" % (len(json), FIRST, LARGE) + json)
                # What was read is free, and taken first: the caches have it.
                assert lines.readline().split()[1] == b"%d:%d" % (FIRST, LARGE)
                assert orjson.loads(lines.readline())["id"] == number
                assert ring[FIRST : FIRST + LARGE] == data
                assert ring[64:72] == struct.pack("=Q", 1 + number)
        os.close(fd)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become someone else")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_ring_of_another_user_is_not_taken(server: UsualServer) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    with serve_in_thread(server, unix=Path(f"/tmp/rpcstream-{os.getpid()}")) as address, ours, theirs:
        os.chmod(address.removeprefix("unix://"), 0o777)
        if (child := os.fork()) == 0:
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as sock, offered(Path("/")) as params:
                    sock.connect(address.removeprefix("unix://"))
                    sock.sendall(orjson.dumps(request("rpc.hello", params=params)) + b"\n")
                    theirs.sendall(sock.recv(1000))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert orjson.loads(ours.recv(1000))["result"] == {"binary": 1}


def test_few_descriptors_left(server: UsualServer, address: str) -> None:
    before, array = resource.getrlimit(resource.RLIMIT_NOFILE), np.zeros(LARGE, np.uint8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * open_files(), before[1]))
    try:
        with Client(address) as client:
            assert [client.echo(array).nbytes for _ in range(3)] == [LARGE] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert server.stats()["shared_received"] == 0


async def test_what_comes_back_is_what_was_sent_however_full_the_rings_are(server: UsualServer, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    async with server.listening(unix=tmp_path / "socket") as address, AsyncClient(address) as client:
        await client.echo(np.zeros(LARGE, np.uint8))
        arrays = [np.full(random.integers(5 * MIB, 9 * MIB), number, np.uint8) for number in range(11)]
        back = await asyncio.gather(*(client.echo(array) for array in arrays))
        assert all(np.array_equal(one, other) for one, other in zip(arrays, back, strict=True))
        assert 4 < server.stats()["shared_received"] < 11, "some had no room"


async def test_the_rings_of_peers_are_counted_whole(tmp_path: Path) -> None:
    """Reading the holes in them takes memory, and a peer can make holes at any time."""
    server = UsualServer(limits=Limits(max_held_total=2 * RING + 3 * MIB), drain_timeout=0.2)
    with serve_in_thread(server, unix=tmp_path / "socket") as address, offered(tmp_path) as params:
        peers = [await RawPeer.open(address) for _ in range(4)]
        taken = ["shm" in await peer.result("rpc.hello", params=params) for peer in peers[:3]]
        assert taken == [True, True, False]
        peers[0].close()
        await until(lambda: server.stats()["connections"] == 3)
        with Client(address) as client:
            client.echo(np.zeros(LARGE, np.uint8))
            array, before = np.zeros(2 * MIB, np.uint8), server.stats()["shared_sent"]
            for _ in range(3):
                assert [each.nbytes for each in client.echo([array, array])] == [2 * MIB] * 2
            assert server.stats()["shared_sent"] == before + 3, "one of two: the server has 3 MiB left for its own"
        for peer in peers:
            peer.close()


def test_memory_that_is_not_used_is_given_back(server: UsualServer, tmp_path: Path) -> None:
    array = np.zeros(5 * MIB, np.uint8)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.autojump = False
        async with server.listening(unix=tmp_path / "socket") as address, AsyncClient(address) as client:
            for _ in range(4):
                await client.echo(array)
            assert 10 * MIB <= memory_of_rings() <= 14 * MIB
            for _ in range(2):
                loop.jump(31)
                await asyncio.sleep(0)
                await client.call("rpc.ping")
            assert memory_of_rings() == 0
            assert (await client.echo(array)).nbytes == 5 * MIB
            assert server.stats()["shared_received"] == 4
            loop.autojump = True

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(test())
