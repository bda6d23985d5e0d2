"""Payloads by shared memory on a Unix socket: both clients, what is counted, and ends that do not keep to it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import pytest

from rpcstream import (
    AsyncClient,
    Client,
    ConnectFailed,
    ConnectionLost,
    Limits,
    MethodNotFound,
    RpcError,
    Shape,
    shared_empty,
)
from rpcstream.errors import MessageTooLarge
from rpcstream.testing import serve_in_thread

from ..kit import RawPeer, UsualServer, request, until_in_thread
from .conftest import Traced, in_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no files in memory that can be sealed")

MIB = 1024 * 1024
LARGE = np.arange(MIB // 4, dtype=np.float32)
SIZE = LARGE.nbytes
ARENA, PAGE = 128 * MIB, 4096
#: Where the control page and the payload of the raw peer stand.
CONTROL, FIRST = PAGE, MIB


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
    """Have arrays echoed; each comes back exactly."""
    for sent, got in zip(arrays, client.echo(list(arrays)), strict=True):
        np.testing.assert_array_equal(got, sent)
        assert not np.shares_memory(got, sent)


def echoed_from(client: Client, array: np.ndarray) -> None:
    """Have an array of `shared_empty` echoed: it comes back in its own memory, read-only."""
    got = client.echo(array)
    np.testing.assert_array_equal(got, array)
    assert np.shares_memory(got, array)
    assert not got.flags.writeable


def from_shared_empty(array: np.ndarray) -> np.ndarray:
    own = shared_empty(array.shape, array.dtype)
    own[:] = array
    return own


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
            for make in (np.copy, from_shared_empty):
                sent = shared(server)[1]
                server.publish("news", make(LARGE))
                event = await anext(aiter(events))
                np.testing.assert_array_equal(event, LARGE)
                assert (event.flags.writeable, shared(server)[1]) == (False, sent + 1)


@pytest.mark.slow
def test_more_than_there_is_room_for_goes_with_the_message(tmp_path: Path) -> None:
    limits = Limits(max_message_size=ARENA)
    whole = np.zeros(ARENA // 32 * 3 + 1)  # more than three quarters of the memory
    whole[-1] = 7
    server = UsualServer(limits=limits)
    with serve_in_thread(server, unix=tmp_path / "wide") as address, Client(address, limits=limits) as client:
        echoed(client, LARGE)
        echoed(client, LARGE)
        echoed(client, LARGE, whole, LARGE)
        assert shared(server)[0] == 3
        large = shared_empty(whole.shape)
        large[:] = whole
        echoed_from(client, large)


@pytest.mark.parametrize(("binary", "unix"), [(False, True), (True, False)])
def test_it_is_not_used_without_binary_frames_nor_over_tcp(tmp_path: Path, binary: bool, unix: bool) -> None:
    server = UsualServer()
    where = {"unix": tmp_path / "socket"} if unix else {}
    with serve_in_thread(server, **where) as address, Client(address, binary=binary) as client:  # type: ignore[arg-type]
        for _ in range(3):
            echoed(client, LARGE)
        assert server.stats()["frames_received"] == (2 if binary else 0)
        assert shared(server) == (0, 0)


def arenas() -> int:
    """Descriptors of arenas that this process has open: two for each, with that of `mmap`."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rpcstream")
    return found


@pytest.mark.slow
def test_each_process_has_an_arena_and_few_files_stay_open_behind_a_connection(
    server: UsualServer, address: str
) -> None:
    for _ in range(3):
        with Client(address) as client:
            echoed(client, LARGE)
            echoed(client, LARGE)
            before = shared(server)[0]

            def work(client: Client = client) -> None:
                for number in range(5):
                    echoed(client, LARGE - number)
                client.close()

            assert in_child(work) == 0
            echoed(client, LARGE + 1)
            assert shared(server)[0] == before + 4 + 1

    def are_closed() -> bool:
        with Client(address) as client:  # it is looked at when a connection ends
            echoed(client, LARGE)
        until_in_thread(lambda: server.stats()["connections"] == 0)
        return arenas() <= 2

    until_in_thread(are_closed)


