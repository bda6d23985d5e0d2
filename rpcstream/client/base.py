"""The interface that the blocking and the async client share, documented once.

Where a docstring says "gives", an `AsyncClient` gives an awaitable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from ..errors import EncodeError, RpcError
from ..peer.calls import CLIENT_NAMES, NAMES_KEPT, Call, Method, Notice, RawCall, params_of, remote_name
from ..peer.marshal import NOT_GIVEN, Marshaller
from ..peer.pending import OnProgress
from ..peer.shared_memory import shared_empty
from ..wire.buffers import Encoded
from .attempts import check_params, given_params
from .options import Settings

if TYPE_CHECKING:  # these import asyncio or read files, which plain calls do without
    from ..config import ConfigSource
    from ..events.event_queue import Policy
    from .discovery import KnownMethods


#: The params of a request.
Params = list[Any] | dict[str, Any] | None


class CallOptions(TypedDict, total=False):
    """Options of one call, see `BaseClient.call`."""

    timeout: float | None
    on_progress: OnProgress | None
    wait_for: float | None


def take_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a call, `returns` among them, out of the keywords that it was made with."""
    names = ("returns", *CallOptions.__annotations__)
    return {name: kwargs.pop(name) for name in names if name in kwargs}


class BaseClient(ABC):
    """The interface of `Client` and `AsyncClient`."""

    #: Send a call, or a `Notice`, and give its outcome. Awaitable in an `AsyncClient`.
    _perform: Callable[..., Any]

    #: What is known of the server's methods; None until `discover` was called.
    __descriptions__: KnownMethods | None = None

    def __init__(self, settings: Settings, marshaller: Marshaller | None = None) -> None:
        self._settings = settings
        self._marshaller = marshaller or Marshaller(
            settings.codec, settings.limits, str(settings.address), explain=partial(_explained, settings)
        )
        #: Writes notifications.
        self._notification: Callable[..., Encoded] = self._marshaller.notification
        #: For notifications, which have no reply.
        self.notify = Method(self._notify)
        #: For calls that run by themselves.
        self.submit = Method(self._submit)
        #: For methods that stream.
        self.stream = Method(self._stream)

    @classmethod
    def from_config(cls, source: ConfigSource = None, profile: str | None = None, **arguments: Any) -> Self:
        """Create a client from arguments, `RPCSTREAM_…` environment variables and a file, in this order of precedence.

        Args:
            source: a file (TOML, or JSON with comments) or a mapping with the same options. None: the file in
                `RPCSTREAM_CONFIG`, else the user's `rpcstream/config.toml`, which the command line reads too.
            profile: the table in `profiles` whose options come first. None: the one in `RPCSTREAM_PROFILE`, else the
                file's own `profile`.
            arguments: options of the constructor.

        Raises:
            ValueError, TypeError: an option is invalid; the text says which, and where it was given.
            OSError: the file cannot be read.
        """
        from .config import client_options

        return cls(**client_options(source, arguments, profile=profile))

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._marshaller.address

    @property
    @abstractmethod
    def state(self) -> str:
        """The state of the (first) connection: "idle", "connecting", "connected", "waiting" or "closed".

        "idle": not connected, and the next call connects. "waiting": pausing before the next attempt to connect.
        Over HTTP, it is "connected" after the first call, even without a server.
        """

    @property
    @abstractmethod
    def registered_name(self) -> str | None:
        """The client's name at the hub: the option `name`, or the one that the hub chose; None before registration."""

    @property
    @abstractmethod
    def replies_dropped(self) -> int:
        """The number of replies on the open connections without a pending call, such as late ones."""

    #: The function of this name: a program has one memory, which all of its connections share.
    shared_empty = staticmethod(shared_empty)

    # -- calls ------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        method = Method(self.call, remote_name(self, name))
        if len(self.__dict__) < NAMES_KEPT:
            self.__dict__[name] = method  # found without this function the next time
        return method

    def __dir__(self) -> list[str]:
        own = [
            name
            for name in super().__dir__()
            if name in CLIENT_NAMES or not isinstance(self.__dict__.get(name), Method)
        ]
        return own if self.__descriptions__ is None else [*own, *self.__descriptions__.names_below("")]

    @abstractmethod
    def discover(self, *, timeout: float | None = NOT_GIVEN) -> Any:
        """Return the server's OpenRPC document (`rpc.discover`), a dict.

        Afterwards `dir(client)` lists the server's methods, and `help(client.add)` shows their documentation.
        Raises the errors of `call`.
        """

    @abstractmethod
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
        """Call a method by its name and return its result.

        If you cancel or interrupt a call, or if it times out, the server cancels the handler, and the client drops a
        late reply. Inside a handler with a deadline, the call ends by that deadline.

        Args:
            method: the name of the method.
            args: positional arguments. An iterator is sent item by item. With positional and named arguments, the
                client asks the server once (`rpc.discover`) for the parameter names.
            kwargs: named arguments. For a parameter named `timeout`, `returns`, `on_progress` or `wait_for`, use
                `request`.
            timeout: the longest that this call may take, in seconds; None: no limit. The server stops the handler too.
            returns: a type hint. The result is checked and converted to it.
            on_progress: called with each value of `ctx.progress`. It must not wait for another call of this client.
                Its exceptions are logged.
            wait_for: seconds to wait for a server that is not running, and at a hub for a provider of the method.

        Raises:
            RpcError: the server answered with an error; known codes have subclasses.
            ConnectFailed, ConnectionLost: no connection could be opened, or it ended before the reply arrived.
            CallTimeout: no reply, or no free connection (see `pool`), within the timeout. The connection stays open.
            TypeError: a value cannot be sent (EncodeError), the result does not fit `returns`, or the server does not
                tell its parameter names.
            RuntimeError: the client is closed.
        """

    def request(
        self, method: str, params: Params = None, *, returns: Any = NOT_GIVEN, **options: Unpack[CallOptions]
    ) -> Any:
        """Like `call`, with the JSON-RPC params as a list, a dict, or None."""
        timeout = options.get("timeout", NOT_GIVEN)
        call = Call(self._marshaller, method, check_params(method, params), timeout, returns)
        return self._perform(call, timeout, options.get("on_progress"), options.get("wait_for", NOT_GIVEN))

    @abstractmethod
    def stream_request(
        self, method: str, params: Params = None, *, returns: Any = NOT_GIVEN, **options: Unpack[CallOptions]
    ) -> Any:
        """Like `stream`, with the JSON-RPC params as a list, a dict, or None.

        Args:
            method: the name of the method.
            params: as for `request`.
            returns: a type hint. Each item is checked and converted to it.
            options: as for `call`. The timeout applies to the whole stream and is None by default; `wait_for` applies
                to the first item.

        Raises the errors of `stream`, and TypeError for params of another type.
        """

    @abstractmethod
    def __call__(self, *message: Any, **options: Any) -> Any:
        """Decorator: let the server call this function (`@client`, `@client(name=…)`), or send a request object.

        A function takes the options of `Server.add`, and raises its errors. With a `Client` a plain function runs in a
        thread, and may call methods of this client. At a hub it is offered to others with `offer`; `shared=True` lets
        other clients offer a method of the same name, and the hub balances calls among them.

        A request object (a dict) is sent as it is, id included, and the whole reply object is given, with rich values
        decoded. An error reply is returned, not raised. Without an id the object is a notification, which gives None.

        Raises:
            ValueError: the id of a request object is neither a string nor an integer, or belongs to a waiting call.
            TypeError: neither a function nor a dict.
        """

    @abstractmethod
    def batch(self, *, timeout: float | None = NOT_GIVEN, wait_for: float | None = NOT_GIVEN) -> Any:
        """Collect several calls for one message: `with client.batch() as batch: a = batch.sum(1, 2)`.

        The end of the block (`async with` for an `AsyncClient`) sends them; then `a.result()` returns the result. If
        the block raises, or the batch is empty, nothing is sent.
        """

    @abstractmethod
    def on_connect(self, hello: Any) -> Any:
        """Decorator: run this function first on each new connection.

        It gets the server as its argument. With an `AsyncClient` it is an async function and gets a `Peer`; with a
        `Client` it gets a `BlockingPeer`, and must not call the client itself, whose calls wait for it. If it raises,
        connecting fails.
        """

    # -- events and the hub -----------------------------------------------------------------------------------------

    @abstractmethod
    def subscribe(
        self, topic: str, *, returns: Any = NOT_GIVEN, max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Any:
        """Iterate over the values published to a topic: `for value in client.subscribe("ticks")`, or `async for`.

        `with client.subscribe("ticks") as ticks:` (or `async with`) begins when the server has confirmed the
        subscription, so you receive all later values.

        Args:
            topic: a topic or a pattern: `*` is one level ("sensors.*"), `>` at the end one or more ("sensors.>").
                `subscribe(…).with_topics()` yields pairs of topic and value.
            returns: a type hint. Each value is checked and converted to it.
            max_queue: the number of unread events that are kept, up to `max_message_size` bytes together.
            policy: what happens when the queue is full: "drop_oldest" and "drop_newest" drop an event; "disconnect"
                ends the iteration with ConnectionLost after the queued events.

        Raises:
            TypeError: the topic is not a str.
            ValueError: `max_queue` or the policy is invalid.
            RuntimeError: the client uses HTTP, which has no lasting connection.
        """

    @abstractmethod
    def publish(self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = NOT_GIVEN) -> Any:
        """Publish a value to a topic at the hub and return the number of receiving connections.

        On NATS (`nats://…`), which does not count subscribers, the number is 1.

        Args:
            topic: levels separated by dots, such as "sensors.room1"; not a pattern.
            value: any argument of a call except an iterator.
            retain: keep the value for later subscribers, until another one is retained; None deletes it. On NATS, the
                instances of the service keep it.
            timeout: seconds, as for `call`.

        Raises the errors of `call`; MethodNotFound if the server is not a hub; on NATS NotPermitted, and ConnectFailed
        for `retain` if no instance runs.
        """

    @abstractmethod
    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Send a notification to the client with this name at the hub and return True.

        You do not learn whether that client has the method.

        Args:
            client: the name of the other client.
            method: the name of its method.
            args: the arguments, all by position or all by name.
            kwargs: the arguments by name.

        Raises the errors of `call`; InvalidParams if no client has this name.
        """

    @abstractmethod
    def offer(self) -> Any:
        """Offer the methods marked with `@client` to all clients of the hub and return the offered names.

        Others call them by their own name and as `client.method`. Call `offer` again for methods that you mark later.
        After a loss, the next connection offers them again: at once with `reconnect`, else with the next call. A method
        that another client offers by then is logged and left out. A forked process offers under a name that the hub
        chooses.

        Raises:
            InvalidParams: the name is taken, or another client offers one of the methods. Nothing is offered then.
            MethodNotFound: the server is not a hub.
            RpcError: the hub refuses for another reason (NotPermitted, ServerBusy, …).
            ConnectFailed, ConnectionLost, CallTimeout: no connection, or no reply within `registration_timeout`.
            RuntimeError: the client uses HTTP, which has no lasting connection, or it is closed.
        """

    @abstractmethod
    def withdraw(self, *names: str) -> Any:
        """Withdraw these methods and return their names; without names, withdraw all methods and the client's name.

        Raises the errors of `call`.
        """

    @abstractmethod
    def wait_closed(self) -> Any:
        """Wait until the client is closed, in a program that only offers methods.

        Another thread closes a `Client`. Ctrl-C ends the wait and leaves the client open.

        Raises:
            ConnectionLost: the connection is lost, and the client does not `reconnect`.
            RuntimeError: the client uses HTTP, which has no lasting connection.
        """

    @abstractmethod
    def run(self, *, drain_timeout: float = 10.0) -> Any:
        """Serve the offered methods until SIGINT or SIGTERM, then leave without losing a call.

        After the signal, the client withdraws its methods and finishes the calls that it has started; the hub passes
        the others to another client. Then the client closes. A second signal ends it at once. Signals are handled in
        the main thread only; in another thread, call `close`.

        Args:
            drain_timeout: the seconds that running calls may take to finish.

        Raises:
            ConnectionLost: the connection is lost, and the client does not `reconnect`.
            RuntimeError: the client uses HTTP, which has no lasting connection, or it is closed.
            SystemExit: a second signal arrived; the code is 128 plus the signal's number.
        """

    # -- the end ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> Any:
        """Close the connections; pending calls fail with ConnectionLost.

        Sent messages still leave. Loops over events end after the queued events.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.address}{', closed' if self.state == 'closed' else ''}>"

    # -- for both clients -------------------------------------------------------------------------------------------

    @abstractmethod
    def _add_callback(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        """Let the server call a function."""

    def _learn(self, document: Any) -> Any:
        """Remember the methods that an OpenRPC document describes; gives the document."""
        from .discovery import KnownMethods

        self.__descriptions__ = KnownMethods(document)
        return document

    @abstractmethod
    def _submit(self, method: str, /, *args: Any, **options: Any) -> Any: ...

    def _send_object(self, message: dict[str, Any], *, timeout: Any = NOT_GIVEN, wait_for: Any = NOT_GIVEN) -> Any:
        """Send a request object as it is."""
        if "id" in message:
            return self._perform(RawCall(self._marshaller, message), timeout, None, wait_for)
        make = partial(self._marshaller.encode, message, "request object")
        return self._perform(Notice(self._marshaller, str(message.get("method", "?")), make), timeout, None, wait_for)

    def _decorate_or_send(self, message: Any, options: dict[str, Any]) -> Any:
        """As `__call__`."""
        if isinstance(message, dict):
            return self._send_object(message, **options)
        if message is None:
            return lambda function: self._decorate_or_send(function, options)
        if not callable(message):
            raise TypeError(f"a client takes a function, or a request object (a dict); got {type(message).__name__}")
        self._add_callback(message, options)
        return message

    def _stream(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        options = take_options(kwargs)
        params: Any = given_params(args, kwargs)
        return self.stream_request(method, params, **options)

    def _notify(
        self, method: str, /, *args: Any, timeout: Any = NOT_GIVEN, wait_for: Any = NOT_GIVEN, **kwargs: Any
    ) -> Any:
        make = partial(self._notification, method, params_of(method, args, kwargs))
        return self._perform(Notice(self._marshaller, method, make), timeout, None, wait_for)


def check_hello(hello: object) -> None:
    """Raise TypeError unless this can be called on each new connection."""
    if not callable(hello):
        raise TypeError(
            f"on_connect takes a function, which is called on each new connection; got {type(hello).__name__}. "
            "For a remote method of this name use call('on_connect', …)"
        )


def _explained(settings: Settings, error: RpcError) -> Exception:
    from .faults import explained

    return explained(error, settings.address, has_token=settings.token is not None)


def publish_params(topic: Any, value: Any, retain: bool) -> dict[str, Any]:
    """The params of `rpc.publish`."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, got {type(topic).__name__}")
    _refuse_iterator(value, f"an event of {topic!r}")
    return {"topic": topic, "value": value, **({"retain": True} if retain else {})}


def notify_client_params(client: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The params of `rpc.notify`."""
    params: dict[str, Any] = {"client": client, "method": method}
    given = params_of(method, args, kwargs)
    if given is not None:
        for value in given.values() if isinstance(given, dict) else given:
            _refuse_iterator(value, f"an argument of {method!r} of {client!r}")
        params["params"] = given
    return params


def _refuse_iterator(value: object, what: str) -> None:
    """Raise EncodeError for an iterator, which a call would send item by item."""
    kind = type(value)
    if any(hasattr(kind, step) for step in ("__next__", "__anext__", "__aiter__")) and not hasattr(kind, "readinto"):
        raise EncodeError(f"{what} cannot be an iterator ({type(value).__name__}): send a list, or item by item")
