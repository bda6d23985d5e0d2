"""The async client: any number of concurrent calls on one connection, with no task and no timer for each.

Owns the connections of one client, and a call from its connection to its result, with repetitions. Knows neither how a
call is encoded nor how bytes are moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from ..codec.payloads import CUT
from ..errors import CALL_ERRORS, ConnectFailed, ConnectionLost, at_caller
from ..events.event_queue import Policy
from ..keyword_options import with_options
from ..peer.deadline import INFINITE, inherited, time_left
from ..peer.marshal import LONG_REPLY, NOT_GIVEN, Call, Marshaller, Outgoing, check_params, given_params
from ..peer.naming import MixedParams
from ..peer.outgoing import AwaitedCall
from ..peer.pending import OnProgress
from ..peer.remote import Peer
from ..peer.session import Session
from ..peer.stream import Stream, StreamCall
from ..wire.buffers import AttachedMessage, Encoded
from .address import Address, check_lasting, check_one_server
from .base import BaseClient, check_hello, notify_client_params, publish_params
from .batch import AsyncBatch
from .callbacks import Callbacks
from .hub import HubRegistration
from .options import DEFAULT_ADDRESS, DEFAULTS, AsyncClientOptions, ClientOptions, Settings, make_settings
from .pool import ConnectionPool
from .retry import LOSSES, Attempts, ServerMethods, is_awaited, may_have_run, was_not_begun
from .running import ServingClient
from .subscriptions import Subscription, Subscriptions

if TYPE_CHECKING:
    from ..methods.options import CallbackOptions

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


@with_options(DEFAULTS, ClientOptions, AsyncClientOptions)
class AsyncClient(BaseClient):
    """Calls methods of a server from an event loop: `await client.vision.vectorize(photo=image)`.

    The first call makes a connection, which concurrent calls share. It stays open; after it was lost the next call
    makes another one. A client belongs to one event loop at a time. Calls wait before they are sent while the server
    reads nothing more.

    Args:
        address: the server: "host:port", "host", "[::1]:8545", "tcp://…", "unix:///path"; "tls://host:port";
            "http://host/path", "https://…", "http+unix:///path"; "ws://…", "wss://…". Of the line stream also several,
            "one:8545,other:8545": the first that can be reached.
        options: see below; all of them are keywords.

    Attributes:
        notify: sends notifications, which have no reply: `await client.notify.name(…)`, or `client.notify("name", …)`.
        submit: starts calls that run by themselves: `client.submit.name(…)` gives an `asyncio.Task`, whose
            `add_done_callback(function)` calls the function with the task when the call is over.
        stream: calls methods that stream: `async for item in client.stream.name(…)`; gives a `Stream`. Options as for
            `call`; the time-out is for the whole stream.

    Raises:
        ValueError: the address or an option makes no sense.
        TypeError: an option is unknown.
        RuntimeError: `name` or `keepalive`, which need a lasting connection, with an HTTP address.
        OSError, ssl.SSLError: a certificate file is missing or not valid.
    """

    def __init__(self, address: str | Address = DEFAULT_ADDRESS, **options: Unpack[AsyncClientOptions]) -> None:
        settings = make_settings(type(self).__name__, AsyncClientOptions, address, options)
        self._set_up(settings, Callbacks(settings))

    def _set_up(self, settings: Settings, callbacks: Callbacks, marshaller: Marshaller | None = None) -> None:
        super().__init__(settings, marshaller)
        self._timeout = settings.timeout
        self._wait_for = settings.wait_for
        self._is_http = settings.address.is_http
        self._callbacks = callbacks
        self._pool = ConnectionPool(settings, self._marshaller, lambda: callbacks.dispatcher)
        self._registration = HubRegistration(self._pool, self._marshaller, settings, callbacks)
        self._subscriptions = Subscriptions(self._pool, self._marshaller, settings)
        self._methods = ServerMethods(
            settings.retry, lambda: self._submit("rpc.discover", wait_for=None), lambda: self._pool.lost
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tracing: ClientTracing | None = None
        if settings.tracing is not None:
            from .tracing import ClientTracing

            self._tracing = tracing = ClientTracing(settings.tracing, settings.address)
            self._perform = tracing.awaiting(self._perform)  # type: ignore[method-assign]
            self._notification = tracing.notifying(self._marshaller)
            self._notified = tracing.notified

    @property
    def state(self) -> str:
        return self._pool.state

    @property
    def registered_name(self) -> str | None:
        return self._registration.name

    @property
    def replies_dropped(self) -> int:
        return self._pool.dropped

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
    ) -> Coroutine[Any, Any, T]: ...
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
    ) -> Coroutine[Any, Any, Any]: ...
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
    ) -> Coroutine[Any, Any, Any]:
        params = given_params(args, kwargs)
        if isinstance(params, MixedParams):
            return self._call_named(method, params, timeout, returns, on_progress, wait_for)
        return self._perform(Call(self._marshaller, method, params, timeout, returns), timeout, on_progress, wait_for)

    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
        wait_for: float | None = ...,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: Any = ...,
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
        wait_for: float | None = ...,
    ) -> Coroutine[Any, Any, Any]: ...
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = NOT_GIVEN,
        timeout: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        wait_for: Any = NOT_GIVEN,
    ) -> Coroutine[Any, Any, Any]:
        call = Call(self._marshaller, method, check_params(method, params), timeout, returns)
        return self._perform(call, timeout, on_progress, wait_for)

    def stream_request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = NOT_GIVEN,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        wait_for: float | None = NOT_GIVEN,
    ) -> Stream:
        seconds, window = time_left(timeout), self._settings.limits.stream_window
        params = check_params(method, params)
        call = StreamCall(self._marshaller, method, params, NOT_GIVEN if seconds is None else seconds, returns, window)
        if self._is_http:
            self._check_params(call)

        seconds_to_wait = self._wait_for if wait_for is NOT_GIVEN else wait_for
        attempts = Attempts(self._settings.retries, seconds_to_wait, None)

        async def opened(deadline: float) -> Session:
            loop = asyncio.get_running_loop()
            if seconds_to_wait is not None and attempts.until is None:
                attempts.until = loop.time() + seconds_to_wait
            session = (self._pool.ready(loop) or await self._pool.get(method, deadline, attempts.until)).session
            call.params = await self._methods.named(method, call.params, deadline, attempts.until)
            return session

        def pause(error: Exception, left: float) -> float | None:
            waits = attempts.until is not None and is_awaited(error)
            if self._pool.is_closed or not (waits or was_not_begun(error)):
                return None
            now = asyncio.get_running_loop().time()
            return attempts.pause(error, now, now + left)

        trace = self._tracing.stream(method) if self._tracing is not None else None
        return Stream(opened, call, seconds, on_progress, pause, trace)

    @overload
    def __call__(
        self, message: dict[str, Any], /, *, timeout: float | None = ..., wait_for: float | None = ...
    ) -> Awaitable[Any]: ...
    @overload
    def __call__(self, message: Function, /, **options: Unpack[CallbackOptions]) -> Function: ...
    @overload
    def __call__(self, /, **options: Unpack[CallbackOptions]) -> Callable[[Function], Function]: ...
    def __call__(self, message: Any = None, /, **options: Any) -> Any:
        return self._decorate_or_send(message, options)

    def batch(self, *, timeout: float | None = NOT_GIVEN, wait_for: float | None = NOT_GIVEN) -> AsyncBatch:
        return AsyncBatch(self._marshaller, timeout, self._perform, self._send, self._named, wait_for, self._notified)

    def on_connect(self, hello: Callable[[Peer], Awaitable[object]]) -> Callable[[Peer], Awaitable[object]]:
        check_hello(hello)
        check_one_server(self._settings.address, "on_connect")
        self._pool.greet(hello)
        return hello

    async def discover(self, *, timeout: float | None = NOT_GIVEN) -> dict[str, Any]:
        return self._learn(await self.request("rpc.discover", timeout=timeout))  # type: ignore[no-any-return]

    # -- events and the hub -----------------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Subscription:
        return self._subscriptions.subscribe(topic, returns=returns, max_queue=max_queue, policy=policy)

    def publish(
        self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = NOT_GIVEN
    ) -> Coroutine[Any, Any, int]:
        params = publish_params(topic, value, retain)
        if self._settings.address.is_nats:
            return self._subscriptions.publish(params, timeout)
        return self.request("rpc.publish", params, timeout=timeout)

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, bool]:
        return self.request("rpc.notify", notify_client_params(client, method, args, kwargs))

    async def offer(self, *, shared: bool = False) -> list[str]:
        try:
            return await self._registration.offer(shared=shared)
        except CALL_ERRORS as error:
            raise at_caller(error) from error.__cause__

    async def withdraw(self, *names: str) -> list[str]:
        return await self._registration.withdraw(*names)

    async def wait_closed(self) -> None:
        await self._pool.wait_closed()

    async def run(self, *, drain_timeout: float = 10.0) -> None:
        from ..process import stop_on_signals

        try:
            with stop_on_signals(serving := self._serving(drain_timeout), raises=False) as signals:
                await serving.serve()
        finally:
            await self.close()
        if len(signals) > 1:
            raise SystemExit(128 + signals[-1])

    def _serving(self, drain_timeout: float) -> ServingClient:
        """Begin to serve, for `run`."""
        check_one_server(self._settings.address, "run")
        if self._pool.is_closed:
            raise RuntimeError(f"run was called on a closed client (of {self.address})")
        if self._settings.reconnect is not None:
            self._pool.begin()
        return ServingClient(self._pool, self._registration, drain_timeout)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._subscriptions.close()
        self._registration.close()
        await self._pool.close()
        self._callbacks.close()

    async def __aenter__(self) -> Self:
        if self._settings.reconnect is not None:
            self._pool.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.address}{', closed' if self._pool.is_closed else ''}>"

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _perform(
        self, outgoing: Outgoing, timeout: Any, on_progress: OnProgress | None = None, wait_for: Any = NOT_GIVEN
    ) -> Any:
        """Send a call, wait for its outcome, and repeat it as often as the options allow."""
        if self._is_http:
            self._check_params(outgoing)
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        deadline = INFINITE if seconds is None else loop.time() + seconds
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        until = None if wait_for is None else loop.time() + wait_for
        attempts: Attempts | None = None
        try:
            while True:
                try:
                    connection = self._pool.ready(loop) or await self._pool.get(outgoing.method, deadline, until)
                    pending = AwaitedCall(loop.create_future(), outgoing.method, deadline, on_progress)
                    connection.calls.begin(outgoing, pending)
                    try:
                        reply, line = await pending.future
                    except BaseException:
                        connection.calls.give_up(outgoing)
                        raise
                    if (len(line) >= LONG_REPLY or type(line) in CUT) and self._marshaller.takes_long(reply, line):
                        return await asyncio.to_thread(outgoing.outcome, reply, line)
                    return outgoing.outcome(reply, line)
                except LOSSES as error:
                    attempts = attempts or Attempts(self._settings.retries, wait_for, until)
                    pause = attempts.pause(error, loop.time(), deadline) if outgoing.is_repeatable else None
                    if pause is None or self._pool.is_closed:
                        raise
                    loss, until = error, attempts.until
                await asyncio.sleep(pause)
                if may_have_run(loss):
                    await self._methods.check(outgoing, loss, deadline, until)
        except CALL_ERRORS as error:
            raise at_caller(error) from error.__cause__

    async def _named(self, method: str, params: Any, timeout: Any, wait_for: Any) -> tuple[Any, float | None]:
        """The params of a call, all by name if some are; and the seconds that are left for it, None for no limit."""
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else loop.time() + seconds
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        until = None if wait_for is None else loop.time() + wait_for
        try:
            if self._pool.ready(loop) is None:  # perhaps it was lost, and another server is there
                await self._pool.get(method, deadline, until)
            params = await self._methods.named(method, params, deadline, until)
        except (TypeError, *CALL_ERRORS) as error:
            raise at_caller(error) from error.__cause__
        return params, None if seconds is None else deadline - loop.time()

    async def _call_named(
        self,
        method: str,
        params: MixedParams,
        timeout: Any,
        returns: Any,
        on_progress: OnProgress | None,
        wait_for: Any,
    ) -> Any:
        """Make a call, all arguments by name."""
        named, left = await self._named(method, params, timeout, wait_for)
        return await self._perform(Call(self._marshaller, method, named, timeout, returns), left, on_progress, wait_for)

    async def _notify_named(self, method: str, params: MixedParams, timeout: Any, wait_for: Any) -> None:
        named, left = await self._named(method, params, timeout, wait_for)
        await self._send(self._notification(method, named), method, left, wait_for)

    async def _send(self, message: Encoded, method: str, timeout: Any, wait_for: Any = NOT_GIVEN) -> None:
        """Send a message that has no reply."""
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else loop.time() + seconds
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        until = None if wait_for is None else loop.time() + wait_for
        attempts: Attempts | None = None
        try:
            while True:
                try:
                    connection = self._pool.ready(loop)
                    if connection is None:
                        if type(message) is AttachedMessage:
                            message.secure()  # it must wait
                        connection = await self._pool.get(method, deadline, until)
                    return connection.calls.notify(message, method)
                except (ConnectFailed, ConnectionLost) as error:
                    attempts = attempts or Attempts(self._settings.retries, wait_for, until)
                    pause = attempts.pause(error, loop.time(), deadline)
                    if pause is None or self._pool.is_closed:
                        raise
                    until = attempts.until
                await asyncio.sleep(pause)
        except CALL_ERRORS as error:
            raise at_caller(error) from error.__cause__

    def _check_params(self, outgoing: Outgoing) -> None:
        """Raise EncodeError for an iterator: over HTTP the server cannot ask for the next items."""
        from .http import check_params

        check_params(outgoing, self.address)

    def _submit(self, method: str, /, *args: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(self.call(method, *args, **options))
        self._tasks.add(task)  # the loop itself would not keep it alive
        task.add_done_callback(self._tasks.discard)
        return task

    def _add_callback(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        check_lasting(self._settings.address, "offering a method to the server")
        self._callbacks.add(function, **options)
