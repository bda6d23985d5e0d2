"""Calls as `concurrent.futures.Future`: what the sync client needs threads for, imported with the first `submit`.

Owns those threads, all daemons that end when they are idle: one a connection that reads while its futures wait and
nobody else does, one a client for the callbacks of futures, one a client for their time-outs. User code runs in the
second only, so a callback may call, submit and wait on the same client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectionLost
from ..peer.deadline import INFINITE
from ..peer.marshal import Outgoing, overdue
from ..text import get_logger
from .sync_connection import SyncConnection
from .sync_pool import generation

if TYPE_CHECKING:
    from ..peer.outgoing import OnProgress

_log = get_logger("rpcstream.client")

#: A thread that had nothing to do for so long (s) ends.
IDLE = 5.0


class Worker:
    """A thread that runs functions one after the other; there only while it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._functions: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_running = False

    def run(self, function: Callable[[], object]) -> None:
        """Run it soon; functions run in the order in which they came."""
        with self._lock:
            self._functions.put(function)
            if not self._is_running:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._is_running = True

    def stop(self) -> None:
        """Most likely nothing more is to be run: the thread ends behind what waits."""
        with self._lock:
            if self._is_running:
                self._functions.put(None)

    def _work(self) -> None:
        while True:
            try:
                function = self._functions.get(timeout=IDLE)
            except Empty:
                function = None
            if function is None:
                with self._lock:
                    if self._functions.empty():
                        self._is_running = False
                        return
                continue
            try:
                function()
            except BaseException:
                _log.exception("an error in the thread %s", self._name)
            function = None  # what it refers to must not live until the next one


class Alarm:
    """A thread that calls `expire` when the earliest of the deadlines it was told of has passed.

    `expire` gets the time (s, monotonic) and returns the next deadline (s, monotonic; infinite if there is none).
    """

    def __init__(self, expire: Callable[[float], float]) -> None:
        self._expire = expire
        self._next = INFINITE
        self._changed = threading.Condition()
        self._is_running = self._has_stopped = False

    def set(self, deadline: float) -> None:
        """There is something with this deadline, and `expire` knows of it."""
        if deadline < self._next:
            with self._changed:
                self._next = min(deadline, self._next)
                if self._is_running:
                    self._changed.notify()
                elif self._next < INFINITE:
                    threading.Thread(target=self._watch, name="rpcstream-deadlines", daemon=True).start()
                    self._is_running = True

    def stop(self) -> None:
        """There is nothing more to watch."""
        with self._changed:
            self._next = INFINITE
            self._has_stopped = True
            self._changed.notify()

    def _watch(self) -> None:
        while self._sleep():
            self.set(self._expire(monotonic()))

    def _sleep(self) -> bool:
        """Until the next deadline; false if there has been none for a while."""
        with self._changed:
            while (left := self._next - monotonic()) > 0:
                is_over = self._has_stopped and self._next == INFINITE
                if is_over or (not self._changed.wait(min(left, IDLE)) and self._next == INFINITE):
                    self._is_running = False
                    return False
            self._next = INFINITE
            return True


