"""Payloads in shared memory: which memory of a peer is mapped, what stands in it, and how much memory it takes."""

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

from rpcstream import AsyncClient, Client, Limits, shared_empty
from rpcstream.testing import serve_in_thread

from .client.conftest import in_child
from .kit import RawPeer, UsualServer, request, until, until_in_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no files in memory that can be sealed")

MIB = 1024 * 1024
ARENA = 128 * MIB
#: Bytes of a page, and of a payload that stands in an arena.
PAGE, LARGE = 4096, MIB
#: Where the control page of the raw peer stands, and its payloads.
CONTROL, PAYLOADS = PAGE, MIB


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


def arena_file(kind: str, key: bytes, folder: Path) -> int:
    """An arena as the wire page has it, or a file that is described like one, and is none."""
    if kind == "directory":
        return os.open(folder, os.O_RDONLY)
    if kind == "plain":
        fd = os.open(folder / "memfd:arena", os.O_RDWR | os.O_CREAT)
    elif kind == "large pages":
        try:
            fd = os.memfd_create("arena", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        except OSError:
            pytest.skip("this system has no large pages")
    else:
        fd = os.memfd_create("arena", 0 if kind == "never sealed" else os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, ARENA // 2 if kind == "shorter" else ARENA)
    if kind != "large pages":
        os.pwrite(fd, b"?" * 16 if kind == "another key" else key, 0)
        if kind != "control page is a hole":
            os.pwrite(fd, bytes(MIB - 16), 16)
            os.pwrite(fd, struct.pack("=Q", 7), CONTROL + 16)
    seals = {"may shrink": fcntl.F_SEAL_SHRINK, "may grow": fcntl.F_SEAL_GROW, "may be sealed": fcntl.F_SEAL_SEAL}
    if kind not in ("plain", "never sealed"):
        all_seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, all_seals & ~seals.get(kind, 0))
    return fd


@contextlib.contextmanager
def offered(folder: Path, kind: str = "right", **changed: Any) -> Iterator[dict[str, Any]]:
    """The description of an arena, in `rpc.hello`."""
    key = os.urandom(16)
    fd = arena_file(kind, key, folder)
    try:
        yield {"binary": 1, "shm": {"pid": os.getpid(), "fd": fd, "key": key.hex(), "at": CONTROL, "id": 7, **changed}}
    finally:
        os.close(fd)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory_of_arenas() -> int:
    """Bytes of memory that the system has given for the arenas of this process."""
    blocks = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rpcstream"):
                blocks[os.fstat(fd).st_ino] = os.fstat(fd).st_blocks * 512
    return sum(blocks.values())


KINDS = (
    *("plain", "directory", "never sealed", "may shrink", "may grow", "may be sealed", "shorter", "another key"),
    *("large pages", "control page is a hole"),
)


@pytest.mark.parametrize(
    "changed",
    [
        *({"kind": kind} for kind in KINDS),
        *({"pid": pid} for pid in (2**31 - 1, -1, "1", 2**63 - 1)),
        *({"fd": fd} for fd in (1_000_000, True)),
        *({"at": at} for at in (0, -PAGE, ARENA, ARENA - 8, ARENA // 2, "4096", None, 2**63)),
        *({"id": number} for number in (0, 8, -1, None)),
        *({"key": key} for key in ("0" * 32, "0" * 31, "é" * 32, "zz" * 16, None, [])),
    ],
    ids=repr,
)
async def test_what_is_no_arena_is_not_mapped(peer: RawPeer, changed: dict[str, Any], tmp_path: Path) -> None:
    shared_empty(PAGE)  # this process has an arena of its own
    before = open_files()
    with offered(tmp_path, **changed) as params:
        assert await peer.result("rpc.hello", params=params) == {"binary": 1}
        assert await peer.result("rpc.hello", params=params) == {"binary": 1}  # only the first counts
    assert open_files() == before
    assert await peer.result("add", 1, 2) == 3


async def test_a_ring_of_an_older_version_is_not_mapped(peer: RawPeer, tmp_path: Path) -> None:
    with offered(tmp_path) as params:
        shm = params["shm"]
        params["shm"] = {"pid": shm["pid"], "fd": shm["fd"], "size": ARENA, "nonce": shm["key"]}
        assert await peer.result("rpc.hello", params=params) == {"binary": 1}


def test_an_arena_as_the_wire_page_has_it(address: str, tmp_path: Path) -> None:
    with offered(tmp_path) as params, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address.removeprefix("unix://"))
        lines = sock.makefile("rwb", buffering=0)
        lines.write(orjson.dumps(request("rpc.hello", params=params)) + b"\n")
        theirs, ours = orjson.loads(lines.readline())["result"]["shm"], params["shm"]["fd"]
        fd = os.open(f"/proc/{theirs['pid']}/fd/{theirs['fd']}", os.O_RDWR)
        with pytest.raises(PermissionError):  # sealed: nothing that is read can go away
            os.ftruncate(fd, 0)
        with mmap.mmap(fd, ARENA) as arena:
            control = theirs["at"]
            assert (arena[:16].hex(), arena[control : control + 8]) == (theirs["key"], struct.pack("=Q", 1))
            os.pwrite(ours, struct.pack("=Q", 1), CONTROL)
            for count in range(1, 4):
                data = os.urandom(LARGE)
                os.pwrite(ours, data, PAYLOADS)
                tagged = {"$type": "bytes", "data": {"$bin": 0}}
                json = orjson.dumps(request("echo", tagged, id=count)) + b"\n"
                lines.write(b"@%d 7:%d:%d\n" % (len(json), PAYLOADS, LARGE) + json)
                lease, place, size = map(int, lines.readline().split()[1].split(b":"))
                assert orjson.loads(lines.readline())["id"] == count
                assert (size, arena[place : place + size]) == (LARGE, data)
                # Given back: both leases are free.
                at = control + 8 * (8 + 7)
                until_in_thread(lambda at=at, count=count: arena[at : at + 8] == struct.pack("=Q", count))
                os.pwrite(ours, struct.pack("=Q", count), CONTROL + 8 * (8 + lease))
        os.close(fd)


def test_an_array_that_is_sent_back_names_the_lease_it_came_with(address: str, tmp_path: Path) -> None:
    with offered(tmp_path) as params, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address.removeprefix("unix://"))
        lines = sock.makefile("rwb", buffering=0)
        lines.write(orjson.dumps(request("rpc.hello", params=params)) + b"\n")
        lines.readline()
        ours = params["shm"]["fd"]
        os.pwrite(ours, struct.pack("=Q", 1), CONTROL)
        os.pwrite(ours, os.urandom(LARGE), PAYLOADS)
        tagged = {"$type": "ndarray", "dtype": "|u1", "shape": [LARGE], "data": {"$bin": 0}}
        json = orjson.dumps(request("echo", tagged, id=1)) + b"\n"
        lines.write(b"@%d 7:%d:%d\n" % (len(json), PAYLOADS, LARGE) + json)
        assert lines.readline().split()[1].partition(b":")[2] == b"7:0:%d" % LARGE


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

    def work() -> None:  # in a process without an arena
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 10, before[1]))
        with Client(address) as client:
            assert [client.echo(array).nbytes for _ in range(3)] == [LARGE] * 3

    assert in_child(work) == 0
    assert server.stats()["shared_received"] == 0


