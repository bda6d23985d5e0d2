"""The listening sockets of a supervisor, and the choice of the worker that gets a connection.

Owns accepting, when there is no worker to accept for (connections wait in the system's queue then), and when the system
has no more descriptors. Knows of a worker how many connections it has, and how to pass it one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Protocol

from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..transports.accept import BURST, OF_ONE_CONNECTION, PAUSE, BoundAddress, listen_at, listen_at_sockets
from ..transports.open_connections import MAX_REFUSED

log = get_logger("rpcstream.supervisor")

#: Connections that wait for a worker which does not take them, beside the hundreds in the buffer of the channel; more
#: go to other workers, and then wait in the system's queue.
WAITING_MAX = 256


class Recipient(Protocol):
    """A worker that takes connections."""

    @property
    def open(self) -> int:
        """Its connections, those that are on their way to it among them."""

    @property
    def waiting(self) -> int:
        """Those of them that it has not taken."""

    def give(self, descriptor: int, at: int, *, is_over: bool) -> None:
        """Pass on a connection, which then belongs to it: from which address, and whether there is no room for it."""


class SharedAcceptor:
    """Accepts the connections of several workers, and gives each to the one that has the fewest.

    Args:
        recipients: gives the workers that take connections now.
        total: gives the number of connections of all workers, those that take no new ones among them.

    Attributes:
        max_connections: of all workers together. One more is passed on as such, to be told so.
        bound: the addresses that are listened at.
    """

    def __init__(self, recipients: Callable[[], Iterable[Recipient]], total: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._recipients = recipients
        self._total = total
        self.max_connections = 0
        self.bound: list[BoundAddress] = []
        #: When each worker was given its last connection; the one that has waited longest is first among equals.
        self._turns = count()
        #: Connections that were accepted, and for which there is no worker now: those that one did not take before it
        #: died. They go first.
        self._kept: deque[tuple[int, int, bool]] = deque()
        self._last: dict[Recipient, int] = {}
        self._shortages = LimitedLog(log, each=1)
        self._pause: asyncio.TimerHandle | None = None
        self._is_started = self._is_reading = False

    @property
    def addresses(self) -> list[str]:
        """Where connections are accepted, in the form that clients take."""
        return [bound.address for bound in self.bound]

    @property
    def hosts(self) -> list[str | None]:
        """The host of each address, which a connection names by its index."""
        return [bound.host for bound in self.bound]

    async def listen(self, where: dict[str, Any]) -> None:
        """Listen at one more address; connections wait until `start`.

        Raises:
            OSError: as `listen_at`.
        """
        self.bound.append(await listen_at(**where))

    def listen_at_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Listen at sockets that others have bound, and that stay theirs; connections wait until `start`.

        Raises:
            ValueError, OSError: as `accept.listen_at_sockets`.
        """
        self.bound += listen_at_sockets(sockets)

    def start(self) -> None:
        """Accept connections from now on, while there are workers for them."""
        self._is_started = True
        self.refresh()

    def stop(self) -> None:
        """Pass on the connections that wait, then close the listening sockets.

        At sockets of others connections are left for the next program that accepts there.
        """
        if self._is_started:
            for at, bound in enumerate(self.bound):
                for sock in () if bound.is_shared else bound.sockets:
                    self._accept(sock, at)
        self._is_started = False
        self.refresh()
        while self._kept:
            os.close(self._kept.popleft()[0])
        for bound in self.bound:
            for sock in bound.sockets:
                sock.close()
            bound.remove_file()
        self.bound.clear()

    def refresh(self) -> None:
        """Begin or stop accepting, after the workers or the numbers of their connections have changed."""
        while self._kept and self._choose() is not None:
            descriptor, at, is_over = self._kept.popleft()
            self.give(descriptor, at, is_over=is_over)
        should_read = self._is_started and self._pause is None and self._may_accept()
        if should_read == self._is_reading:
            return
        self._is_reading = should_read
        for at, bound in enumerate(self.bound):
            for sock in bound.sockets:
                if should_read:
                    self._loop.add_reader(sock.fileno(), self._accept, sock, at)
                else:
                    self._loop.remove_reader(sock.fileno())

    def give(self, descriptor: int, at: int, *, is_over: bool) -> None:
        """Give a connection to the worker that has the fewest, or keep it until there is one."""
        recipient = self._choose()
        if recipient is None:
            self._kept.append((descriptor, at, is_over))
            return
        self._last[recipient] = next(self._turns)
        recipient.give(descriptor, at, is_over=is_over)

    def forget(self, recipient: Recipient) -> None:
        """The worker is gone."""
        self._last.pop(recipient, None)

    def _choose(self) -> Recipient | None:
        last = self._last
        able = [each for each in self._recipients() if each.waiting < WAITING_MAX]
        return min(able, key=lambda each: (each.open, last.get(each, -1)), default=None)

    def _may_accept(self) -> bool:
        if self._total() > self.max_connections + MAX_REFUSED:
            return False  # those over the limit are told so, one after the other
        return any(each.waiting < WAITING_MAX for each in self._recipients())

    def _accept(self, sock: socket.socket, at: int) -> None:
        for _ in range(BURST):
            if not self._may_accept():
                break
            try:
                conn, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in OF_ONE_CONNECTION:
                    continue
                text = "no connection can be accepted for now: %s; those that are open are served"
                self._shortages.warning(None, text, error.strerror or error)
                self._pause = self._loop.call_later(PAUSE, self._resume)
                break
            self.give(conn.detach(), at, is_over=self._total() >= self.max_connections)
        self.refresh()

    def _resume(self) -> None:
        self._pause = None
        self.refresh()
