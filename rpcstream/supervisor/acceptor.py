"""Accepts connections at the sockets of a supervisor, and gives each to the worker with the fewest.

While no worker runs, connections wait in the queue of the system.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..transports.accept import BoundAddress, ListeningSocket, listen_at
from ..transports.open_connections import MAX_REFUSED
from .process import WorkerProcess

log = get_logger("rpcstream.supervisor")

#: Connections that may wait for a slow worker, besides the hundreds in the buffer of its channel. More go to other
#: workers, and then wait in the queue of the system.
WAITING_MAX = 256


class SharedAcceptor:
    """Accepts the connections of several workers, and gives each to the one that has the fewest.

    Args:
        workers: returns the workers that take connections now.
        total: returns the number of connections of all workers, including those that take no new ones.

    Attributes:
        max_connections: of all workers together. A worker refuses further ones with an error.
        bound: the addresses that it listens at.
        pauses: how often accepting has paused because the system gave no connection.
    """

    def __init__(self, workers: Callable[[], Iterable[WorkerProcess]], total: Callable[[], int]) -> None:
        self._workers = workers
        self._total = total
        self.max_connections = 0  # until a worker has told
        self.bound: list[BoundAddress] = []
        self.pauses = 0
        self._sockets: list[tuple[BoundAddress, ListeningSocket]] = []
        #: Numbers the connections, for `WorkerProcess.last_given`.
        self._turns = count(1)
        #: Connections that a worker gave back when no other one ran; they go first.
        self._given_back: deque[tuple[int, str | None, bool]] = deque()
        self._shortages = LimitedLog(log, each=1)
        self._is_started = self._is_reading = False

    @property
    def addresses(self) -> list[str]:
        """Where connections are accepted, as addresses for clients."""
        return [bound.address for bound in self.bound]

    @property
    def hosts(self) -> list[str | None]:
        """The host of each address; None for a Unix socket."""
        return [bound.host for bound in self.bound]

    async def listen(self, where: dict[str, Any]) -> None:
        """Listen there; connections wait until `start`.

        Args:
            where: the arguments of `listen_at`.

        Raises:
            OSError, ValueError: as `listen_at`.
        """
        bound = await listen_at(**where)
        self.bound += bound
        self._sockets += [
            (each, ListeningSocket(sock, partial(self._take, each.host), self._has_no_room))
            for each in bound
            for sock in each.sockets
        ]

    def start(self) -> None:
        """Accept connections from now on, while there are workers for them."""
        self._is_started = True
        self.refresh()

    def stop(self) -> None:
        """Pass on the waiting connections, then close the listening sockets.

        At sockets that others have bound, waiting connections are left for the next program.
        """
        for bound, listening in self._sockets:
            if listening.is_reading and not bound.is_shared:
                listening.accept()
        self._is_started = False
        self.refresh()
        for _, listening in self._sockets:
            listening.close()
        self._sockets.clear()
        while self._given_back:
            os.close(self._given_back.popleft()[0])
        for bound in self.bound:
            bound.remove_file()
        self.bound.clear()

    def refresh(self) -> None:
        """Begin or stop accepting, after the workers or the numbers of their connections have changed."""
        while self._given_back and self._choose() is not None:
            descriptor, host, is_over = self._given_back.popleft()
            self.give(descriptor, host, is_over=is_over)
        should_read = self._is_started and self._may_accept()
        if should_read != self._is_reading:
            self._is_reading = should_read
            for _, listening in self._sockets:
                listening.reads(should_read)

    def give(self, descriptor: int, host: str | None, *, is_over: bool) -> None:
        """Give a connection to the worker that has the fewest, or keep it until there is one."""
        worker = self._choose()
        if worker is None:
            self._given_back.append((descriptor, host, is_over))
            return
        worker.last_given = next(self._turns)
        worker.give(descriptor, host, is_over=is_over)

    def _choose(self) -> WorkerProcess | None:
        able = [each for each in self._workers() if each.waiting < WAITING_MAX]
        return min(able, key=lambda each: (each.open, each.last_given), default=None)

    def _may_accept(self) -> bool:
        # Connections over the limit are told so, one after the other.
        return self._total() <= self.max_connections + MAX_REFUSED and self._choose() is not None

    def _take(self, host: str | None, conn: socket.socket, address: Any) -> None:
        self.give(conn.detach(), host, is_over=self._total() >= self.max_connections)
        self.refresh()

    def _has_no_room(self, error: OSError) -> bool:
        self.pauses += 1
        text = "cannot accept connections at present: %s. Open connections are served."
        self._shortages.warning(None, text, error.strerror or error)
        return False
