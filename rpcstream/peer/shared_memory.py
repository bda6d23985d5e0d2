"""Arrays in memory that two programs on one machine both see (wire page, "Shared memory"). Linux only.

A process has one `Arena`: a file in memory, in which blocks are allocated for `shared_empty` and for payloads that are
copied. Peers on Unix sockets that run as the same user map the file, read-only. A message then says where in the arena
a payload is, and no bytes follow.

Each payload sent this way is lent: the sender keeps the block until the receiver gives it back. The receiver makes an
array over the memory. The base of this array, and of all its views, is a `Lease`, which ends with the last of them and
then writes its count into the control page of its connection. The sender looks there before it lends again. An array
that came from a peer and is sent back to it is lent, too, and not copied.

Nothing here waits: without a free block or lease, or over a limit, a payload goes through the socket. The file is
sealed, so that no peer can make it shorter under a reader (SIGBUS). Two orders matter between the processes: a payload
is written before its message goes through the socket and read after it, which the system's locks of the socket ensure;
and a lease is given back after all reads, which `_end_reads` ensures.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from operator import index
from threading import Lock, RLock
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from ..local_peer import is_same_user
from ..text import get_logger
from ..wire.binary_frame import SHARED_MIN, FrameError
from ..wire.buffers import PeerMemory, owner_of

if TYPE_CHECKING:
    from .ledger import Account  # imports asyncio

#: Bytes of an arena. Memory is taken only for what was used of it.
ARENA_SIZE = 128 * 1024 * 1024

#: Bytes of a page. The first page of an arena holds its key, and no block.
PAGE = 4096

#: Blocks begin at multiples of it: a line of the processor's cache.
_ALIGNMENT = 64

#: Payloads that one end of a connection may have lent to the other at a time.
LEASES = 504

#: Bytes of those that were copied for it. A receiver that keeps all it gets leaves a quarter of the memory to others. A
#: window of a stream fits: 16 frames of 1920 x 1080 x 3 bytes.
COPIED_MAX = ARENA_SIZE // 4 * 3

#: Seconds that looking for what was given back may take at a time: 30,000 payloads.
_LOOK_MAX = 0.005

#: Connections that have ended and of which a peer still has something: with more, new ones share nothing.
_ENDED_MAX = 64

#: Bytes of memory that are taken and given back at a time.
_STEP = 1024 * 1024
_ZEROS = bytes(_STEP)

_KEY_SIZE = 16
_NO_PLACE = "the header of a binary frame is malformed: no such place in shared memory"
#: Words of eight bytes in a control page: 1 once the peer's arena is mapped; 1 plus the number of leases that came,
#: once the connection has ended; which connection it is; and for each number of a lease the count of the last one that
#: was given back.
_MAPPED, _ENDED, _ID, _GIVEN_BACK = 0, 1, 2, 8

#: F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW: the size of the file never changes.
_SEALS = 7
#: How numpy takes memory (its array interface), without the shape, and the address and whether it is read-only.
_BYTES = {"version": 3, "typestr": "|u1"}
#: Flag of memfd_create (Linux 6.3): the file can never be executed.
_NOEXEC_SEAL = 0x8


# -- memory of this process -------------------------------------------------------------------------------------------


class Block(PeerMemory):
    """A part of an arena, free again when no array over it is left and no peer has borrowed it.

    Attributes:
        place: where it begins in the arena.
    """

    __slots__ = ("_end", "arena", "place")

    def __init__(self, arena: Arena, place: int, size: int, end: int) -> None:
        self.address = address = arena.address + place
        self.__array_interface__ = {**_BYTES, "shape": (size,), "data": (address, False)}
        self.arena, self.place, self._end = arena, place, end

    def __del__(self) -> None:
        self.arena.freed.append((self.place, self._end))


class Arena:
    """The memory of this process that its peers may see.

    Attributes:
        description: what a peer needs to find it.
        freed: parts that are free again, still to be noted. Finalizers add to it, in any thread.
        lock: held while something is taken back, so that no two threads take the same.
        connections: those that share it now, by their `id`.
        ended: those that have ended, and of which the peer still has something.

    Raises:
        OSError: the system gives no memory, or has not many file descriptors left.
    """

    def __init__(self) -> None:
        import fcntl
        import mmap

        self._maker = _process
        self.lock = RLock()
        self._is_searched, self._next_look = False, 0.0
        self._gaps = [(PAGE, ARENA_SIZE)]
        self._given = bytearray(ARENA_SIZE // _STEP)
        self.freed: deque[tuple[int, int]] = deque()
        self.connections: WeakValueDictionary[int, SharedMemory] = WeakValueDictionary()
        self.ended: deque[SharedMemory] = deque()
        self._fd = _memory_file()
        os.ftruncate(self._fd, ARENA_SIZE)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        if not self._touch(0, PAGE):
            raise OSError("the system gives no memory")
        key = os.urandom(_KEY_SIZE)
        os.pwrite(self._fd, key, 0)
        self._map = mmap.mmap(self._fd, ARENA_SIZE)
        self.address = _address_of(self._map)
        self.description = {"pid": self._maker, "fd": self._fd, "key": key.hex()}

    @property
    def is_usable(self) -> bool:
        """Whether it is this process that has made it, and not one that was forked from that."""
        return self._maker == _process

    def allocate(self, size: int) -> Block | None:
        """A block of at least one byte, whose content is undefined; None: there is none of that size."""
        with self._searching() as may_search:
            if may_search:
                return self._first_fit(size) or (self._first_fit(size) if self._take_back() else None)
        return None

    def trim(self) -> None:
        """Take back what ended connections have given back; without others, give unused memory back to the system."""
        import mmap

        with self._searching() as may_search:
            if not may_search:
                return
            self._take_back_ended()
            self._note_freed()
            for start, end in () if self.connections else self._gaps:
                for step in range(_rounded(start, _STEP) // _STEP, end // _STEP):
                    if self._given[step]:
                        self._map.madvise(mmap.MADV_REMOVE, step * _STEP, _STEP)
                        self._given[step] = 0

    @contextlib.contextmanager
    def _searching(self) -> Iterator[bool]:
        """Hold the lock. Gives False in a finalizer that interrupts a search of this thread: it must change nothing."""
        with self.lock:
            may_search, self._is_searched = not self._is_searched, True
            try:
                yield may_search
            finally:
                self._is_searched = not may_search

    def _first_fit(self, size: int) -> Block | None:
        self._note_freed()
        needed = _rounded(size, _ALIGNMENT)
        # The first that fits: the caches have it.
        for number, (start, end) in enumerate(self._gaps):
            if end - start >= needed and self._touch(start, start + needed):
                self._gaps[number] = start + needed, end
                return Block(self, start, size, start + needed)
        return None

    def _take_back(self) -> bool:
        """Take back what all peers have given back, but not for more than about a tenth of the time; says whether."""
        if monotonic() < self._next_look:
            return False
        began = thread_time()  # while others run, that costs nothing
        for reference in self.connections.valuerefs():
            if (sharer := reference()) is not None and thread_time() - began < _LOOK_MAX:
                sharer.take_back()
        self._take_back_ended()
        # A garbage collection, or a machine that stood still, counts as a look of that length at most.
        self._next_look = monotonic() + 10 * min(thread_time() - began, _LOOK_MAX)
        return True

    def _take_back_ended(self) -> None:
        for _ in range(len(self.ended)):
            if not (connection := self.ended.popleft()).is_given_back():
                self.ended.append(connection)

    def _note_freed(self) -> None:
        if not self.freed:
            return
        gaps = self._gaps
        while self.freed:
            gaps.append(self.freed.popleft())
        self._gaps = merged = [(PAGE, PAGE)]
        for start, end in sorted(gaps):
            if start == merged[-1][1]:
                merged[-1] = merged[-1][0], end
            else:
                merged.append((start, end))

    def _touch(self, start: int, end: int) -> bool:
        """Have the system give memory now, if it can: a write without it would end the process."""
        first, last = start // _STEP, _rounded(end, _STEP) // _STEP
        try:
            while (step := self._given.find(0, first, last)) >= 0 and os.pwrite(
                self._fd, _ZEROS, step * _STEP
            ) == _STEP:
                self._given[step] = 1
        except OSError as error:
            _note(str(error))
        return self._given.find(0, first, last) < 0


_current: Arena | None = None

#: The id of this process. (To ask the system each time takes long.)
_process = os.getpid()


def _note_fork() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _arena() -> Arena | None:
    """The arena of this process; None where there can be none."""
    global _current
    if sys.platform == "linux" and (_current is None or not _current.is_usable):
        _current = None
        try:
            _current = Arena()
        except OSError as error:
            _note(str(error))
    return _current


def shared_empty(shape: int | Sequence[int], dtype: Any = float) -> Any:
    """An uninitialized array, like `numpy.empty`, whose memory programs on this machine can share.

    If you send it over a Unix socket to a program of the same user, it is not copied: the receiver sees its memory, and
    what you write there later. Take a new array for each value that you send. This costs little, because memory is
    reused as soon as no program needs it. Any other peer gets a copy.

    Args:
        shape: the length of each axis, as an int or a sequence of them; of an array, give `tuple(shape)`.
        dtype: the dtype of the items, as for `numpy.empty`, but not objects.

    Returns:
        A C-ordered array. It is an ordinary array where memory cannot be shared: not on Linux, or if the 128 MiB of
        this program are in use.

    Raises:
        TypeError, ValueError: the shape or the dtype is invalid.
    """
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"objects cannot be shared, and the dtype is {kind}")
    size = math.prod(map(index, shape if isinstance(shape, Sequence) else (shape,))) * kind.itemsize
    arena = _arena() if 0 < size <= ARENA_SIZE else None
    block = None if arena is None else arena.allocate(size)
    return np.empty(shape, kind) if block is None else np.asarray(block).view(kind).reshape(shape)


# -- memory of a peer -------------------------------------------------------------------------------------------------


class _PeerArena:
    """The arena of a peer, mapped to be read; it is counted whole until nothing refers to it any more.

    Args:
        pid: of the peer.
        fd: the number of its file descriptor there.
        key: what its first page begins with, as hexadecimal digits.

    Raises:
        OSError, ValueError: it is not as it should be, or there is no room for it.
    """

    _fd = -1
    _account: Account | None = None

    def __init__(self, pid: int, fd: int, key: str, account: Account | None) -> None:
        import fcntl
        import mmap

        self.pid = pid
        self._fd = _open_memory_file(f"/proc/{pid}/fd/{fd}")
        if fcntl.fcntl(self._fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("the memory of the peer is not sealed")
        # Sealed: its size does not change any more. With large pages, reading a hole may end the process.
        if os.fstat(self._fd).st_size != ARENA_SIZE or os.fstatvfs(self._fd).f_bsize != PAGE:
            raise ValueError("the memory of the peer has another size, or large pages")
        if os.pread(self._fd, _KEY_SIZE, 0).hex() != key:
            raise ValueError("the memory of the peer is other memory than it says")
        if account is not None:
            # Whole: the peer can make holes at any time, and reading one takes memory.
            if account.free < ARENA_SIZE:
                raise ValueError("there is no room for the memory of the peer (max_held_total)")
            account.used += ARENA_SIZE
        self._account = account
        self.map = mmap.mmap(self._fd, ARENA_SIZE, prot=mmap.PROT_READ)
        self._address = _address_of(self.map)
        self._written = bytearray(ARENA_SIZE // _STEP)

    def find(self, place: int, size: int) -> int:
        """The address of a part. Raises FrameError: it is not in the arena, or was not written in whole steps."""
        end = place + size
        is_inside = PAGE <= place < end <= ARENA_SIZE
        while is_inside and (step := self._written.find(0, place // _STEP, -(-end // _STEP))) >= 0:
            hole = os.lseek(self._fd, step * _STEP, os.SEEK_HOLE) // _STEP
            self._written[step:hole] = b"\1" * (hole - step)
            is_inside = hole > step
        if not is_inside:
            raise FrameError(_NO_PLACE)
        return self._address + place

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if self._account is not None:
            self._account.give_back(ARENA_SIZE)


#: Those that are mapped, by key and `id` of the account: several connections of one process share one.
_mapped: WeakValueDictionary[tuple[str, int], _PeerArena] = WeakValueDictionary()


class Lease(PeerMemory):
    """Memory that a peer has lent; given back when no array over it is left.

    Args:
        address: of the memory.
        size: bytes.
        keep: what keeps the memory: the arena of the peer, or a block of ours that came back.
        control: the control page of this end of the connection.
        number: the number of the lease.
        count: how many leases had come with it.
    """

    __slots__ = ("_count", "_maker", "control", "keep", "number")

    def __init__(self, address: int, size: int, keep: Any, control: memoryview, number: int, count: int) -> None:
        self.address = address
        self.__array_interface__ = {**_BYTES, "shape": (size,), "data": (address, True)}
        self._maker, self._count = _process, count
        self.keep, self.control, self.number = keep, control, number

    def __del__(self) -> None:
        if self._maker == _process:  # not in one that was forked
            if not _IS_ORDERED:
                _end_reads()
            self.control[_GIVEN_BACK + self.number] = self._count


# -- one connection ---------------------------------------------------------------------------------------------------


class _Lent(NamedTuple):
    """What was lent.

    Attributes:
        owner: the block, or the lease of the peer's own memory.
        address, size: of the part.
        lease: how many leases there had been with it.
        copied: bytes that were copied for it, and are counted.
    """

    owner: Any
    address: int
    size: int
    lease: int
    copied: int


class SharedMemory:
    """What one connection shares, in both directions.

    The client calls `offer`, and `accept` with the server's answer; the server calls `accept` with the offer.

    Args:
        sock: the connected socket.
        account: counts the memory of peers; None: that of a server is not counted.

    Attributes:
        placed: the number of payloads that were lent by the last `place`.
        received: the number of payloads that came as leases.
    """

    _arena: Arena | None = None
    _description: dict[str, Any] | None = None
    _control: Any = None
    _peer: _PeerArena | None = None
    _peer_control: Any = None

    def __init__(self, sock: Any, account: Account | None = None) -> None:
        self._sock: Any = sock
        self._account = account
        self._lent: dict[int, _Lent] = {}
        self._numbers = list(range(LEASES))
        self._lending = self.received = self.placed = 0

    def offer(self) -> dict[str, Any] | None:
        """What the peer needs to find the memory of this end. None where there can be none: also the second time."""
        sock, self._sock = self._sock, None
        arena = _arena() if sock is not None and is_same_user(sock) else None
        if arena is not None and len(arena.ended) >= _ENDED_MAX:
            arena.trim()
        if arena is None or len(arena.ended) >= _ENDED_MAX or (block := arena.allocate(PAGE)) is None:
            return None
        import numpy as np

        page = np.asarray(block)
        page[:] = 0
        self._control = memoryview(page).cast("Q")  # type: ignore[arg-type]
        self._control[_ID] = number = 1 + int.from_bytes(os.urandom(3), "little")
        self._arena = arena
        arena.connections[id(self)] = self
        self._description = arena.description | {"at": block.place, "id": number}
        return self._description

    def accept(self, description: Any) -> dict[str, Any] | None:
        """Map the memory that the peer has described; gives what the peer needs. None: nothing is shared."""
        if description is None or self._peer is not None:
            return None
        own = self._description or self.offer()
        if self._arena is None:  # there can be none, or nothing is shared any more
            return None
        try:
            self._map_peer(description if type(description) is dict else {})
        except (OSError, ValueError) as error:
            _note(str(error))
            self.close()
            return None
        self._control[_MAPPED] = 1
        return own

    def _map_peer(self, described: dict[str, Any]) -> None:
        pid, fd, at, self._peer_id = (_whole(described.get(name)) for name in ("pid", "fd", "at", "id"))
        key = str(described.get("key"))
        mapped = (key, id(self._account))
        peer = _mapped.get(mapped) or _PeerArena(pid, fd, key, self._account)
        peer.find(at, PAGE)
        self._peer_control = memoryview(peer.map)[at : at + PAGE].cast("Q")
        if self._peer_control[_ID] != self._peer_id or not self._peer_id:
            raise ValueError("the control page of the peer is another one than it says")
        self._peer = _mapped[mapped] = peer

    # -- sending ------------------------------------------------------------------------------------------------------

    def place(self, payloads: list[Any]) -> list[bytes]:
        """Lend the large ones of these payloads, for a message that is sent at once.

        A payload that is copied is replaced by its copy, which the next connection then lends.

        Returns:
            The entry of each in the header of the frame; none where all are to be sent behind their message.
        """
        self.placed = 0
        arena = self._arena
        if arena is None or self._peer is None or not self._peer_control[_MAPPED] or not arena.is_usable:
            return []
        if self._lent:
            with arena.lock:
                self.take_back()
        entries = []
        for position, payload in enumerate(payloads):
            place = self._lend(arena, payloads, position) if len(payload) >= SHARED_MIN and self._numbers else b""
            entries.append(b"%b%d" % (place, len(payload)))
        return entries

    def _lend(self, arena: Arena, payloads: list[Any], position: int) -> bytes:
        payload, copied = payloads[position], 0
        owner = owner_of(payload)
        if isinstance(owner, Lease) and isinstance(owner.keep, Block):
            owner = owner.keep
        comes_back = isinstance(owner, Lease) and owner.control is self._control
        if not comes_back and not (isinstance(owner, Block) and owner.arena is arena):
            payload, copied = self._copy(arena, payload), len(payload)
            if payload is None:
                return b""
            payloads[position], owner = payload, payload.base
        number, address = self._numbers.pop(), payload.__array_interface__["data"][0]
        self._lending += 1
        self.placed += 1
        self._lent[number] = _Lent(owner, address, len(payload), self._lending, copied)
        at = address - owner.address
        return b"%d:%d:%d:" % (number, owner.number, at) if comes_back else b"%d:%d:" % (number, owner.place + at)

    def _copy(self, arena: Arena, payload: Any) -> Any:
        """A copy of a payload in a block; None: there is no room."""
        import numpy as np

        copied = len(payload) + sum([lent.copied for lent in list(self._lent.values())])
        if copied > COPIED_MAX or (block := arena.allocate(len(payload))) is None:
            return None
        copy = np.asarray(block)
        copy[:] = np.frombuffer(payload, np.uint8)
        return copy

    def take_back(self, came: int = sys.maxsize) -> None:
        """Take back what the peer has given back, and what never reached it.

        Call it in any thread, with the lock of the arena.

        Args:
            came: how many leases have reached the peer.
        """
        control = self._peer_control
        for number in list(self._lent):
            lent = self._lent.get(number)
            if lent is not None and (control[_GIVEN_BACK + number] == lent.lease or lent.lease > came):
                del self._lent[number]
                self._numbers.append(number)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def borrow(self, size: int, number: int, place: int, within: int | None = None) -> Any:
        """A payload of a message that has come, as a read-only array of bytes.

        Args:
            size: its bytes.
            number: of the lease.
            place: in the peer's arena; with `within`, the number of a lease of ours.
            within: where the payload begins in what we have lent so.

        Raises:
            FrameError: there is no such place.
        """
        import numpy as np

        if self._peer is None or number >= LEASES:
            raise FrameError(_NO_PLACE)
        keep: Any = self._peer
        if within is None:
            address = keep.find(place, size)
        else:
            lent = self._lent.get(place)
            if lent is None or not isinstance(lent.owner, Block) or within + size > lent.size:
                raise FrameError(_NO_PLACE)
            keep, address = lent.owner, lent.address + within
        self.received += 1
        return np.asarray(Lease(address, size, keep, self._control, number, self.received))

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_given_back(self) -> bool:
        """Whether the peer has given back all that was lent, or is gone. For a connection that has ended."""
        ended, pid = self._peer_control[_ENDED], self._peer.pid if self._peer is not None else 0
        # A page is only used again when nothing reads what came with its connection.
        is_over = self._peer_control[_ID] != self._peer_id or not os.path.exists(f"/proc/{pid}")
        self.take_back(0 if is_over else (ended or sys.maxsize) - 1)
        if not self._lent:
            self._peer = self._peer_control = None
        return self._peer is None

    def close(self) -> None:
        """Share nothing more. Arrays in memory of the peer stay as they are. Harmless at any time."""
        arena = self._arena
        self._leave()
        if arena is not None and arena.is_usable:
            arena.trim()

    def _leave(self) -> None:
        arena, self._arena = self._arena, None
        if arena is None:
            return
        if arena.is_usable:
            self._control[_ENDED] = 1 + self.received
            arena.connections.pop(id(self), None)
            if self._lent:  # the peer still reads it
                arena.ended.append(self)
                return
        self._lent.clear()
        self._peer = self._peer_control = None

    def __del__(self) -> None:
        self._leave()


def _note(reason: str) -> None:
    get_logger("rpcstream.wire").debug("payloads are not sent by shared memory: %s", reason)


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError("the peer describes no memory")
    return number


def _address_of(mapped: Any) -> int:
    import numpy as np

    return int(np.frombuffer(mapped, np.uint8).__array_interface__["data"][0])


#: This processor writes nothing before a read that stands before it.
_IS_ORDERED = hasattr(os, "uname") and os.uname().machine in ("x86_64", "i686")


def _end_reads() -> None:
    """End all reads so far before anything is written, on processors that exchange the two (arm64)."""
    # No read is put off behind a lock's release, and no write goes ahead of the lock's being taken after that.
    lock = Lock()
    for _ in range(2):
        with lock:
            pass


def _memory_file() -> int:
    """A file in memory, which can be sealed; gives its descriptor. OSError if the system gives none."""
    import resource

    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create("rpcstream", flags | _NOEXEC_SEAL)
    except OSError:  # an older system
        fd = os.memfd_create("rpcstream", flags)
    if fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
        os.close(fd)
        raise OSError("half of the file descriptors are in use")
    return fd


def _open_memory_file(path: str) -> int:
    """Open a file in memory of this user to be read; gives its descriptor. OSError, ValueError: it is none."""
    # Opened as a path first: that has no effect, whatever it is.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found, name = os.fstat(place), f"/proc/self/fd/{place}"
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError("the memory of the peer is no file of this user")
        if not os.readlink(name).startswith("/memfd:"):
            raise ValueError("the memory of the peer is no file in memory")
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place)