def test_what_is_sent_is_not_copied(server: UsualServer, address: str) -> None:
    kept: list[np.ndarray] = []

    @server
    def keep(array: np.ndarray) -> int:
        kept.append(array)
        return len(kept)

    @server
    async def part(array: np.ndarray, begin: int, end: int) -> np.ndarray:
        return array[begin:end]

    shared_array = shared_empty(LARGE.shape, LARGE.dtype)
    shared_array[:] = LARGE
    with Client(address) as client:
        echoed(client, LARGE)
        echoed_from(client, shared_array)
        back = client.echo(client.echo(client.echo(shared_array)))
        assert np.shares_memory(back, shared_array)
        middle = client.part(back, 7, 100_007)
        np.testing.assert_array_equal(middle, LARGE[7:100_007])
        assert np.shares_memory(middle, shared_array)
        client.keep(shared_array)
        plain = LARGE.copy()
        client.keep(plain)
        shared_array[0] = plain[0] = 99
        assert [array[0] for array in kept] == [99, 0], "one is seen by the receiver, one was copied"
        client.keep(LARGE[::2])
        np.testing.assert_array_equal(kept[2], LARGE[::2])
    del shared_array, back, middle
    assert kept[0][0] == 99, "what is kept stays, after the connection too"


def test_arrays_stay_as_long_as_somebody_has_them(server: UsualServer, address: str) -> None:
    """The arrays of one client do not change when others call, and when it has ended."""

    @server
    def full(value: int) -> np.ndarray:
        return np.full(MIB, value, np.uint8)

    kept = []
    for turn in range(3):
        with Client(address) as client:
            client.full(0)
            kept += [client.full(10 * turn + number) for number in range(10)]
    gc.collect()
    with Client(address) as client:
        for number in range(20):
            client.full(200 + number)
    assert [set(array.tolist()) for array in kept] == [{value} for value in range(30)]


