"""The client for programs with an event loop: any number of calls at once on one connection, no task and no timer each.

Owns the connections of one client and the life of a call across them. How a call becomes bytes is the marshaller's
matter, how bytes come and go the line stream's and its session's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from ..codec import Codec
from ..errors import ConnectFailed, ConnectionLost
from ..limits import DEFAULT_LIMITS, Limits
from ..peer.deadline import INFINITE, inherited, time_left
from ..peer.marshal import NOT_GIVEN, Call, Marshaller, Outgoing, RawCall, check_params, params_of
from ..peer.outgoing import AsyncWaiter, OnProgress
from ..peer.proxy import NAMES_KEPT, Method, Methods, remote_name
from ..peer.remote import Peer
from ..peer.session import Session
from ..peer.stream import Stream, StreamCall
from ..wire.pieces import Written
from .address import Address, check_lasting
from .batch import AsyncBatch
from .callbacks import Callbacks
from .connect import Connect
from .hub import HubRegistration
from .hub_messages import HubMessages
from .options import File, Settings, Trace, make_settings
from .pool import ConnectionPool
from .retry import LOSSES, Backoff, CallRetries, Unsent
from .subscriptions import Subscriptions

if TYPE_CHECKING:  # reads files, which most clients do without
    from ..config import ConfigSource

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class AsyncClient:
    """Calls methods of a server: `await client.vision.vectorize(photo=image)`. For one event loop at a time.

    A connection is made with the first call (calls made meanwhile share it), kept, and made anew with the next call
    after it was lost. While the server takes nothing more, calls wait before they are sent.

    Args:
        address: "host:port", "host", "[::1]:8545", "tcp://…", "unix:///path"; "tls://host:port"; "http://host/path",
            "https://…", "http+unix:///path"; "ws://…", "wss://…".
        timeout: seconds that a call may take with everything, None for no limit; each call may say otherwise.
        connect_timeout: seconds that connecting may take.
        pool: up to so many connections; a call takes the one with the fewest calls waiting.
        retries: how often a call is repeated that failed because there was no connection, it was lost, or a hub lost
            who worked on it. It may have been carried out, so this is for methods that may be repeated.
        retry: which calls are repeated: "all", or only "idempotent" ones, by what the server says of them.
        reconnect: keep the connection: make it with `async with` or the first call, and anew whenever it is lost, with
            pauses that a Backoff sets (True: the usual ones). Calls then wait for it, as long as their time-out allows.
        on_state: called with each new `state`.
        codec: knows the rich types; give one with your own types registered.
        limits: `max_message_size` holds for what is sent and for what is received.
        delimiter: ends each message, as the server expects it.
        trace: called with "send" or "receive" and the bytes of each message.
        token: who this is, for a server that asks: said first on each new connection of a line stream, and with each
            request of HTTP and each handshake of a WebSocket. Never shown by this library.
        ca: a PEM file with the authorities whose certificates are trusted, in the place of the system's. The server's
            certificate and its name are verified in any case.
        certificate, key: PEM files: the client's own, for servers that ask for one (mutual TLS).
        http_connections: for HTTP: up to so many connections; each carries one call, or stream, at a time.
        name: the client's at a hub, 1 to 128 of A-Z, a-z, 0-9, "_" and "-". It is registered before any call is sent;
            if the hub refuses it, or the server is no hub, there is no connection.
        keepalive: seconds; a server that was silent for half of that is asked, and given up when it stays so. None: as
            long as the system takes it for connected.
        registration_timeout: seconds that a hub may take to answer `offer`, or the name; None for no limit.
        connect: makes the connection in place of a socket, for tests and transports of your own: called with a
            function that makes the protocol (a LineStream), joins it to a transport, and returns it. The address is
            then only a name for errors.

    Raises:
        ValueError: the address or another argument makes no sense.
        RuntimeError: `name` or `keepalive`, which need a connection that lasts, and an address of HTTP.
        OSError, ssl.SSLError: a file with certificates is not there, or not what it should be.
    """

    def __init__(
        self,
        address: str | Address = "127.0.0.1:8545",
        *,
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        pool: int = 1,
        retries: int = 0,
        retry: Literal["all", "idempotent"] = "all",
        reconnect: bool | Backoff = False,
        on_state: Callable[[str], object] | None = None,
        codec: Codec | None = None,
        limits: Limits = DEFAULT_LIMITS,
        delimiter: bytes = b"\n",
        trace: Trace | None = None,
        token: str | None = None,
        ca: File | None = None,
        certificate: File | None = None,
        key: File | None = None,
        http_connections: int = 8,
        name: str | None = None,
        keepalive: float | None = None,
        registration_timeout: float | None = 10.0,
        connect: Connect | None = None,
    ) -> None:
        if connect is not None and isinstance(address, str):
            address = Address(kind="custom", path=address)
        settings = make_settings(
            address,
            codec,
            limits,
            timeout=timeout,
            connect_timeout=connect_timeout,
            pool=pool,
            retries=retries,
            retry=retry,
            reconnect=(Backoff() if reconnect is True else reconnect) or None,
            on_state=on_state,
            delimiter=delimiter,
            trace=trace,
            token=token,
            ca=ca,
            certificate=certificate,
            key=key,
            http_connections=http_connections,
            name=name,
            keepalive=keepalive,
            registration_timeout=registration_timeout,
        )
        self._set_up(settings, connect)

    def _set_up(self, settings: Settings, connect: Connect | None = None) -> None:
        self._settings = settings
        self._timeout = settings.timeout
        self._is_http = settings.address.is_http
        self._marshaller = Marshaller(settings.codec, settings.limits, str(settings.address))
        self._callbacks = Callbacks(settings)
        self._pool = ConnectionPool(settings, self._marshaller, lambda: self._callbacks.dispatcher, connect)
        self._registration = HubRegistration(self._pool, self._marshaller, settings, lambda: self._callbacks)
        self._subscriptions = Subscriptions(self._pool, self._marshaller, settings)
        self._retries = CallRetries(settings.retries, settings.retry, lambda: self._submit("rpc.discover"))
        self._tasks: set[asyncio.Task[Any]] = set()
        telling: HubMessages[Coroutine[Any, Any, int], Coroutine[Any, Any, bool]] = HubMessages(self.request)
        #: For notifications, which have no answer: `await client.notify.name(…)`.
        self.notify = Methods(self._notify)
        #: For calls that go on by themselves: `client.submit.name(…)` gives an `asyncio.Task`, whose
        #: `add_done_callback(function)` calls the function with it when there is an outcome.
        self.submit = Methods(self._submit)
        #: For methods that stream: `async for item in client.stream.name(…)`; options as for `call`, gives a `Stream`.
        self.stream = Methods(self._stream)
        #: For events: `async for value in client.subscribe("ticks")`; see `Subscriptions.subscribe`.
        self.subscribe = self._subscriptions.subscribe
        #: For a hub: `await client.offer()` lets all there call what is marked with `@client`; see `HubRegistration`.
        self.offer, self.withdraw = self._registration.offer, self._registration.withdraw
        #: For a hub: `await client.publish("sensors.room1", 21.5)`, `…notify_client(…)`; see `HubMessages`.
        self.publish, self.notify_client = telling.publish, telling.notify_client
        #: For a program that only offers: returns when the client is closed; see `ConnectionPool.wait_closed`.
        self.wait_closed = self._pool.wait_closed

    @classmethod
    def from_config(cls, source: ConfigSource = None, **arguments: Any) -> Self:
        """A client as arguments, the environment (`RPCSTREAM_…`) and a configuration say, each before the next.

        Args:
            source: a file, TOML or JSON with comments, or a mapping of what could stand in one.
            arguments: the same options, and all that the constructor takes.

        Raises:
            ValueError, TypeError: an option makes no sense; the text says which and where it stands.
            OSError: the file cannot be read.
        """
        from ..config import client_options

        return cls(**client_options(source, arguments))

    # -- what users call --------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._marshaller.address

    @property
    def state(self) -> str:
        """What the (first) connection is like: "idle", "connecting", "connected", "waiting" to connect, "closed"."""
        return self._pool.state

    @property
    def registered_name(self) -> str | None:
        """The client's name at the hub: `name`, or the one that the hub made; None while there is none."""
        return self._registration.name

    @property
    def replies_dropped(self) -> int:
        """Replies on the present connections that nobody waited for: late, forged or duplicate."""
        return self._pool.dropped

    def __getattr__(self, name: str) -> Any:
        method = Method(self.call, remote_name(self, name))
        if len(self.__dict__) < NAMES_KEPT:
            self.__dict__[name] = method  # found without this function the next time
        return method

    @overload
    def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
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
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a method by its name and await the result.

        Cancelling the awaiting task gives the call up: the server is told, its handler is cancelled; an answer that
        still comes is dropped. Inside a handler that has a deadline no call takes longer than that.

        Args:
            args, kwargs: the arguments, all by position or all by name. For a parameter that is called `timeout`,
                `returns` or `on_progress` use `request`. An iterator, sync or async, is sent item by item.
            timeout: seconds that this call may take, None for no limit. The server is told and gives up too.
            returns: a type hint; the result is checked against it and given in that type.
            on_progress: called with what the handler says on its way (`ctx.progress`). What it raises is logged.

        Raises:
            RpcError: the server answered with an error; subclasses for the codes that are known.
            ConnectFailed, ConnectionLost: there was no connection, or it ended before the answer came.
            CallTimeout: no answer in time. The connection stays; an answer that comes late is dropped.
            TypeError: arguments by position and by name together; a value that cannot be sent (EncodeError); a result
                that does not fit `returns`.
            RuntimeError: the client is closed.
        """
        outgoing = Call(self._marshaller, method, params_of(method, args, kwargs), timeout, returns)
        return self._perform(outgoing, timeout, on_progress)

    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
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
    ) -> Coroutine[Any, Any, Any]: ...
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = NOT_GIVEN,
        timeout: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """As `call`, with the params as they go on the wire: a list, a dict, or None for none."""
        call = Call(self._marshaller, method, check_params(method, params), timeout, returns)
        return self._perform(call, timeout, on_progress)

    @overload
    def __call__(self, message: dict[str, Any], /, *, timeout: float | None = ...) -> Awaitable[Any]: ...
    @overload
    def __call__(self, message: Function, /) -> Function: ...
    @overload
    def __call__(self, /, **options: Any) -> Callable[[Function], Function]: ...
    def __call__(self, message: Any = None, /, **options: Any) -> Any:
        """Decorator: offer a function to the server (`@client`, `@client(name=…)`; options and errors as `Server.add`).

        A hub is told of it with `offer`; with `shared=True` other clients may offer a method of that name too.

        Or, with a request object: send it as it is, id included, and await the whole response object, rich values
        decoded. An error reply is returned, not raised. Without an id the object is a notification; that gives None.

        Raises, for a request object:
            ValueError: the id is no string and no integer, or a call with this id is waiting.
        """
        if isinstance(message, dict):
            return self._request_as_it_is(message, **options)
        if message is None:
            return lambda function: self(function, **options)
        if not callable(message):
            raise TypeError(f"a request object is a dict, and what is offered a function; got {type(message).__name__}")
        check_lasting(self._settings.address, "offering a method to the server")
        self._callbacks.add(message, **options)
        return message

    def on_connect(self, hello: Callable[[Peer], Awaitable[object]]) -> Callable[[Peer], Awaitable[object]]:
        """Decorator: run this async function on each new connection, before anything else is sent on it.

        It gets the server as a `Peer`: `await server.call("rpc.authenticate", token=…)`. If it fails, so
        has the attempt to connect.
        """
        check_lasting(self._settings.address, "on_connect")
        self._pool.greet(hello)
        return hello

    def batch(self, *, timeout: float | None = NOT_GIVEN) -> AsyncBatch:
        """Several calls in one message: `async with client.batch() as batch: a = batch.sum(1, 2)`, then `a.result()`.

        Nothing is sent if the block is left with an exception, or if there is nothing in the batch.
        """
        return AsyncBatch(self._marshaller, timeout, self._perform, self._send)

    async def close(self) -> None:
        """End the connections; calls that wait fail with ConnectionLost. What was sent is given time to leave.

        Loops over events end behind what waits for them.
        """
        self._subscriptions.close()
        self._registration.close()
        await self._pool.close()
        self._callbacks.close()

    async def __aenter__(self) -> AsyncClient:
        if self._settings.reconnect is not None:
            self._pool.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.address}{', closed' if self._pool.is_closed else ''}>"

    # -- the life of a call -----------------------------------------------------------------------------------

    async def _perform(self, outgoing: Outgoing, timeout: Any, on_progress: OnProgress | None = None) -> Any:
        """Send, wait, and try again as often as that is allowed."""
        if self._is_http:
            self._check_params(outgoing)
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        deadline = INFINITE if seconds is None else loop.time() + seconds
        attempt = 1
        while True:
            try:
                connection = self._pool.ready(loop) or await self._pool.get(outgoing.method, deadline)
                waiter = AsyncWaiter(loop.create_future(), outgoing.method, deadline, on_progress)
                connection.calls.begin(outgoing, waiter)
                try:
                    reply, line = await waiter.future
                except BaseException:
                    connection.calls.give_up(outgoing)
                    raise
                return outgoing.outcome(reply, line)
            except LOSSES as error:
                pause = self._pause(error, attempt, deadline - loop.time()) if outgoing.is_repeatable else None
                if pause is None:
                    raise
                loss = error
            attempt += 1
            await asyncio.sleep(pause)
            if not isinstance(loss, ConnectFailed | Unsent):  # it may have been carried out
                await self._retries.check(outgoing.method, loss, deadline)

    def _pause(self, error: Exception, attempt: int, left: float) -> float | None:
        """Seconds until a call that failed is made again; None if it is not."""
        return None if self._pool.is_closed else self._retries.pause(error, attempt, left)

    async def _send(self, message: Written, method: str, timeout: Any) -> None:
        """Send something that has no answer."""
        loop = asyncio.get_running_loop()
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else loop.time() + seconds
        attempt = 1
        while True:
            try:
                connection = self._pool.ready(loop) or await self._pool.get(method, deadline)
                return connection.calls.send(message)
            except (ConnectFailed, ConnectionLost) as error:
                pause = self._pause(error, attempt, deadline - loop.time())
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def _request_as_it_is(self, message: dict[str, Any], *, timeout: Any = NOT_GIVEN) -> Any:
        if "id" in message:
            return await self._perform(RawCall(self._marshaller, message), timeout)
        encoded = self._marshaller.encode(message, "request object")
        return await self._send(encoded, str(message.get("method", "?")), timeout)

    def _stream(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        returns: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        **kwargs: Any,
    ) -> Stream:
        return self._streamed(method, params_of(method, args, kwargs), timeout, returns, on_progress)

    def _streamed(
        self, method: str, params: Any, timeout: float | None, returns: Any, on_progress: OnProgress | None
    ) -> Stream:
        seconds, window = time_left(timeout), self._settings.limits.stream_window
        call = StreamCall(self._marshaller, method, params, NOT_GIVEN if seconds is None else seconds, returns, window)
        if self._is_http:
            self._check_params(call)

        async def opened(deadline: float) -> Session:
            loop = asyncio.get_running_loop()
            return (self._pool.ready(loop) or await self._pool.get(method, deadline)).session

        return Stream(opened, call, seconds, on_progress)

    def _check_params(self, outgoing: Outgoing) -> None:
        """Raises EncodeError for an iterator: over HTTP the server could not say when the next item may come."""
        from .http import check_params

        check_params(outgoing, self.address)

    def _notify(self, method: str, /, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> Awaitable[None]:
        return self._send(self._marshaller.notification(method, params_of(method, args, kwargs)), method, timeout)

    def _submit(self, method: str, /, *args: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(self.call(method, *args, **options))
        self._tasks.add(task)  # the loop itself would not keep it alive
        task.add_done_callback(self._tasks.discard)
        return task
