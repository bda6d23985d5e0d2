"""The async client: any number of concurrent calls on one connection, without a task or timer for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from ..codec import payloads
from ..codec.attachments import CutLine
from ..errors import AT_CALLER, CALL_ERRORS, AtCaller, CallTimeout
from ..events.event_queue import Policy
from ..nearest import with_options
from ..peer.calls import Call
from ..peer.deadline import INFINITE, inherited, time_left
from ..peer.marshal import NOT_GIVEN, Marshaller
from ..peer.pending import OnProgress
from ..peer.remote import Peer
from ..peer.session import Session
from ..peer.stream import Stream
from .address import Address, check_lasting, check_one_server
from .attempts import LOSSES, Attempt, Attempts, MixedParams, Times, check_params, given_params
from .base import BaseClient, CallOptions, Params, check_hello, notify_client_params, publish_params
from .batch import AsyncBatch
from .connection import retrieve_exception
from .conversation import Callbacks
from .hub import HubRegistration, ServingClient
from .options import DEFAULT_ADDRESS, DEFAULTS, ClientOptions, Connect, Settings, make_settings
from .pool import ConnectionPool
from .subscriptions import Subscription, Subscriptions

if TYPE_CHECKING:
    from ..methods.options import CallbackOptions

T = TypeVar("T")

#: Replies with image files of more bytes are decoded in a thread: that takes longer than going there and back.
LONG_REPLY = 16 * 1024

Function = TypeVar("Function", bound=Callable[..., Any])


@with_options(DEFAULTS, ClientOptions)
class AsyncClient(BaseClient):
    """An asyncio client of a server: `await client.vision.vectorize(photo=image)`.

    The first call opens a connection, which all calls share and which stays open. After a loss, the next call opens a
    new one. Use a client in one event loop at a time. While the server does not read, calls wait before they are sent.

    Args:
        address: the server, such as "host:8545", "[::1]:8545", "unix:///path", "tls://host", "https://host/path",
            "wss://host/path" or "nats://host/service". "one:8545,other:8545" connects to the first that answers.
        options: the keywords below.

    Attributes:
        notify: sends a notification, which has no reply: `await client.notify.name(…)` or
            `await client.notify("name", …)`.
        submit: starts a call and returns an `asyncio.Task`: `client.submit.name(…)`.
        stream: calls a method that streams, and returns a `Stream`: `async for item in client.stream.name(…)`. Takes
            the options of `call`; the timeout applies to the whole stream.

    Raises:
        ValueError: the address or an option is invalid.
        TypeError: an option is unknown.
        RuntimeError: the address is HTTP, but `name`, `keepalive` or `reconnect` needs a lasting connection.
        OSError, ssl.SSLError: a certificate file is missing or invalid.
    """

    def __init__(self, address: str | Address | Connect = DEFAULT_ADDRESS, **options: Unpack[ClientOptions]) -> None:
        settings = make_settings(type(self).__name__, address, options)
        self._set_up(settings, Callbacks(settings))

    def _set_up(self, settings: Settings, callbacks: Callbacks, marshaller: Marshaller | None = None) -> None:
        super().__init__(settings, marshaller)
        self._timeout = settings.timeout
        self._wait_for = settings.wait_for
        self._callbacks = callbacks
        self._pool = pool = ConnectionPool(settings, self._marshaller, callbacks)
        self._registration = HubRegistration(pool, callbacks, self._persist)
        self._subscriptions = Subscriptions(pool, self._persist)
        self._attempts = Attempts(
            settings, lambda: pool.is_closed, lambda: pool.lost, asyncio.sleep, self._ask_for_methods
        )
        #: The `rpc.discover` that is under way.
        self._discovery: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tracing: CallTracing | None = None
        if settings.tracing is not None:
            from ..peer.tracing import CallTracing

            self._tracing = tracing = CallTracing(settings.tracing, settings.address.span_attributes)
            self._perform = tracing.awaiting(self._perform)  # type: ignore[method-assign]
            self._notification = partial(tracing.notification, self._marshaller)

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
        call = Call(self._marshaller, method, given_params(args, kwargs), timeout, returns)
        return self._perform(call, timeout, on_progress, wait_for)

    if TYPE_CHECKING:

        @overload
        def request(
            self, method: str, params: Params = ..., *, returns: type[T], **options: Unpack[CallOptions]
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def request(
            self, method: str, params: Params = ..., *, returns: Any = ..., **options: Unpack[CallOptions]
        ) -> Coroutine[Any, Any, Any]: ...
        def request(self, method: str, params: Params = None, **options: Any) -> Any: ...

    def stream_request(
        self, method: str, params: Params = None, *, returns: Any = NOT_GIVEN, **options: Unpack[CallOptions]
    ) -> Stream:
        seconds, window = time_left(options.get("timeout")), self._settings.limits.stream_window
        params = check_params(method, params)
        call = Call(self._marshaller, method, params, NOT_GIVEN if seconds is None else seconds, returns, window)
        wait_for = options.get("wait_for", self._wait_for)

        async def opened(deadline: float) -> Session:
            loop = asyncio.get_running_loop()
            if isinstance(call.params, MixedParams):
                until = self._times(None, wait_for)[2]
                call.params = await self._attempts.named(method, call.params, deadline, until)
            return (self._pool.ready(loop) or await self._pool.get(method, deadline, once=wait_for is not None)).session

        def repeat(error: Exception, deadline: float, attempt: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
            times = (deadline, *self._times(None, wait_for)[1:])
            return self._attempts.again(error, call, times, lambda until: attempt())

        trace = self._tracing.stream(call) if self._tracing is not None else None
        return Stream(opened, call, seconds, options.get("on_progress"), repeat, trace)

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
        return AsyncBatch(self, timeout, wait_for)

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

    async def offer(self) -> list[str]:
        with AT_CALLER:
            return await self._registration.offer()

    async def withdraw(self, *names: str) -> list[str]:
        return await self._registration.withdraw(*names)

    async def wait_closed(self) -> None:
        await self._pool.wait_closed()

    async def run(self, *, drain_timeout: float = 10.0) -> None:
        from ..process import stop_on_signals

        try:
            with stop_on_signals(serving := await self._serving(drain_timeout), raises=False) as signals:
                await serving.serve()
        finally:
            await self.close()
        if len(signals) > 1:
            raise SystemExit(128 + signals[-1])

    async def _serving(self, drain_timeout: float) -> ServingClient:
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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _perform(
        self, outgoing: Call, timeout: Any, on_progress: OnProgress | None = None, wait_for: Any = NOT_GIVEN
    ) -> Any:
        """Send a call, wait for its outcome, and repeat it as often as the options allow."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        deadline, wait_for, until = self._times(seconds, wait_for)
        if type(outgoing.params) is MixedParams:
            with AtCaller(TypeError, *CALL_ERRORS):
                outgoing.params = await self._attempts.named(outgoing.method, outgoing.params, deadline, until)
        try:
            try:
                return await self._attempt(outgoing, on_progress, deadline, until)
            except LOSSES as error:
                attempt = partial(self._attempt, outgoing, on_progress, deadline)
                return await self._call(outgoing, attempt, (deadline, wait_for, until), error)
        except CALL_ERRORS as error:
            raise AT_CALLER.strip(error) from error.__cause__

    async def _call(self, outgoing: Call, attempt: Attempt, times: Times, error: Exception | None = None) -> Any:
        """Make a call, again where an attempt fails and that is allowed; times are by the clock of the loop.

        Args:
            error: of the first attempt; None: it is to be made.
        """
        if error is None:
            try:
                return await attempt(times[2])
            except LOSSES as failure:
                error = failure
        return await self._attempts.again(error, outgoing, times, attempt)

    async def _persist(self, method: str, attempt: Callable[[float, bool], Awaitable[T]], seconds: float | None) -> T:
        """Do what takes more than a call, again where that fails, as for a call of this method.

        Args:
            method: named in errors.
            attempt: called with the deadline (loop time) and whether it makes one attempt to connect, see `pool.get`.
            seconds: the time-out.
        """
        times = self._times(time_left(seconds), NOT_GIVEN)
        call = Call(self._marshaller, method)
        return await self._call(call, lambda until: attempt(times[0], until is not None), times)  # type: ignore[no-any-return]

    async def _attempt(
        self, outgoing: Call, on_progress: OnProgress | None, deadline: float, until: float | None
    ) -> Any:
        """Make a call once."""
        pool = self._pool
        connection = pool.ready(asyncio.get_running_loop()) or await pool.get(
            outgoing.method, deadline, once=until is not None
        )
        call = connection.calls.start(outgoing, deadline, on_progress)
        try:
            reply, line = await call.future
        except BaseException:
            connection.calls.give_up(outgoing)
            raise
        if (len(line) >= LONG_REPLY or isinstance(line, CutLine)) and _takes_long(line):
            return await asyncio.to_thread(outgoing.outcome, reply, line)
        return outgoing.outcome(reply, line)

    def _times(self, seconds: float | None, wait_for: Any) -> Times:
        """The times of a call that begins now, by the clock of the loop."""
        now = asyncio.get_running_loop().time()
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        return INFINITE if seconds is None else now + seconds, wait_for, None if wait_for is None else now + wait_for

    async def _ask_for_methods(self, deadline: float) -> Any:
        """The server's OpenRPC document; calls that were lost together ask once."""
        discovery = self._discovery
        if discovery is None or discovery.done() or discovery.get_loop() is not asyncio.get_running_loop():
            discovery = self._discovery = self._submit("rpc.discover", wait_for=None)
            discovery.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                return await asyncio.shield(discovery)
        except CallTimeout:
            raise
        except TimeoutError:
            raise CallTimeout("the server did not answer rpc.discover in time") from None

    def _submit(self, method: str, /, *args: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(self.call(method, *args, **options))
        self._tasks.add(task)  # the loop itself would not keep it alive
        task.add_done_callback(self._tasks.discard)
        return task

    def _add_callback(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        check_lasting(self._settings.address, "offering a method to the server")
        self._callbacks.add(function, **options)


def _takes_long(line: bytes | bytearray) -> bool:
    """Whether a reply has images whose decoding would hold up an event loop."""
    if payloads.size_with_payloads(line) < LONG_REPLY or b'"image"' not in line:
        return False
    return line.count(b'"image"') > line.count(b'"raw"')  # raw pixels are copied, not decoded
