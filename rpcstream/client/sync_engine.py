"""The life of a sync client's calls: connect, send, wait, try again where that was asked for.

Owns the choice between the two ways that a call may go: on blocking connections, with no thread but the caller's, and,
once the client takes part in a conversation, in the background, from then on for all calls. How a call becomes bytes is
the marshaller's matter.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, EncodeError, ProviderGone, RpcError
from ..peer.deadline import INFINITE, inherited, time_left
from ..peer.marshal import NOT_GIVEN, Call, Marshaller, Outgoing
from ..wire.buffers import Encoded
from .address import check_lasting
from .options import Settings
from .retry import LOSSES, Unsent, check_idempotent, idempotent_methods, pause_before_retry
from .sync_pool import SyncPool

if TYPE_CHECKING:  # these import asyncio or threads, which plain calls do without
    from ..peer.outgoing import OnProgress
    from .callbacks import Callbacks
    from .futures import CallFuture, Futures
    from .loop_thread import LoopThread
    from .stepped import Hello


class SyncEngine:
    """Makes the calls of one client.

    Attributes:
        converses: calls go by the background.
        connections: the blocking ones.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.connections = SyncPool(settings)
        self.converses = False
        self._settings = settings
        self._timeout = settings.timeout
        self._marshaller = marshaller
        self._making = allocate_lock()
        self._futures: Futures | None = None
        self._background: LoopThread | None = None
        self._offered: Callbacks | None = None
        #: What was offered: a child process that was forked offers it anew.
        self._offers: list[tuple[Callable[..., Any], dict[str, Any]]] = []
        self._greetings: list[Hello] = []
        self._idempotent: frozenset[str] | None = None
        # Blocking connections say nothing of their own before the first call, and are in the clear.
        is_plain = settings.address.kind in ("tcp", "unix") and settings.token is None
        # Being registered, and looking after a silent server, go on while nobody calls.
        lasts = settings.reconnect is not None or settings.name is not None or settings.keepalive is not None
        if not is_plain or lasts or settings.on_state is not None:
            self.converse()

    # -- calls ------------------------------------------------------------------------------------------------------

    def perform(self, outgoing: Outgoing, timeout: Any, on_progress: OnProgress | None = None) -> Any:
        """Send, wait, and try again as often as that is allowed."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        deadline = INFINITE if seconds is None else monotonic() + seconds
        connections = self.connections
        attempt = 1
        while True:
            try:
                connection = connections.only
                if connection is None or connection.lost is not None:
                    if self.converses:
                        break
                    connection = connections.get(outgoing.method, deadline)
                own = connection.exchange(outgoing, deadline, on_progress)
                if own.error is not None:
                    raise own.error
                if not own.done:
                    raise CallTimeout("no answer in time", method=outgoing.method, address=self._marshaller.address)
                return outgoing.outcome(own.reply, own.line)
            except Unsent:
                continue
            except EncodeError:
                if not self._needs_streams(outgoing):
                    raise
                continue
            except LOSSES as error:
                pause = self._pause(error, attempt, deadline) if outgoing.is_repeatable else None
                if pause is None:
                    raise
                loss = error
            attempt += 1
            sleep(pause)
            if not isinstance(loss, ConnectFailed):  # it may have been carried out
                self._check_repeatable(outgoing.method, loss, deadline)
        return self.background(outgoing.method).perform(outgoing, _left(deadline), on_progress)

    def send(self, message: Encoded, method: str, timeout: Any) -> None:
        """Send something that has no answer."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else monotonic() + seconds
        attempt = 1
        while not self.converses:
            try:
                connection = self.connections.get(method, deadline)
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
        return self.background(method).send(message, method, _left(deadline))

    def submit(self, outgoing: Outgoing, timeout: Any, on_progress: OnProgress | None) -> CallFuture:
        """Send, and give a future that gets the outcome."""
        method = outgoing.method
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        deadline = INFINITE if seconds is None else monotonic() + seconds
        futures = self._futures
        if futures is None or futures.is_of_parent:
            futures = self._make_futures()
        future = futures.make()
        try:
            while not self.converses:
                connection = self.connections.get(method, deadline)
                try:
                    connection.check(method)
                    futures.submit(connection, outgoing, future, deadline, on_progress)
                    return future
                except Unsent:
                    continue
                except EncodeError:
                    if not self._needs_streams(outgoing):
                        raise
        except (ConnectFailed, ConnectionLost, CallTimeout) as error:
            future.reject(error)
        else:
            self.background(method).submit(outgoing, _left(deadline), on_progress, future)
        return future

    def close(self) -> None:
        """End everything; calls that wait fail."""
        self.connections.close()
        if self._futures is not None:
            self._futures.stop()
        with self._making:
            background = self._background
        if background is not None:
            background.close()

    # -- the conversation -------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """What the (first) connection is like."""
        if self.connections.is_closed:
            return "closed"
        if self._background is not None:
            return self._background.state
        return "connected" if self.connections.has_open else "idle"

    @property
    def registered_name(self) -> str | None:
        """As `AsyncClient.registered_name`."""
        return self._settings.name if self._background is None else self._background.registered_name

    @property
    def dropped(self) -> int:
        """Replies on the present connections that nobody waited for."""
        return self.connections.dropped + (self._background.dropped if self._background is not None else 0)

    def converse(self) -> None:
        """From now on all calls are part of one conversation; those that wait already come to their end."""
        self.converses = True
        self.connections.retire()

    def mark(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        """Let the server call a function."""
        check_lasting(self._settings.address, "offering a method to the server")
        with self._making:
            if self._offered is None:
                self._offered = self._make_offered()
        self._offered.add(function, **options)
        self._offers.append((function, options))
        self.converse()

    def greet(self, hello: Hello) -> None:
        """Run a function on each new connection."""
        check_lasting(self._settings.address, "on_connect")
        with self._making:
            self._greetings.append(hello)
            if self._background is not None:
                self._background.greet(hello)
        self.converse()

    def conversing(self, what: str, method: str) -> LoopThread:
        """The conversation, begun for something that needs a connection that lasts.

        Args:
            what: it is, for the RuntimeError where there is none.
        """
        check_lasting(self._settings.address, what)
        self.converse()
        return self.background(method)

    def background(self, method: str) -> LoopThread:
        """The conversation, begun with the first call.

        Raises:
            RuntimeError: the client is closed.
        """
        background = self._background
        if background is None or background.is_over:
            with self._making:
                if self.connections.is_closed:
                    address = self._marshaller.address
                    raise RuntimeError(f"{method!r} was called on a closed client (of {address})")
                background = self._background
                if background is None or background.is_over:
                    background = self._background = self._begin(background)
        return background

    def _begin(self, before: LoopThread | None) -> LoopThread:
        from .loop_thread import LoopThread

        if self._offered is None or before is not None:
            self._offered = self._make_offered()
            for function, options in self._offers:
                self._offered.add(function, **options)
        settings = self._settings
        if before is not None and before.is_of_parent:
            settings = replace(settings, name=None)  # it is taken by the process that this one was forked from
        return LoopThread(settings, self._offered, self._greetings)

    def _make_offered(self) -> Callbacks:
        from .callbacks import Callbacks

        return Callbacks(self._settings, in_threads=True)

    def _needs_streams(self, outgoing: Outgoing) -> bool:
        """A call could not be encoded: is that for an iterator among its arguments? Then a conversation begins."""
        from ..peer.uploads import holds_streams

        if not holds_streams(outgoing.params):
            return False
        self.converse()
        return True

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _make_futures(self) -> Futures:
        from .futures import Futures  # imports concurrent.futures and logging, which plain calls do without

        with self._making:
            if self._futures is None or self._futures.is_of_parent:
                self._futures = Futures()
            return self._futures

    def _pause(self, error: Exception, attempt: int, deadline: float) -> float | None:
        pause = pause_before_retry(error, attempt, self._settings.retries)
        if pause is None or self.connections.is_closed or monotonic() + pause >= deadline:
            return None
        return pause

    def _check_repeatable(self, method: str, error: Exception, deadline: float) -> None:
        """Raises ConnectionLost or ProviderGone unless the call may be repeated, by the client's `retry`."""
        if self._settings.retry == "all" or method == "rpc.discover":
            return
        known = self._idempotent
        if known is None or isinstance(error, ProviderGone):  # what a hub offers comes and goes
            known = None
            discover = Call(self._marshaller, "rpc.discover", None, NOT_GIVEN, NOT_GIVEN)
            try:
                known = self._idempotent = idempotent_methods(self.perform(discover, _left(deadline)))
            except (RpcError, OSError):  # with the errors of connections and time-outs
                pass
        check_idempotent(method, known, error)


def _left(deadline: float) -> float | None:
    return None if deadline == INFINITE else deadline - monotonic()
