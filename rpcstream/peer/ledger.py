"""What messages and calls take: charged before the work starts, given back at its end.

A server has one `ServerLedger`, and each connection a `ConnectionLedger`. Where there is no room, work waits, or it is
refused with an error that names the option.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..codec import payloads
from ..codec.attachments import SharedLine
from ..errors import ServerBusy
from ..limits import Limits
from ..wire.json_scan import values_roughly

#: Bytes of memory for each value of a parsed message (as `wire.json_scan` counts them): measured, a little more than
#: what short strings in objects take, which take most.
A_VALUE = 64

#: Bytes of a message from which on its memory is counted while its call runs. Shorter ones are bounded by `max_calls`.
COUNTED = 1024

#: Bytes that have come of a message from which on they are counted: more than most systems give with one read.
PARTLY = 256 * 1024

_REASONS = {
    "max_calls": "as many calls of this connection run as may (max_calls)",
    "max_held_size": "the running calls of this connection hold more memory than an eighth of max_held_total",
    "max_held_total": "the messages of all callers take too many bytes of memory (max_held_total)",
}


@dataclass(slots=True, eq=False)
class Account:
    """Counts bytes against a limit. Whoever takes some gives them back."""

    limit: int
    used: int = 0

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return self.limit - self.used

    def take(self, size: int) -> bool:
        """Count bytes; False, and nothing is counted, if there is no room for them beside others."""
        if self.used + size > self.limit and self.used:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Take bytes off."""
        self.used -= size


@dataclass(slots=True, eq=False)
class Share:
    """What one holder has of an account. While no other has any, there is room in any case."""

    account: Account
    size: int = 0

    def take(self, size: int) -> bool:
        """Count bytes; False, and nothing is counted, if there is no room for them."""
        account = self.account
        if account.used + size > account.limit and account.used > self.size:
            return False
        account.used += size
        self.size += size
        return True

    def give_back(self, size: int) -> None:
        """Take bytes off."""
        self.account.used -= size
        self.size -= size


@dataclass(slots=True, eq=False)
class Shares(Account):
    """An account that knows how much each holder has. Over the limit, the one with most has to give way."""

    _sizes: dict[Any, int] = field(default_factory=dict)

    @property
    def largest(self) -> Any:
        """The holder that has most."""
        return max(self._sizes, key=self._sizes.__getitem__)

    @property
    def holders(self) -> list[Any]:
        """All that have some."""
        return list(self._sizes)

    def set(self, holder: Any, size: int) -> None:
        """Say how much a holder has now; 0 if nothing."""
        self.used += size - self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size


