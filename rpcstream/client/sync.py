"""The client for programs without an event loop: each call blocks its thread, on a socket that stays open.

Owns the connections of one client and the life of a call across them: connect, send, wait, try again where that was
asked for. How a call becomes bytes is the marshaller's matter, how bytes come and go the connection's.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..codec import Codec
from ..errors import CallTimeout, ConnectFailed, ConnectionLost
from ..limits import DEFAULT_LIMITS, Limits
from ..peer.call import NOT_GIVEN, Call, Marshaller, Outgoing, RawCall, check_params, params_of
from ..peer.deadline import INFINITE
from ..peer.proxy import NAMES_KEPT, Method, Methods, remote_name
from ..wire.pieces import Written
from .address import Address
from .batch import Batch, BatchExchange
from .connections import Connections
from .retry import Unsent, pause_before_retry
from .settings import Trace, make_settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .futures import Futures

T = TypeVar("T")

_making_futures = allocate_lock()


class Client:
    """Calls methods of a server: `Client().vision.vectorize(photo=image)`. Safe to use from several threads.

    A connection is made with the first call, kept, and made anew with the next call after it was lost. In a process
    that was forked the client makes connections of its own.

    Args:
        address: "host:port", "host", "[::1]:8545", "tcp://…" or "unix:///path".
        timeout: seconds that a call may take with everything, None for no limit; each call may say otherwise.
        connect_timeout: seconds that connecting may take.
        pool: up to so many connections; a call takes the one with the fewest calls waiting.
        retries: how often a call is repeated that failed because there was no connection or it was lost. Such a call
            may have been carried out, so this is for methods that may be repeated. A `submit` is not repeated.
        codec: knows the rich types; give one with your own types registered.
        limits: `max_message_size` holds for what is sent and for what is received.
        delimiter: ends each message, as the server expects it.
        trace: called with "send" or "receive" and the bytes of each message.
        on_send: called with the bytes sent so far and in total, while a message of more than 1 MiB goes out.

    Raises:
        ValueError: the address or another argument makes no sense.
    """

    def __init__(
        self,
        address: str | Address = "127.0.0.1:8545",
        *,
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        pool: int = 1,
        retries: int = 0,
        codec: Codec | None = None,
        limits: Limits = DEFAULT_LIMITS,
        delimiter: bytes = b"\n",
        trace: Trace | None = None,
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
            delimiter=delimiter,
            trace=trace,
            on_send=on_send,
        )
        self._timeout = timeout
        self._marshaller = Marshaller(self._settings.codec, limits, str(self._settings.address))
        self._connections = Connections(self._settings)
        self._futures: Futures | None = None
        #: For notifications, which have no answer: `client.notify.name(…)` or `client.notify("name", …)`.
        self.notify = Methods(self._notify)
        #: For futures: `client.submit.name(…)` or `client.submit("name", …)`.
        self.submit = Methods(self._submit)

    # -- what users call --------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._marshaller.address

    @property
    def replies_dropped(self) -> int:
        """Replies on the present connections that nobody waited for: late, forged or duplicate."""
        return self._connections.dropped

    def __getattr__(self, name: str) -> Any:
        method = Method(self.call, remote_name(self, name))
        if len(self.__dict__) < NAMES_KEPT:
            self.__dict__[name] = method  # found without this function the next time
        return method

    @overload
    def call(self, method: str, /, *args: Any, returns: type[T], timeout: float | None = ..., **kwargs: Any) -> T: ...
    @overload
    def call(
        self, method: str, /, *args: Any, returns: Any = ..., timeout: float | None = ..., **kwargs: Any
    ) -> Any: ...
    def call(
        self, method: str, /, *args: Any, returns: Any = NOT_GIVEN, timeout: Any = NOT_GIVEN, **kwargs: Any
    ) -> Any:
        """Call a method by its name and wait for the result.

        Args:
            args, kwargs: the arguments, all by position or all by name. For a parameter that is called `timeout` or
                `returns` use `request`.
            timeout: seconds that this call may take, None for no limit. The server is told and gives up too.
            returns: a type hint; the result is checked against it and given in that type.

        Raises:
            RpcError: the server answered with an error; subclasses for the codes that are known.
            ConnectFailed, ConnectionLost: there was no connection, or it ended before the answer came.
            CallTimeout: no answer in time. The connection stays; an answer that comes late is dropped.
            TypeError: arguments by position and by name together; a value that cannot be sent (EncodeError); a result
                that does not fit `returns`.
            RuntimeError: the client is closed.
        """
        params = params_of(method, args, kwargs) if kwargs or not args else list(args)
        return self._perform(Call(self._marshaller, method, params, timeout, returns), timeout)

    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: Any = ...,
        timeout: float | None = ...,
    ) -> Any: ...
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = NOT_GIVEN,
        timeout: Any = NOT_GIVEN,
    ) -> Any:
        """As `call`, with the params as they go on the wire: a list, a dict, or None for none."""
        return self._perform(Call(self._marshaller, method, check_params(method, params), timeout, returns), timeout)

    def __call__(self, message: dict[str, Any], *, timeout: float | None = NOT_GIVEN) -> dict[str, Any] | None:
        """Send a request object as it is, id included; the whole response object, rich values decoded.

        An error reply is returned, not raised. Without an id the object is a notification, and None is returned.

        Raises:
            ValueError: the id is no string and no integer, or a call with this id is waiting.
        """
        if not isinstance(message, dict):
            raise TypeError(f"a request object is a dict, got {type(message).__name__}")
        if "id" not in message:
            self._send(self._marshaller.encode(message, "request object"), str(message.get("method", "?")), timeout)
            return None
        response: dict[str, Any] = self._perform(RawCall(self._marshaller, message), timeout)
        return response

    def batch(self, *, timeout: float | None = NOT_GIVEN) -> SyncBatch:
        """Several calls in one message: `with client.batch() as batch: a = batch.sum(1, 2)`, then `a.result()`.

        Nothing is sent if the block is left with an exception, or if there is nothing in the batch.
        """
        return SyncBatch(self, timeout)

    def close(self) -> None:
        """End the connections; calls that wait in other threads fail with ConnectionLost."""
        self._connections.close()
        if self._futures is not None:
            self._futures.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.address}{', closed' if self._connections.is_closed else ''}>"

    # -- the life of a call -----------------------------------------------------------------------------------

    def _perform(self, outgoing: Outgoing, timeout: Any) -> Any:
        """Send, wait, and try again as often as that is allowed."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else monotonic() + seconds
        connections = self._connections
        attempt = 1
        while True:
            try:
                connection = connections.only
                if connection is None or connection.lost is not None:
                    connection = connections.get(outgoing.method, deadline)
                own = connection.exchange(outgoing, deadline)
                if own.error is not None:
                    raise own.error
                if not own.done:
                    raise CallTimeout("no answer in time", method=outgoing.method, address=self.address)
                return outgoing.outcome(own.reply, own.line)
            except Unsent:
                continue
            except (ConnectFailed, ConnectionLost) as error:
                pause = self._pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            sleep(pause)

    def _notify(self, method: str, /, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> None:
        self._send(self._marshaller.notification(method, params_of(method, args, kwargs)), method, timeout)

    def _send(self, message: Written, method: str, timeout: Any) -> None:
        """Send something that has no answer."""
        deadline = self._deadline(timeout)
        attempt = 1
        while True:
            try:
                connection = self._connections.get(method, deadline)
                connection.check(method)
                return connection.send(message, deadline, method)
            except Unsent:
                continue
            except (ConnectFailed, ConnectionLost) as error:
                pause = self._pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            sleep(pause)

    def _submit(
        self, method: str, /, *args: Any, timeout: Any = NOT_GIVEN, returns: Any = NOT_GIVEN, **kwargs: Any
    ) -> Future[Any]:
        outgoing = Call(self._marshaller, method, params_of(method, args, kwargs), timeout, returns)
        deadline = self._deadline(timeout)
        futures = self._futures
        if futures is None or futures.is_of_parent:
            futures = self._make_futures()
        future = futures.make()
        try:
            while True:
                connection = self._connections.get(method, deadline)
                try:
                    connection.check(method)
                    futures.submit(connection, outgoing, future, deadline)
                    break
                except Unsent:
                    continue
        except (ConnectFailed, ConnectionLost, CallTimeout) as error:
            future.reject(error)
        return future

    def _make_futures(self) -> Futures:
        from .futures import Futures  # imports concurrent.futures and logging, which plain calls do without

        with _making_futures:
            if self._futures is None or self._futures.is_of_parent:
                self._futures = Futures()
            return self._futures

    def _pause(self, error: Exception, attempt: int, deadline: float) -> float | None:
        pause = pause_before_retry(error, attempt, self._settings.retries)
        if pause is None or self._connections.is_closed or monotonic() + pause >= deadline:
            return None
        return pause

    def _deadline(self, timeout: Any) -> float:
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        return INFINITE if seconds is None else monotonic() + seconds


class SyncBatch(Batch):
    """The batch of a `Client`; a context manager."""

    def __init__(self, client: Client, timeout: Any) -> None:
        super().__init__(client._marshaller, timeout)
        self._client = client

    def __enter__(self) -> SyncBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        outgoing = self._outgoing()
        if isinstance(outgoing, BatchExchange):
            try:
                self._client._perform(outgoing, self._timeout)
            except Exception as failure:
                outgoing.failed(failure)
                raise
        elif outgoing is not None:
            self._client._send(outgoing, "batch", self._timeout)
