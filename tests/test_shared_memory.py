"""Payloads in shared memory: the rings of two ends, what each looks at, and what a peer may do to its own."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rpcstream import shared_memory
from rpcstream.shared_memory import FIRST, RING_SIZE, Ring, RingBudget, SharedMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no files in memory that can be sealed")

#: Bytes from which on payloads go by the ring in these tests: short ones are written faster.
SHARED_MIN = 32 * 1024
LARGE = 4 * SHARED_MIN


@pytest.fixture(autouse=True)
def _shared_from_less_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SHARED_MIN", SHARED_MIN)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def ends(sockets: tuple[socket.socket, socket.socket]) -> Iterator[tuple[SharedMemory, SharedMemory]]:
    """A client's end and a server's, which have each other's rings."""
    client, server = (SharedMemory(each) for each in sockets)
    assert client.accept(server.answer(client.offer()))
    with contextlib.closing(client), contextlib.closing(server):
        yield client, server


def payload(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def taken(reader: SharedMemory, offset: int | None, size: int) -> bytes:
    """A payload that the reader copies out and counts."""
    assert offset is not None
    assert reader.holds([(offset, size)])
    memory = bytearray(size)
    reader.read(offset, memoryview(memory))
    reader.count_read([(offset, size)])
    reader.publish()
    return bytes(memory)


def test_payloads_go_both_ways(ends: tuple[SharedMemory, SharedMemory]) -> None:
    for writer, reader in (ends, ends[::-1]):
        for seed in range(3):
            data = payload(LARGE + seed, seed)
            small, large = writer.place([b"short", data])
            assert small is None
            assert large == FIRST  # what was read is free: the caches have it
            assert taken(reader, large, len(data)) == data
        assert writer.placed == 1
        assert reader.received == 3


def test_slots_are_free_in_order_and_never_overlap(ends: tuple[SharedMemory, SharedMemory]) -> None:
    writer, reader = ends
    rnd = random.Random(5)
    waiting: list[tuple[int, bytes]] = []
    inline = shared = 0
    for step in range(300):
        if waiting and rnd.random() < 0.45:
            offset, data = waiting.pop(0)
            assert taken(reader, offset, len(data)) == data
            continue
        data = payload(64, step) * rnd.randrange(SHARED_MIN // 64, RING_SIZE // 4 // 64)
        (place,) = writer.place([data])
        if place is None:
            inline += 1
            continue
        shared += 1
        waiting.append((place, data))
        slots = sorted((start, start + len(each)) for start, each in waiting)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(slots))
        assert slots[-1][1] <= RING_SIZE
    assert shared > 100
    assert inline > 10


def test_a_full_ring_and_a_payload_that_is_larger_go_with_the_message(ends: tuple[SharedMemory, SharedMemory]) -> None:
    writer, reader = ends
    whole = bytes(RING_SIZE - FIRST)
    assert writer.place([whole + b"."]) == [None]
    assert writer.place([whole]) == [FIRST]
    assert writer.place([payload(LARGE)]) == [None]
    assert taken(reader, FIRST, len(whole)) == whole
    assert writer.place([payload(LARGE)]) == [FIRST]


def test_nothing_is_placed_before_the_peer_has_the_ring(sockets: tuple[socket.socket, socket.socket]) -> None:
    client, server = (SharedMemory(each) for each in sockets)
    answer = server.answer(client.offer())
    assert client.place([payload(LARGE)]) == [None]
    assert server.place([payload(LARGE)]) == [None]  # the client has not said that it could open it
    assert client.accept(answer)
    assert client.place([payload(LARGE)]) == [FIRST]
    assert server.place([payload(LARGE)]) == [FIRST]
    client.close()
    server.close()


def test_what_was_placed_for_a_message_that_is_not_sent_is_free_again(
    ends: tuple[SharedMemory, SharedMemory],
) -> None:
    writer, reader = ends
    first, second = payload(LARGE, 1), payload(LARGE, 2)
    (kept,) = writer.place([first])
    writer.place([second, second])
    writer.take_back()
    assert taken(reader, kept, LARGE) == first
    assert taken(reader, writer.place([second])[0], LARGE) == second


@pytest.mark.parametrize("count", [0, 3, 2**64 - 1])
def test_a_count_that_cannot_be_ends_the_use_of_the_ring(ends: tuple[SharedMemory, SharedMemory], count: int) -> None:
    writer, reader = ends
    writer.place([payload(LARGE)])
    assert reader.ring is not None
    reader.ring.publish(count)
    assert writer.place([payload(LARGE)]) == [None]
    reader.ring.publish(2)
    if count:
        assert writer.place([payload(LARGE)]) == [None]
        assert not writer.release_idle()


@pytest.mark.parametrize(
    "places",
    [
        [(0, 100)],
        [(FIRST - 64, 100)],
        [(FIRST + 8, 100)],
        [(RING_SIZE, 1)],
        [(RING_SIZE - 64, 65)],
        [(FIRST, RING_SIZE)],
        [(10**11, 10**11)],
        [(FIRST, RING_SIZE - FIRST), (FIRST, RING_SIZE - FIRST)],
    ],
)
def test_a_place_that_cannot_be(ends: tuple[SharedMemory, SharedMemory], places: list[tuple[int, int]]) -> None:
    assert not ends[0].holds(places)


@pytest.mark.parametrize("written", [0, 1024 * 1024, 2 * 1024 * 1024 - 1])
def test_a_place_with_a_hole_in_it(ends: tuple[SharedMemory, SharedMemory], written: int) -> None:
    """To read a hole takes memory, which the reader would not have counted."""
    reader, writer = ends
    if written:
        assert writer.place([bytes(written)]) == [FIRST]
        assert reader.holds([(FIRST, written)])
    assert not reader.holds([(FIRST, 2 * 1024 * 1024 + 4096)])
    assert not reader.holds([(RING_SIZE // 2, 1024 * 1024)])


def test_one_read_brings_no_more_than_a_ring(ends: tuple[SharedMemory, SharedMemory]) -> None:
    reader, writer = ends
    assert writer.place([bytes(RING_SIZE // 2)]) == [FIRST]
    half = [(FIRST, RING_SIZE // 2)]
    for _ in range(2):
        assert reader.holds(half)
        reader.count_read(half)
    assert not reader.holds(half)
    reader.publish()
    assert reader.holds(half)


# -- which ring is taken -------------------------------------------------------------------------------------------


def test_a_ring_is_offered_once(sockets: tuple[socket.socket, socket.socket]) -> None:
    client, server = (SharedMemory(each) for each in sockets)
    offer = client.offer()
    assert client.offer() is None
    assert server.answer(offer) is not None
    assert server.answer(offer) is None
    assert client.place([payload(LARGE)]) == [None]
    client.close()
    server.close()


def test_no_ring_where_the_socket_is_none_of_the_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as sock:
        assert SharedMemory(sock).offer() is None


@pytest.mark.parametrize(
    "changed",
    [
        {"pid": 2**31 - 1},
        {"pid": -1},
        {"pid": "1"},
        {"pid": 10**30},
        {"fd": 1_000_000},
        {"fd": True},
        {"fd": 0},
        {"size": RING_SIZE // 2},
        {"size": 2 * RING_SIZE},
        {"size": RING_SIZE + 1},
        {"size": 0},
        {"nonce": "0" * 32},
        {"nonce": "0" * 31},
        {"nonce": "é" * 32},
        {"nonce": "zz" * 16},
        {"nonce": None},
    ],
    ids=repr,
)
def test_a_description_that_is_not_as_it_should_be(
    sockets: tuple[socket.socket, socket.socket], changed: dict[str, Any]
) -> None:
    before = open_files()
    client, server = (SharedMemory(each) for each in sockets)
    offer = client.offer()
    assert offer is not None
    assert server.answer({**offer, **changed}) is None
    assert not client.accept(None)
    assert open_files() == before
    for reader in (client, server):
        assert not reader.holds([(FIRST, 10)])
        assert reader.place([payload(LARGE)]) == [None]


@pytest.mark.parametrize("value", [[], "shm", 1, {}, True])
def test_what_is_no_description(sockets: tuple[socket.socket, socket.socket], value: Any) -> None:
    assert SharedMemory(sockets[0]).answer(value) is None


def file_of(kind: str, nonce: bytes, directory: str) -> int:
    """A file that is described like a ring, and is none."""
    if kind == "plain":
        fd = os.open(os.path.join(directory, "memfd:ring"), os.O_RDWR | os.O_CREAT)
    elif kind == "pipe":
        return os.pipe()[0]
    else:
        fd = os.memfd_create("ring", 0 if kind == "never sealed" else os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, RING_SIZE // 2 if kind == "shorter" else RING_SIZE)
    os.pwrite(fd, b"?" * 16 if kind == "another nonce" else nonce, 0)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    if kind == "may shrink":
        seals &= ~fcntl.F_SEAL_SHRINK
    if kind == "may be sealed further":
        seals &= ~fcntl.F_SEAL_SEAL
    if kind not in ("plain", "never sealed"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    "kind",
    ["plain", "pipe", "never sealed", "may shrink", "may be sealed further", "shorter", "another nonce"],
)
def test_a_file_that_is_no_ring(sockets: tuple[socket.socket, socket.socket], kind: str, tmp_path: Any) -> None:
    nonce = bytes(range(16))
    fd = file_of(kind, nonce, str(tmp_path))
    before = open_files()
    server = SharedMemory(sockets[1])
    offer = {"pid": os.getpid(), "fd": fd, "size": RING_SIZE, "nonce": nonce.hex()}
    assert server.answer(offer) is None
    os.close(fd)
    assert open_files() == before - 1


def test_a_ring_as_it_should_be_is_taken_whoever_made_it(sockets: tuple[socket.socket, socket.socket]) -> None:
    nonce = bytes(range(16))
    fd = file_of("right", nonce, "")
    server = SharedMemory(sockets[1])
    offer = {"pid": os.getpid(), "fd": fd, "size": RING_SIZE, "nonce": nonce.hex()}
    assert server.answer(offer) is not None
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)  # sealed: nothing that is read can go away
    os.pwrite(fd, b"x" * 100, FIRST)
    assert taken(server, FIRST, 100) == b"x" * 100
    os.pwrite(fd, b"\xff" * FIRST, 0)  # the nonce and the count
    assert server.place([payload(LARGE)]) == [None]
    os.close(fd)
    assert taken(server, FIRST, 100) == b"x" * 100
    server.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become someone else")
@pytest.mark.parametrize("stranger", ["offers", "is offered"])
def test_a_process_of_another_user(sockets: tuple[socket.socket, socket.socket], stranger: str) -> None:
    """As another user neither end can open what the other one has; and the socket says so before that is tried."""
    ours, _ = sockets
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # an abstract name, which the system chooses
        listening.listen()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(listening.getsockname())
                    memory = SharedMemory(sock)
                    if stranger == "offers":
                        sock.sendall(b"." if memory.offer() is None else b"!")
                    else:
                        sock.sendall(b".")
                    sock.recv(1)
                    status = 0
            finally:
                os._exit(status)
        try:
            sock, _ = listening.accept()
            with sock:
                assert sock.recv(1) == b"."
                assert SharedMemory(sock).offer() is None
                # Nor is a file of another user taken, whatever the socket says.
                mine = SharedMemory(ours)
                offer = {"pid": child, "fd": 0, "size": RING_SIZE, "nonce": "0" * 32}
                assert mine.answer(offer) is None
                sock.sendall(b".")
        finally:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- memory ----------------------------------------------------------------------------------------------------------


def memory_of(ring: Ring | None) -> int:
    """Bytes of memory that the system has given for a ring."""
    assert ring is not None
    return os.stat(f"/proc/self/fd/{ring.description['fd']}").st_blocks * 512


def test_memory_is_taken_for_what_is_used_and_given_back(sockets: tuple[socket.socket, socket.socket]) -> None:
    budget = RingBudget(2 * RING_SIZE)
    client, server = SharedMemory(sockets[0], budget), SharedMemory(sockets[1])
    assert client.accept(server.answer(client.offer()))
    assert memory_of(client.ring) < 1024 * 1024
    data = payload(5 * 1024 * 1024)
    (place,) = client.place([data])
    assert memory_of(client.ring) >= len(data)
    assert not client.release_idle()  # the server has not read it
    assert taken(server, place, len(data)) == data
    for seed in range(20):
        assert taken(server, client.place([data])[0], len(data)) == data, seed
    assert budget.taken < RING_SIZE + 7 * 1024 * 1024
    assert client.release_idle()
    assert budget.taken == RING_SIZE, "the ring of the peer"
    assert memory_of(client.ring) <= FIRST
    assert taken(server, client.place([data])[0], len(data)) == data
    client.close()
    assert budget.taken == 0
    server.close()


def test_over_the_budget_payloads_go_with_their_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    budget = RingBudget(2 * RING_SIZE + 3 * 1024 * 1024)
    client, server = SharedMemory(sockets[0], budget), SharedMemory(sockets[1], budget)
    assert client.accept(server.answer(client.offer()))
    data = payload(2 * 1024 * 1024)
    assert client.place([data, data]) == [FIRST, None]
    assert server.place([data]) == [None]
    assert taken(server, FIRST, len(data)) == data
    assert client.place([data]) == [FIRST]
    client.close()
    assert server.place([data]) == [FIRST]
    server.close()
    assert budget.taken == 0


def test_a_ring_of_the_peer_is_counted_whole() -> None:
    """Reading the holes in it takes memory, and the peer can make holes at any time."""
    budget = RingBudget(2 * RING_SIZE)
    pairs = [socket.socketpair() for _ in range(3)]
    ends = [(SharedMemory(one), SharedMemory(other, budget)) for one, other in pairs]
    for client, server in ends[:2]:
        assert client.accept(server.answer(client.offer()))
    client, server = ends[2]
    assert server.answer(offered := client.offer()) is None
    assert budget.taken == 2 * RING_SIZE
    ends[0][1].close()
    del ends[:1], server
    another = SharedMemory(pairs[2][1], budget)
    assert client.accept(another.answer(offered))
    assert budget.taken == 2 * RING_SIZE
    for one, other in [*ends, (client, another)]:
        one.close()
        other.close()
    assert budget.taken == 0
    for pair in pairs:
        pair[0].close()
        pair[1].close()


def test_what_the_peer_has_not_read_stays_when_the_end_is_closed(ends: tuple[SharedMemory, SharedMemory]) -> None:
    writer, reader = ends
    data = payload(LARGE)
    (place,) = writer.place([data])
    writer.close()
    assert taken(reader, place, LARGE) == data


def test_no_file_stays_open(sockets: tuple[socket.socket, socket.socket]) -> None:
    before = open_files()
    for _ in range(3):
        client, server = (SharedMemory(each) for each in sockets)
        assert client.accept(server.answer(client.offer()))
        assert open_files() > before
        client.close()
        client.close()
        del server  # forgotten, not closed
        assert open_files() == before


def test_few_descriptors_left(sockets: tuple[socket.socket, socket.socket]) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = SharedMemory(sockets[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files(), before[1]))
    try:
        assert client.offer() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_leaves_the_ring_to_its_parent(ends: tuple[SharedMemory, SharedMemory]) -> None:
    writer, reader = ends
    data = payload(LARGE)
    assert taken(reader, writer.place([data])[0], LARGE) == data
    child = os.fork()
    if child == 0:
        placed = writer.place([b"x" * LARGE])
        writer.close()
        reader.close()
        os._exit(0 if placed == [None] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (place,) = writer.place([data])
    assert taken(reader, place, LARGE) == data