class CallFuture(Future[Any]):
    """The future of a call. Its callbacks run in the client's thread for callbacks, in order."""

    def __init__(self, callbacks: Worker) -> None:
        super().__init__()
        self._callbacks = callbacks
        #: Takes the call out of the table; false if its answer has come.
        self.forget: Callable[[], bool] | None = None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.run(partial(fn, future)))

    def cancel(self) -> bool:
        """Give the call up, unless its answer is there; an answer that still comes is dropped."""
        if not super().cancel():
            return False
        if self.forget is not None and self.forget():
            self.set_running_or_notify_cancel()
        return True

    def reject(self, error: Exception) -> None:
        """The call came to nothing."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)


class Futures:
    """The futures of one client; made with its first `submit`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks = Worker("rpcstream-callbacks")
        self._alarm = Alarm(self._expire)
        self._on: dict[SyncConnection, _OnConnection] = {}
        self._generation = generation()

    @property
    def is_of_parent(self) -> bool:
        """This process was forked from the one that the threads are in."""
        return self._generation != generation()

    def make(self) -> CallFuture:
        """A future that is not done."""
        return CallFuture(self._callbacks)

    def submit(
        self,
        connection: SyncConnection,
        outgoing: Outgoing,
        future: CallFuture,
        deadline: float,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Send a call whose answer, or whose loss, the future gets.

        Raises:
            Unsent: the connection was over before.
            EncodeError, MessageTooLarge: nothing was sent.
        """
        on = self._on.get(connection)
        if on is None:
            with self._lock:
                for other in [other for other in self._on if other.lost is not None]:
                    del self._on[other]
                on = self._on.setdefault(connection, _OnConnection(connection))
                on.offer_to_read()
        on.submit(_FutureCall(on, outgoing, future, deadline, on_progress))
        self._alarm.set(deadline)

    def stop(self) -> None:
        """The client is closed: its threads end, each with what it does now."""
        if not self.is_of_parent:
            self._alarm.stop()
            with self._lock:
                places = list(self._on.values())
            for place in places:
                place.stop()
            self._callbacks.stop()

    def _expire(self, now: float) -> float:
        with self._lock:
            places = list(self._on.values())
        return min((on.expire(now) for on in places), default=INFINITE)


class _FutureCall:
    """Waits for the answer to a call that has a future."""

    __slots__ = ("_on", "deadline", "future", "method", "on_progress", "outgoing")

    def __init__(
        self,
        on: _OnConnection,
        outgoing: Outgoing,
        future: CallFuture,
        deadline: float,
        on_progress: OnProgress | None,
    ) -> None:
        self.method = outgoing.method
        self.outgoing = outgoing
        self.future = future
        self.deadline = deadline
        self.on_progress = on_progress
        self._on = on

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self._on.finish(self, partial(self._resolve, reply, line))

    def fail(self, error: Exception) -> None:
        self._on.finish(self, partial(self.future.reject, error))

    def _resolve(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if not self.future.set_running_or_notify_cancel():
            self._on.connection.pending.dropped += 1
            return
        try:
            value = self.outgoing.outcome(reply, line)
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


class _OnConnection:
    """The futures that wait on one connection, and the thread that reads for them.

    A call is taken out of `_waiting` exactly once, while the connection's lock is held: by whoever then resolves it.
    """

    def __init__(self, connection: SyncConnection) -> None:
        self.connection = connection
        self._waiting: dict[_FutureCall, None] = {}
        self._reader = Worker("rpcstream-reader")

    def offer_to_read(self) -> None:
        with self.connection.state:
            self.connection.role.background = self._take_role

    def stop(self) -> None:
        """The connection was closed, and nobody reads it any more."""
        self._reader.stop()

    def submit(self, call: _FutureCall) -> None:
        connection = self.connection
        with connection.state:
            connection.enter_held(call.outgoing, call)
            self._waiting[call] = None
        call.future.forget = partial(self._cancel, call)
        try:
            message = call.outgoing.encode(call.deadline - monotonic())
        except BaseException:
            self._take_out(call, was_sent=False)
            raise
        try:
            connection.send(message, call.deadline, call.method)
        except (ConnectionLost, CallTimeout) as error:
            if self._take_out(call, was_sent=False):
                call.future.reject(error)
            return
        except BaseException:
            self._cancel(call)
            raise
        with connection.state:
            connection.role.call_background()

    def finish(self, call: _FutureCall, resolve: Callable[[], None]) -> None:
        """The call is over (the lock is held): its future learns it when the lock is free."""
        self._waiting.pop(call, None)
        self.connection.afterwards.append(resolve)

    def expire(self, now: float) -> float:
        """Give up the calls whose deadline has passed; returns the next deadline."""
        with self.connection.state:
            late, earliest = overdue(((call, call) for call in self._waiting), now)
            for call, _ in late:
                self._take_out_held(call)
        if late:
            self.connection.say_asides()
        for call, _ in late:
            call.future.reject(CallTimeout("no answer in time", method=call.method, address=self.connection.address))
        return earliest

    def _cancel(self, call: _FutureCall) -> bool:
        was_waiting = self._take_out(call)
        if was_waiting:
            self.connection.say_asides()
        return was_waiting

    def _take_out(self, call: _FutureCall, *, was_sent: bool = True) -> bool:
        """Nobody waits for the answer any more; false if it is there."""
        with self.connection.state:
            if call not in self._waiting:
                return False
            self._take_out_held(call, was_sent)
            return True

    def _take_out_held(self, call: _FutureCall, was_sent: bool = True) -> None:
        del self._waiting[call]
        self.connection.give_up_held(call.outgoing, was_sent)

    def _take_role(self) -> bool:
        """The role's `background` (the lock is held)."""
        if not self._waiting or self.connection.lost is not None:
            return False
        self._reader.run(self._read)
        return True

    def _read(self) -> None:
        self.connection.read_while(lambda: self._waiting)
