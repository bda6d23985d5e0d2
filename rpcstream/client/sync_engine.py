"""How a sync client makes its calls: connect, send, wait for the reply, try again where that was asked for.

Owns the choice between the two ways that a call may go:

* a plain call takes a blocking connection out of the pool, with no thread but the caller's, and puts it back;
* a future, a stream, a subscription and an iterator as an argument go by the loop thread, which carries any number of
  them on one connection. Once the server may call the client, or connections are greeted, registered or kept, all calls
  of the client go there.

How a call becomes bytes is the marshaller's task, how bytes are sent the connection's.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ..errors import CALL_ERRORS, CallTimeout, ConnectFailed, ConnectionLost, EncodeError, RpcError, at_caller
from ..peer.deadline import INFINITE, inherited, time_left
from ..peer.marshal import NOT_GIVEN, Call, Marshaller, Outgoing
from ..peer.naming import MixedParams, facts_of, named, refused
from ..wire.buffers import Encoded
from .address import check_lasting, check_one_server
from .options import Settings
from .retry import (
    LOSSES,
    Attempts,
    Known,
    Unsent,
    check_idempotent,
    is_awaited,
    is_known,
    is_missing,
    may_have_run,
    pause_of_wait,
)
from .sync_pool import SyncPool

if TYPE_CHECKING:  # these import asyncio or threads, which plain calls do without
    from ..peer.pending import OnProgress
    from .callbacks import Callbacks
    from .loop_bridge import CallFuture
    from .loop_thread import LoopThread
    from .worker_thread import Hello


class SyncEngine:
    """Makes the calls of one client.

    Attributes:
        pool: the blocking connections.
        uses_loop: all calls go by the loop thread.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.pool = SyncPool(settings, marshaller)
        self.uses_loop = False
        self._settings = settings
        self._timeout = settings.timeout
        self._wait_for = settings.wait_for
        self._marshaller = marshaller
        #: Held while the loop thread is started, or what it begins with is changed.
        self._lock = allocate_lock()
        self._loop_thread: LoopThread | None = None
        self._callbacks: Callbacks | None = None
        #: The functions that the server may call, with their options: a child process that was forked adds them anew.
        self._callback_functions: list[tuple[Callable[..., Any], dict[str, Any]]] = []
        self._greetings: list[Hello] = []
        self._known: Known = None
        #: The count of lost connections when these were asked for.
        self._lost = 0
        # Blocking connections say nothing of their own before the first call, and are in the clear.
        is_plain = settings.address.kind in ("tcp", "unix") and settings.token is None
        # Being registered, and looking after a silent server, go on while no call waits.
        lasts = settings.reconnect is not None or settings.name is not None or settings.keepalive is not None
        if not is_plain or lasts or settings.on_state is not None:
            self.move_to_loop()

    # -- calls ------------------------------------------------------------------------------------------------------

    def perform(
        self, outgoing: Outgoing, timeout: Any, on_progress: OnProgress | None = None, wait_for: Any = NOT_GIVEN
    ) -> Any:
        """Make a call and wait for its outcome, trying again as often as that is allowed."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        deadline = INFINITE if seconds is None else monotonic() + seconds
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        until = None if wait_for is None else monotonic() + wait_for
        pool = self.pool
        attempts: Attempts | None = None
        try:
            while not self.uses_loop:
                try:
                    connection = pool.take(outgoing.method, deadline)
                    try:
                        got = connection.exchange(outgoing, deadline, on_progress)
                    finally:
                        pool.put(connection)
                    return outgoing.outcome(got.reply, got.line)
                except Unsent:
                    continue
                except EncodeError:
                    if not self._needs_streams(outgoing):
                        raise
                    break
                except LOSSES as error:
                    attempts = attempts or Attempts(self._settings.retries, wait_for, until)
                    pause = attempts.pause(error, monotonic(), deadline) if outgoing.is_repeatable else None
                    if pause is None or pool.is_closed:
                        raise
                    loss, until = error, attempts.until
                sleep(pause)
                if may_have_run(loss):
                    self._check_repeatable(outgoing, loss, deadline, until)
            return self.loop_thread(outgoing.method).perform(outgoing, _left(deadline), on_progress, wait_for)
        except CALL_ERRORS as error:
            raise at_caller(error) from error.__cause__

    def send(self, message: Encoded, method: str, timeout: Any, wait_for: Any = NOT_GIVEN) -> None:
        """Send a message that has no reply."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else monotonic() + seconds
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        until = None if wait_for is None else monotonic() + wait_for
        attempts: Attempts | None = None
        try:
            while not self.uses_loop:
                try:
                    connection = self.pool.take(method, deadline)
                    try:
                        return connection.send(message, deadline, method)
                    finally:
                        self.pool.put(connection)
                except Unsent:
                    continue
                except (ConnectFailed, ConnectionLost) as error:
                    attempts = attempts or Attempts(self._settings.retries, wait_for, until)
                    pause = attempts.pause(error, monotonic(), deadline)
                    if pause is None or self.pool.is_closed:
                        raise
                sleep(pause)
            return self.loop_thread(method).send(message, method, _left(deadline), wait_for)
        except CALL_ERRORS as error:
            raise at_caller(error) from error.__cause__

    def submit(
        self, outgoing: Outgoing, timeout: Any, on_progress: OnProgress | None, wait_for: Any = NOT_GIVEN
    ) -> CallFuture:
        """Make a call, and give the future that gets its result or error."""
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        if inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        return self.loop_thread(outgoing.method).submit(outgoing, seconds, on_progress, wait_for)

    def named(self, method: str, params: Any, timeout: Any, wait_for: Any) -> tuple[Any, Any]:
        """The params of a call, all by name if some are, and the seconds that are left for it.

        As `ServerMethods.named`, and waits.
        """
        if not isinstance(params, MixedParams):
            return params, timeout
        seconds = self._timeout if timeout is NOT_GIVEN else timeout
        deadline = INFINITE if seconds is None else monotonic() + seconds
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        until = None if wait_for is None else monotonic() + wait_for
        known = self._known
        try:
            if known is None or method not in known or self._lost != self._count_lost():
                known = self._find((method,), deadline, until)
            return named(method, params, known), _left(deadline)
        except RpcError as error:
            raise refused(method, params, error) from None
        except (TypeError, ConnectFailed, ConnectionLost, CallTimeout) as error:
            if not isinstance(error, TypeError):
                error.method = method
            raise at_caller(error) from error.__cause__

    def close(self) -> None:
        """Close all connections; calls that wait fail."""
        self.pool.close()
        with self._lock:
            loop_thread = self._loop_thread
        if loop_thread is not None:
            loop_thread.close()

    # -- the loop thread --------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state of the client, as in `Client.state`."""
        if self.pool.is_closed:
            return "closed"
        if self.pool.has_open:
            return "connected"
        return "idle" if self._loop_thread is None else self._loop_thread.state

    @property
    def registered_name(self) -> str | None:
        """As `AsyncClient.registered_name`."""
        return self._settings.name if self._loop_thread is None else self._loop_thread.registered_name

    @property
    def dropped(self) -> int:
        """Replies on the present connections that no call waited for."""
        return self.pool.dropped + (self._loop_thread.dropped if self._loop_thread is not None else 0)

    def move_to_loop(self) -> None:
        """Make all calls by the loop thread from now on; those that wait already end on their own connections."""
        self.uses_loop = True
        self.pool.retire()

    def add_callback(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        """Let the server call a function."""
        check_lasting(self._settings.address, "offering a method to the server")
        with self._lock:
            if self._callbacks is None:
                self._callbacks = self._make_callbacks()
        self._callbacks.add(function, **options)
        self._callback_functions.append((function, options))
        self.move_to_loop()

    def add_greeting(self, hello: Hello) -> None:
        """Run a function on each new connection."""
        check_one_server(self._settings.address, "on_connect")
        with self._lock:
            self._greetings.append(hello)
            if self._loop_thread is not None:
                self._loop_thread.greet(hello)
        self.move_to_loop()

    def lasting_loop_thread(self, feature: str, method: str) -> LoopThread:
        """Give the loop thread, for a feature that needs a lasting connection; all calls go there from now on.

        Args:
            feature: names it in the RuntimeError that is raised where the address has no such connection.
            method: names the call, where the client is closed.
        """
        check_lasting(self._settings.address, feature)
        self.move_to_loop()
        return self.loop_thread(method)

    def loop_thread(self, method: str) -> LoopThread:
        """Give the loop thread, which is started with the first call that needs it.

        Raises:
            RuntimeError: the client is closed.
        """
        loop_thread = self._loop_thread
        if loop_thread is None or loop_thread.is_over:
            with self._lock:
                if self.pool.is_closed:
                    address = self._marshaller.address
                    raise RuntimeError(f"{method!r} was called on a closed client (of {address})")
                loop_thread = self._loop_thread
                if loop_thread is None or loop_thread.is_over:
                    loop_thread = self._loop_thread = self._start_loop_thread(loop_thread)
        return loop_thread

    def _start_loop_thread(self, before: LoopThread | None) -> LoopThread:
        from .loop_thread import LoopThread

        if self._callbacks is None or before is not None:
            self._callbacks = self._make_callbacks()
            for function, options in self._callback_functions:
                self._callbacks.add(function, **options)
        settings = self._settings
        if before is not None and before.is_of_parent:
            settings = replace(settings, name=None)  # it is taken by the process that this one was forked from
        return LoopThread(settings, self._callbacks, self._greetings, self._marshaller)

    def _make_callbacks(self) -> Callbacks:
        from .callbacks import Callbacks

        return Callbacks(self._settings, in_threads=True)

    def _needs_streams(self, outgoing: Outgoing) -> bool:
        """Whether a call could not be encoded for an iterator among its arguments; if so, move to the loop thread."""
        from ..peer.uploads import holds_streams

        if not holds_streams(outgoing.params):
            return False
        self.move_to_loop()
        return True

    # -- trying again -----------------------------------------------------------------------------------------------

    def _check_repeatable(self, outgoing: Outgoing, error: Exception, deadline: float, until: float | None) -> None:
        """Raises ConnectionLost or ProviderGone unless the call may be repeated, by the client's `retry`.

        A method that the server does not have is waited for `until` then (monotonic, s); None: not at all.
        """
        if self._settings.retry == "all" or outgoing.method == "rpc.discover":
            return
        known = self._known
        if not is_known(outgoing.methods, known, error, waits=until is not None):
            try:
                known = self._find(outgoing.methods, deadline, until)
            except (RpcError, OSError):  # with the errors of connections and time-outs
                known = None
        check_idempotent(outgoing, known, error)

    def _find(self, methods: Iterable[str], deadline: float, until: float | None) -> Known:
        """Ask the server for its methods until it answers and has these, or that is waited for no longer."""
        waits = 0
        while True:
            failure: Exception | None = None
            try:
                discover = Call(self._marshaller, "rpc.discover", None, NOT_GIVEN, NOT_GIVEN)
                known = facts_of(self.perform(discover, _left(deadline), wait_for=None))
                self._known, self._lost = known, self._count_lost()
            except ConnectFailed as error:
                failure = error
            if until is not None and (is_missing(methods, known) if failure is None else is_awaited(failure)):
                waits, now = waits + 1, monotonic()
                if (pause := pause_of_wait(waits, until - now, deadline - now)) is not None:
                    sleep(pause)
                    continue
            if failure is not None:
                raise failure
            return known

    def _count_lost(self) -> int:
        """Return how many connections have been lost so far (see `ServerMethods`)."""
        return self.pool.lost + (0 if self._loop_thread is None else self._loop_thread.lost)


def _left(deadline: float) -> float | None:
    return None if deadline == INFINITE else deadline - monotonic()
