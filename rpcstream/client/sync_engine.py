"""How a sync client makes its calls: by a blocking connection, or by an AsyncClient in a thread.

A plain call takes a blocking connection out of the pool, with no thread but the caller's, and puts it back. A future, a
stream, a subscription and an iterator as an argument go by the loop thread. Once the server may call the client, or
connections are greeted, registered or kept, all calls of the client go there.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any

from ..errors import AT_CALLER, CALL_ERRORS, AtCaller, EncodeError
from ..peer.calls import Call
from ..peer.deadline import INFINITE, inherited, now, time_left
from ..peer.marshal import NOT_GIVEN, Marshaller
from .address import check_lasting, check_one_server
from .attempts import LOSSES, Attempts, Discover, Sleep, Steps, Times
from .naming import MixedParams
from .options import Settings
from .sync_pool import SyncPool

if TYPE_CHECKING:  # these import asyncio or threads, which plain calls do without
    from ..peer.pending import OnProgress
    from .callbacks import Callbacks
    from .portal import CallFuture, Hello, LoopThread


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
        self._attempts = Attempts(settings, lambda: pool.is_closed, self._count_lost)
        #: Held while the loop thread is started, or what it begins with is changed.
        self._lock = allocate_lock()
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
                steps = self._attempts.again(error, outgoing, times)
                return self._drive(steps, partial(self._attempt, outgoing, on_progress, times[0]))
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
            return self._drive(self._attempts.named(method, params, deadline, until)), _left(deadline)

    def _times(self, seconds: Any, wait_for: Any, outgoing: Call | None = None) -> Times:
        """The times of a call that begins now."""
        seconds = self._timeout if seconds is NOT_GIVEN else seconds
        if outgoing is not None and inherited() != INFINITE:
            seconds, outgoing.tells_time = time_left(seconds), True
        wait_for = self._wait_for if wait_for is NOT_GIVEN else wait_for
        start = now()
        deadline = INFINITE if seconds is None else start + seconds
        return deadline, wait_for, None if wait_for is None else start + wait_for

    def _drive(self, steps: Steps, attempt: Callable[[float | None], Any] | None = None) -> Any:
        """Carry out commands, the call among them, and give the result (`attempts`)."""
        outcome: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            outcome = error = None
            try:
                if isinstance(step, Sleep):
                    sleep(step.seconds)
                elif isinstance(step, Discover):
                    question = Call(self._marshaller, "rpc.discover")
                    outcome = self.perform(question, _left(step.deadline), wait_for=None)
                else:
                    assert attempt is not None
                    outcome = attempt(step.until)
            except Exception as failure:
                error = failure

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
                self._callbacks = self._make_callbacks()
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
            self._callbacks = self._make_callbacks()
            for function, options in self._callback_functions:
                self._callbacks.add(function, **options)
        settings = self._settings
        if before is not None and before.portal.is_of_parent:
            settings = replace(settings, name=None)  # it is taken by the process that this one was forked from
        return LoopThread(settings, self._callbacks, self._greetings, self._marshaller)

    def _make_callbacks(self) -> Callbacks:
        from .callbacks import Callbacks

        return Callbacks(self._settings, in_threads=True)

    def _needs_streams(self, outgoing: Call) -> bool:
        """Whether a call could not be encoded for an iterator among its arguments; if so, move to the loop thread."""
        from ..peer.outgoing import holds_streams

        if not holds_streams(outgoing.params):
            return False
        self.pool.retire()
        return True


def _left(deadline: float) -> float | None:
    return None if deadline == INFINITE else deadline - now()
