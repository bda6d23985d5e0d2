"""The life of a client that offers methods: it serves until it is stopped, then withdraws, finishes, and leaves."""

from __future__ import annotations

import asyncio
from time import perf_counter

from ..errors import RpcError
from ..process import join_names
from ..text import get_logger
from .connection import REFUSING
from .hub import HubRegistration
from .pool import ConnectionPool

log = get_logger("rpcstream.client")

#: Why a client reads no more requests on its connections.
LEAVING = "the client is stopping"

#: Seconds that the last replies have to leave when the time is up.
FAREWELL = 0.05


class ServingClient:
    """A client while it serves: what `process.stop_on_signals` stops (`Stoppable`).

    Args:
        pool: the connections of the client.
        registration: of the client at its hub.
        drain_timeout: seconds that calls in flight have to finish.
    """

    def __init__(self, pool: ConnectionPool, registration: HubRegistration, drain_timeout: float) -> None:
        if not drain_timeout >= 0:
            raise ValueError(f"drain_timeout must be a number of seconds, 0 or more, got {drain_timeout!r}")
        self.time_to_stop = drain_timeout + FAREWELL
        self.is_serving = False
        self._pool = pool
        self._registration = registration
        self._drain_timeout = drain_timeout
        self._stopping = asyncio.Event()
        self._aborted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop in an orderly way. To be called in the event loop."""
        self._stopping.set()

    def abort(self) -> None:
        """Leave at once. To be called in any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        self._aborted.set()
        self._stopping.set()

    async def serve(self) -> None:
        """Serve until `stop` is called, or the client is closed.

        Raises:
            ConnectionLost: there is no connection, and the client does not reconnect.
        """
        self._loop, self.is_serving = asyncio.get_running_loop(), True
        closed = asyncio.ensure_future(self._pool.wait_closed())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({closed, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                closed.result()
            else:
                await self._leave()
        finally:
            closed.cancel()
            stopping.cancel()
            self.is_serving = False

    async def _leave(self) -> None:
        aborted = asyncio.ensure_future(self._aborted.wait())
        leaving = asyncio.ensure_future(self._finish())
        try:
            await asyncio.wait({aborted, leaving}, timeout=self._drain_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not (leaving.done() or aborted.done()):
                names = join_names(sorted(self._pool.methods_at_work())) or "none"
                log.warning("leaving: calls had not finished in time; methods at work: %s", names)
                if self._pool.refuse_waiting(perf_counter() + REFUSING):
                    await asyncio.wait({aborted, leaving}, timeout=FAREWELL, return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborted.cancel()
            leaving.cancel()

    async def _finish(self) -> None:
        """Withdraw the methods, then end each connection when what was read on it is answered."""
        try:
            await self._registration.withdraw()
        except (RpcError, OSError) as error:  # with the errors of connections and time-outs
            log.warning("the methods could not be withdrawn: %s", error)
        await self._pool.leave(LEAVING)
