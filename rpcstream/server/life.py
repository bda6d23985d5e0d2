"""Starts a server, has it listen, and stops it: the lifespan, the services on NATS, and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ..nearest import check_names
from ..process import CLEAN_UP
from ..text import get_logger
from ..transports.listen import Listener
from .nats import NatsMemberships
from .options import LISTEN_DEFAULTS, ListenOptions
from .running import RunningServer, Supervision

log = get_logger("rpcstream.server")

#: Seconds after which a start that waits for the lifespan is named in the log.
SLOW_START = 5.0


class ServerLife:
    """Starts a server, has it listen, and stops it, any number of times.

    Args:
        drain_timeout, drain_delay: see the attributes.
        nats: the services that it joins.
        lifespan: returns the context manager that surrounds each start.
        make_running: makes the running server.
        while_serving: returns the context manager that is open while connections are served.
        on_address: called with each host that the server listens at, before connections are accepted.

    Attributes:
        running: the server while it runs; None while it does not.
        supervision: accepts the connections if this is one of several processes; None: the server does.
        drain_delay: seconds from `stop` until no more connections and requests are taken.
        drain_timeout: seconds that calls in flight have after that.
        lifespan_error, lifespan_trace: the exception of the last lifespan that failed at the start, and its frames in
            the program.
        left_behind: tasks of handlers that did not end when the server stopped.
    """

    def __init__(
        self,
        *,
        drain_timeout: float,
        drain_delay: float,
        nats: NatsMemberships,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]],
        make_running: Callable[[], RunningServer],
        while_serving: Callable[[], AbstractAsyncContextManager[Any]],
        on_address: Callable[[str], object],
    ) -> None:
        self.drain_timeout = drain_timeout
        self.drain_delay = drain_delay
        self.running: RunningServer | None = None
        self.supervision: Supervision | None = None
        self.lifespan_error: Exception | None = None
        self.lifespan_trace: types.TracebackType | None = None
        self.left_behind: set[asyncio.Task[Any]] = set()
        self._nats = nats
        self._lifespan = lifespan
        self._make_running = make_running
        self._while_serving = while_serving
        self._on_address = on_address
        #: For errors: where the server runs, if not at its own port.
        self._place = ""

    # -- what it is at present ----------------------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the server listens; empty while it does not."""
        return tuple(self.running.listener.addresses) if self.running is not None else ()

    @property
    def is_running(self) -> bool:
        """True from the beginning of the start until the end of the stop, the lifespan included."""
        return self.running is not None

    @property
    def is_serving(self) -> bool:
        """True while connections are served."""
        return self.running is not None and self.running.is_serving

    @property
    def time_to_stop(self) -> float:
        """Seconds from `stop` until all connections are closed, at the latest."""
        return self.drain_delay + self.drain_timeout + CLEAN_UP

    def check_stopped(self) -> None:
        """Raise RuntimeError if the server is running."""
        if self.running is not None:
            raise RuntimeError(f"this server is running already{self._place}")

    # -- from the start to the stop ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self, where: ListenOptions) -> AsyncIterator[str]:
        """Serve while the block runs; see `Server.listening`."""
        check_names("listening()", where, LISTEN_DEFAULTS)
        async with self.started() as running:
            address = await self._listen(running.listener, {**LISTEN_DEFAULTS, **where})
            log.info("listening at %s", ", ".join(self.addresses))
            yield address

    async def _listen(self, listener: Listener, where: dict[str, Any]) -> str:
        """Listen, or have the supervisor listen; returns the address."""
        hosts: list[str | None] = []
        address = ""
        if self.supervision is not None:
            address = await self.supervision.listen(listener, None if self._nats.is_only else where)
            hosts = self.supervision.hosts if self.supervision.is_first else []
        elif not self._nats.is_only:
            bound = await listener.listen(**where)
            address, hosts = bound[0].address, [each.host for each in bound]
        for host in hosts:
            if host is not None:
                self._on_address(host)
        return self.addresses[0] if self._nats.is_only else address

    @asynccontextmanager
    async def started(self, place: str = "") -> AsyncIterator[RunningServer]:
        """Start everything except a listening socket; drain when the server is stopped, or at the end of the block.

        Args:
            place: for errors: where the server runs.
        """
        self.check_stopped()
        self._place = place
        running = self.running = self._make_running()
        try:
            async with self._entered_lifespan():
                ending = asyncio.create_task(self._end_when_stopped(running), name="rpcstream-end")
                try:
                    await self._nats.start(running)
                    running.is_serving = True
                    async with self._while_serving():
                        yield running
                finally:
                    if running.is_draining:
                        await self._wait_or_abort(ending)
                    else:  # at once: what connects from now on is for the next server
                        ending.cancel()
                        await self._end(running)
        finally:
            self.running = None
            if self.supervision is not None:
                self.supervision.ended()
            running.close()

    async def _end_when_stopped(self, running: RunningServer) -> None:
        await running.stopping.wait()
        await self._end(running)

    async def _end(self, running: RunningServer) -> None:
        try:
            await running.drain(delay=self.drain_delay, timeout=self.drain_timeout)
        finally:
            running.is_serving = False
            self.left_behind = running.left_behind
            await self._nats.close()

    async def _wait_or_abort(self, ending: asyncio.Task[None]) -> None:
        """Wait until a server that was stopped has ended; if the wait is cancelled, it ends at once."""
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            if not ending.done():
                self.abort()
                await asyncio.wait({ending})
            raise

    @asynccontextmanager
    async def _entered_lifespan(self) -> AsyncIterator[None]:
        """Enter the lifespan; log if that takes long, and keep the error if it fails."""
        text = "the lifespan has run for %g s: connections are accepted when it is done"
        timer = asyncio.get_running_loop().call_later(SLOW_START, log.warning, text, SLOW_START)
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._lifespan())
            except Exception as error:
                self.lifespan_error, self.lifespan_trace = error, _trace_in_program(error)
                raise
            finally:
                timer.cancel()
            yield

    def stop(self) -> None:
        """Begin to stop; see `Server.stop`."""
        if self.running is not None:
            self.running.stopping.set()

    def retire(self) -> None:
        """Begin to stop without `drain_delay`, because another process takes new connections."""
        if self.running is not None:
            self.running.skips_delay = True
            self.running.stopping.set()

    def abort(self) -> None:
        """Stop at once: close connections, cancel handlers."""
        if self.running is not None:
            self.running.aborted.set()
            self.running.stopping.set()


def _trace_in_program(error: Exception) -> types.TracebackType | None:
    """The frames of an error, from the first one that is neither in this file nor in `contextlib`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, contextlib.__file__):
        trace = trace.tb_next
    return trace
