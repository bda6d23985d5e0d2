"""The places for connections in the pool of an async client: each makes its connection, and makes it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from ..backoff import MANY, Backoff
from ..errors import ConnectFailed, RpcError
from ..peer.deadline import free_context
from ..text import get_logger
from .address import Address
from .attempts import is_permanent
from .connect import certificate_fault
from .connection import ClientConnection, retrieve_exception

log = get_logger("rpcstream.client")

#: Seconds after which a connection counts as a good one: the next pause before connecting is a short one again.
STABLE = 0.5


class Slot:
    """One place for a connection in the pool; the connection may be missing, or still being made.

    Args:
        name: of the server, or servers, for errors and logs.
        reconnect: the pauses of a connection that is kept open; None: the connection is made when a call needs it.
        make: makes and greets a connection to this server; None: to the first one that can be reached.
        set_state: is told each new state of this slot.
        was_lost: is told of each connection that was lost.
        address: the only server that it connects to; None for the first one that can be reached.

    Attributes:
        connecting: the task of the present attempt to connect, which begins with the pause before it.
        error: why the last attempt failed; None after a good one.
    """

    def __init__(
        self,
        name: str,
        reconnect: Backoff | None,
        make: Callable[[Slot], Coroutine[Any, Any, ClientConnection]],
        set_state: Callable[[str, Slot], object],
        was_lost: Callable[[ClientConnection], object],
        address: Address | None = None,
    ) -> None:
        self.address = address
        self.reconnect = reconnect
        self.connection: ClientConnection | None = None
        self.connecting: asyncio.Task[ClientConnection] | None = None
        self.error: ConnectFailed | RpcError | None = None
        self._name = name
        self._make = make
        self._set_state = set_state
        self._was_lost = was_lost
        #: Attempts since the last good connection that failed, or whose connection was soon lost.
        self._failures = 0
        #: When the connection was made (loop time).
        self._since = 0.0
        #: Ends the pause before the next attempt.
        self._hurried: asyncio.Future[None] | None = None

    @property
    def load(self) -> int:
        """Calls that wait for their reply on this connection."""
        return 0 if self.connection is None else len(self.connection.session.pending)

    @property
    def is_open(self) -> bool:
        """The connection is there and open."""
        return self.connection is not None and self.connection.is_open

    async def open(self, loop: asyncio.AbstractEventLoop, *, once: bool) -> ClientConnection:
        """Wait for the connection, which is made if it is missing. It may have been lost again meanwhile.

        Args:
            loop: the running event loop.
            once: wait for one attempt, which begins now. Otherwise, with `reconnect`, wait until an attempt succeeds.

        Raises:
            ConnectFailed, NotAuthenticated, NotPermitted, ServerBusy: the attempt failed.
        """
        while True:
            connection = self.connection
            if connection is not None and connection.is_open and connection.loop is loop:
                return connection
            attempt = self.begin(loop)
            if self.reconnect is not None and self.error is not None and is_permanent(self.error):
                raise self.error
            if once:
                self._end_pause()
            await asyncio.wait([attempt])
            if attempt.cancelled():
                raise ConnectFailed("the client was closed", address=self._name)
            error = attempt.exception()
            if error is None:
                return attempt.result()
            if once or self.reconnect is None or not isinstance(error, Exception) or is_permanent(error):
                raise error

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[ClientConnection]:
        """Start an attempt to make the connection, unless one is under way; gives its task."""
        attempt = self.connecting
        if attempt is None or attempt.get_loop() is not loop:
            # In a context without the deadline of the call that wants it first: others use the connection, too.
            attempt = self.connecting = loop.create_task(self._connect(loop), context=free_context())
            attempt.add_done_callback(retrieve_exception)
        return attempt

    async def close(self) -> None:
        """Make no connection any more. The present one stays open."""
        self.reconnect = None
        if self.connecting is not None and self.connecting.get_loop() is asyncio.get_running_loop():
            self.connecting.cancel()
            await asyncio.wait([self.connecting])

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> ClientConnection:
        """Make the connection, after a pause if that has failed before."""
        try:
            await self._pause(loop)
            self._set_state("connecting", self)
            connection = await self._make(self)
        except (ConnectFailed, RpcError) as error:
            self._failed(error, loop)
            raise
        self.connecting = self.error = None
        self.connection, self._since = connection, loop.time()
        self._set_state("connected", self)
        lost = partial(self._lost, connection)
        if connection.is_open:
            connection.session.on_end = lost
        else:
            lost()
        return connection

    async def _pause(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pause before an attempt that follows a failed one, until a call wants it `once`.

        After a permanent fault the pause is a long one, and no call ends it: the next attempt would fail as well.
        """
        if self.reconnect is None or not self._failures:
            return
        self._set_state("waiting", self)
        seconds = self.reconnect.pause(MANY if self.error is not None and is_permanent(self.error) else self._failures)
        self._hurried = loop.create_future()
        await asyncio.wait([self._hurried], timeout=seconds)

    def _end_pause(self) -> None:
        if self._hurried is not None and not self._hurried.done():
            self._hurried.set_result(None)

    def _failed(self, error: ConnectFailed | RpcError, loop: asyncio.AbstractEventLoop) -> None:
        """Note why an attempt failed, and make the next one with `reconnect`."""
        if not is_permanent(error):
            log.info("%s", error)
        elif self.reconnect is not None and str(error) != str(self.error):
            advice = "Calls fail with this error; the next attempt is made in"
            log.warning("no connection to %s: %s. %s %.0f s", self._name, error, advice, self.reconnect.longest)
        self.error = error
        self._failures += 1
        self._again(loop)

    def _lost(self, connection: ClientConnection) -> None:
        """The connection is over: make it again with `reconnect`."""
        if self.connection is not connection:
            return
        self._was_lost(connection)
        # A connection that was lost soon counts as a failed attempt, unless it was of use, or the server has said that
        # it stops.
        session, now = connection.session, connection.loop.time()
        if session.peer_is_leaving or session.intake.last_id is not None or now - self._since > STABLE:
            self._failures = 0
        fault = certificate_fault(connection.reason, self._name)
        if fault is not None and self.reconnect is not None:
            self._failed(fault, connection.loop)
        else:
            self._failures += 1
            self._again(connection.loop)

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the next attempt with `reconnect`; otherwise the next call makes one, without a pause."""
        self.connecting = None
        if self.reconnect is None or loop.is_closed():
            self._set_state("idle", self)
        else:
            self.begin(loop)


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The slot with the fewest waiting calls, an open one first: another connection is made when all are busy.

    Where each slot has its own server, a call never waits for a server that is not there while another one is.
    """
    return min(slots, key=lambda slot: (slot.address is not None and not slot.is_open, slot.load, not slot.is_open))
