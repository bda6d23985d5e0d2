"""The class `Server`: composes methods, peer, auth, events, web and transports.

`life` starts and stops it, and `program` runs it with signals. A call does not pass through here: it goes from the
transport through the session to the dispatcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ..auth.gate import GatedSession
from ..codec import Codec
from ..codec.options import Binary
from ..events.topics import Carrier, Topics
from ..limits import Limits
from ..methods.call import Invoker, check_picklable
from ..methods.discovery import OpenRpcDocument, add_auth_method, add_event_methods, add_own_methods, head_of
from ..methods.dispatch import Dispatcher
from ..methods.middleware import Middleware, checked
from ..methods.observed import ObservedCalls
from ..methods.replies import ReplyWriter
from ..nearest import check_names, with_options
from ..observe import make_tracing
from ..observe.counters import Counters
from ..observe.metrics import Family
from ..peer.ledger import ServerLedger
from ..peer.session import Session
from ..process import CLEAN_UP, raise_descriptor_limit
from ..supervisor.options import WORKER_DEFAULTS, WorkerOptions, wants_supervisor
from ..text import get_logger
from ..tls import TLS, Certificates, ClientTLS
from ..transports.access import TrustedProxies
from ..transports.listen import Listener, transport_of
from ..web.routes import DOCUMENT, METRICS, Answer, Routes, document_page
from ..wire.http_messages import Request, Response
from .guard import Guard
from .life import NatsMemberships, RunningServer, ServerLife, Supervision, log_message
from .methods import ServerMethods
from .observation import METRIC_NUMBERS, Observation, metrics_response
from .options import (
    DEFAULTS,
    LISTEN_DEFAULTS,
    RUN_DEFAULTS,
    Http,
    Info,
    Lifespan,
    ListenOptions,
    Logs,
    Metrics,
    ReadAccess,
    RunOptions,
    ServerOptions,
    mcp_path,
    server_objects,
    with_configured,
)
from .program import (
    LoopName,
    ServerProgram,
    check_no_loop,
    identify_starter,
    is_served_elsewhere,
    print_address,
    run_workers,
)

if TYPE_CHECKING:
    from ..mcp.agents import Agents, StdioPipe
    from ..nats.options import NatsLogin
    from .asgi import AsgiApplication

log = get_logger("rpcstream.server")

#: The advice of `run` in a running event loop.
RUN_HINT = ": use `async with server.listening():`"

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
        options: the options below, by keyword.

    Raises:
        ValueError: an option is invalid.
        TypeError: an option is unknown.
    """

    #: A prefix of topics that may be subscribed to although they begin with "rpc."; "" for none.
    SYSTEM_TOPICS = ""

    DEFAULT_TITLE = "rpcstream server"

    #: Whether it may run in several processes.
    MAY_HAVE_WORKERS = True

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        check_names(f"{type(self).__name__}()", options, DEFAULTS)
        given: Any = with_configured(options)
        limits: Limits = given["limits"]
        self.limits = limits
        self.debug: bool = given["debug"]
        info: Info = given["info"]
        #: What it says about itself in `rpc.discover`.
        self.info = info if info.title is not None else replace(info, title=self.DEFAULT_TITLE)
        #: How it answers HTTP and WebSocket.
        self.http: Http = given["http"]
        #: What it logs of calls.
        self.logs: Logs = given["logs"]
        #: For objects that the lifespan prepares and handlers use, such as a model or a database.
        self.state = types.SimpleNamespace()
        self.counters = Counters()
        self._ledger = ServerLedger(limits.max_held_total)
        self._delimiter: bytes = given["delimiter"]
        #: Whether large payloads may travel as binary frames; set before the server runs.
        self.binary: Binary = given["binary"]
        #: Makes a span for each call; None: no spans.
        self._tracing = make_tracing(given["tracing"])
        # Who may connect, and how.
        self._guard = Guard(given, options, limits=limits, counters=self.counters)
        self._proxies = TrustedProxies(given["trusted_proxies"])
        self._mcp_path: str | None = mcp_path(given["mcp"])
        # What is offered: methods, topics, web pages.
        super().__init__(given["codec"] or Codec.of(limits), knows_callers=self._guard.authenticator is not None)
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
        #: The web pages: answers to HTTP's GET.
        self.routes = Routes(codec=self.codec, debug=self.debug, slow=self.logs.slow_call)
        #: Serve bytes or a file at a path: `server.static("/logo.png", "./logo.png")`; see `Routes.static`.
        self.static = self.routes.static
        #: Decorator: a function that answers a path: `@server.get("/hello/{name}")`; see `Routes.get`.
        self.get = self.routes.get
        self._nats = NatsMemberships(self._registry, self._about, lambda: self._guard.tls)
        #: The largest numbers of handlers in threads and in processes; None: the default.
        self._pools: dict[str, int | None] = {name: given[name] for name in ("threads", "processes")}
        self._life = self._make_life(given)
        self._program = ServerProgram(self._life, self._reload)
        self._asgi: AsgiApplication | None = None
        self._add_pages(docs=given["docs"], javascript=given["javascript"])
        self._observation = self._observe(given["metrics"])
        self._add_builtin_methods()

    def _make_life(self, given: Mapping[str, Any]) -> ServerLife:
        """Make what starts and stops the server, as the options say."""
        lifespan: Lifespan | None = given["lifespan"]
        return ServerLife(
            drain_timeout=given["drain_timeout"],
            drain_delay=given["drain_delay"],
            nats=self._nats,
            lifespan=contextlib.nullcontext if lifespan is None else partial(lifespan, self),
            make_running=self._make_running,
            while_serving=self._while_serving,
            on_address=self._guard.warn_of_strangers,
        )

    def _observe(self, metrics: Metrics) -> Observation:
        """Count and log calls, and add the page of the metrics."""
        if metrics:
            self.routes.show(METRICS, self._metrics_page, public=metrics == "public")
        return Observation(
            self.logs,
            metrics,
            counters=self.counters,
            is_known=self._is_known,
            running=lambda: self._life.running,
            more=self._more_metrics,
        )

    def _add_pages(self, *, docs: bool | None, javascript: bool) -> None:
        """Add the pages of the server itself."""
        self._docs = docs
        if javascript:
            self.routes.show_javascript()
        if docs:
            self.routes.show_explorer(lambda: self.path)

    def _add_builtin_methods(self) -> None:
        """Add the methods `rpc.*`."""
        add_event_methods(self._registry, self.topics, self._check_subscription)
        #: The document of `rpc.discover` and `/openrpc.json`.
        self._document = OpenRpcDocument(
            self._registry, codec=self.codec, head=self._document_head, servers=self._servers
        )
        add_own_methods(self._registry, self._document, stats=self.stats)
        self.routes.show(DOCUMENT, self._document_page)
        if self._guard.authenticator is not None:
            add_auth_method(self._registry)

    # -- the document -----------------------------------------------------------------------------------------------

    def _document_page(self, request: Request, parameters: object) -> Answer:
        return document_page(request, self._document_text, self._document.tail, self._servers_at)

    async def _document_text(self, compat: str | None) -> bytes:
        """The OpenRPC document as JSON, with the servers where this one listens."""
        return await self._document.text(compat)

    def _document_head(self) -> dict[str, Any]:
        info = self.info
        return head_of(
            title=str(info.title), version=info.version, description=info.description, security=self._guard.security()
        )

    def _servers(self) -> list[dict[str, Any]]:
        """The Server Objects of the addresses where it listens, or of its public URLs."""
        return server_objects(
            self.addresses,
            paths=self.path,
            is_encrypted=self._guard.tls is not None,
            public=tuple(self.info.public_urls),
        )

    def _servers_at(self, host: str) -> list[dict[str, Any]]:
        """The same for a caller that has reached it by this name and port."""
        if self.info.public_urls or not self.addresses or all(each.startswith("unix:") for each in self.addresses):
            return self._servers()
        return server_objects([host], paths=self.path, is_encrypted=self._guard.tls is not None)

    # -- who may connect --------------------------------------------------------------------------------------------

    @property
    def path(self) -> tuple[str, ...] | None:
        """The paths for calls by HTTP and WebSocket; None: POST to "/", and WebSockets anywhere."""
        path = self.http.path
        return None if path is None else tuple(path)

    def show_docs_by_default(self) -> None:
        """Answer `/docs` with the explorer, unless the option `docs` is set, or a route of this server has its path."""
        if self._docs is None:
            self.routes.show_explorer(lambda: self.path, is_default=True)

    def guard(
        self,
        *,
        read_access: ReadAccess | None = None,
        watched: str | None = None,
        tls: TLS | None = None,
    ) -> None:
        """Add a certificate before the server runs, and say where the access that it was `configured` with comes from.

        Args:
            read_access: gives `token` or `authenticate`; called with each SIGHUP, and when a file has changed.
            watched: the path of that file.
            tls: as for the constructor.

        Raises:
            ValueError: the server has a token, an `authenticate` function or a certificate already. It is not replaced,
                since it may be stricter.
            RuntimeError: the server is running.
        """
        self._life.check_stopped()
        self._guard.add(read_access, tls)
        self._program.watched = watched

    def _reload(self) -> None:
        """Read again what was read from files, as `ServerProgram` needs it."""
        self._guard.reload(self._running, self._life.drain_timeout)

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

        Any number of servers may join a service. Each call goes to one of them, and events reach the subscribers of all
        servers and on NATS. Clients use the address "nats://host/service". Logins with credentials files and nkeys need
        the extra `rpcstream[nats]`.

        Args:
            url: one or more NATS servers: "nats://host:4222,other:4222". The name of the service may follow after a
                slash.
            service: the name of the service: letters, digits, "-" and "_".
            login: the login of this server at NATS; None: no login.
            tls: whom to trust at NATS, as for `Client`. None: the authorities of the system, if NATS asks for TLS.
            only: do not listen on a port.
            trust_identity: pass what NATS says about callers in other accounts to `authenticate=`, as `nats_user` and
                `nats_account` of the credentials. Callers in this server's own account can forge both, so there must
                not be any.
            direct: where clients connect for messages over NATS's `max_payload`: "host:port" to listen on, or
                "host:port=name:port" if clients connect to another address. None: a free port at the address from which
                this machine reaches NATS, unless NATS is encrypted and the server has no certificate. False: nowhere,
                so that such messages are errors.

        Raises:
            ValueError: the address or the name is malformed, or there is no name; or nothing reads what is trusted.
            RuntimeError: the server is running.
        """
        self._life.check_stopped()
        if trust_identity and (self._guard.authenticator is None or not self._guard.authenticator.takes_shown):
            raise ValueError("trust_identity= needs authenticate=, which gets the callers' names")
        self._share_events(
            self._nats.add(url, service, login, tls, self.limits, only=only, trusts=trust_identity, direct=direct)
        )

    # -- around calls -----------------------------------------------------------------------------------------------

    def middleware(self, function: AnyMiddleware) -> AnyMiddleware:
        """Decorator: run an async function around every call: `async def limit(call, call_next)`.

        It gets a `MethodCall` and `call_next`, which runs the rest: `return await call_next(call)`. It may raise an
        `RpcError` instead, change `call.arguments` before, and the result afterwards. The first registered function is
        outermost. It runs for calls that would reach a handler, but not for `rpc.*` methods.

        Raises:
            RegistrationError: the function is not an async function with two parameters.
            RuntimeError: the server is running.
        """
        self._life.check_stopped()
        self._registry.add_middleware(checked(function))
        return function

    def take_connections_from(self, supervision: Supervision) -> ServerLife:
        """Be one of several processes whose connections a supervisor accepts, from the next start on.

        `rpc.stats` speaks for all of them then, and events reach the subscribers of all. Returns what stops this one.

        Raises:
            ValueError: it is a hub.
        """
        self._check_may_have_workers()
        self._life.supervision = supervision

        async def stats() -> dict[str, Any]:
            """The counters of all processes of this server since its start."""
            return {name: value for name, value in (await supervision.counted()).items() if name not in METRIC_NUMBERS}

        self._registry.add(stats, name="rpc.stats", reserved=True, replace=True)
        self.topics.join(supervision.relay, supervision.group)
        add_event_methods(self._registry, self.topics, self._check_subscription, is_shared=True)
        return self._life

    def _check_may_have_workers(self) -> None:
        if not self.MAY_HAVE_WORKERS:
            raise ValueError(
                "a hub must be one process, because its clients must find each other: run it without workers"
            )

    def stats(self) -> dict[str, Any]:
        """The counters of this process: what `rpc.stats` returns where there is one only."""
        batched = {name: method.stats() for name, method in self.batches.items()}
        return {**self.counters.as_dict(), **({"batched": batched} if batched else {})}

    # -- what is observed -------------------------------------------------------------------------------------------

    def _is_known(self, name: str) -> bool:
        """Whether there is a method of this name."""
        return name in self._registry

    def metrics_text(self) -> str:
        """The text of `/metrics`, for programs that show it elsewhere. Call it in the server's event loop.

        Raises:
            RuntimeError: the server has no `metrics`.
        """
        return self._observation.text()

    def metric_numbers(self) -> dict[str, Any]:
        """The metrics of this process, for the sum of several; see `Observation.numbers`. Empty without metrics."""
        return self._observation.numbers()

    def _metrics_page(self, request: Request, parameters: object) -> Answer:
        if self._life.supervision is not None:
            return self._metrics_of_all(self._life.supervision)
        return metrics_response(self.metrics_text())

    async def _metrics_of_all(self, supervision: Supervision) -> Response:
        counted = await supervision.counted()
        return metrics_response(self._observation.text_of(counted))

    def _more_metrics(self) -> list[Family]:
        """Metrics of this kind of server."""
        return []

    # -- how it runs ------------------------------------------------------------------------------------------------

    @with_options(RUN_DEFAULTS, ListenOptions, WorkerOptions)
    def run(
        self,
        *,
        loop: LoopName = "auto",
        on_listening: Callable[[str], None] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """Serve until SIGINT or SIGTERM, or until `stop` is called, in this process or in several. Blocks.

        After the first signal, the server accepts no more connections, gives running calls `drain_timeout` seconds to
        finish, and closes. A second signal ends it at once. Handlers that do not end when cancelled are abandoned, with
        a warning that names them. A handler that blocks the event loop beyond that time is interrupted, as by a second
        signal. The threads of `asyncio.to_thread` get as much time to end as cancelled handlers.

        SIGHUP reloads the certificate, the token of `rpcstream-server --token-file`, and the configuration of a hub.

        With `workers`, this process accepts the connections, and passes each to the worker with the fewest connections.
        Each worker is a new interpreter that imports the module or script that defines the server. Workers share no
        memory, such as `state`. Events and retained events reach the subscribers of all workers. SIGHUP starts new
        workers, and ends the old workers when all new ones are ready.

        Args:
            loop: "uvloop", "asyncio", or "auto": uvloop if it is installed.
            on_listening: called once with the address, when the server accepts connections. None: print the address to
                standard error.
            options: the options below.

        In a module that `rpcstream-server` loads, the options of that command override these arguments. In a worker
        process (`offload="process"`), which imports the module for its functions, `run` does nothing. Under systemd, it
        reports when the service is ready and when it stops, and serves the watchdog; see `rpcstream.systemd`.

        Raises:
            OSError: the server cannot listen on this address; the text names it.
            ValueError: a socket cannot listen, because it is for datagrams, not bound, or a connection; or an option of
                workers is invalid, the server has no name in a module, or it is a hub, which must be one process.
            RuntimeError: an event loop already runs in this thread, as in a notebook; or workers cannot run here: on
                Windows, or outside the main thread.
            SystemExit: the lifespan failed at the start: its error is printed, and the code is 1. After a second
                signal, or if a handler blocked the event loop for too long after the first: 128 plus the signal's
                number. If a worker could not be started: its exit status.
        """
        check_names("run()", options, RUN_DEFAULTS)
        where: Any = {name: options.get(name, default) for name, default in LISTEN_DEFAULTS.items()}
        processes: Any = {name: value for name, value in options.items() if name in WORKER_DEFAULTS}
        if is_served_elsewhere(self, {**where, "loop": loop, "on_listening": on_listening}):
            return
        check_no_loop("run", RUN_HINT)
        if wants_supervisor(processes):
            self._check_may_have_workers()
            run_workers(self, processes, where, loop, on_listening or print_address)
            return
        raise_descriptor_limit()
        self._program.run(lambda: self._program.serve(where, on_listening), loop)

    def run_mcp(self, *, loop: LoopName = "auto", pipe: StdioPipe | None = None) -> None:
        """Serve an agent on standard input and output, by the Model Context Protocol, until its host closes them.

        For a program that the host of an agent starts. Blocks like `run`, and also ends with a signal. What the program
        prints goes to standard error. If the server has authentication, the agent's token is in the variable
        RPCSTREAM_TOKEN.

        Args:
            loop: as for `run`.
            pipe: was made before, to be there when other code is imported; None: one is made now.

        Raises:
            PermissionError: the server has authentication, and the token is missing or not accepted.
            RuntimeError: an event loop runs in this thread already.
            SystemExit: as `run`.
        """
        if is_served_elsewhere(self, {"loop": loop}):
            return
        check_no_loop("run_mcp")
        from ..mcp.agents import StdioPipe

        pipe = StdioPipe() if pipe is None else pipe
        try:
            self._program.run(lambda: self._talk(pipe), loop)
        finally:
            pipe.close(CLEAN_UP)

    async def _talk(self, pipe: StdioPipe) -> None:
        """Serve an agent on standard input and output."""
        async with self._life.started() as running:
            identity = None
            if self._guard.authenticator is not None:
                identity = await identify_starter(self._guard.authenticator)
            agents = self._agents(running.dispatcher, running.listener)
            await agents.talk(pipe, running.stopping, identity, log_message if self.debug else None)

    @with_options(LISTEN_DEFAULTS, ListenOptions)
    def listening(self, **where: Unpack[ListenOptions]) -> AbstractAsyncContextManager[str]:
        """Serve in the running event loop while the block runs. Gives the address for clients.

        The end of the block stops the server like `stop`, and waits until it has stopped. Signals are not handled.
        Handlers that do not end when cancelled continue in the loop, and a warning names them.

        Args:
            where: the options below.

        Raises:
            OSError: the server cannot listen on this address; the text names it.
            ValueError: one of the sockets cannot listen.
            RuntimeError: the server is running already.
        """
        return self._life.listening(where)

    def asgi(self) -> AsgiApplication:
        """This server as an ASGI application: for uvicorn, hypercorn or granian, alone or mounted in another one.

        Mounted: `app.mount("/rpc", rpc := server.asgi())`, and `FastAPI(lifespan=rpc.lifespan)` to start and stop with
        the application; else the server starts with the first request.

        HTTP and WebSockets are served as at a port of our own, with the same options; there is no line stream. Each
        call gives the same application, which may be mounted several times and runs in one event loop.

        Raises:
            ValueError: the server has a certificate (`tls`), which belongs to the ASGI server then.
        """
        from .asgi import AsgiApplication

        if self._guard.tls is not None:
            raise ValueError("tls= is for the server's own port: give the certificate to the ASGI server")
        if self._asgi is None:
            self._asgi = AsgiApplication(self._life)
        return self._asgi

    @asynccontextmanager
    async def in_memory(self) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
        """Serve without a socket while the block runs; gives a function that makes the protocol of a new connection.

        For tests: use `rpcstream.testing.memory_client`.
        """
        async with self._life.started() as running:
            yield running.listener.make_stream

    def stop(self) -> None:
        """Stop a running server as SIGTERM does: no new requests, and `drain_timeout` seconds for calls in flight.

        Returns at once. `run` returns when the server has stopped; the block of `listening` continues. Call it in the
        server's event loop. Does nothing if the server is not running, or is already stopping.
        """
        self._life.stop()

    def abort(self) -> None:
        """End a running server at once: close connections and cancel handlers. Call it like `stop`."""
        self._life.abort()

    @property
    def time_to_stop(self) -> float:
        """Seconds from `stop` until all connections are closed, at the latest."""
        return self._life.time_to_stop

    @property
    def is_running(self) -> bool:
        """True from the beginning of the start until the end of the stop, the lifespan included."""
        return self._life.is_running

    @property
    def is_serving(self) -> bool:
        """True while connections are served; false while the lifespan is entered and left."""
        return self._life.is_serving

    @property
    def _running(self) -> RunningServer | None:
        return self._life.running

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the server listens, in the form that clients take; empty while it does not."""
        return self._life.addresses

    def __repr__(self) -> str:
        own = sum(not name.startswith("rpc.") for name in self.methods)
        state = f"listening at {', '.join(self.addresses)}" if self.addresses else "not listening"
        return f"<{type(self).__name__} with {own} method{'' if own == 1 else 's'}, {state}>"

    # -- how it is made when it starts ------------------------------------------------------------------------------

    @property
    def _patience(self) -> float | None:
        """Seconds in which a connection must show its protocol; None: no limit."""
        return self.limits.auth_timeout if self._guard.authenticator is not None else None

    def _share_events(self, sharing: Carrier) -> None:
        """Share the events with other servers."""
        self.topics.share(sharing)
        add_event_methods(self._registry, self.topics, self._check_subscription, is_shared=True)

    def _check_subscription(self, session: Session, topic: str) -> tuple[str, ...]:
        """Raise NotPermitted unless the peer may subscribe to a topic or pattern.

        Returns:
            Patterns of topics whose events it does not get.
        """
        return ()

    def _make_running(self) -> RunningServer:
        for method in self._registry.values():
            if method.offload == "process":
                check_picklable(method)
        invoker = Invoker(self.limits, **self._pools)
        dispatcher = self._make_dispatcher(invoker)
        listener = Listener(
            make_session=lambda on_gone: self._make_session(dispatcher, on_gone),
            limits=self.limits,
            counters=self.counters,
            delimiter=self._delimiter,
            trace=log_message if self.debug else None,
            certificates=Certificates(self._guard.tls) if self._guard.tls is not None else None,
            access=self._guard.rules,
            routes=self.routes,
            authenticator=self._guard.authenticator,
            paths=self.path,
            patience=self._patience,
            ledger=self._ledger,
            binary=bool(self.binary),
            notification_status=self.http.notification_status,
            proxies=self._proxies,
        )
        if self._mcp_path is not None:
            if self._mcp_path in (self.path or ("/",)):
                raise ValueError(f"mcp: {self._mcp_path} is a path for calls already")
            listener.endpoints[self._mcp_path] = self._agents(dispatcher, listener)
        return RunningServer(invoker, dispatcher, listener, self.routes)

    def _agents(self, dispatcher: Dispatcher, listener: Listener) -> Agents:
        """What serves agents, by the Model Context Protocol."""
        from ..mcp.agents import Agents

        return Agents(
            dispatcher,
            listener,
            self._registry,
            self._document.whole,
            options=self._session_options(dispatcher),
            info={"name": str(self.info.title), "version": self.info.version},
            is_public=self._guard.authenticator is None,
        )

    def _about(self) -> dict[str, Any]:
        """What it says of itself in NATS's services API."""
        return {
            "version": self.info.version,
            "description": self.info.description or str(self.info.title),
            "metrics": self._observation.calls,
        }

    def _while_serving(self) -> AbstractAsyncContextManager[None]:
        """What surrounds the time in which connections are served: at a hub."""
        return contextlib.nullcontext()

    def _make_dispatcher(self, invoker: Invoker) -> Dispatcher:
        replies = ReplyWriter(self.codec, self.limits, self.counters, debug=self.debug)
        dispatcher = Dispatcher(self._registry, invoker, replies)
        self._forward(dispatcher)
        if self._tracing is not None or self._observation:
            ObservedCalls(
                dispatcher,
                self._is_known,
                metrics=self._observation.calls,
                logs=self._observation.logs,
                tracing=self._tracing,
                transport_of=transport_of,
            )
        return dispatcher

    def _forward(self, dispatcher: Dispatcher) -> None:
        """Have a dispatcher forward calls of methods that others offer here: at a hub."""

    def _session_options(self, dispatcher: Dispatcher) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "limits": self.limits,
            "slow": self.logs.slow_call,
            "on_slow": dispatcher.report_slow,
            "server_ledger": self._ledger,
        }

    def _make_session(self, dispatcher: Dispatcher, on_gone: Callable[[Session], None]) -> Session:
        options = self._session_options(dispatcher)
        if self._guard.authenticator is None:
            session = Session(dispatcher, **options, on_gone=on_gone)
        else:
            session = GatedSession(dispatcher, self._guard.authenticator, **options, on_gone=on_gone)
        session.takes_binary = self.binary
        session.counters = self.counters
        if self._tracing is not None:
            from ..peer.tracing import traced_calls

            session.make_calls = partial(traced_calls, self._tracing)
        return session
