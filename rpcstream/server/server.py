"""The class `Server`: what its options make. How it is run and stopped stands in `serving`.

Joins methods, peer, auth, events, web and transports. A call does not come by here; it goes from the transport through
the session to the dispatcher.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ..auth.authenticator import Authenticator
from ..auth.gate import GatedSession
from ..codec import Codec
from ..events.topics import Carrier, Topics
from ..keyword_options import check_names, with_options
from ..limits import Limits
from ..methods.builtin_methods import add_auth_method, add_event_methods, add_own_methods
from ..methods.discovery import OpenRpcDocument, head_of
from ..methods.dispatch import Dispatcher
from ..methods.invoke import Invoker
from ..methods.middleware import Middleware, checked
from ..methods.observed import ObservedCalls
from ..methods.replies import ReplyWriter
from ..observe import make_tracing
from ..observe.call_log import AccessLogFormat
from ..observe.counters import Counters
from ..observe.metrics import CONTENT_TYPE, Family
from ..peer.ledger import ServerLedger
from ..peer.session import Session
from ..text import get_logger
from ..tls import TLS, Certificates
from ..transports.access import AccessRules
from ..transports.listen import Listener, transport_of
from ..transports.proxies import TrustedProxies
from ..web.document import document_page
from ..web.routes import DOCUMENT, METRICS, Answer, Routes
from ..wire.http_messages import NOSNIFF, Request, Response
from .addresses import server_objects
from .agents import Agents, mcp_path
from .nats import AboutServer
from .observation import Observation
from .options import DEFAULTS, Http, Info, Logs, Metrics, ReadAccess, ServerOptions, with_configured
from .running import RunningServer, Supervision, log_message
from .serving import ServingServer

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


log = get_logger("rpcstream.server")

Handler = TypeVar("Handler", bound=Callable[..., Any])
AnyMiddleware = TypeVar("AnyMiddleware", bound=Middleware)


@with_options(DEFAULTS, ServerOptions)
class Server(ServingServer):
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

    DEFAULT_TITLE = "rpcstream server"

    #: Whether it may run in several processes, which share nothing.
    MAY_HAVE_WORKERS = True

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        check_names(f"{type(self).__name__}()", options, DEFAULTS)
        given: Any = with_configured(options)
        limits: Limits = given["limits"]
        self.limits = limits
        self.debug: bool = given["debug"]
        info: Info = given["info"]
        #: What it says of itself in `rpc.discover`.
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
        self.binary: bool = given["binary"]
        #: Makes spans of the calls; None: there are none.
        self._tracing = make_tracing(given["tracing"])
        # Who may connect, and how.
        self._authenticator: Authenticator | None = None
        token, authenticate = given["token"], given["authenticate"]
        #: Whether its token or function is that of a configuration, and not of the program.
        self._is_guarded_by_configuration = (token, authenticate) != (options.get("token"), options.get("authenticate"))
        if token is not None or authenticate is not None:
            self._authenticator = Authenticator(
                token=token, authenticate=authenticate, timeout=limits.auth_timeout, counters=self.counters
            )
        self._proxies = TrustedProxies(given["trusted_proxies"])
        self._access = AccessRules(hosts=self.http.hosts, origins=self.http.origins)
        self._mcp_path: str | None = mcp_path(given["mcp"])
        self._tls: TLS | None = given["tls"]
        # What is offered: methods, topics, web pages.
        super().__init__(given["codec"] or Codec.of(limits), knows_callers=self._authenticator is not None, given=given)
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
        self.routes = Routes(codec=self.codec, debug=self.debug, slow=self.logs.slow_call)
        #: Answer a path with bytes or a file: `server.static("/logo.png", "./logo.png")`; see `Routes.static`.
        self.static = self.routes.static
        #: Decorator: a function that answers a path: `@server.get("/hello/{name}")`; see `Routes.get`.
        self.get = self.routes.get
        self._add_pages(docs=given["docs"], javascript=given["javascript"])
        self._observation: Observation | None = None
        self._shown_metrics: Metrics = given["metrics"]
        self.observe()
        self._add_builtin_methods()

    def _add_pages(self, *, docs: bool | None, javascript: bool) -> None:
        """Add the pages of the server itself."""
        self._docs = docs
        self.routes.show_javascript(javascript)
        if docs:
            self.show_docs()

    def _add_builtin_methods(self) -> None:
        """Add the methods `rpc.*`."""
        add_event_methods(self._registry, self.topics, self._check_subscription)
        #: The document of `rpc.discover` and `/openrpc.json`.
        self._document = OpenRpcDocument(
            self._registry, codec=self.codec, head=self._document_head, servers=self._servers
        )
        add_own_methods(self._registry, self._document, stats=self._stats)
        self.routes.show(DOCUMENT, self._document_page)
        if self._authenticator is not None:
            add_auth_method(self._registry)

    # -- the document -----------------------------------------------------------------------------------------------

    def _document_page(self, request: Request, parameters: object) -> Answer:
        return document_page(request, self._document_text, self._document.tail, self._servers_at)

    async def _document_text(self, compat: str | None) -> bytes:
        """The OpenRPC document as JSON, with the servers where this one listens."""
        return await self._document.text(compat)

    def _document_head(self) -> dict[str, Any]:
        security: list[dict[str, Any]] = []
        if self._authenticator is not None:
            how = "the header Authorization of each request or of the WebSocket, or the method rpc.authenticate"
            security.append({"type": "http", "scheme": "bearer", "description": how})
        if self._tls is not None and self._tls.ca is not None:
            security.append({"type": "mutualTLS", "description": "a certificate of the client"})
        info = self.info
        return head_of(title=str(info.title), version=info.version, description=info.description, security=security)

    def _servers(self) -> list[dict[str, Any]]:
        """The Server Objects of the addresses where it listens, or of its public URLs."""
        return server_objects(
            self.addresses, paths=self.path, is_encrypted=self._tls is not None, public=tuple(self.info.public_urls)
        )

    def _servers_at(self, host: str) -> list[dict[str, Any]]:
        """The same for a caller that has reached it by this name and port."""
        if self.info.public_urls or not self.addresses or all(each.startswith("unix:") for each in self.addresses):
            return self._servers()
        return server_objects([host], paths=self.path, is_encrypted=self._tls is not None)

    # -- who may connect --------------------------------------------------------------------------------------------

    @property
    def path(self) -> tuple[str, ...] | None:
        """The paths for calls by HTTP and WebSocket; None: POST to "/", and WebSockets anywhere."""
        path = self.http.path
        return None if path is None else tuple(path)

    def take_calls_at(self, path: str | Iterable[str] | None) -> None:
        """Set the paths for calls by HTTP and WebSocket, before the server runs; as `path` of the constructor.

        Raises:
            ValueError, TypeError: one of them is no path.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        self.http = replace(self.http, path=path)

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
            self.routes.show_explorer((lambda: self.path) if shown else None, is_default=is_default)

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
        token: str | Iterable[str] | None = None,
        read_access: ReadAccess | None = None,
        watched: str | None = None,
        tls: TLS | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
    ) -> None:
        """Add authentication, a certificate, or names of hosts and origins before the server runs.

        Args:
            token, tls, hosts, origins: as for the constructor.
            read_access: gives `token` or `authenticate`; called now, with each SIGHUP, and when a file has changed.
            watched: the path of that file.

        Raises:
            ValueError: the server has a token, an `authenticate` function or a certificate already. It is not replaced,
                since it may be stricter.
            RuntimeError: the server is running.
        """
        if self._running is not None:
            raise RuntimeError("this server is running already")
        shown: Mapping[str, Any] = {} if token is None else {"token": token}
        if read_access is not None and not self._is_guarded_by_configuration:
            shown, _ = read_access()
        if shown and self._authenticator is not None:
            raise ValueError("this server has a token= or an authenticate= of its own")
        if tls is not None and self._tls is not None:
            raise ValueError("this server has a certificate (tls=) of its own")
        access = self._access.also(hosts=hosts, origins=origins)
        self._read_access, self._watched = read_access, watched
        if shown:
            self._authenticator = Authenticator(**shown, timeout=self.limits.auth_timeout, counters=self.counters)
            add_auth_method(self._registry)
        self._access = access
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
        self._registry.add_middleware(checked(function))
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
        self.topics.join(supervision.relay, supervision.group)
        add_event_methods(self._registry, self.topics, self._check_subscription, is_shared=True)

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
        if metrics is not None:
            self._shown_metrics = metrics
        given: dict[str, Any] = {"access_log": access_log, "log_slow_calls": log_slow_calls}
        self.logs = replace(self.logs, **{name: value for name, value in given.items() if value is not None})
        shown = self._shown_metrics
        if shown not in (True, False, "public"):
            raise ValueError(f"metrics must be True, False or 'public', got {shown!r}")
        self._observation = Observation.of(self.logs, has_metrics=bool(shown), is_known=self._is_known)
        self.routes.show(METRICS, self._metrics_page if shown else None, public=shown == "public")

    def _is_known(self, name: str) -> bool:
        """Whether there is a method of this name."""
        return name in self._registry

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

    def _metrics_page(self, request: Request, parameters: object) -> Answer:
        if self._supervision is not None:
            return self._metrics_of_all(self._supervision)
        return _metrics_page(self.metrics_text())

    async def _metrics_of_all(self, supervision: Supervision) -> Response:
        assert self._observation is not None
        numbers = await supervision.metrics()
        return _metrics_page(self._observation.text_of(self.counters, self._running, numbers))

    def _more_metrics(self) -> list[Family]:
        """Metrics of this kind of server."""
        return []

    def _stats(self) -> dict[str, Any]:
        batched = {name: method.stats() for name, method in self.batches.items()}
        return {**self.counters.as_dict(), **({"batched": batched} if batched else {})}

    # -- how it is made when it starts ------------------------------------------------------------------------------

    @property
    def _patience(self) -> float | None:
        """Seconds in which a connection must show its protocol; None: no limit."""
        return self.limits.auth_timeout if self._authenticator is not None else None

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

    def _make_running(self, invoker: Invoker) -> RunningServer:
        dispatcher = self._make_dispatcher(invoker)
        listener = Listener(
            make_session=lambda on_gone: self._make_session(dispatcher, on_gone),
            limits=self.limits,
            counters=self.counters,
            delimiter=self._delimiter,
            trace=log_message if self.debug else None,
            certificates=Certificates(self._tls) if self._tls is not None else None,
            access=self._access,
            routes=self.routes,
            authenticator=self._authenticator,
            paths=self.path,
            patience=self._patience,
            ledger=self._ledger,
            binary=self.binary,
            notification_status=self.http.notification_status,
            proxies=self._proxies,
        )
        if self._mcp_path is not None:
            if self._mcp_path in (self.path or ("/",)):
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
            info={"name": str(self.info.title), "version": self.info.version},
            is_public=self._authenticator is None,
        )

    def _about(self) -> AboutServer:
        return AboutServer(
            version=self.info.version,
            description=self.info.description or str(self.info.title),
            takes_binary=self.binary,
            metrics=self._observation.calls if self._observation is not None else None,
        )

    def _make_dispatcher(self, invoker: Invoker) -> Dispatcher:
        replies = ReplyWriter(self.codec, self.limits, self.counters, debug=self.debug)
        dispatcher = Dispatcher(self._registry, invoker, replies)
        self._forward(dispatcher)
        observation = self._observation
        if self._tracing is not None or observation is not None:
            ObservedCalls(
                dispatcher,
                self._is_known,
                metrics=None if observation is None else observation.calls,
                logs=() if observation is None else observation.logs,
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
        if self._authenticator is None:
            session = Session(dispatcher, **options, on_gone=on_gone)
        else:
            session = GatedSession(dispatcher, self._authenticator, **options, on_gone=on_gone)
        session.takes_binary = self.binary
        session.counters = self.counters
        if self._tracing is not None:
            from ..peer.tracing import traced_calls

            session.make_calls = partial(traced_calls, self._tracing)
        return session


def _metrics_page(text: str) -> Response:
    return Response(200, text.encode(), CONTENT_TYPE, [NOSNIFF, ("Cache-Control", "no-store")])
