"""The class `Server`: what its options make, and how it is run and stopped.

Joins methods, peer, auth, events, web and transports. A call does not come by here; it goes from the transport through
the session to the dispatcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from ..auth.authenticator import Authenticator
from ..auth.gate import Gate, GatedSession
from ..codec import Codec
from ..errors import RegistrationError
from ..events.topics import Topics
from ..keyword_options import check_names, with_options
from ..limits import DEFAULT_HOST, DEFAULT_PORT, Limits
from ..methods.builtin_methods import add_auth_method, add_event_methods, add_hello, add_own_methods
from ..methods.discovery import head_of
from ..methods.dispatch import Dispatcher
from ..methods.document import OpenRpcDocument
from ..methods.invoke import Invoker, check_picklable, default_processes, default_threads
from ..methods.middleware import Middleware, MiddlewareDispatcher, checked
from ..methods.observed import ObservedCalls, observed
from ..methods.threads import DaemonExecutor
from ..methods.workers import is_worker
from ..observe import make_tracing
from ..observe.call_log import AccessLogFormat
from ..observe.counters import Counters
from ..observe.metrics import CONTENT_TYPE, Family
from ..peer.memory import MessageMemory
from ..peer.session import Session
from ..peer.state import ConversationState
from ..process import (
    CLEAN_UP,
    LoopName,
    StopNow,
    freeze_memory,
    loop_factory,
    run_to_end,
    stop_on_signals,
    take_replacement,
)
from ..systemd import Notifier
from ..text import get_logger
from ..tls import TLS, Certificates
from ..transports.access import AccessRules
from ..transports.http_router import CallPaths
from ..transports.listen import Listener
from ..web.document import DocumentPage
from ..web.entries import Pending
from ..web.paths import check_path
from ..web.routes import Routes
from ..wire.http_messages import NOSNIFF, Request, Response
from .addresses import checked_urls, server_objects
from .agents import Agents, identify_starter, mcp_path
from .methods import ServerMethods
from .observation import Observation, check_options
from .options import DEFAULTS, Lifespan, Metrics, ServerOptions
from .running import RunningServer, Supervision, log_message

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ..mcp.stdio import StdioPipe
    from .asgi import Application, AsgiApplication, AsgiRunner

log = get_logger("rpcstream.server")

Handler = TypeVar("Handler", bound=Callable[..., Any])
AnyMiddleware = TypeVar("AnyMiddleware", bound=Middleware)


@with_options(DEFAULTS, ServerOptions)
class Server(ServerMethods):
    """Offers Python functions to callers on persistent connections.

    >>> server = Server()
    >>> @server
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> server.run()  # doctest: +SKIP

    Args:
        options: see below; all of them are keywords.

    Raises:
        ValueError: an option makes no sense.
        TypeError: an option is unknown.
    """

    #: A prefix of topics that may be subscribed to although they begin with "rpc."; "" for none.
    SYSTEM_TOPICS = ""

    #: Whether it may run in several processes, which share nothing.
    MAY_HAVE_WORKERS = True

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        check_names(f"{type(self).__name__}()", options, DEFAULTS)
        given: Any = {**DEFAULTS, **options}
        limits: Limits = given["limits"]
        self.limits = limits
        self.debug: bool = given["debug"]
        self.title: str = given["title"]
        self.version: str = given["version"]
        self.description: str | None = given["description"]
        self._public_urls = checked_urls(given["public_urls"])
        #: For objects that the lifespan prepares and handlers use, such as a model or a database.
        self.state = types.SimpleNamespace()
        self.counters = Counters()
        self._memory = MessageMemory(limits.max_held_total, limits.max_unread_total)
        self._lifespan: Lifespan | None = given["lifespan"]
        self._delimiter: bytes = given["delimiter"]
        #: Whether large payloads may travel as binary frames; set before the server runs.
        self.binary: bool = given["binary"]
        self._shared_memory: bool = given["shared_memory"]
        self._drain_timeout: float = given["drain_timeout"]
        self._drain_delay: float = given["drain_delay"]
        self._slow_call: float = given["slow_call"]
        self._threads: int = default_threads() if given["threads"] is None else given["threads"]
        self._processes: int = default_processes() if given["processes"] is None else given["processes"]
        #: Makes spans of the calls; None: there are none.
        self._tracing = make_tracing(given["tracing"])
        self._running: RunningServer | None = None
        self._supervision: Supervision | None = None
        #: The numbers of the signals that have told this process to stop.
        self.stop_signals: list[int] = []
        self._asgi: AsgiRunner | None = None
        self._middleware: list[Middleware] = []
        self._left_behind: set[asyncio.Task[Any]] = set()
        self._serving: asyncio.Task[None] | None = None  # what `start` has begun
        self._notifier = Notifier()
        # Who may connect, and how.
        self._authenticator: Authenticator | None = None
        token, authenticate = given["token"], given["authenticate"]
        if token is not None or authenticate is not None:
            self._authenticator = Authenticator(
                token=token, authenticate=authenticate, timeout=limits.auth_timeout, counters=self.counters
            )
        self._access = AccessRules(hosts=given["hosts"], origins=given["origins"])
        self._paths = _checked_paths(given["path"])
        self._mcp_path: str | None = mcp_path(given["mcp"])
        self._tls: TLS | None = given["tls"]
        # What is offered: methods, topics, web pages.
        super().__init__(given["codec"] or Codec.of(limits), knows_callers=self._authenticator is not None)
        #: The topics and their subscribers; a mapping from topics and patterns to numbers of subscribers.
        self.topics = Topics(
            codec=self.codec,
            limits=limits,
            counters=self.counters,
            max_events=given["event_queue"],
            policy=given["event_policy"],
            system=self.SYSTEM_TOPICS,
        )
        #: Send a value to all subscribers of a topic: `server.publish("ticks", value)`, from any thread; with
        #: `retain=True` it is kept for later subscribers, too; see `Topics.publish`.
        self.publish = self.topics.publish
        #: The web pages: what is answered to HTTP's GET.
        self.routes = Routes(codec=self.codec, debug=self.debug, slow=self._slow_call)
        #: Answer a path with bytes or a file: `server.static("/logo.png", "./logo.png")`; see `Routes.static`.
        self.static = self.routes.static
        #: Decorator: a function that answers a path: `@server.get("/hello/{name}")`; see `Routes.get`.
        self.get = self.routes.get
        self._add_pages(**{name: given[name] for name in ("docs", "javascript")})
        self._observation: Observation | None = None
        self._observed: dict[str, Any] = {"metrics": False, "access_log": None, "log_slow_calls": None}
        self.observe(metrics=given["metrics"], access_log=given["access_log"], log_slow_calls=given["log_slow_calls"])
        self._add_builtin_methods()

    def _add_pages(self, *, docs: bool | None, javascript: bool) -> None:
        """Add the pages of the server itself."""
        self._docs = docs
        self.routes.show_javascript(javascript)
        if docs:
            self.show_docs()

    def _add_builtin_methods(self) -> None:
        """Add the methods `rpc.*`."""
        add_hello(self._registry, self.topics)
        add_event_methods(self._registry, self.topics, self._check_subscription)
        #: The document of `rpc.discover` and `/openrpc.json`.
        self._document = OpenRpcDocument(
            self._registry, codec=self.codec, head=self._document_head, servers=self._servers
        )
        add_own_methods(self._registry, self._document, stats=self._stats)
        self.routes.show_document(self._document_page)
        if self._authenticator is not None:
            add_auth_method(self._registry)

    # -- the document -----------------------------------------------------------------------------------------------

    def _document_page(self, request: Request) -> DocumentPage:
        return DocumentPage(request, self._document_text, self._document.tail, self._servers_at)

    async def _document_text(self, compat: str | None) -> bytes:
        """The OpenRPC document as JSON, with the servers where this one listens."""
        return await self._document.text(compat)

    def _document_head(self) -> dict[str, Any]:
        security: list[dict[str, Any]] = []
        if self._authenticator is not None:
            how = "the header Authorization of each request or of the WebSocket, or the method rpc.authenticate"
            security.append({"type": "http", "scheme": "bearer", "description": how})
        if self._tls is not None and self._tls.client_ca is not None:
            security.append({"type": "mutualTLS", "description": "a certificate of the client"})
        return head_of(title=self.title, version=self.version, description=self.description, security=security)

    def _servers(self) -> list[dict[str, Any]]:
        """The Server Objects of the addresses where it listens, or of its public URLs."""
        return server_objects(
            self.addresses, paths=self._paths, is_encrypted=self._tls is not None, public=self._public_urls
        )

    def _servers_at(self, host: str) -> list[dict[str, Any]]:
        """The same for a caller that has reached it by this name and port."""
        if self._public_urls or not self.addresses or all(each.startswith("unix:") for each in self.addresses):
            return self._servers()
        return server_objects([host], paths=self._paths, is_encrypted=self._tls is not None)

    # -- who may connect --------------------------------------------------------------------------------------------

    @property
    def path(self) -> tuple[str, ...] | None:
        """The paths for calls by HTTP and WebSocket; None: POST to "/", and WebSockets anywhere."""
        return self._paths

    def take_calls_at(self, path: str | Iterable[str] | None) -> None:
        """Set the paths for calls by HTTP and WebSocket, before the server runs; as `path` of the constructor.

        Raises:
            ValueError, TypeError: one of them is no path.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        self._paths = _checked_paths(path)

    def take_agents_at(self, path: bool | str = True) -> None:
        """Offer the methods to agents by HTTP, or no more, before the server runs; as `mcp` of the constructor.

        Raises:
            ValueError: it is no path.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        self._mcp_path = mcp_path(path)

    def show_docs(self, shown: bool = True, *, is_default: bool = False) -> None:
        """Answer `/docs` with the explorer, or not, before the server runs; as `docs` of the constructor.

        Args:
            shown: whether it is shown.
            is_default: only where the constructor has not said it, and no route of this server has its path.

        Raises:
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        if not is_default or self._docs is None:
            self.routes.show_explorer((lambda: self._paths) if shown else None, is_default=is_default)

    def trace_calls(self, tracing: bool | TracerProvider = True) -> None:
        """Make spans of the calls, or none, from the next start of the server on; as `tracing` of the constructor.

        Raises:
            ImportError: the extra `opentelemetry` is not installed.
            TypeError: it is neither a bool nor a TracerProvider.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        self._tracing = make_tracing(tracing)

    def guard(
        self,
        *,
        token: str | None = None,
        tls: TLS | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
    ) -> None:
        """Add authentication, a certificate, or names of hosts and origins before the server runs.

        The arguments are those of the constructor.

        Raises:
            ValueError: the server has a token, an `authenticate` function or a certificate already. It is not replaced,
                since it may be stricter.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        if token is not None and self._authenticator is not None:
            raise ValueError("this server has a token= or an authenticate= of its own")
        if tls is not None and self._tls is not None:
            raise ValueError("this server has a certificate (tls=) of its own")
        access = AccessRules(hosts=hosts, origins=origins)
        if token is not None:
            self._authenticator = Authenticator(token=token, timeout=self.limits.auth_timeout, counters=self.counters)
            add_auth_method(self._registry)
        self._access = self._access.joined(access)
        self._tls = tls or self._tls

    # -- around calls -----------------------------------------------------------------------------------------------

    def middleware(self, function: AnyMiddleware) -> AnyMiddleware:
        """Decorator: run an async function around every call: `async def limit(call, call_next)`.

        It gets a `MethodCall`, and `call_next`, which goes on with it: `return await call_next(call)`. It may raise an
        `RpcError` in place of that, change `call.arguments` before, and the result after it. The function that was
        given first is outermost. It runs for calls whose method exists, may be called and takes these params; not for
        methods `rpc.*`.

        Raises:
            RegistrationError: it is no async function of two arguments.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already: give it its middleware before")
        self._middleware.append(checked(function))
        return function

    def take_connections_from(self, supervision: Supervision) -> None:
        """Be one of several processes whose connections a supervisor accepts, from the next start on.

        `rpc.stats` speaks for all of them then, and events reach the subscribers of all.

        Raises:
            ValueError: it is a hub.
        """
        if not self.MAY_HAVE_WORKERS:
            raise ValueError("a hub is one process, since its clients must find each other: run it without workers")
        self._supervision = supervision

        async def stats() -> dict[str, Any]:
            """The counters of all processes of this server since its start."""
            return await supervision.stats()

        self._registry.add(stats, name="rpc.stats", reserved=True, replace=True)
        self.topics.join(supervision.relay)
        add_event_methods(self._registry, self.topics, self._check_subscription, has_workers=True)

    def stats(self) -> dict[str, Any]:
        """The counters of this process: what `rpc.stats` returns where there is one only."""
        return self._stats()

    # -- what is observed -------------------------------------------------------------------------------------------

    def observe(
        self,
        *,
        metrics: Metrics | None = None,
        access_log: AccessLogFormat | None = None,
        log_slow_calls: float | None = None,
    ) -> None:
        """Set how calls are observed before the server runs: the options of the constructor with these names.

        Those that are None stay as they are.

        Raises:
            ValueError: an option makes no sense.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        given = {"metrics": metrics, "access_log": access_log, "log_slow_calls": log_slow_calls}
        self._observed.update({name: value for name, value in given.items() if value is not None})
        check_options(**self._observed)
        self._observation = None
        if any(value not in (None, False) for value in self._observed.values()):
            self._observation = Observation(
                **self._observed, is_registered=self._registry.by_name.__contains__, is_offered=self._is_offered
            )
        shown = self._observed["metrics"]
        self.routes.show_metrics(self._metrics_response if shown else None, public=shown == "public")

    def _is_offered(self, name: str) -> bool:
        """Whether another peer offers a method of this name here."""
        return False

    def metrics_text(self) -> str:
        """What `/metrics` answers, for programs that show it elsewhere. To be called in the server's event loop.

        Raises:
            RuntimeError: the server has no `metrics`.
        """
        if self._observation is None or self._observation.calls is None:
            raise RuntimeError("this server has no metrics: Server(metrics=True)")
        return self._observation.text(self.counters, self._running, self._more_metrics())

    def metric_numbers(self) -> dict[str, Any]:
        """The metrics of this process, for the sum of several; see `Observation.numbers`. Empty without metrics."""
        if self._observation is None or self._observation.calls is None:
            return {}
        return self._observation.numbers(self.counters, self._running)

    def _metrics_response(self) -> Response | Pending:
        if self._supervision is not None:
            return _MetricsOfAll(self, self._supervision)
        return _metrics_page(self.metrics_text())

    async def _metrics_of_all(self, supervision: Supervision) -> Response:
        assert self._observation is not None
        numbers = await supervision.metrics()
        return _metrics_page(self._observation.text_of(self.counters, self._running, numbers))

    def _more_metrics(self) -> list[Family]:
        """Metrics of this kind of server."""
        return []

    def _stats(self) -> dict[str, Any]:
        batched = self.batches.stats()
        return {**self.counters.as_dict(), **({"batched": batched} if batched else {})}

    # -- run and stop -----------------------------------------------------------------------------------------------

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
        main = self._run(**where, on_listening=_print_address if on_listening is None else on_listening)
        try:
            run_to_end(main, loop_factory(loop), DaemonExecutor(default_threads(), CLEAN_UP), lambda: self._left_behind)
        except StopNow as now:
            raise SystemExit(128 + now.number) from None

    async def _run(self, *, on_listening: Callable[[str], None], **where: Any) -> None:
        with Notifier.take() as self._notifier, stop_on_signals(self) as signals:
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
            executor = DaemonExecutor(default_threads(), CLEAN_UP)
            run_to_end(self._run_mcp(pipe), loop_factory(loop), executor, lambda: self._left_behind)
        except StopNow as now:
            raise SystemExit(128 + now.number) from None
        finally:
            pipe.close(CLEAN_UP)

    async def _run_mcp(self, pipe: StdioPipe) -> None:
        with stop_on_signals(self) as signals:
            async with self._started() as running:
                identity = None
                if self._authenticator is not None:
                    identity = await identify_starter(self._authenticator)
                agents = self._agents(running.dispatcher, running.invoker)
                await agents.talk(pipe, running, identity, log_message if self.debug else None)
        if len(signals) > 1:
            raise StopNow(signals[-1])

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
            if supervision is not None:
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
                if self._authenticator is None and each is not None and not is_loopback(each):
                    log.warning("listening at %s, not a loopback address: there is no authentication", each)
            log.info("listening at %s", ", ".join(self.addresses))
            yield address

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
        invoker = Invoker(
            threads=self._threads,
            processes=self._processes,
            max_queue=self.limits.max_queue,
            max_result=self.limits.max_worker_result,
            max_image_memory=self.limits.max_image_memory,
        )
        self.routes.open(invoker)
        running = self._running = self._make_running(invoker)
        try:
            async with self._lifespan(self) if self._lifespan else contextlib.nullcontext():
                running.is_serving = True
                try:
                    yield running
                finally:
                    try:
                        await running.drain(delay=self._drain_delay, timeout=self._drain_timeout)
                    finally:
                        running.is_serving = False
                        self._left_behind = running.left_behind
        finally:
            self._running = None
            if self._supervision is not None:
                self._supervision.ended(self)
            self.batches.close()
            self.routes.close()
            invoker.close()

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

    @property
    def _patience(self) -> float | None:
        """Seconds in which a connection must show its protocol; None: no limit."""
        return self.limits.auth_timeout if self._authenticator is not None else None

    def _check_subscription(self, session: ConversationState, topic: str) -> tuple[str, ...]:
        """Raise NotPermitted unless the peer may subscribe to a topic or pattern.

        Returns:
            Patterns of topics whose events it does not get.
        """
        return ()

    def _make_running(self, invoker: Invoker) -> RunningServer:
        dispatcher = self._make_dispatcher(invoker)
        self._memory.traffic = self._observation.traffic if self._observation is not None else None
        listener = Listener(
            lambda on_gone: self._make_session(dispatcher, on_gone),
            limits=self.limits,
            counters=self.counters,
            delimiter=self._delimiter,
            trace=log_message if self.debug else None,
            certificates=Certificates(self._tls) if self._tls is not None else None,
            access=self._access,
            routes=self.routes,
            authenticator=self._authenticator,
            paths=CallPaths(self._paths),
            patience=self._patience,
            memory=self._memory,
            binary=self.binary,
        )
        if self._mcp_path is not None:
            if self._mcp_path in (self._paths or ("/",)):
                raise ValueError(f"mcp: {self._mcp_path} is a path for calls already")
            listener.endpoints[self._mcp_path] = self._agents(dispatcher, invoker).endpoint(listener)
        return RunningServer(invoker, dispatcher, listener, self.routes)

    def _agents(self, dispatcher: Dispatcher, invoker: Invoker) -> Agents:
        """What serves agents, by the Model Context Protocol."""
        return Agents(
            dispatcher,
            self._registry,
            self._document.whole,
            options=self._session_options(dispatcher),
            invoker=invoker,
            info={"name": self.title, "version": self.version},
            is_public=self._authenticator is None,
        )

    def _make_dispatcher(self, invoker: Invoker) -> Dispatcher:
        options = self._dispatcher_options(invoker)
        kind: type[Dispatcher] = Dispatcher
        if self._middleware:
            kind, options["middleware"] = MiddlewareDispatcher, tuple(self._middleware)
        if self._tracing is not None:
            from ..methods.tracing import traced

            kind, options["tracing"] = traced(kind), self._tracing
        if self._observation is not None:
            kind = observed(kind)
            options.update(self._observation.dispatcher_options())
        return kind(self._registry, **options)

    def _dispatcher_options(self, invoker: Invoker) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "invoker": invoker,
            "limits": self.limits,
            "counters": self.counters,
            "debug": self.debug,
        }

    def _session_options(self, dispatcher: Dispatcher) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "limits": self.limits,
            "slow": self._slow_call,
            "on_slow": dispatcher.report_slow,
            "memory": self._memory,
        }

    def _make_session(self, dispatcher: Dispatcher, on_gone: Callable[[Session], None]) -> Session:
        options = self._session_options(dispatcher)
        if self._authenticator is None:
            session = Session(dispatcher, **options, on_gone=on_gone)
        else:
            on_accepted = dispatcher.accepted if isinstance(dispatcher, ObservedCalls) else None
            gate = Gate(dispatcher, self._authenticator, self.limits, on_accepted=on_accepted)
            session = GatedSession(gate, **options, on_gone=on_gone)
        session.takes_binary, session.shares_memory = self.binary, self._shared_memory
        session.counters = self.counters
        if self._tracing is not None:
            from ..peer.tracing import TracedOutgoingCalls

            session.make_calls = partial(TracedOutgoingCalls, tracing=self._tracing)
        return session


class _MetricsOfAll:
    """The response to a request for the metrics of all processes; a `web` page that is awaited."""

    def __init__(self, server: Server, supervision: Supervision) -> None:
        self._server = server
        self._supervision = supervision

    async def respond(self) -> Response:
        return await self._server._metrics_of_all(self._supervision)


def _metrics_page(text: str) -> Response:
    return Response(200, text.encode(), CONTENT_TYPE, [NOSNIFF, ("Cache-Control", "no-store")])


def _checked_paths(path: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The paths for calls as a tuple. Raises ValueError or TypeError for a path that is none."""
    if path is None:
        return None
    paths = (path,) if isinstance(path, str) else tuple(path)
    for each in paths:
        try:
            check_path(each)
        except RegistrationError as error:
            raise ValueError(f"path: {error}") from None
    if not paths:
        raise ValueError("path: give at least one, or None for calls at /")
    return paths


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
