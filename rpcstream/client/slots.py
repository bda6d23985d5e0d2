"""The places for connections in the pool of an async client: how each makes its connection, and makes it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..backoff import MANY, Backoff
from ..errors import ConnectFailed, RpcError
from ..peer.deadline import INFINITE, free_context
from ..text import get_logger
from .address import Address
from .attempts import WAITING, is_permanent
from .connect import certificate_fault
from .connection import ClientConnection

log = get_logger("rpcstream.client")

#: Seconds after which a connection counts as a good one: the next pause before connecting is a short one again.
STABLE = 0.5

#: Seconds after the loss of a good connection for which its server is likely to be restarting; and the longest pause
#: between attempts meanwhile, so that a program that others wait for is back soon.
RESTART_TIME, RESTART_PAUSE = 15.0, 1.0


class Slot:
    """One place for a connection in the pool; the connection may be missing, or still being made.

    Args:
        name: of the server, or servers, for errors and logs.
        reconnect: the pauses of a connection that is kept open; None: it is made when it is needed.
        make: makes and greets a connection to this server; None: to the first one that can be reached.
        set_state: is told each new state of this slot.
        was_lost: is told of each connection that was lost; gives whether it may be made again.
        address: the only server that it connects to; None for the first one that can be reached.

    Attributes:
        connecting: the task of the present attempt to connect, which begins with the pause before it.
        failures: attempts since the last good connection that failed, or whose connection was soon lost.
        error: why the last attempt failed.
        is_suspended: the next attempt is made after a long pause, since it would fail as well; calls fail meanwhile.
        waiting: how many calls wait for the connection for a limited time; its pauses are short meanwhile.
    """

    def __init__(
        self,
        name: str,
        reconnect: Backoff | None,
        make: Callable[[Address | None], Coroutine[Any, Any, ClientConnection]],
        set_state: Callable[[str, Slot], object],
        was_lost: Callable[[ClientConnection], bool],
        address: Address | None = None,
    ) -> None:
        self.address = address
        self.connection: ClientConnection | None = None
        self.connecting: asyncio.Task[ClientConnection] | None = None
        self.failures = 0
        self.error: ConnectFailed | RpcError | None = None
        self.is_suspended = False
        self.waiting = 0
        self._name = name
        self._reconnect = reconnect
        self._make = make
        self._set_state = set_state
        self._was_lost = was_lost
        self._is_closed = False
        #: When the connection was made, and when a good one was lost (loop time).
        self._since, self._lost_good = 0.0, -INFINITE
        #: Done when a call begins to wait while the slot pauses.
        self._wanted: asyncio.Future[None] | None = None
        #: The permanent fault that was logged last, so that it is not logged for each attempt.
        self._logged_fault: str | None = None

    @property
    def load(self) -> int:
        """Calls that wait for their reply on this connection."""
        return 0 if self.connection is None else len(self.connection.session.pending)

    @property
    def is_open(self) -> bool:
        """The connection is there and open."""
        return self.connection is not None and self.connection.is_open

    def begin(self, loop: asyncio.AbstractEventLoop, *, is_next: bool = False) -> asyncio.Task[ClientConnection]:
        """Start an attempt to make the connection, unless one is under way; gives its task.

        Args:
            is_next: it follows another one that has failed.
        """
        attempt = self.connecting
        if attempt is None or attempt.get_loop() is not loop:
            # In a context without the deadline of the call that wants it first: others use the connection, too.
            attempt = self.connecting = loop.create_task(self._connect(is_next), context=free_context())
            attempt.add_done_callback(self._tried)
        return attempt

    def wait(self) -> None:
        """A call waits for the connection for a limited time: pause no longer than such calls do."""
        self.waiting += 1
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def close(self) -> None:
        """Make no connection any more. The present one stays open."""
        self._is_closed = True
        if self.connecting is not None and self.connecting.get_loop() is asyncio.get_running_loop():
            self.connecting.cancel()
            await asyncio.wait([self.connecting])

    async def _connect(self, is_next: bool) -> ClientConnection:
        """Make the connection, after a pause if that has failed before."""
        pauses = self._reconnect or WAITING
        if self.is_suspended:
            await self._suspend(pauses.pause(MANY))
        elif self.failures and (is_next or self._reconnect is not None):
            self._set_state("waiting", self)
            await self._rest(pauses.pause(self.failures), pauses.first)
        self._set_state("connecting", self)
        connection = await self._make(self.address)
        while self.address is not None and replace(connection.server, others=()) != self.address:
            connection.abort("this place is for another server since the attempt began (spread)")
            connection = await self._make(self.address)
        self.connecting = self.error = self._logged_fault = None
        self.connection, self._since = connection, connection.loop.time()
        self._set_state("connected", self)
        lost = partial(self._lost, connection)
        if connection.is_open:
            connection.session.on_end = lost
        else:
            lost()
        return connection

    def _tried(self, attempt: asyncio.Task[ClientConnection]) -> None:
        """After an attempt that failed, begin the next one if the client reconnects, or calls wait."""
        if self.connecting is not attempt:
            return
        self.connecting = None
        error = None if attempt.cancelled() else attempt.exception()
        if self._is_closed or not isinstance(error, ConnectFailed | RpcError):
            return
        self.error = error
        self.failures += 1
        reconnects = self._reconnect is not None
        self.is_suspended = reconnects and is_permanent(error)
        if reconnects or (self.waiting and not is_permanent(error)):
            log.info("%s; trying again", error)
            self.begin(attempt.get_loop(), is_next=True)
        else:
            self._set_state("idle", self)

    def _lost(self, connection: ClientConnection) -> None:
        """The connection is over: make it again with `reconnect`."""
        if self._is_closed or self.connection is not connection:
            return
        may_return = self._was_lost(connection)
        # A connection that was lost soon counts as a failed attempt, unless it was of use, or the server has said that
        # it stops.
        session, now = connection.session, connection.loop.time()
        if session.peer_is_leaving or session.intake.last_id is not None or now - self._since > STABLE:
            self.failures, self._lost_good = 1, now
        else:
            self.failures += 1
        if self._reconnect is None or not may_return or connection.loop.is_closed():
            self._set_state("idle", self)
            return
        fault = certificate_fault(connection.reason, self._name)
        if fault is not None:
            self.error, self.is_suspended = fault, True
        self.begin(connection.loop)

    async def _suspend(self, pause: float) -> None:
        """Make no attempt for a while, since the next one would fail as well; calls fail at once meanwhile."""
        self.failures = 0
        self._set_state("waiting", self)
        text = str(self.error)
        if text != self._logged_fault:
            self._logged_fault = text
            advice = "Calls fail with this error; the next attempt is made in"
            log.warning("no connection to %s: %s. %s %.0f s", self._name, text, advice, pause)
        await asyncio.sleep(pause)
        self.is_suspended = False

    async def _rest(self, seconds: float, least: float) -> None:
        """Pause before the next attempt; not for so long while a restart is likely, or calls wait (`waiting`).

        Args:
            seconds: the pause otherwise.
            least: no pause needs to be shorter, unless calls wait.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + seconds
        if now < self._lost_good + RESTART_TIME:
            end = min(end, now + max(RESTART_PAUSE, least))
        short = min(WAITING.pause(self.failures), end - now)
        self._wanted = loop.create_future()
        if not self.waiting:
            await asyncio.wait([self._wanted], timeout=end - now)
        await asyncio.sleep(min(end, now + short) - loop.time())


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The slot with the fewest waiting calls, an open one first: another connection is made when all are busy.

    Where each slot has its own server, a call never waits for a server that is not there while another one is.
    """
    return min(slots, key=lambda slot: (slot.address is not None and not slot.is_open, slot.load, not slot.is_open))
