"""Payloads in shared memory, between two ends of a Unix socket (wire page, "Shared memory").

A connection has two rings: one that this end writes payloads into, and the peer's, which it only reads. Each is a file
in memory that its maker has sealed against a change of its size, so that no peer can make the other end read what is
not there. Linux only; elsewhere nothing is ever offered.

A payload is copied into the ring of its sender, and out of it when its message is read. A slot is free again when the
reader has counted it. These counts stand in the first page of the reader's own ring, as one word of eight bytes that is
written and read whole. No other order is needed between the two processes: a payload is written before its message goes
through the socket, and read after it, and the system's locks of the socket order the two; a count is written after
`_end_reads` has ended all reads before it, and an end that sees the count writes into the slot only because of it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Any

from .local_peer import is_same_user
from .text import get_logger

#: Bytes of a ring. Memory is taken for what was used of it only; a message of the default `max_message_size` fits.
RING_SIZE = 64 * 1024 * 1024

#: Bytes before the first slot: a page for the nonce and the count.
FIRST = 4096

#: Bytes of a payload from which on it goes by the ring. Below, a Unix socket is as fast or faster: it copies as often,
#: but both ends at the same time, and in pieces that the caches hold.
SHARED_MIN = 1024 * 1024

#: Slots begin at multiples of it: a line of the processor's cache.
ALIGNMENT = 64

#: Seconds after which the memory of a ring is given back that was not used.
IDLE = 30.0

#: Bytes of memory that are taken at a time.
_STEP = 1024 * 1024

_NONCE_SIZE = 16
#: Where the count stands: 0 until this end has the peer's ring, then 1 and the number of payloads that were read.
_COUNT_AT = 64
#: Flag of memfd_create (Linux 6.3): the file can never be executed.
_NOEXEC_SEAL = 0x8


class RingBudget:
    """Counts the memory of all rings of a server, and the rings of its peers whole: reading a hole takes memory.

    Args:
        limit: bytes.
    """

    __slots__ = ("_limit", "taken")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    def take(self, size: int) -> bool:
        """Count bytes; False, and nothing is counted, if that is over the limit."""
        if self.taken + size > self._limit:
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        """Take bytes off."""
        self.taken -= size


class Ring:
    """Memory that this end writes payloads into, for its peer to read; slots are freed in the order they were taken.

    Args:
        budget: counts the memory.

    Attributes:
        freed: the number of slots that were taken and are free again.

    Raises:
        OSError: the system gives none, or has not many file descriptors left.
    """

    def __init__(self, budget: RingBudget) -> None:
        import fcntl
        import mmap
        import resource

        import numpy as np

        self._budget = budget
        self._slots: deque[tuple[int, int]] = deque()
        self._touched = FIRST
        self._maker = os.getpid()
        self._fd = -1
        self.freed = 0
        fd = _memory_file()
        try:
            if fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
                raise OSError("half of the file descriptors are in use")
            os.ftruncate(fd, RING_SIZE)
            os.posix_fallocate(fd, 0, FIRST)
            self._map = mmap.mmap(fd, RING_SIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._nonce = os.urandom(_NONCE_SIZE)
        self._map[:_NONCE_SIZE] = self._nonce
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._count = np.frombuffer(self._map, np.uint64, 1, _COUNT_AT)

    @property
    def description(self) -> dict[str, Any]:
        """What the peer needs to find the ring (`shm` of `rpc.hello`)."""
        return {"pid": self._maker, "fd": self._fd, "size": RING_SIZE, "nonce": self._nonce.hex()}

    @property
    def is_usable(self) -> bool:
        """Whether it is this process that has made it, and not one that was forked from that."""
        return self._maker == os.getpid()

    def publish(self, count: int) -> None:
        """Tell the peer how many of its payloads were read, and one more."""
        self._count[0] = count

    def place(self, payload: Any) -> int | None:
        """Copy a payload into the next slot; gives where that begins, or None if there is no room for it now."""
        import numpy as np

        size = len(payload)
        start = self._free_slot(size)
        if start is None or not self._take_memory(start + size):
            return None
        self._bytes[start : start + size] = np.frombuffer(payload, np.uint8)
        self._slots.append((start, start + size))
        return start

    def take_back(self, count: int) -> None:
        """Free the slots that were taken last, whose message is not sent."""
        for _ in range(count):
            self._slots.pop()

    def free(self, freed: int) -> bool:
        """Free the first slots, until so many were freed in all; False if that is no number that a peer can say."""
        if not self.freed <= freed <= self.freed + len(self._slots):
            return False
        while self.freed < freed:
            self._slots.popleft()
            self.freed += 1
        return True

    def release(self) -> bool:
        """Give the memory of the slots back to the system; False if some are in use."""
        import mmap

        if self._slots or not self.is_usable:
            return False
        if self._touched > FIRST:
            try:
                self._map.madvise(mmap.MADV_REMOVE, FIRST, self._touched - FIRST)
            except OSError:  # a system that cannot
                return True
            self._give_back()
        return True

    def close(self) -> None:
        """Give up the ring; its memory is free when the peer has given it up, too."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.release()
            self._give_back()
            # No view of the map is given out: it ends with these.
            del self._bytes, self._count, self._map
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _give_back(self) -> None:
        self._budget.give_back(self._touched - FIRST)
        self._touched = FIRST

    def _free_slot(self, size: int) -> int | None:
        """Where a slot of so many bytes can begin."""
        if not self._slots:
            return FIRST if size <= RING_SIZE - FIRST else None  # where the caches have it
        tail, head = self._slots[0][0], -(-self._slots[-1][1] // ALIGNMENT) * ALIGNMENT
        if self._slots[-1][1] > tail:
            if size <= RING_SIZE - head:
                return head
            head = FIRST
        return head if size <= tail - head else None

    def _take_memory(self, end: int) -> bool:
        """Have the system give memory up to this place now: a write without would end the process if there is none."""
        if end <= self._touched:
            return True
        end = min(-(-end // _STEP) * _STEP, RING_SIZE)
        if not self._budget.take(end - self._touched):
            return False
        try:
            os.posix_fallocate(self._fd, self._touched, end - self._touched)
        except OSError:
            self._budget.give_back(end - self._touched)
            return False
        self._touched = end
        return True


class SharedMemory:
    """The rings of one connection: this end's, and the peer's (`wire.messages.SharedPayloads`).

    The client calls `offer`, then `accept` with the server's answer; the server calls `answer`.

    Args:
        sock: the connected socket.
        budget: counts the memory of the rings; None: one that is bounded by the size of the two rings alone.

    Attributes:
        ring: this end's; None: it has none.
        placed: the number of payloads that were put into the ring by the last `place`.
        received: the number of payloads that were taken from the ring of the peer.
    """

    __slots__ = (
        "_budget",
        "_lock",
        "_peer",
        "_peer_count",
        "_peer_fd",
        "_sock",
        "_unpublished",
        "placed",
        "received",
        "ring",
    )

    def __init__(self, sock: Any, budget: RingBudget | None = None) -> None:
        self._sock: Any = sock
        self._budget = RingBudget(2 * RING_SIZE) if budget is None else budget
        self.ring: Ring | None = None
        #: The peer's ring, its file, and the count in it; None where that is not known.
        self._peer: Any = None
        self._peer_fd = -1
        self._peer_count: Any = None
        self.received = self.placed = 0
        #: Bytes of payloads that were taken from the peer's ring, of which it was not told yet.
        self._unpublished = 0
        self._lock = Lock()

    # -- which ring the peer has ----------------------------------------------------------------------------------

    def offer(self) -> dict[str, Any] | None:
        """Make this end's ring; gives what the peer needs to find it. None where none can be: also the second time."""
        sock, self._sock = self._sock, None
        if sock is None or sys.platform != "linux" or not is_same_user(sock):
            return None
        try:
            self.ring = Ring(self._budget)
        except OSError as error:
            _note(str(error))
            return None
        return self.ring.description

    def accept(self, description: Any) -> bool:
        """Take the ring that the peer has described; False, and this end's is given up, if it is none that we read."""
        if self.ring is None or self._peer is not None:
            return False
        try:
            peer, count, fd = _open_ring(description)
            if not self._budget.take(len(peer)):
                os.close(fd)
                raise ValueError("there is no room for the ring of the peer (max_held_total)")
            self._peer, self._peer_count, self._peer_fd = peer, count, fd
        except (OSError, ValueError) as error:
            if description is not None:
                _note(str(error))
            self.close()
            return False
        self.ring.publish(1)
        return True

    def answer(self, description: Any) -> dict[str, Any] | None:
        """Take the ring that the peer offers; gives what it needs to find this end's. None: there is neither."""
        if description is None:
            return None
        own = self.offer()
        return own if own is not None and self.accept(description) else None

    # -- sending --------------------------------------------------------------------------------------------------

    def place(self, payloads: Sequence[Any]) -> list[int | None]:
        """Copy the large ones of these payloads into the ring, for a message that is sent at once.

        Returns:
            Where each stands; None for one that is to be sent behind its message.
        """
        self.placed = 0
        offsets: list[int | None] = [None] * len(payloads)
        ring = self.ring
        if ring is None or not self._has_room(ring):
            return offsets
        for number, payload in enumerate(payloads):
            if len(payload) >= SHARED_MIN and (start := ring.place(payload)) is not None:
                offsets[number] = start
                self.placed += 1
        return offsets

    def take_back(self) -> None:
        """Free what `place` has taken last: nothing of its message was sent."""
        if self.ring is not None:
            self.ring.take_back(self.placed)
        self.placed = 0

    def _has_room(self, ring: Ring) -> bool:
        """Free what the peer has read; False if it has not taken the ring, or says what cannot be."""
        if self._peer_count is None or not ring.is_usable:
            return False
        count = int(self._peer_count[0])
        if not count:
            return False
        if not ring.free(count - 1):
            _note("the count of the peer is wrong")
            self._peer_count = None
            return False
        return True

    # -- receiving ------------------------------------------------------------------------------------------------

    def holds(self, places: Sequence[tuple[int, int]]) -> bool:
        """Whether payloads may stand there in the peer's ring, of one message: an offset and a size each.

        All that came with one read, before `publish`, is no more than the ring: else a peer that names one place again
        and again would have memory taken for each. The places have no holes: reading these takes memory.
        """
        if self._peer is None:
            return False
        end = len(self._peer)
        if self._unpublished + sum([size for _, size in places]) > end:
            return False
        return all(
            start >= FIRST
            and not start % ALIGNMENT
            and start + size <= end
            and os.lseek(self._peer_fd, start, os.SEEK_HOLE) >= start + size
            for start, size in places
        )

    def read(self, offset: int, memory: memoryview) -> None:
        """Copy a payload out, for which `holds` was true."""
        import numpy as np

        np.frombuffer(memory, np.uint8)[:] = self._peer[offset : offset + len(memory)]

    def count_read(self, places: Sequence[tuple[int, int]]) -> None:
        """The payloads of one message were read, or will not be."""
        self.received += len(places)
        self._unpublished += sum([size for _, size in places])

    def publish(self) -> None:
        """Tell the peer how many of its payloads were read, when what came with one read of the socket was."""
        if self._unpublished and self.ring is not None:
            self._unpublished = 0
            self._end_reads()
            self.ring.publish(1 + self.received)

    def _end_reads(self) -> None:
        """End all reads so far before anything is written, also on processors that exchange the two (arm64)."""
        # No read is put off behind a lock's release, and no write goes ahead of the lock's being taken after that.
        for _ in range(2):
            with self._lock:
                pass

    # -- the end --------------------------------------------------------------------------------------------------

    def release_idle(self) -> bool:
        """Give back the memory of the ring; False if the peer has not read all of it."""
        ring = self.ring
        if ring is None:
            return True
        return self._has_room(ring) and ring.release()

    def close(self) -> None:
        """Give up both rings. Harmless at any time."""
        ring, self.ring, self._sock = self.ring, None, None
        if ring is not None:
            if self._peer_count is not None:
                self._has_room(ring)
            ring.close()
        if self._peer is not None:
            self._budget.give_back(len(self._peer))
        self._peer = self._peer_count = None
        fd, self._peer_fd = self._peer_fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_peer_fd", -1) >= 0:
            self.close()


def _note(reason: str) -> None:
    get_logger("rpcstream.wire").debug("payloads are not sent by shared memory: %s", reason)


def _memory_file() -> int:
    """A file in memory, which can be sealed; gives its descriptor. OSError if the system gives none."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("rpcstream", flags | _NOEXEC_SEAL)
    except OSError:  # an older system
        return os.memfd_create("rpcstream", flags)


def _open_ring(description: Any) -> tuple[Any, Any, int]:
    """The ring that a peer has described, to be read: all of it, the count in it, and its file.

    Raises:
        OSError, ValueError: it is not as it should be.
    """
    path, size, nonce = _checked(description)
    # Opened as a path first: that has no effect, whatever it is.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(place)
        name = f"/proc/self/fd/{place}"
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != size:
            raise ValueError("the ring of the peer is no file of its size and of this user")
        if not os.readlink(name).startswith("/memfd:"):
            raise ValueError("the ring of the peer is no file in memory")
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place)
    try:
        return *_mapped(fd, size, nonce), fd
    except BaseException:
        os.close(fd)
        raise


def _checked(description: Any) -> tuple[str, int, bytes]:
    """The path, the size and the nonce of the ring that a peer has described. ValueError if these make no sense."""
    given = description if type(description) is dict else {}
    pid, fd, size = (_whole(given.get(name)) for name in ("pid", "fd", "size"))
    nonce = given.get("nonce")
    if type(nonce) is not str or len(nonce) != 2 * _NONCE_SIZE or not nonce.isascii() or not nonce.isalnum():
        raise ValueError("the peer gives no nonce")
    if not FIRST < size <= RING_SIZE or size % FIRST:
        raise ValueError("the ring of the peer has no size that a ring may have")
    return f"/proc/{pid}/fd/{fd}", size, bytes.fromhex(nonce)


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError("the peer describes no ring")
    return number


def _mapped(fd: int, size: int, nonce: bytes) -> tuple[Any, Any]:
    """The whole of a ring, and its count, if it is sealed and has this nonce; else ValueError."""
    import fcntl
    import mmap

    import numpy as np

    wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted != wanted:
        raise ValueError("the ring of the peer is not sealed")
    # Sealed: from here on its size does not change.
    if os.fstat(fd).st_size != size or os.pread(fd, _NONCE_SIZE, 0) != nonce:
        raise ValueError("the ring of the peer is another one than it says")
    mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    return np.frombuffer(mapped, np.uint8), np.frombuffer(mapped, np.uint64, 1, _COUNT_AT)
