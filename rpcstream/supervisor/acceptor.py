"""Accepts connections at the sockets of a supervisor, and gives each to the worker with the fewest.

While no worker runs, connections wait in the queue of the system.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..transports.accept import BURST, OF_ONE_CONNECTION, PAUSE, BoundAddress, listen_at
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
        self._loop = asyncio.get_running_loop()
        self._workers = workers
        self._total = total
        self.max_connections = 0  # until a worker has told
        self.bound: list[BoundAddress] = []
        self.pauses = 0
        #: Numbers the connections, for `WorkerProcess.last_given`.
        self._turns = count(1)
        #: Connections that a worker gave back when no other one ran; they go first.
        self._given_back: deque[tuple[int, str | None, bool]] = deque()
        self._shortages = LimitedLog(log, each=1)
        self._pause: asyncio.TimerHandle | None = None
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
        self.bound += await listen_at(**where)

    def start(self) -> None:
        """Accept connections from now on, while there are workers for them."""
        self._is_started = True
        self.refresh()

    def stop(self) -> None:
        """Pass on the waiting connections, then close the listening sockets.

        At sockets that others have bound, waiting connections are left for the next program.
        """
        if self._is_started:
            for bound in self.bound:
                for sock in () if bound.is_shared else bound.sockets:
                    self._accept(sock, bound.host)
        self._is_started = False
        self.refresh()
        while self._given_back:
            os.close(self._given_back.popleft()[0])
        for bound in self.bound:
            for sock in bound.sockets:
                sock.close()
            bound.remove_file()
        self.bound.clear()

    def refresh(self) -> None:
        """Begin or stop accepting, after the workers or the numbers of their connections have changed."""
        while self._given_back and self._choose() is not None:
            descriptor, host, is_over = self._given_back.popleft()
            self.give(descriptor, host, is_over=is_over)
        should_read = self._is_started and self._pause is None and self._may_accept()
        if should_read == self._is_reading:
            return
        self._is_reading = should_read
        for bound in self.bound:
            for sock in bound.sockets:
                if should_read:
                    self._loop.add_reader(sock.fileno(), self._accept, sock, bound.host)
                else:
                    self._loop.remove_reader(sock.fileno())

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

    def _accept(self, sock: socket.socket, host: str | None) -> None:
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
                self.pauses += 1
                text = "no connection can be accepted for now: %s; those that are open are served"
                self._shortages.warning(None, text, error.strerror or error)
                self._pause = self._loop.call_later(PAUSE, self._resume)
                break
            self.give(conn.detach(), host, is_over=self._total() >= self.max_connections)
        self.refresh()

    def _resume(self) -> None:
        self._pause = None
        self.refresh()
