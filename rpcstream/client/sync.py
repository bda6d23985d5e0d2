"""The blocking client: each call blocks its thread, on a connection that stays open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from ..nearest import with_options
from ..peer.calls import Call
from ..peer.marshal import NOT_GIVEN
from .address import Address, parse_address
from .attempts import check_params, given_params
from .base import BaseClient, CallOptions, Params, check_hello, notify_client_params, publish_params, take_options
from .batch import SyncBatch
from .options import DEFAULT_ADDRESS, DEFAULTS, ClientOptions, make_settings
from .sync_engine import SyncEngine

if TYPE_CHECKING:  # these import asyncio or threads, which plain calls do without
    from concurrent.futures import Future

    from ..events.event_queue import Policy
    from ..methods.options import CallbackOptions
    from ..peer.pending import OnProgress
    from ..peer.remote import BlockingPeer
    from .aio import AsyncClient
    from .blocking_streams import ClientStream, ClientSubscription
    from .portal import Portal

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
Hello = TypeVar("Hello", bound="Callable[[BlockingPeer], object]")

_OFFERING = "offering a method to the server"


@with_options(DEFAULTS, ClientOptions)
class Client(BaseClient):
    """A blocking client of a server: `Client().vision.vectorize(photo=image)`. Several threads may share it.

    The first call opens a connection, which stays open. After a loss, the next call opens a new one. Threads that call
    at the same time use one connection each, up to `pool`; there is no order between their calls. A forked process
    opens its own connections.

    Some features need an event loop, which the client runs in its own thread. Calls of `submit` share a connection
    there. These features move all calls of the client to that thread: methods that the server may call, streams,
    subscriptions, iterators as arguments, `on_connect`, the options `reconnect`, `on_state`, `name` and `keepalive`,
    and HTTP, WebSocket and NATS addresses. `close` ends the thread.

    Args:
        address: the server, such as "host:8545", "[::1]:8545", "unix:///path", "tls://host", "https://host/path",
            "wss://host/path" or "nats://host/service". "one:8545,other:8545" connects to the first that answers.
        options: the keywords below.

    Attributes:
        notify: sends a notification, which has no reply: `client.notify.name(…)` or `client.notify("name", …)`.
        submit: starts a call and returns a `concurrent.futures.Future`: `client.submit.name(…)`. Functions passed to
            `add_done_callback` run in a thread of the client and may call it.
        stream: calls a method that streams, and returns a `ClientStream`: `for item in client.stream.name(…)`. Takes
            the options of `call`; the timeout applies to the whole stream.

    Raises:
        ValueError: the address or an option is invalid.
        TypeError: an option is unknown.
        RuntimeError: the address is HTTP, but `name`, `keepalive` or `reconnect` needs a lasting connection.
        OSError, ssl.SSLError: a certificate file is missing or invalid.
    """

    def __init__(self, address: str | Address = DEFAULT_ADDRESS, **options: Unpack[ClientOptions]) -> None:
        super().__init__(make_settings(type(self).__name__, parse_address(address), options))
        self._engine = SyncEngine(self._settings, self._marshaller)
        self._perform = self._engine.perform
        self._begin: Callable[..., Future[Any]] = self._engine.submit
        if self._settings.tracing is not None:
            from ..peer.tracing import CallTracing

            tracing = CallTracing(self._settings.tracing, self._settings.address.span_attributes)
            self._perform = tracing.performing(self._perform)
            self._begin = tracing.submitting(self._begin)
            self._notification = partial(tracing.notification, self._marshaller)

    @property
    def state(self) -> str:
        return self._engine.state

    @property
    def registered_name(self) -> str | None:
        return self._engine.registered_name

    @property
    def replies_dropped(self) -> int:
        return self._engine.dropped

    # -- calls ------------------------------------------------------------------------------------------------------

    @overload
    def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
        wait_for: float | None = ...,
        **kwargs: Any,
    ) -> T: ...
    @overload
    def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: Any = ...,
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
        wait_for: float | None = ...,
        **kwargs: Any,
    ) -> Any: ...
    def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: Any = NOT_GIVEN,
        timeout: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        wait_for: Any = NOT_GIVEN,
        **kwargs: Any,
    ) -> Any:
        params: Any = list(args) if args and not kwargs else given_params(args, kwargs)
        left = timeout
        if kwargs and args:
            params, left = self._engine.named(method, params, timeout, wait_for)
        return self._perform(Call(self._marshaller, method, params, timeout, returns), left, on_progress, wait_for)

    if TYPE_CHECKING:

        @overload
        def request(
            self, method: str, params: Params = ..., *, returns: type[T], **options: Unpack[CallOptions]
        ) -> T: ...
        @overload
        def request(
            self, method: str, params: Params = ..., *, returns: Any = ..., **options: Unpack[CallOptions]
        ) -> Any: ...
        def request(self, method: str, params: Params = None, **options: Any) -> Any: ...

    def stream_request(
        self, method: str, params: Params = None, *, returns: Any = NOT_GIVEN, **options: Unpack[CallOptions]
    ) -> ClientStream:
        from .blocking_streams import ClientStream
        from .portal import with_threaded_iterators

        engine, wait_for = self._engine, options.get("wait_for", NOT_GIVEN)
        params, left = engine.named(method, check_params(method, params), options.get("timeout"), wait_for)
        engine.pool.retire()
        thread, params = engine.loop_thread(method), with_threaded_iterators(params)
        stream = thread.client.stream_request(method, params, returns=returns, **{**options, "timeout": left})
        return ClientStream(thread, stream, method)

    @overload
    def __call__(
        self, message: dict[str, Any], /, *, timeout: float | None = ..., wait_for: float | None = ...
    ) -> dict[str, Any] | None: ...
    @overload
    def __call__(self, message: Function, /, **options: Unpack[CallbackOptions]) -> Function: ...
    @overload
    def __call__(self, /, **options: Unpack[CallbackOptions]) -> Callable[[Function], Function]: ...
    def __call__(self, message: Any = None, /, **options: Any) -> Any:
        return self._decorate_or_send(message, options)

    def batch(self, *, timeout: float | None = NOT_GIVEN, wait_for: float | None = NOT_GIVEN) -> SyncBatch:
        return SyncBatch(self, timeout, wait_for)

    def on_connect(self, hello: Hello) -> Hello:
        check_hello(hello)
        self._engine.add_greeting(hello)
        return hello

    def discover(self, *, timeout: float | None = NOT_GIVEN) -> dict[str, Any]:
        return self._learn(self.request("rpc.discover", timeout=timeout))  # type: ignore[no-any-return]

    # -- events and the hub -----------------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> ClientSubscription:
        from .blocking_streams import ClientSubscription

        thread = self._engine.lasting_thread("subscribe", "rpc.subscribe")
        subscription = thread.client.subscribe(topic, returns=returns, max_queue=max_queue, policy=policy)
        return ClientSubscription(thread, subscription, topic)

    def publish(self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = NOT_GIVEN) -> int:
        params = publish_params(topic, value, retain)
        if self._settings.address.is_nats:
            return self._run("publish", "rpc.publish", lambda client: client.publish(**params, timeout=timeout))
        count: int = self.request("rpc.publish", params, timeout=timeout)
        return count

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> bool:
        is_sent: bool = self.request("rpc.notify", notify_client_params(client, method, args, kwargs))
        return is_sent

    def offer(self) -> list[str]:
        return self._run(_OFFERING, "rpc.register", lambda client: client.offer())

    def withdraw(self, *names: str) -> list[str]:
        return self._run(_OFFERING, "rpc.unregister", lambda client: client.withdraw(*names))

    def wait_closed(self) -> None:
        if not self._engine.pool.is_closed:
            thread = self._engine.lasting_thread("wait_closed", "wait_closed")
            self._wait(thread.portal, thread.client.wait_closed)

    def run(self, *, drain_timeout: float = 10.0) -> None:
        from ..process import StopNow, stop_on_signals

        try:
            thread = self._engine.lasting_thread("run", "run")
            serving = thread.portal.call(partial(thread.client._serving, drain_timeout), "run")
            with stop_on_signals(serving, thread.portal.loop):
                self._wait(thread.portal, serving.serve)
        except StopNow as now:
            raise SystemExit(128 + now.args[0]) from None
        finally:
            self.close()

    def _run(self, feature: str, method: str, make: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the AsyncClient, for a feature that needs a lasting connection."""
        thread = self._engine.lasting_thread(feature, method)
        return thread.portal.call(partial(make, thread.client), method)

    def _wait(self, portal: Portal, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine of the AsyncClient until it or the client ends."""
        from concurrent.futures import CancelledError

        from .portal import LoopClosedError

        try:
            portal.run(make)
        except (LoopClosedError, CancelledError):
            pass  # it was closed

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> Self:
        if self._settings.reconnect is not None:
            thread = self._engine.loop_thread("(connect)")
            thread.portal.call(thread.client.__aenter__, "(connect)")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- sending ----------------------------------------------------------------------------------------------------

    def _submit(self, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        options = take_options(kwargs)
        timeout, wait_for = options.get("timeout", NOT_GIVEN), options.get("wait_for", NOT_GIVEN)
        params, left = self._engine.named(method, given_params(args, kwargs), timeout, wait_for)
        outgoing = Call(self._marshaller, method, params, timeout, options.get("returns", NOT_GIVEN))
        return self._begin(outgoing, left, options.get("on_progress"), wait_for)

    def _add_callback(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._engine.add_callback(function, options)