def test_what_an_idle_client_has_given_back_is_there_for_others(server: UsualServer, address: str) -> None:
    @server
    def zeros(size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    with Client(address) as idle, Client(address) as other:
        for client in (idle, other):
            while client.zeros(MIB).flags.writeable:
                pass
            kept = [client.zeros(20 * MIB) for _ in range(4)]
            assert [array.flags.writeable for array in kept] == [False] * 4
            kept.clear()


def test_what_a_server_keeps_stays_as_it_is_when_its_client_cannot_connect_again(
    server: UsualServer, tmp_path: Path
) -> None:
    kept: list[np.ndarray] = []

    @server
    def keep(array: np.ndarray) -> None:
        kept.append(array)

    with Client(f"unix://{tmp_path}/socket") as client:
        with serve_in_thread(server, unix=tmp_path / "socket"):
            for number in range(3):
                client.keep(from_shared_empty(LARGE + number))
        for _ in range(2):
            with pytest.raises(ConnectFailed):
                client.ping()
        others = [from_shared_empty(LARGE - 1) for _ in range(8)]
    assert not kept[-1].flags.writeable
    for other in others:
        np.testing.assert_array_equal(other, LARGE - 1)
    for number, array in enumerate(kept):
        np.testing.assert_array_equal(array, LARGE + number)


def test_finalizers_may_use_shared_memory_wherever_they_run(server: UsualServer, address: str) -> None:
    class Camera:
        def __init__(self) -> None:
            self.client, self.frame, self.self = Client(address), shared_empty(SIZE, np.uint8), self
            self.client.echo(LARGE)

        def __del__(self) -> None:
            shared_empty(SIZE, np.uint8)
            self.client.close()

    usual = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with Client(address) as client:
            for number in range(30):
                Camera()
                echoed(client, LARGE + number)
                echoed_from(client, from_shared_empty(LARGE + number))
    finally:
        gc.set_threshold(*usual)


def test_both_ends_sleep_when_no_call_comes(server: UsualServer, address: str) -> None:
    """They look for the next message without sleeping, but only for a moment."""

    def is_asleep() -> bool:
        used = time.process_time()
        time.sleep(0.05)
        return time.process_time() - used < 0.025

    with Client(address) as client:
        for number in range(100):
            echoed(client, LARGE + number)
        until_in_thread(is_asleep)
        echoed(client, LARGE)
    until_in_thread(is_asleep)


def test_clients_that_keep_arrays_and_come_again_and_again_share_no_more(server: UsualServer, address: str) -> None:
    """What a server remembers of connections that have ended is bounded."""
    frame = from_shared_empty(LARGE)

    @server
    def last() -> np.ndarray:
        return frame

    kept: list[np.ndarray] = []

    def is_shared() -> bool:
        with Client(address) as client:
            kept.extend(client.last() for _ in range(3))
        return not kept[-1].flags.writeable

    assert is_shared()
    until_in_thread(lambda: not is_shared())
    assert 64 <= len(kept) / 3 <= 70
    kept.clear()
    until_in_thread(is_shared)
    np.testing.assert_array_equal(kept[-1], LARGE)


def test_a_process_that_dies_gives_back_what_it_had(server: UsualServer, tmp_path: Path) -> None:
    @server
    def zeros(size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    with serve_in_thread(server, unix=tmp_path / "one") as address:

        def work() -> None:
            client = Client(address)
            while client.zeros(MIB).flags.writeable:
                pass
            kept: list[np.ndarray] = []
            # Three quarters of the memory are lent to one client, once what the one before it had is taken back.
            while [array.flags.writeable for array in kept] != [False] * 12 + [True]:
                kept.clear()
                kept += [client.zeros(8 * MIB) for _ in range(13)]
            os._exit(0)

        for _ in range(4):
            assert in_child(work) == 0


@pytest.mark.parametrize(
    "make", [np.ascontiguousarray, lambda array: array.astype("datetime64[s]"), lambda array: array > 1]
)
def test_an_array_that_is_to_be_changed_is_copied(server: UsualServer, address: str, make: Any) -> None:
    @server
    def double(array: Annotated[np.ndarray, Shape(..., writable=True)]) -> np.ndarray:
        array[:] = array[::-1]
        return array

    array = make(LARGE)
    with Client(address) as client:
        echoed(client, LARGE)
        for _ in range(2):
            np.testing.assert_array_equal(client.double(array), array[::-1])
        wanted = Annotated[np.ndarray, Shape(..., writable=True)]
        assert client.call("echo", array, returns=wanted).flags.writeable
        assert client.call("echo", array).flags.writeable is (array.dtype.kind in "Mb")


@pytest.mark.parametrize(("server_copies", "client_copies"), [(True, False), (False, True)])
def test_copies_can_be_asked_for(tmp_path: Path, server_copies: bool, client_copies: bool) -> None:
    server = UsualServer(binary="copy" if server_copies else True)

    @server
    def is_writable(array: np.ndarray) -> bool:
        return array.flags.writeable

    @server
    def ones() -> np.ndarray:
        return np.ones(LARGE.shape)

    where = tmp_path / "socket"
    with (
        serve_in_thread(server, unix=where) as address,
        Client(address, binary="copy" if client_copies else True) as client,
    ):
        echoed(client, LARGE)
        assert client.is_writable(LARGE) is server_copies
        assert client.ones().flags.writeable is client_copies
        assert shared(server)[0] == 1


async def test_streams_both_ways_are_shared(server: UsualServer, address: str) -> None:
    @server
    async def back(frames: AsyncIterator[np.ndarray]) -> AsyncIterator[np.ndarray]:
        async for frame in frames:
            yield frame

    async def frames() -> AsyncIterator[np.ndarray]:
        for number in range(40):
            frame = client.shared_empty((480, 640, 3), np.uint8)
            frame[:] = number
            yield frame

    async with AsyncClient(address) as client:
        await client.call("echo", LARGE)
        came = client.stream.back(frames())
        seen = [(frame[0, 0, 0], frame[-1, -1, -1], frame.flags.writeable) async for frame in came]
        assert seen == [(number, number, False) for number in range(40)]
        assert min(shared(server)) >= 40


def test_what_is_refused_leaves_no_memory_in_use(tmp_path: Path) -> None:
    server = UsualServer(limits=Limits(max_message_size=5 * MIB))
    big = np.zeros(4 * MIB, dtype=np.uint8)
    with serve_in_thread(server, unix=tmp_path / "socket") as address, Client(address) as client:
        echoed(client, LARGE)
        for _ in range(33):  # more than there is room for
            with pytest.raises(MethodNotFound):
                client.call("nothing", big)
            with pytest.raises(RpcError):
                client.call("count", big)
        assert shared(server)[0] == 66
        with pytest.raises(MessageTooLarge):  # a message has the same limit there
            client.call("echo", np.zeros(5 * MIB, dtype=np.uint8))
        echoed(client, big)


class Arena:
    """An arena as the wire page has it, made by hand."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("rpcstream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, ARENA)
        self.map = mmap.mmap(self.fd, ARENA)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        key = os.urandom(16)
        self.map[:MIB] = key + bytes(MIB - 16)
        self.description = {"pid": os.getpid(), "fd": self.fd, "key": key.hex(), "at": CONTROL, "id": 1}
        self.word(2, 1)

    def place(self, data: bytes = LARGE.tobytes(), at: int = FIRST) -> None:
        self.map[at : at + len(data)] = data

    def word(self, number: int, value: int) -> None:
        """Write into the control page."""
        self.map[CONTROL + 8 * number : CONTROL + 8 * number + 8] = struct.pack("=Q", value)

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


def echo_frame(entry: str, behind: bytes = b"") -> bytes:
    tagged = {"$type": "ndarray", "dtype": "|u1", "shape": [SIZE], "data": {"$bin": 0}}
    json = orjson.dumps(request("echo", tagged, id=5)) + b"\n"
    return f"@{len(json)} {entry}\n".encode() + json + behind


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    with contextlib.suppress(OSError, ValueError):
        arena.close()


@pytest.fixture
async def sharer(address: str, arena: Arena) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.open(address)
    answer = await peer.result("rpc.hello", params={"binary": 1, "shm": arena.description})
    assert set(answer["shm"]) == {"pid", "fd", "key", "at", "id"}
    arena.word(0, 1)
    yield peer
    peer.close()
    arena.word(2, 0)  # the page is used for something else


@pytest.mark.parametrize(
    "entry",
    [
        f"0:0:{SIZE}",
        f"0:{ARENA}:{SIZE}",
        f"0:{ARENA - SIZE + 64}:{SIZE}",
        f"0:{FIRST}:{ARENA // 4}",
        f"0:{FIRST}:0",
        f"0:-{FIRST}:{SIZE}",
        f"0:0x1000:{SIZE}",
        f"{FIRST}:{SIZE}",
        f"504:{CONTROL}:{PAGE}",
        f"999999999999:{CONTROL}:{PAGE}",
        f"0:999999999999:{SIZE}",
        f"0:0:0:{SIZE}",
        f"0:1:0:1:{SIZE}",
        f"0:{FIRST + 16 * MIB}:{SIZE}",  # a hole: reading it would take memory that nobody has counted
        f"0:{FIRST + SIZE // 2}:{SIZE}",  # half of it
    ],
)
async def test_a_place_that_is_none_ends_the_connection(
    sharer: RawPeer, arena: Arena, server: UsualServer, entry: str
) -> None:
    before = os.fstat(arena.fd).st_blocks
    sharer.write(echo_frame(entry))
    reply = await sharer.reply()
    assert (reply["error"]["code"], reply["id"]) == (-32700, None)
    assert await sharer.receive() is None
    assert server.stats()["frames_received"] == 0
    assert os.fstat(arena.fd).st_blocks == before


@pytest.mark.parametrize(("lease", "within"), [(0, 0), (504, 0), (503, 1), (503, 2**40)])
async def test_a_lease_that_was_not_lent_cannot_be_sent_back(
    sharer: RawPeer, arena: Arena, server: UsualServer, lease: int, within: int
) -> None:
    """Only lease 503 is lent, the last one, with SIZE bytes."""
    sharer.write(echo_frame(str(SIZE), behind=LARGE.tobytes()))
    _, (payload,) = await sharer.receive_frame()
    assert payload.startswith(b"503:")
    sharer.write(echo_frame(f"0:{lease}:{within}:{SIZE}"))
    assert await sharer.code() == -32700
    assert await sharer.receive() is None


async def test_a_payload_can_only_be_read_and_one_that_is_parsed_does_not_change_any_more(
    server: UsualServer, sharer: RawPeer, arena: Arena
) -> None:
    """A peer that writes into its memory while a handler works with it changes plain numbers, and nothing else."""
    seen: list[Any] = []

    @server
    def change(data: Any) -> list[bool]:
        seen.append(data)
        arena.place(bytes(SIZE))
        return [bool(np.asarray(bytearray(data) if isinstance(data, bytes) else data).any())]

    for kind in (
        {"$type": "ndarray", "dtype": "|u1", "shape": [SIZE]},
        {"$type": "ndarray", "dtype": "|b1", "shape": [SIZE]},
        {"$type": "bytes"},
    ):
        arena.place(b"\1" * SIZE)
        json = orjson.dumps(request("change", kind | {"data": {"$bin": 0}}, id=1)) + b"\n"
        sharer.write(b"@%d 0:%d:%d\n" % (len(json), FIRST, SIZE) + json)
        assert await sharer.reply()
    arrays = [data for data in seen if isinstance(data, np.ndarray)]
    assert [array.flags.writeable for array in arrays] == [False, True]
    with pytest.raises(ValueError, match="WRITEABLE"):
        arrays[0].flags.writeable = True
    assert [bool(array.any()) for array in arrays] == [False, True]
    assert bytes(seen[2]) == b"\1" * SIZE


@pytest.mark.parametrize("shm", [None, [], "x", 1, {}, {"pid": 1, "fd": 0, "key": "0" * 32, "at": CONTROL}])
async def test_an_offer_that_is_none_is_answered_without_a_word(address: str, shm: Any) -> None:
    stranger = await RawPeer.open(address)
    params = {"binary": 1} if shm is None else {"binary": 1, "shm": shm}
    assert await stranger.result("rpc.hello", params=params) == {"binary": 1}
    stranger.write(echo_frame(f"0:{FIRST}:{SIZE}"))
    assert await stranger.code() == -32700
    assert await stranger.receive() is None
    stranger.close()


async def test_a_page_that_is_used_again_says_that_all_was_given_back(
    server: UsualServer, address: str, arena: Arena
) -> None:
    """Nothing reads what a connection got any more when its page is used for something else."""

    @server
    def zeros(size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    for turn in range(1, 4):
        arena.word(2, turn)
        peer = await RawPeer.open(address)
        await peer.result("rpc.hello", params={"binary": 1, "shm": arena.description | {"id": turn}})
        arena.word(0, 1)
        for _ in range(12):  # as much as one connection may have
            peer.write(orjson.dumps(request("zeros", 8 * MIB)) + b"\n")
            assert b":" in (await peer.receive_frame())[1][0][:100]
        peer.close()
        await asyncio.to_thread(until_in_thread, lambda: server.stats()["connections"] == 0)
    arena.word(2, 0)


@pytest.mark.parametrize("given_back", [0, 5, 2**63, 2**64 - 1])
async def test_what_is_not_given_back_is_not_used_again(
    server: UsualServer, sharer: RawPeer, arena: Arena, given_back: int
) -> None:
    """A receiver that keeps all it gets, or that says what cannot be, gets the rest with the message."""
    for number in range(8, 512):
        arena.word(number, given_back)

    @server
    def zeros(size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    shared = 0
    for _ in range(14):
        sharer.write(orjson.dumps(request("zeros", 8 * MIB)) + b"\n")
        _, (payload,) = await sharer.receive_frame()
        shared += b":" in payload[:100]
    assert shared == (13 if given_back == 5 else 12), "one connection gets three quarters of a program's memory"
    assert await sharer.result("rpc.ping") == "pong"


def test_a_server_that_names_a_place_where_there_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "liar")

    def lie() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.recv(1 << 20)
            json = b'{"jsonrpc":"2.0","id":1,"result":{"$bin":0}}\n'
            sock.sendall(b"@%d 0:4096:100\n" % len(json) + json)
            sock.recv(1 << 20)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        thread = threading.Thread(target=lie)
        thread.start()
        with Client(f"unix://{path}") as client, pytest.raises(ConnectionLost, match="shared memory"):
            client.call("echo", LARGE)
        thread.join()
