"""Starts a server, has it listen, and stops it: the lifespan, the services on NATS, and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import re
import types
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..events.topics import Carrier
from ..limits import Limits
from ..methods.call import Invoker
from ..methods.dispatch import Dispatcher
from ..methods.registry import MethodRegistry
from ..nearest import check_names
from ..peer.session import Session
from ..process import CLEAN_UP, join_names
from ..text import get_logger
from ..tls import TLS, ClientTLS
from ..transports.listen import Listener
from ..web.routes import Routes
from .options import LISTEN_DEFAULTS, ListenOptions

if TYPE_CHECKING:
    from ..nats.events import NatsEvents
    from ..nats.options import DirectOptions, NatsLogin
    from ..nats.service import NatsService

log = get_logger("rpcstream.server")
wire_log = get_logger("rpcstream.wire")

#: Seconds for the last replies before connections are closed whose calls have not finished in time.
FAREWELL = 0.05

#: Sent to a connection that is closed because its rights have changed.
RIGHTS_CHANGED = "the rights of this connection have changed: connect again"

_KEY = re.compile(rb'(?<="key":")[0-9a-f]{32}(?=")')


class Supervision(Protocol):
    """Gives a server its connections if it is one of several processes, and a supervisor accepts them.

    Attributes:
        is_first: this process is the first of them, and logs what should appear once.
        hosts: where connections are accepted, known after `listen`; None for a Unix socket.
        relay: carries events to and from the other processes.
        group: the id that only these processes have in common.
    """

    group: str
    is_first: bool
    hosts: list[str | None]

    @property
    def relay(self) -> Carrier: ...

    async def listen(self, listener: Listener, where: dict[str, Any] | None) -> str:
        """Have connections accepted at this host and port, or Unix socket; returns the address.

        Args:
            where: the arguments of `Server.run`; None: nowhere, because calls come over NATS. The address is "" then.

        Raises:
            OSError: the address cannot be listened at; the text names it.
        """

    async def counted(self) -> dict[str, Any]:
        """`Server.stats` and `Server.metric_numbers` of all processes together; with `workers` and `supervisor`."""

    def ended(self) -> None:
        """Report the final counters of a server that has ended."""


class RunningServer:
    """A server from its start to its end.

    Args:
        routes: opened now, and told when draining begins, so that `/readyz` says so.

    Attributes:
        is_serving: connections are served.
        is_draining: `drain` has begun.
        skips_delay: the drain has no delay, because another process has taken this one's place.
        stopping: set when the server must stop.
        aborted: set when it must stop at once.
        left_behind: tasks of handlers that did not end when they were cancelled; known after `drain`.
    """

    def __init__(self, invoker: Invoker, dispatcher: Dispatcher, listener: Listener, routes: Routes) -> None:
        self.loop = asyncio.get_running_loop()
        self.invoker = invoker
        self.dispatcher = dispatcher
        self.listener = listener
        self._routes = routes
        routes.open(invoker)
        self.is_serving = False
        self.is_draining = self.skips_delay = False
        self.stopping = asyncio.Event()
        self.aborted = asyncio.Event()
        self.left_behind: set[asyncio.Task[Any]] = set()

    async def drain(self, *, delay: float, timeout: float) -> None:
        """Let calls in flight finish, then close all connections.

        Args:
            delay: seconds to continue as before, while `/readyz` returns 503.
            timeout: seconds that calls in flight have after that.
        """
        self.stopping.set()
        self.is_draining = self._routes.is_draining = True
        listener = self.listener
        aborted = asyncio.ensure_future(self.aborted.wait())
        if delay and listener.is_listening and not self.skips_delay:
            await asyncio.wait({aborted}, timeout=delay)
        listener.stop_accepting()
        closed = asyncio.ensure_future(listener.closed())
        try:
            await asyncio.wait({aborted, closed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if listener.sessions:
                log.warning(
                    "stopping: %d connections had not finished in time; methods at work: %s",
                    len(listener.sessions),
                    _methods_at_work(listener) or "none",
                )
                if not aborted.done() and listener.refuse_waiting():
                    await asyncio.wait({aborted, closed}, timeout=FAREWELL, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listener.abort("the server stopped")
            aborted.cancel()
            # Cancelled handlers run their `finally` while what the lifespan gave them is still there.
            await asyncio.wait({closed}, timeout=CLEAN_UP)
            closed.cancel()
            self.left_behind = {task for session in listener.sessions for task in session.running.tasks}
            if self.left_behind:
                names = _methods_at_work(listener)
                log.warning("abandoned, because they did not end when cancelled: methods %s", names)
        self.dispatcher.replies.log.flush()
        log.info("stopped")

    def dismiss(self, may_stay: Callable[[Session], bool], timeout: float) -> int:
        """Close the connections that may not stay, after their running calls; returns how many there are.

        Args:
            timeout: seconds that calls in flight have.
        """
        sessions = self.listener.sessions
        leaving = [each for each in sessions if each.is_lasting and each.channel and not may_stay(each)]
        for session in leaving:
            session.go_away(RIGHTS_CHANGED)
            session.loop.call_later(timeout, session.abort, RIGHTS_CHANGED)
        return len(leaving)

    def close(self) -> None:
        """Close the pools and the pages."""
        self._routes.close()
        self.invoker.close()


def log_message(direction: str, message: bytes) -> None:
    """Log a message that was received or sent, shortened and without secrets; for a binary frame, JSON and sizes."""
    # Neither a token nor the key to a name at a hub may stand in a log.
    is_secret = b"rpc.authenticate" in message
    text = "(rpc.authenticate)" if is_secret else _KEY.sub(b"", message[:2000]).decode(errors="backslashreplace")
    wire_log.info("%s %d bytes: %s", direction, len(message), text)


def _methods_at_work(listener: Listener) -> str:
    return join_names(sorted({name for session in listener.sessions for name in session.running.method_names()}))


class NatsMemberships:
    """The services that one server joins whenever it runs.

    Args:
        methods: of the server.
        about: returns what the server says about itself: the arguments of `ServicesApi` that are the same for each
            instance.
        certificate: gives the certificate of the server, for direct connections; None: it has none.

    Attributes:
        is_only: the server listens nowhere else.
        services: the instances, while the server runs.
    """

    def __init__(
        self,
        methods: MethodRegistry,
        about: Callable[[], Mapping[str, Any]],
        certificate: Callable[[], TLS | None],
    ) -> None:
        self._methods = methods
        self._about = about
        self._certificate = certificate
        self.is_only = False
        self.services: list[NatsService] = []
        #: What makes an instance, its direct connections, and its events, for each service.
        self._joined: list[tuple[Callable[..., NatsService], DirectOptions, NatsEvents]] = []

    def __bool__(self) -> bool:
        return bool(self._joined)

    def add(
        self,
        url: str,
        service: str | None,
        login: NatsLogin | None,
        tls: ClientTLS | None,
        limits: Limits,
        *,
        only: bool,
        trusts: bool,
        direct: bool | str | None = None,
    ) -> NatsEvents:
        """Add a service, see `Server.join_nats`; returns what shares the events of the server there."""
        from ..nats.events import NatsEvents
        from ..nats.options import DirectOptions, joining_options
        from ..nats.service import NatsService

        name, options = joining_options(url, service, login, tls)
        events = NatsEvents(name, limits)
        make = partial(NatsService, options, name, methods=lambda: list(self._methods), trusts_nats=trusts)
        self._joined.append((make, DirectOptions.parse(direct), events))
        self.is_only = self.is_only or only
        return events

    async def start(self, running: RunningServer) -> None:
        """Join all services.

        Raises:
            ConnectFailed: one cannot be joined.
        """
        if not self._joined:
            return
        from ..nats.service import ServicesApi

        self._methods.on_added = self._offer
        for make, direct, events in self._joined:
            service = make(listener=running.listener, direct=replace(direct, tls=self._certificate()))
            api = ServicesApi(
                name=service.name,
                instance=service.instance,
                endpoints=partial(getattr, service, "subscriptions"),
                **self._about(),
            )
            service.on_joined += (api.start, events.joined)
            service.on_leaving.append(events.leave)
            await service.start()
            self.services.append(service)
            running.listener.take_from(service, addresses=[service.address])

    def _offer(self, name: str) -> None:
        """Offer one more method at all services."""
        for service in self.services:
            service.offer(name)

    async def close(self) -> None:
        """Leave all services, after their callers are gone."""
        services, self.services = self.services, []
        for service in services:
            await service.close()


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
        signals: the numbers of the signals that have told this process to stop.
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
        self.signals: list[int] = []
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
            if address:
                log.info("listening at %s", ", ".join(self.addresses))
            yield address

    async def _listen(self, listener: Listener, where: dict[str, Any]) -> str:
        """Listen, or have the supervisor listen; returns the address: "" if the server was stopped meanwhile."""
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
        return next(iter(self.addresses), "") if self._nats.is_only else address

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
                ending = None
                try:
                    await self._nats.start(running)
                    ending = asyncio.create_task(self._end_when_stopped(running), name="rpcstream-end")
                    running.is_serving = True
                    async with self._while_serving():
                        yield running
                finally:
                    if ending is not None and running.is_draining:
                        await self._wait_or_abort(ending)
                    else:  # at once: what connects from now on is for the next server
                        if ending is not None:
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
