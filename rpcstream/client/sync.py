"""The client for programs without an event loop: each call blocks its thread, on a socket that stays open.

Owns what the client looks like to its users. The life of a call is the caller's matter, how it becomes bytes the
marshaller's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from ..codec import Codec
from ..limits import DEFAULT_LIMITS, Limits
from ..peer.marshal import NOT_GIVEN, Call, Marshaller, RawCall, check_params, params_of
from ..peer.proxy import NAMES_KEPT, Method, Methods, remote_name
from .address import Address
from .batch import SyncBatch
from .hub_messages import HubMessages
from .options import File, Trace, make_settings
from .retry import Backoff
from .sync_engine import SyncEngine
from .sync_hub import SyncHubRegistration

if TYPE_CHECKING:  # these import asyncio or threads, which plain calls do without
    from concurrent.futures import Future

    from ..config import ConfigSource
    from ..events.queue import Policy
    from ..peer.outgoing import OnProgress
    from ..peer.remote import BlockingPeer
    from .bridge import ClientStream, ClientSubscription

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
Hello = TypeVar("Hello", bound="Callable[[BlockingPeer], object]")


class Client:
    """Calls methods of a server: `Client().vision.vectorize(photo=image)`. Safe to use from several threads.

    A connection is made with the first call, kept, and made anew with the next call after it was lost. In a process
    that was forked the client makes connections of its own.

    The first use of what needs a conversation (a function that is offered, a stream, a subscription, an iterator as an
    argument, `on_connect`, `reconnect`, `on_state`, `name`, `keepalive`) moves the client to a thread with an event
    loop, which then carries all its calls; with a token, and with any address but TCP and Unix sockets, it is there
    from the first call. That thread ends with `close`; a client that offers nothing may as well be dropped.

    Args:
        address: "host:port", "host", "[::1]:8545", "tcp://…", "unix:///path"; "tls://host:port"; "http://host/path",
            "https://…", "http+unix:///path"; "ws://…", "wss://…".
        timeout: seconds that a call may take with everything, None for no limit; each call may say otherwise.
        connect_timeout: seconds that connecting may take.
        pool: up to so many connections; a call takes the one with the fewest calls waiting.
        retries: how often a call is repeated that failed because there was no connection, it was lost, or a hub lost
            who worked on it. It may have been carried out, so this is for methods that may be repeated. A
            `submit` is repeated in a conversation only.
        retry: which calls are repeated: "all", or only "idempotent" ones, by what the server says of them.
        reconnect: keep the connection: make it with `with` or the first call, and anew whenever it is lost, with pauses
            that a Backoff sets (True: the usual ones). Calls then wait for it, as long as their time-out allows.
        on_state: called with each new `state`, in the thread of the conversation.
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
        on_send: called with the bytes sent so far and in total, while a message of more than 1 MiB goes out; not in a
            conversation.

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
        on_send: Callable[[int, int], None] | None = None,
    ) -> None:
        self._settings = make_settings(
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
            on_send=on_send,
        )
        self._marshaller = Marshaller(self._settings.codec, limits, str(self._settings.address))
        self._caller = SyncEngine(self._settings, self._marshaller)
        self._connections = self._caller.connections
        self._perform = self._caller.perform
        self._send = self._caller.send
        #: For notifications, which have no answer: `client.notify.name(…)` or `client.notify("name", …)`.
        self.notify = Methods(self._notify)
        #: For futures: `client.submit.name(…)` or `client.submit("name", …)`. In a conversation an error of any kind
        #: comes with the future. Its `add_done_callback(function)` calls the function with the future when there is an
        #: outcome, in a thread of the client's where it may call, too.
        self.submit = Methods(self._submit)
        #: For methods that stream: `for item in client.stream.name(…)`; options as for `call`. Gives a
        #: `ClientStream`. The time-out is for the whole stream.
        self.stream = Methods(self._stream)
        telling: HubMessages[int, bool] = HubMessages(self.request)
        #: For a hub: `client.publish("sensors.room1", 21.5)`, `client.notify_client(…)`; see `HubMessages`.
        self.publish, self.notify_client = telling.publish, telling.notify_client
        at_hub = SyncHubRegistration(self._caller)
        #: For a hub: `client.offer()` lets all there call what is marked with `@client`; see `SyncHubRegistration`.
        self.offer, self.withdraw = at_hub.offer, at_hub.withdraw
        #: For a program that only offers: returns when another thread has closed the client.
        self.wait_closed = at_hub.wait_closed

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
        """What the (first) connection is like: "idle", "connected", "closed"; and, where it is kept by `reconnect`,
        "connecting" and "waiting" to connect."""
        return self._caller.state

    @property
    def replies_dropped(self) -> int:
        """Replies on the present connections that nobody waited for: late, forged or duplicate."""
        return self._caller.dropped

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
        **kwargs: Any,
    ) -> Any:
        """Call a method by its name and wait for the result.

        A call that is given up (Ctrl-C, time-out) is cancelled at the server. Inside a handler that has a deadline no
        call takes longer than that.

        Args:
            args, kwargs: the arguments, all by position or all by name. For a parameter that is called `timeout`,
                `returns` or `on_progress` use `request`. An iterator is sent item by item, stepped in a thread.
            timeout: seconds that this call may take, None for no limit. The server is told and gives up too.
            returns: a type hint; the result is checked against it and given in that type.
            on_progress: called with what the handler says on its way (`ctx.progress`), by the thread that reads for
                all: it must not wait for another call of this client. What it raises is logged.

        Raises:
            RpcError: the server answered with an error; subclasses for the codes that are known.
            ConnectFailed, ConnectionLost: there was no connection, or it ended before the answer came.
            CallTimeout: no answer in time. The connection stays; an answer that comes late is dropped.
            TypeError: arguments by position and by name together; a value that cannot be sent (EncodeError); a result
                that does not fit `returns`.
            RuntimeError: the client is closed.
        """
        params = params_of(method, args, kwargs) if kwargs or not args else list(args)
        return self._perform(Call(self._marshaller, method, params, timeout, returns), timeout, on_progress)

    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: Any = ...,
        timeout: float | None = ...,
        on_progress: OnProgress | None = ...,
    ) -> Any: ...
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = NOT_GIVEN,
        timeout: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """As `call`, with the params as they go on the wire: a list, a dict, or None for none."""
        call = Call(self._marshaller, method, check_params(method, params), timeout, returns)
        return self._perform(call, timeout, on_progress)

    def call_sync(
        self, method: str, params: list[Any] | dict[str, Any] | None = None, *, timeout: float | None = NOT_GIVEN
    ) -> Any:
        """As `request`; beside it `submit` and `add_done_callback` are for those that do not wait."""
        return self.request(method, params, timeout=timeout)

    @overload
    def __call__(self, message: dict[str, Any], /, *, timeout: float | None = ...) -> dict[str, Any] | None: ...
    @overload
    def __call__(self, message: Function, /) -> Function: ...
    @overload
    def __call__(self, /, **options: Any) -> Callable[[Function], Function]: ...
    def __call__(self, message: Any = None, /, **options: Any) -> Any:
        """Decorator: offer a function to the server (`@client`, `@client(name=…)`; options and errors as `Server.add`).

        A hub is told of it with `offer`; with `shared=True` other clients may offer a method of that name too.

        A plain function runs in a thread: it may wait, ask somebody, and call methods of this client.

        Or, with a request object: send it as it is, id included; gives the whole response object, rich values decoded.
        An error reply is returned, not raised. Without an id the object is a notification, and None is returned.

        Raises, for a request object:
            ValueError: the id is no string and no integer, or a call with this id is waiting.
        """
        if isinstance(message, dict):
            return self._request_as_it_is(message, **options)
        if message is None:
            return lambda function: self(function, **options)
        if not callable(message):
            raise TypeError(f"a request object is a dict, and what is offered a function; got {type(message).__name__}")
        self._caller.mark(message, options)
        return message

    def on_connect(self, hello: Hello) -> Hello:
        """Decorator: run this function on each new connection, before anything else is sent on it.

        It gets the server as a BlockingPeer: `server.call("rpc.authenticate", token=…)`; calls of the client itself
        would wait for it. If it fails, so has the attempt to connect.
        """
        self._caller.greet(hello)
        return hello

    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> ClientSubscription:
        """The values that the server publishes to a topic: `for value in client.subscribe("ticks")`.

        `with client.subscribe("ticks") as ticks:` begins when the server has confirmed: what is published from then on
        comes. Options and errors as for an AsyncClient; what waits for the reader waits here, in memory.
        """
        options = {"returns": returns, "max_queue": max_queue, "policy": policy}
        return self._caller.conversing("subscribe", "rpc.subscribe").subscribe(topic, options)

    @property
    def registered_name(self) -> str | None:
        """The client's name at the hub: `name`, or the one that the hub made; None while there is none."""
        return self._caller.registered_name

    def batch(self, *, timeout: float | None = NOT_GIVEN) -> SyncBatch:
        """Several calls in one message: `with client.batch() as batch: a = batch.sum(1, 2)`, then `a.result()`.

        Nothing is sent if the block is left with an exception, or if there is nothing in the batch.
        """
        return SyncBatch(self._marshaller, timeout, self._perform, self._send)

    def close(self) -> None:
        """End the connections; calls that wait in other threads fail with ConnectionLost."""
        self._caller.close()

    def __enter__(self) -> Client:
        if self._settings.reconnect is not None:
            self._caller.background("(connect)").begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.address}{', closed' if self._connections.is_closed else ''}>"

    # -- the other ways to call -------------------------------------------------------------------------------

    def _request_as_it_is(self, message: dict[str, Any], *, timeout: Any = NOT_GIVEN) -> Any:
        if "id" in message:
            return self._perform(RawCall(self._marshaller, message), timeout)
        encoded = self._marshaller.encode(message, "request object")
        return self._send(encoded, str(message.get("method", "?")), timeout)

    def _notify(self, method: str, /, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> None:
        self._send(self._marshaller.notification(method, params_of(method, args, kwargs)), method, timeout)

    def _submit(
        self,
        method: str,
        /,
        *args: Any,
        timeout: Any = NOT_GIVEN,
        returns: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        outgoing = Call(self._marshaller, method, params_of(method, args, kwargs), timeout, returns)
        return self._caller.submit(outgoing, timeout, on_progress)

    def _stream(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        returns: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        **kwargs: Any,
    ) -> ClientStream:
        return self._streamed(method, params_of(method, args, kwargs), timeout, returns, on_progress)

    def _streamed(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None,
        timeout: float | None = None,
        returns: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
    ) -> ClientStream:
        """As `stream`, with the params as they go on the wire."""
        self._caller.converse()
        return self._caller.background(method).stream(method, params, timeout, returns, on_progress)
