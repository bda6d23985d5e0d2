"""How a sync client makes its calls: by a blocking connection, or by an AsyncClient in a thread.

A plain call takes a blocking connection out of the pool, with no thread but the caller's, and puts it back. A future, a
stream, a subscription and an iterator as an argument go by the loop thread. Once the server may call the client, or
connections are greeted, registered or kept, all calls of the client go there.

Another blocking connection is made while all others are in use, up to the option `pool`; then threads wait. A child
process that was forked leaves the connections to its parent and makes its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from threading import TIMEOUT_MAX, Condition, Lock, get_ident
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from ..errors import AT_CALLER, CALL_ERRORS, AtCaller, CallTimeout, ConnectionLost, EncodeError
from ..peer.calls import Call
from ..peer.deadline import INFINITE, inherited, now, time_left
from ..peer.marshal import NOT_GIVEN, Marshaller
from .address import check_lasting, check_one_server
from .attempts import LOSSES, Attempts, MixedParams, Times
from .conversation import Callbacks
from .options import Settings
from .sync_connection import SyncConnection

if TYPE_CHECKING:  # these import asyncio or threads, which plain calls do without
    from ..peer.pending import OnProgress
    from .portal import CallFuture, Hello, LoopThread

#: Connections at most, where the option `pool` does not say: enough for a machine's usual threads.
DEFAULT_SIZE = 8

CLOSED = "the client was closed"

T = TypeVar("T")


class SyncPool:
    """Lends each connection to one thread at a time, for one call.

    The common case, a connection that is free, takes no lock: `list.append` and `list.pop` are atomic.

    Attributes:
        is_closed: the client was closed.
        is_retired: the client goes on with an event loop; nothing is lent any more.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.is_closed = False
        self.is_retired = False
        self.address = marshaller.address
        self._settings = settings
        self._marshaller = marshaller
        self._size = settings.pool or DEFAULT_SIZE
        #: Guards all below but `_free`; notified when a connection is free.
        self._changed = Condition()
        #: Threads that wait for that.
        self._waiting = 0
        #: The connections that are free, the one used last at the end: so one thread uses one connection.
        self._free: list[SyncConnection] = []
        #: All connections, free or lent. Held weakly: one that a thread could not give back, for it was interrupted
        #: just then, is closed by the garbage collector and makes room for another.
        self._connections: WeakSet[SyncConnection] = WeakSet()
        _all.add(self)

    @property
    def lost(self) -> int:
        """How many connections were lost so far; one that a thread could not give back is not counted."""
        with self._changed:
            return sum(connection.losses for connection in self._connections)

    @property
    def dropped(self) -> int:
        """Replies on the present connections that no call waited for."""
        with self._changed:
            return sum(connection.conversation.pending.dropped for connection in self._connections)

    @property
    def has_open(self) -> bool:
        """There is a connection that is not known to be lost."""
        with self._changed:
            return any(connection.conversation.lost is None for connection in self._connections)

    def take(self, method: str, deadline: float) -> SyncConnection | None:
        """Give this thread a connection of its own, until it hands it to `put`; None once the pool has retired.

        Args:
            method: for errors.
            deadline: monotonic seconds; may be infinite.

        Raises:
            CallTimeout: none was free in time.
            ConnectionLost: the client was closed while the thread waited.
            RuntimeError: the client is closed; or the thread runs an `on_progress`, and would wait for itself.
        """
        try:
            return self._free.pop()
        except IndexError:
            return self._wait_for_one(method, deadline)

    def put(self, connection: SyncConnection) -> None:
        """Give a connection back."""
        if connection.conversation.lost is not None:
            connection.close()
        self._free.append(connection)
        if self._waiting or self.is_retired:
            with self._changed:
                if self.is_retired:
                    self._close_free()
                self._changed.notify()

    def retire(self) -> None:
        """Lend nothing any more: each connection is closed as soon as it is free. Calls under way still end there."""
        with self._changed:
            self.is_retired = True
            self._close_free()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections; the calls that wait on them fail."""
        self.is_closed = True
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            connection.abort(CLOSED)
        self.retire()

    def _close_free(self) -> None:
        while self._free:
            try:
                connection = self._free.pop()
            except IndexError:  # another thread has it
                return
            connection.close()
            self._connections.discard(connection)

    def _wait_for_one(self, method: str, deadline: float) -> SyncConnection | None:
        with self._changed:
            if self.is_closed:
                raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
            while not self.is_retired:
                self._waiting += 1  # first, so that a thread that gives one back just now sees it
                try:
                    if self._free:
                        return self._free.pop()
                    if len(self._connections) < self._size:
                        connection = SyncConnection(self._settings, self._marshaller)
                        self._connections.add(connection)
                        return connection
                    self._wait(method, deadline)
                except IndexError:  # another thread took it
                    continue
                except BaseException:
                    self._changed.notify()  # this thread may have been woken, and leaves
                    raise
                finally:
                    self._waiting -= 1
            if self.is_closed:
                raise ConnectionLost(CLOSED, method=method, address=self.address)
            return None

    def _wait(self, method: str, deadline: float) -> None:
        """Wait until a connection is free (the lock is held)."""
        if any(connection.conversation.reporting == get_ident() for connection in self._connections):
            raise RuntimeError(
                f"{method!r} was called in on_progress while all {self._size} connections (pool={self._size}) are in "
                "use: it would wait for the call that reports its progress"
            )
        left = deadline - now()
        if left <= 0:
            reason = f"no connection was free in time: all {self._size} (pool={self._size}) were in use"
            raise CallTimeout(reason, method=method, address=self.address)
        self._changed.wait(min(left, TIMEOUT_MAX))

    def leave_to_parent(self) -> None:
        """Forget all connections, in a process that was just forked from the one that made them."""
        connections = list(self._connections)
        self._changed, self._waiting = Condition(), 0
        self._free, self._connections = [], WeakSet()
        for connection in connections:
            connection.close()


_all: WeakSet[SyncPool] = WeakSet()


def _after_fork() -> None:
    for pool in list(_all):
        pool.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class SyncEngine:
    """Makes the calls of one client.

    Attributes:
        pool: the blocking connections; once it has retired, all calls go by the loop thread.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.pool = pool = SyncPool(settings, marshaller)
        self._settings = settings
        self._timeout = settings.timeout
        self._wait_for = settings.wait_for
        self._marshaller = marshaller
        self._attempts = Attempts(
            settings, lambda: pool.is_closed, self._count_lost, _as_async(sleep), _as_async(self._ask_for_methods)
        )
        #: Held while the loop thread is started, or what it begins with is changed.
        self._lock = Lock()
        self._loop_thread: LoopThread | None = None
        self._callbacks: Callbacks | None = None
        #: The functions that the server may call, with their options: a child process that was forked adds them anew.
        self._callback_functions: list[tuple[Callable[..., Any], dict[str, Any]]] = []
        self._greetings: list[Hello] = []
        # Being registered, and looking after a silent server, go on while no call waits.
        lasts = settings.reconnect is not None or settings.name is not None or settings.keepalive is not None
        if settings.address.kind not in ("tcp", "tls", "unix") or lasts or settings.on_state is not None:
            self.pool.retire()

    # -- calls ------------------------------------------------------------------------------------------------------

    def perform(
        self, outgoing: Call, timeout: Any, on_progress: OnProgress | None = None, wait_for: Any = NOT_GIVEN
    ) -> Any:
        """Make a call and wait for its outcome, trying again as often as that is allowed."""
        times = self._times(timeout, wait_for, outgoing)
        try:
            try:
                return self._attempt(outgoing, on_progress, times[0], times[2])
            except LOSSES as error:
                attempt = _as_async(partial(self._attempt, outgoing, on_progress, times[0]))
                return _finish(self._attempts.again(error, outgoing, times, attempt))
        except CALL_ERRORS as error:
            raise AT_CALLER.strip(error) from error.__cause__

    def _attempt(self, outgoing: Call, on_progress: OnProgress | None, deadline: float, until: float | None) -> Any:
        """Make a call once."""
        connection = self.pool.take(outgoing.method, deadline)
        if connection is not None:
            try:
                got = connection.exchange(outgoing, deadline, on_progress)
            except EncodeError:
                if not self._needs_streams(outgoing):
                    raise
            else:
                return outgoing.outcome(got.reply, got.line)
            finally:
                self.pool.put(connection)
        return self.loop_thread(outgoing.method).attempt(outgoing, on_progress, deadline, until)

    def submit(
        self, outgoing: Call, timeout: Any, on_progress: OnProgress | None, wait_for: Any = NOT_GIVEN
    ) -> CallFuture:
        """Make a call, and give the future that gets its result or error."""
        times = self._times(timeout, wait_for, outgoing)
        return self.loop_thread(outgoing.method).begin(outgoing, on_progress, times)

    def named(self, method: str, params: Any, timeout: Any, wait_for: Any) -> tuple[Any, Any]:
        """The params of a call, all by name if some are, and the seconds that are left for it."""
        if not isinstance(params, MixedParams):
            return params, timeout
        deadline, _, until = self._times(timeout, wait_for)
        with AtCaller(TypeError, *CALL_ERRORS):
            return _finish(self._attempts.named(method, params, deadline, until)), _left(deadline)

    def _times(self, seconds: Any, wait_for: Any, outgoing: Call | None = None) -> Times:
        """The times of a call that begins now."""
        seconds = self._timeout if seconds is NOT_GIVEN else seconds
        if outgoing is not None and inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        start = now()
        deadline = INFINITE if seconds is None else start + seconds
        return deadline, wait_for, None if wait_for is None else start + wait_for

    def _ask_for_methods(self, deadline: float) -> Any:
        """The server's OpenRPC document."""
        return self.perform(Call(self._marshaller, "rpc.discover"), _left(deadline), wait_for=None)

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
        return "idle" if self._loop_thread is None else self._loop_thread.client.state

    @property
    def registered_name(self) -> str | None:
        """As `AsyncClient.registered_name`."""
        return self._settings.name if self._loop_thread is None else self._loop_thread.client.registered_name

    @property
    def dropped(self) -> int:
        """Replies on the present connections that no call waited for."""
        return self.pool.dropped + (0 if self._loop_thread is None else self._loop_thread.client.replies_dropped)

    def _count_lost(self) -> int:
        """Return how many connections have been lost so far."""
        return self.pool.lost + (0 if self._loop_thread is None else self._loop_thread.client._pool.lost)

    def add_callback(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        """Let the server call a function."""
        check_lasting(self._settings.address, "offering a method to the server")
        with self._lock:
            if self._callbacks is None:
                self._callbacks = Callbacks(self._settings, in_threads=True)
        self._callbacks.add(function, **options)
        self._callback_functions.append((function, options))
        self.pool.retire()

    def add_greeting(self, hello: Hello) -> None:
        """Run a function on each new connection."""
        check_one_server(self._settings.address, "on_connect")
        with self._lock:
            self._greetings.append(hello)
            if self._loop_thread is not None:
                self._loop_thread.greet(hello)
        self.pool.retire()

    def lasting_thread(self, feature: str, method: str) -> LoopThread:
        """Give the loop thread, for a feature that needs a lasting connection; all calls go there from now on.

        Args:
            feature: named in the RuntimeError that is raised if the address has no such connection.
            method: named in the RuntimeError that is raised if the client is closed.
        """
        check_lasting(self._settings.address, feature)
        self.pool.retire()
        return self.loop_thread(method)

    def loop_thread(self, method: str) -> LoopThread:
        """Give the loop thread, which is started with the first call that needs it.

        Raises:
            RuntimeError: the client is closed.
        """
        loop_thread = self._loop_thread
        if loop_thread is None or loop_thread.portal.is_over:
            with self._lock:
                if self.pool.is_closed:
                    address = self._marshaller.address
                    raise RuntimeError(f"{method!r} was called on a closed client (of {address})")
                loop_thread = self._loop_thread
                if loop_thread is None or loop_thread.portal.is_over:
                    loop_thread = self._loop_thread = self._start_loop_thread(loop_thread)
        return loop_thread

    def _start_loop_thread(self, before: LoopThread | None) -> LoopThread:
        from .portal import LoopThread

        if self._callbacks is None or before is not None:
            self._callbacks = Callbacks(self._settings, in_threads=True)
            for function, options in self._callback_functions:
                self._callbacks.add(function, **options)
        settings = self._settings
        if before is not None and before.portal.is_of_parent:
            settings = replace(settings, name=None)  # it is taken by the process that this one was forked from
        return LoopThread(settings, self._callbacks, self._greetings, self._marshaller)

    def _needs_streams(self, outgoing: Call) -> bool:
        """Whether a call could not be encoded for an iterator among its arguments; if so, move to the loop thread."""
        from ..peer.outgoing import holds_streams

        if not holds_streams(outgoing.params):
            return False
        self.pool.retire()
        return True


def _as_async(function: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """A blocking function for `Attempts`, which awaits what it calls."""

    async def call(*args: Any) -> T:
        return function(*args)

    return call


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, since all it awaits are blocking functions; gives its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a coroutine of the sync client was suspended")


def _left(deadline: float) -> float | None:
    return None if deadline == INFINITE else deadline - now()
