"""Running a server: how it is started and stopped, in this thread, in a running event loop, or in an ASGI server.

Owns the life of a server: its lifespan, its pools, and the listener while it serves. What it offers, and to whom, is
said in `server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ..auth.authenticator import Authenticator
from ..codec import Codec
from ..events.topics import Carrier
from ..limits import DEFAULT_HOST, DEFAULT_PORT, Limits
from ..methods.dispatch import Dispatcher
from ..methods.invoke import Invoker, check_picklable
from ..methods.threads import DaemonThreads
from ..methods.workers import is_worker
from ..observe.counters import Counters
from ..peer.session import Session
from ..process import (
    CLEAN_UP,
    LoopName,
    StopNow,
    freeze_memory,
    loop_factory,
    on_hangup,
    raise_descriptor_limit,
    run_to_end,
    stop_on_signals,
    take_replacement,
)
from ..systemd import Notifier
from ..text import get_logger
from ..tls import TLS, ClientTLS
from ..transports.listen import RENEWAL
from ..web.routes import Routes
from .agents import Agents, identify_starter
from .methods import ServerMethods
from .nats import AboutServer, NatsMemberships
from .options import Lifespan, ReadAccess
from .running import RunningServer, Supervision, log_message

if TYPE_CHECKING:
    from ..mcp.stdio import StdioPipe
    from ..nats.options import NatsLogin
    from .asgi import Application, AsgiApplication, AsgiRunner

log = get_logger("rpcstream.server")

#: Seconds after which a start that waits for the lifespan is named in the log.
SLOW_START = 5.0


class ServingServer(ServerMethods):
    """Starts, serves and stops. The part of `Server` that does so.

    Args:
        codec, knows_callers: as for `ServerMethods`.
        given: the options of the server.
    """

    limits: Limits
    counters: Counters
    debug: bool
    routes: Routes
    _authenticator: Authenticator | None
    _tls: TLS | None

    def __init__(self, codec: Codec, *, knows_callers: bool, given: dict[str, Any]) -> None:
        super().__init__(codec, knows_callers=knows_callers)
        self._lifespan: Lifespan | None = given["lifespan"]
        self._drain_timeout: float = given["drain_timeout"]
        self._drain_delay: float = given["drain_delay"]
        self._threads: int | None = given["threads"]
        self._processes: int | None = given["processes"]
        self._running: RunningServer | None = None
        self._supervision: Supervision | None = None
        #: The numbers of the signals that have told this process to stop.
        self.stop_signals: list[int] = []
        self._asgi: AsgiRunner | None = None
        self._left_behind: set[asyncio.Task[Any]] = set()
        self._serving: asyncio.Task[None] | None = None  # what `start` has begun
        self._notifier = Notifier()
        #: See `Server.guard`; and the file whose changes are noticed.
        self._read_access: ReadAccess | None = None
        self._watched: str | None = None
        self._nats = NatsMemberships()

    def stats(self) -> dict[str, Any]:
        """The counters of this process."""
        raise NotImplementedError

    def metric_numbers(self) -> dict[str, Any]:
        """The metrics of this process, for the sum of several."""
        raise NotImplementedError

    def _make_running(self, invoker: Invoker) -> RunningServer:
        """Make what there is while the server runs, but for the pools."""
        raise NotImplementedError

    def _agents(self, dispatcher: Dispatcher, invoker: Invoker) -> Agents:
        """What serves agents, by the Model Context Protocol."""
        raise NotImplementedError

    def _make_session(self, dispatcher: Dispatcher, on_gone: Callable[[Session], None]) -> Session:
        """Make the session of a peer; `on_gone` is called when it is over."""
        raise NotImplementedError

    def _share_events(self, sharing: Carrier) -> None:
        """Share the events with other servers."""
        raise NotImplementedError

    def join_nats(
        self,
        url: str,
        *,
        service: str | None = None,
        login: NatsLogin | None = None,
        tls: ClientTLS | None = None,
        only: bool = False,
        trust_identity: bool = False,
        direct: bool | str | None = None,
    ) -> None:
        """Offer the methods as an instance of a service on NATS, too, whenever the server runs.

        Any number of servers may join a service; each call goes to one of them, and events reach the subscribers of
        all, and those on NATS. Clients call it by
        `Client("nats://host/service")`. Needs the extra `rpcstream[nats]`.

        Args:
            url: one or more NATS servers: "nats://host:4222,other:4222", perhaps with the service behind a slash.
            service: its name: letters, digits, "-" and "_".
            login: who this server is for NATS; None: it needs none.
            tls: whom to trust at NATS: as for `Client`. None: the authorities of the system, where NATS asks for TLS.
            only: listen at no port.
            trust_identity: tell `authenticate=` what NATS says of callers in other accounts, as `nats_user` and
                `nats_account` of the credentials. Callers in this server's own account may claim any of that: only for
                an account without any.
            direct: where clients connect for messages over NATS's `max_payload`: "host:port" to listen at, and
                "host:port=name:port" where they connect to another address; None: a free port of the address from
                which this machine reaches NATS, unless NATS is encrypted and the server has no certificate; False:
                nowhere, so that such messages are errors.

        Raises:
            ValueError: the address or the name is malformed, or there is no name; or nothing reads what is trusted.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        if trust_identity and (self._authenticator is None or not self._authenticator.takes_shown):
            raise ValueError("trust_identity= tells authenticate= who callers are, and this server has none")
        self._share_events(
            self._nats.add(url, service, login, tls, self.limits, only=only, trusts=trust_identity, direct=direct)
        )

    def run(
        self,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        unix: str | os.PathLike[str] | None = None,
        unix_mode: int | None = None,
        sockets: Iterable[socket.socket] = (),
        loop: LoopName = "auto",
        on_listening: Callable[[str], None] | None = None,
    ) -> None:
        """Serve until SIGINT or SIGTERM, or until `stop` is called. Blocks.

        The first signal stops accepting, lets calls in flight finish for `drain_timeout` seconds, and closes; the
        second one stops at once. Handlers that do not end when they are cancelled are left behind, with a warning that
        names them; one that keeps the event loop beyond that time is ended as by the second signal. The loop's default
        executor (`asyncio.to_thread`) has daemon threads, which are waited for as long as cancelled handlers are.

        SIGHUP reloads the certificate, the token of `rpcstream-server --token-file`, and the configuration of a hub.

        Args:
            host: the name or address to listen at; "" for all.
            port: the port; 0 for one that is free.
            unix: the path of a Unix socket to listen at, instead of host and port.
            unix_mode: the permissions of its file, such as 0o660; None: by the umask.
            sockets: listen at these instead, which were bound before: stream sockets of TCP or Unix, such as those that
                systemd passes (`rpcstream.systemd.take_sockets`). They stay the caller's: at the end they are not
                closed, and connections that wait to be accepted are left to the next server. None given: host and port.
            loop: "uvloop", "asyncio", or "auto": uvloop if it is installed.
            on_listening: called once with the address, when connections are accepted; None: a line with the address is
                printed to standard error.

        In a module that `rpcstream-server` loads, the options of that command come before these arguments. In a worker
        process (`offload="process"`), which imports the module for its functions, this does nothing. Under systemd it
        reports that the service is ready and that it stops, and gives the watchdog its signs of life; see
        `rpcstream.systemd`.

        Raises:
            OSError: the address cannot be listened at; the text names it.
            ValueError: one of the sockets cannot listen: it is for datagrams, not bound, or a connection.
            RuntimeError: an event loop runs in this thread already, as in a notebook.
            SystemExit: a second signal came, or a handler kept the event loop for too long after the first; the code is
                128 and the signal's number.
        """
        if is_worker():
            return
        where: dict[str, Any] = {"host": host, "port": port, "unix": unix, "unix_mode": unix_mode, "sockets": sockets}
        serve = take_replacement()
        if serve is not None:
            serve(self, {**where, "loop": loop, "on_listening": on_listening})
            return
        if _has_running_loop():
            raise RuntimeError(
                "an event loop runs in this thread already (as in a notebook), and run() would block it: use "
                "`await server.serve()`, `async with server.listening()`, or asyncio.create_task(server.serve())"
            )
        raise_descriptor_limit()
        main = self._run(**where, on_listening=_print_address if on_listening is None else on_listening)
        executor = DaemonThreads(name="rpcstream-default")
        try:
            with on_hangup():
                run_to_end(main, loop_factory(loop), executor, lambda: self._left_behind)
        except StopNow as now:
            raise SystemExit(128 + now.args[0]) from None

    async def _run(self, *, on_listening: Callable[[str], None], **where: Any) -> None:
        with Notifier.take() as self._notifier, self._reloading(), stop_on_signals(self) as signals:
            notifier = self._notifier

            self.stop_signals = signals

            def listening(address: str) -> None:
                freeze_memory()
                on_listening(address)
                notifier.ready(self._status)
                notifier.watch()

            await self._serve(where, listening, lambda: notifier.stopping("Stopping"))
        if len(signals) > 1:
            raise StopNow(signals[-1])  # uvloop does not pass on what a signal raises inside a handler

    def run_mcp(self, *, loop: LoopName = "auto", pipe: StdioPipe | None = None) -> None:
        """Serve an agent on standard input and output, by the Model Context Protocol, until its host closes them.

        For a program that the host of an agent starts. Blocks, as `run` does, and ends by a signal as well. Nothing
        else gets to standard output meanwhile: what the program prints goes to standard error. On a server with
        authentication the token in the variable RPCSTREAM_TOKEN says who the agent is.

        Args:
            loop: as for `run`.
            pipe: was made before, to be there when other code is imported; None: one is made now.

        Raises:
            PermissionError: the server has authentication, and the token is missing or not accepted.
            RuntimeError: an event loop runs in this thread already.
            SystemExit: as `run`.
        """
        if is_worker():
            return
        serve = take_replacement()
        if serve is not None:
            serve(self, {"loop": loop})
            return
        if _has_running_loop():
            raise RuntimeError("an event loop runs in this thread already, and run_mcp() would block it")
        from ..mcp.stdio import StdioPipe

        pipe = StdioPipe() if pipe is None else pipe
        try:
            executor = DaemonThreads(name="rpcstream-default")
            with on_hangup():
                run_to_end(self._run_mcp(pipe), loop_factory(loop), executor, lambda: self._left_behind)
        except StopNow as now:
            raise SystemExit(128 + now.args[0]) from None
        finally:
            pipe.close(CLEAN_UP)

    async def _run_mcp(self, pipe: StdioPipe) -> None:
        with self._reloading(), stop_on_signals(self) as signals:
            async with self._started() as running:
                identity = None
                if self._authenticator is not None:
                    identity = await identify_starter(self._authenticator)
                agents = self._agents(running.dispatcher, running.invoker)
                await agents.talk(pipe, running, identity, log_message if self.debug else None)
        if len(signals) > 1:
            raise StopNow(signals[-1])

    @contextlib.contextmanager
    def _reloading(self) -> Iterator[None]:
        """Reload with each SIGHUP within the block, and when the token's file changes, in the running event loop."""
        loop = asyncio.get_running_loop()
        watching = None if self._watched is None else loop.create_task(self._watch(self._watched))
        with on_hangup(partial(loop.call_soon_threadsafe, self._reload_or_log, "SIGHUP")):
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()

    async def _watch(self, path: str) -> None:
        """Reload whenever a file has changed."""
        before = _stamp_of(path)
        while True:
            await asyncio.sleep(RENEWAL)
            now = _stamp_of(path)
            if now != before:
                before = now
                self._reload_or_log(f"{path} has changed")

    def _reload_or_log(self, reason: str) -> None:
        """Reload; a mistake is logged, and changes nothing."""
        log.info("%s: reading certificate, token and configuration again", reason)
        is_ready = bool(self.addresses)  # while the server starts, systemd is told nothing
        if is_ready:
            self._notifier.reloading("Reading the configuration again")
        status = self._status
        try:
            self._reload()
        except (ValueError, TypeError, OSError) as error:
            log.error("the configuration was not reloaded, the one before stays in use: %s", error)
            status = "The configuration could not be read again: see the log"
        if is_ready and self._running is not None and not self._running.stopping.is_set():
            self._notifier.ready(status)

    def _reload(self) -> None:
        """Read the certificate and the token's file again.

        Raises:
            ValueError, TypeError, OSError: one of them cannot be used; the text says which.
        """
        access, may_stay = ({}, None) if self._read_access is None else self._read_access()
        fresh = Authenticator(**access) if access else None
        if self._running is not None:
            self._running.listener.reload_certificate()
        authenticator = self._authenticator
        if fresh is None or authenticator is None or not authenticator.replace(fresh):
            return
        closed = 0
        if self._running is not None:
            closed = self._running.dismiss(
                lambda each: each.identity is None or (may_stay is not None and may_stay(each.identity)),
                self._drain_timeout,
            )
        log.info("the token was read again; connections to close: %d", closed)

    async def serve(
        self,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        unix: str | os.PathLike[str] | None = None,
        unix_mode: int | None = None,
        sockets: Iterable[socket.socket] = (),
        on_listening: Callable[[str], None] | None = None,
    ) -> None:
        """Serve in the running event loop until `stop` is called or the task is cancelled; signals are not handled.

        Handlers that do not end when they are cancelled go on in that loop; a warning names them.
        """
        where: dict[str, Any] = {"host": host, "port": port, "unix": unix, "unix_mode": unix_mode, "sockets": sockets}
        await self._serve(where, on_listening)

    async def _serve(
        self,
        where: dict[str, Any],
        on_listening: Callable[[str], object] | None,
        on_stopping: Callable[[], object] = lambda: None,
    ) -> None:
        async with self.listening(**where) as address:
            if on_listening is not None:
                on_listening(address)
            assert self._running is not None
            await self._running.stopping.wait()
            on_stopping()

    async def start(
        self,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        unix: str | os.PathLike[str] | None = None,
        unix_mode: int | None = None,
        sockets: Iterable[socket.socket] = (),
    ) -> str:
        """Begin to serve in the running event loop, until `close`; returns the address when connections are accepted.

        For a program that has an event loop and a life of its own; signals are not handled. The lifespan is entered and
        left in one task, which is neither the one that calls this nor the one that calls `close`.

        Raises:
            OSError, ValueError: as `run`; and what the lifespan raises.
            RuntimeError: the server is running already.
        """
        if self._running is not None or (self._serving is not None and not self._serving.done()):
            raise RuntimeError("this server is running already")
        where: dict[str, Any] = {"host": host, "port": port, "unix": unix, "unix_mode": unix_mode, "sockets": sockets}
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = serving = asyncio.create_task(self._serve(where, listening.set_result))
        try:
            both: set[asyncio.Future[Any]] = {serving, listening}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            serving.cancel()
            await asyncio.wait({serving})
            raise
        if not listening.done():
            self._serving = None
            await serving  # raises what kept it from starting
            raise RuntimeError("the server was stopped before it listened")
        return listening.result()

    async def close(self) -> None:
        """Stop what `start` has begun, in the order of `run`, and wait until all is closed.

        Does nothing where `start` was not called; raises what the lifespan raises at its end. If the wait is cancelled,
        the server ends at once.
        """
        serving, self._serving = self._serving, None
        if serving is None:
            return
        if not serving.done():
            self.stop()
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if not serving.done():
                self.abort()
                await asyncio.wait({serving})
            raise

    async def __aenter__(self) -> Self:
        """Serve while the block runs, at the default address or where `start` was told to; see `addresses`."""
        if self._serving is None:
            await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @asynccontextmanager
    async def listening(
        self,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        unix: str | os.PathLike[str] | None = None,
        unix_mode: int | None = None,
        sockets: Iterable[socket.socket] = (),
    ) -> AsyncIterator[str]:
        """Serve while the block runs; gives the address in the form that clients take. Port 0: one that is free.

        Leaving the block drains: no new requests, calls in flight have `drain_timeout` seconds, then all is closed.

        Raises:
            OSError: the address cannot be listened at; the text names it.
            ValueError: one of the sockets cannot listen.
            RuntimeError: the server is running already.
        """
        sockets = list(sockets)
        async with self._started() as running:
            supervision = self._supervision
            hosts: list[str | None]
            if self._nats.is_only:
                if supervision is not None:
                    await supervision.listen(self, running.listener, None)
                address, hosts = self.addresses[0], []
            elif supervision is not None:
                where = {"host": host or "", "port": port, "unix": unix, "unix_mode": unix_mode, "sockets": sockets}
                address = await supervision.listen(self, running.listener, where)
                hosts = supervision.hosts if supervision.is_first else []
            elif sockets:
                address = await running.listener.listen_at_sockets(sockets)
                names = [sock.getsockname() for sock in sockets]
                hosts = [name[0] for name in names if isinstance(name, tuple)]
            else:
                hosts = [host] if unix is None else []
                address = await running.listener.listen(host or "", port, unix, unix_mode)
            for each in hosts:
                if each is not None and not is_loopback(each):
                    self._warn_of_strangers(each)
            log.info("listening at %s", ", ".join(self.addresses))
            yield address

    def _warn_of_strangers(self, host: str) -> None:
        """Log what other machines could do at an address that they can reach."""
        if self._authenticator is None:
            log.warning("listening at %s, not a loopback address: there is no authentication", host)
        elif self._tls is None:
            log.warning("listening at %s without TLS: tokens cross the network unencrypted (tls=, or a proxy)", host)

    def __repr__(self) -> str:
        own = sum(not name.startswith("rpc.") for name in self.methods)
        state = f"listening at {', '.join(self.addresses)}" if self.addresses else "not listening"
        return f"<{type(self).__name__} with {own} method{'' if own == 1 else 's'}, {state}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the server listens, in the form that clients take; empty while it does not."""
        return tuple(self._running.listener.addresses) if self._running is not None else ()

    @property
    def _status(self) -> str:
        """What systemd is told of a server that serves."""
        return f"Listening at {', '.join(self.addresses)}"

    def asgi(self, application: Application | None = None, *, path: str = "") -> AsgiApplication:
        """Make an ASGI application of this server: for uvicorn, hypercorn or granian, alone or with other applications.

        Mounted: `app.mount("/rpc", rpc := server.asgi())`, and `FastAPI(lifespan=rpc.lifespan)` to start and stop with
        the application; else the server starts with the first request. In front of another application:
        `server.asgi(app, path="/rpc")`, or as middleware, `app.add_middleware(server.asgi, path="/rpc")`; the server
        then gets the events of the lifespan, and the application gets them, too.

        HTTP and WebSockets are served as at a port of our own, with the same options; there is no line stream. May be
        called several times: the applications share the server, which runs in one event loop.

        Args:
            application: gets what is not below `path`; None: all is for the server.
            path: of the server in this application, such as "/rpc"; not where it is mounted, since that is known.

        Raises:
            ValueError: the path is malformed or missing; or the server has a certificate (`tls`), which belongs to the
                ASGI server then.
        """
        from .asgi import AsgiApplication, AsgiRunner

        if self._tls is not None:
            raise ValueError("tls= is for the server's own port: give the certificate to the ASGI server")
        if self._asgi is None:
            self._asgi = AsgiRunner(self)
        return AsgiApplication(self._asgi, application, path)

    @asynccontextmanager
    async def in_memory(self) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
        """Serve without a socket while the block runs; gives a function that makes the protocol of a new connection.

        For tests: use `rpcstream.testing.memory_client`.
        """
        async with self._started() as running:
            yield running.listener.make_stream

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[RunningServer]:
        """Start all but a listening socket: the lifespan and the pools; drain at the end."""
        if self._running is not None:
            where = " in an ASGI server" if self._asgi is not None and self._asgi.is_running else ""
            raise RuntimeError(f"this server is running already{where}")
        for method in self._registry.values():
            if method.offload == "process":
                check_picklable(method)
        invoker = Invoker(self.limits, threads=self._threads, processes=self._processes)
        self.routes.open(invoker)
        running = self._running = self._make_running(invoker)
        try:
            async with self._entered_lifespan():
                try:
                    await self._join_services(running)
                    running.is_serving = True
                    yield running
                finally:
                    try:
                        await running.drain(delay=self._drain_delay, timeout=self._drain_timeout)
                    finally:
                        running.is_serving = False
                        self._left_behind = running.left_behind
                        await self._leave_services()
        finally:
            self._running = None
            if self._supervision is not None:
                self._supervision.ended(self)
            self.routes.close()
            invoker.close()

    @asynccontextmanager
    async def _entered_lifespan(self) -> AsyncIterator[None]:
        """Enter the lifespan, and say so if that takes long."""
        if self._lifespan is None:
            yield
            return
        text = "the lifespan has run for %g s: connections are accepted when it is done"
        timer = asyncio.get_running_loop().call_later(SLOW_START, log.warning, text, SLOW_START)
        try:
            async with self._lifespan(self):
                timer.cancel()
                yield
        finally:
            timer.cancel()

    async def _join_services(self, running: RunningServer) -> None:
        """Join the services on NATS."""
        methods = partial(list[str], self._registry)
        await self._nats.start(running, methods, self._about(), certificate=self._tls)
        self._registry.on_added = self._nats.offer

    def _about(self) -> AboutServer:
        """What is told of this server by NATS's services API."""
        raise NotImplementedError

    async def _leave_services(self) -> None:
        """Leave the services on NATS, when all calls are answered."""
        await self._nats.close()

    def stop(self) -> None:
        """Begin the orderly end of a running server, as SIGTERM does.

        For handlers in the event loop, and for its thread. Does nothing when the server is not running, or stopping.
        """
        if self._running is not None:
            self._running.stopping.set()

    def retire(self) -> None:
        """Begin the orderly end as `stop` does, but without `drain_delay`: another process takes new connections."""
        if self._running is not None:
            self._running.skips_delay = True
            self._running.stopping.set()

    def abort(self) -> None:
        """End a running server at once: connections are closed, handlers cancelled. To be called as `stop` is."""
        if self._running is not None:
            self._running.aborted.set()
            self._running.stopping.set()

    @property
    def drain_delay(self) -> float:
        """Seconds from `stop` until no more connections and requests are taken."""
        return self._drain_delay

    @property
    def time_to_stop(self) -> float:
        """Seconds from `stop` until all connections are closed, at the latest."""
        return self._drain_delay + self._drain_timeout + CLEAN_UP

    @property
    def is_running(self) -> bool:
        """True from the beginning of the start until the end of the stop, the lifespan included."""
        return self._running is not None

    @property
    def is_serving(self) -> bool:
        """True while connections are served; false while the lifespan is entered and left."""
        return self._running is not None and self._running.is_serving


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is written anew; None where it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _print_address(address: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # standard error is closed, or there is none
        print(f"Listening at {address} (Ctrl-C to stop)", file=sys.stderr, flush=True)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