class ServerLedger:
    """The memory of the messages of a whole server.

    Args:
        limit: bytes for messages (`max_held_total`).

    Attributes:
        running: messages whose calls run, as far as they are counted.
        waiting: messages that wait for room or have come in part, and items of streams that wait.
        frames: the binary frames among these which are being received (`FrameAdmission`).
        unread: what each peer with much to read has not read; as much again.
        shared: the memory of peers that is mapped here; as much again.
    """

    __slots__ = ("frames", "limit", "running", "shared", "unread", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = Account(limit // 2)
        self.waiting = Account(limit // 2)
        self.frames = Shares(limit // 2)
        self.unread = Shares(limit)
        self.shared = Account(limit)

    @property
    def is_full(self) -> bool:
        """No call of a long message may begin; with nothing at work one always may, however long it is."""
        return self.running.used >= self.running.limit

    def refusal(self) -> ServerBusy:
        """The error for a message that the server has no memory for."""
        return busy(self.limit, "max_held_total")


class ConnectionLedger:
    """What the calls and the requests of one connection take.

    Args:
        limits: `max_calls`, `write_buffer` and `max_message_size` bound it.
        server: where long messages count as well.

    Attributes:
        calls: the calls that run; a batch counts with each member.
        held: bytes of memory that the messages of these take, those of small messages not counted.
        waiting: bytes of memory that the requests that wait take.
        collected: bytes of items of generators that are collected into replies.
        can_pause: the transport reads nothing while it is paused. Otherwise each request that waits is counted at the
            server, and those over the limit are refused.
    """

    __slots__ = ("_limits", "_share", "calls", "can_pause", "collected", "held", "server", "waiting")

    def __init__(self, limits: Limits, server: ServerLedger) -> None:
        self._limits = limits
        self.server = server
        self.calls = self.held = self.waiting = self.collected = 0
        self.can_pause = True
        #: The part of `waiting` that counts at the server.
        self._share = Share(server.waiting)

    @property
    def has_room(self) -> bool:
        """Whether another call may begin."""
        return self.calls < self._limits.max_calls and self.held < self._limits.max_held_size

    def refusal(self) -> ServerBusy:
        """The error for a request for which there is no room."""
        if self.calls < self._limits.max_calls and self.held >= self._limits.max_held_size:
            return busy(self._limits.max_held_size, "max_held_size")
        return busy(self._limits.max_calls, "max_calls")

    def hold(self, size: int) -> None:
        """Count the memory of a message whose call runs; a negative size takes it off."""
        self.held += size
        self.server.running.used += size

    def is_full(self, requests: int) -> bool:
        """As many requests wait as one connection may have calls, or they take as many bytes as replies may."""
        return requests >= self._limits.max_calls or self.waiting > self._limits.write_buffer

    def is_over(self, requests: int, *, must_read: bool, stalled: bool) -> bool:
        """No more requests may be kept of a connection that has to be read, or that cannot be paused.

        Two ends that send each other many long messages and do not read (`stalled`) must each hold some of the other's.
        """
        if not must_read:
            return not self.can_pause and self.waiting > self._limits.max_held_size
        most = self._limits.write_buffer + self._limits.max_message_size
        return self.waiting > most or (not stalled and requests >= self._limits.max_calls)

    def wait(self, size: int) -> bool:
        """Count the memory of a request that is to wait; False if the server has no room for it."""
        if (size >= COUNTED or not self.can_pause) and not self._share.take(size):
            return False
        self.waiting += size
        return True

    def take_up(self, size: int) -> None:
        """Take a request off that waits no longer."""
        self.waiting -= size
        if size >= COUNTED or not self.can_pause:
            self._share.give_back(size)


@dataclass(slots=True, eq=False)
class WriteGate:
    """Backpressure on what one connection sends: open while the peer reads and not too much is to be written.

    Those that wait go on one by one, in the order in which they came, and may send one message each, also if another
    has filled the connection again meanwhile: so none waits for ever.

    Args:
        max_unsent: bytes that may wait for the end of the turn.

    Attributes:
        stalled: the peer does not read what is sent.
        unsent: bytes that were sent in this turn of the loop and not yet handed to the transport.
        waiting: what is called for those that wait, in order; None until there was one.
    """

    _max_unsent: int
    stalled: bool = False
    unsent: int = 0
    waiting: deque[Callable[[], object]] | None = None
    _is_due: bool = False

    @property
    def is_open(self) -> bool:
        """More may be sent now."""
        return not self.stalled and self.unsent <= self._max_unsent

    def set_stalled(self, stalled: bool) -> None:
        """The peer does not read (or reads again, or is gone)."""
        self.stalled = stalled
        self._admit_soon()

    def written(self) -> None:
        """All that was sent in this turn is handed to the transport, or will never be."""
        self.unsent = 0
        self._admit_soon()

    async def wait(self) -> None:
        """Wait until the gate is open and it is this caller's turn; then one message may be sent."""
        waiter = asyncio.get_running_loop().create_future()
        self.when_open(lambda: None if waiter.done() else waiter.set_result(None))
        await waiter

    def when_open(self, function: Callable[[], object]) -> None:
        """Call this once, as soon as `wait` would end."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(function)
        self._admit_soon()

    def _admit_soon(self) -> None:
        if self.waiting and self.is_open and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        """Let the next one go on; what it sends is seen before the one behind it has its turn."""
        self._is_due = False
        if self.waiting and self.is_open:
            function = self.waiting.popleft()
            try:
                function()
            finally:
                self._admit_soon()


class Reception:
    """Counts the bytes that have come of the message that one connection is receiving."""

    __slots__ = ("_share",)

    def __init__(self, ledger: ServerLedger) -> None:
        self._share = Share(ledger.waiting)

    @property
    def limit(self) -> int:
        """Bytes that may wait in all."""
        return self._share.account.limit

    def grow(self, size: int) -> bool:
        """Say how many bytes of it have come; False if there is no room for them: they are to be dropped."""
        return size < PARTLY or self._share.take(size - self._share.size)

    def over(self) -> None:
        """The message is complete, or was dropped."""
        self._share.give_back(self._share.size)


def busy(limit: int, name: str) -> ServerBusy:
    """The error for a request for which there is no room.

    Args:
        limit: the value of the limit that is reached.
        name: its name in `Limits`.
    """
    return ServerBusy(data={"limit": limit, "reason": _REASONS[name]})


def counted_size(line: bytes | bytearray) -> int:
    """Bytes of memory that a message takes at most while its call runs: its values, its strings, and the line itself.

    0 for a message that is too short to be counted. Text that is not all ASCII may take four bytes a character.
    """
    size = len(line)
    if size < COUNTED and not isinstance(line, SharedLine):
        return 0
    a_byte = 2 if line.isascii() and b"\\u" not in line else 5
    return a_byte * size + A_VALUE * values_roughly(line) + payloads.size_with_payloads(line) - size