async def test_what_comes_back_is_what_was_sent_however_full_the_memory_is(server: UsualServer, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    async with server.listening(unix=tmp_path / "socket") as address, AsyncClient(address) as client:
        await client.echo(np.zeros(LARGE, np.uint8))
        arrays = [np.full(random.integers(5 * MIB, 9 * MIB), number, np.uint8) for number in range(17)]
        back = await asyncio.gather(*(client.echo(array) for array in arrays))
        assert all(np.array_equal(one, other) for one, other in zip(arrays, back, strict=True))
        assert 4 < server.stats()["shared_received"] < 17, "some had no room"


async def test_the_arenas_of_peers_are_counted_whole(tmp_path: Path) -> None:
    """Reading the holes in them takes memory, and a peer can make holes at any time."""
    server = UsualServer(limits=Limits(max_held_total=2 * ARENA + MIB), drain_timeout=0.2)
    with serve_in_thread(server, unix=tmp_path / "socket") as address, contextlib.ExitStack() as stack:
        offers = [stack.enter_context(offered(tmp_path)) for _ in range(3)]
        peers = [await RawPeer.open(address) for _ in range(4)]
        rows = zip(peers, [offers[0], *offers], strict=True)
        taken = ["shm" in await peer.result("rpc.hello", params=params) for peer, params in rows]
        assert taken == [True, True, True, False], "two connections of one process share its arena"
        for peer in peers[:2]:
            peer.close()
        await until(lambda: server.stats()["connections"] == 2)
        with Client(address) as client:
            await asyncio.to_thread(until_in_thread, lambda: not client.echo(np.zeros(LARGE)).flags.writeable)
        for peer in peers[2:]:
            peer.close()


def test_memory_is_given_back_when_nothing_is_connected_any_more(server: UsualServer, address: str) -> None:
    array = np.zeros(5 * MIB, np.uint8)
    with Client(address) as client:
        client.echo(array)
        kept = [client.echo(array) for _ in range(4)]
        assert memory_of_arenas() >= 20 * MIB
    del array
    until_in_thread(lambda: server.stats()["connections"] == 0)
    assert [each.nbytes for each in kept] == [5 * MIB] * 4
    kept.clear()

    def is_given_back() -> bool:
        with Client(address) as client:  # it is looked at when a connection ends
            client.echo(np.zeros(LARGE, np.uint8))
        return memory_of_arenas() <= 2 * MIB

    until_in_thread(is_given_back)
