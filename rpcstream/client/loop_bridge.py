"""How threads wait for what runs in the event loop of a client: coroutines, futures, streams and subscriptions.

Owns what a thread is told when the loop has ended, or runs in another process. Knows neither how the loop is run nor
what is said on its connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from ..errors import CALL_ERRORS, ConnectionLost, at_caller
from ..peer.blocking import BlockingStream, Bridge
from ..peer.deadline import INFINITE, free_context
from ..peer.marshal import Outgoing
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import OnProgress, PendingCall
from ..peer.stream import Stream
from .retry import is_awaited, was_not_begun
from .subscriptions import Subscription
from .sync_pool import CLOSED
from .worker_thread import WorkerThread

T = TypeVar("T")


class LoopClosedError(RuntimeError):
    """The event loop has ended, or runs in another process."""


class LoopBridge(Bridge):
    """A bridge that can be closed: what comes later is refused, and not left waiting for ever.

    Args:
        address: of the server, for errors.

    Attributes:
        is_of_parent: the event loop runs in the process that this one was forked from.
        is_over: nothing can be run any more.
        is_ending: the event loop only cleans up.
        lock: while it is held, the event loop does not end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__(loop)
        self.address = address
        self.is_of_parent = self.is_over = self.is_ending = False
        self.lock = threading.RLock()
        _all.add(self)

    def close(self) -> None:
        """Take nothing more; when this returns, everything that was taken is known to the event loop."""
        with self.lock:
            self.is_over = True

    def stop(self) -> None:
        """Let the event loop end, unless it already does; called in the loop."""
        if not self.is_ending:
            self.loop.stop()

    def check_open(self) -> None:
        """Raise LoopClosedError if the event loop has ended, or runs in another process (`lock` is held)."""
        if self.is_of_parent:
            raise LoopClosedError("this belongs to the process that this one was forked from")
        if self.is_over:
            raise LoopClosedError("the client is closed")

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self.lock:
            self.check_open()
            return super().submit(make)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], method: str) -> T:
        """As `run`, for a call: if the loop ends meanwhile, the connection of the call is lost."""
        try:
            return self.run(make)
        except CancelledError:
            raise self.lost(method) from None
        except CALL_ERRORS as error:
            raise at_caller(error) from error.__cause__

    def lost(self, method: str) -> ConnectionLost:
        """The error of a call that the end of the loop leaves without a reply."""
        return ConnectionLost(CLOSED, method=method, address=self.address)


_all: WeakSet[LoopBridge] = WeakSet()


def _after_fork() -> None:
    for bridge in list(_all):
        bridge.is_of_parent = bridge.is_over = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- futures --------------------------------------------------------------------------------------------------------


class CallFuture(Future[Any]):
    """The future of a call. Its callbacks run in the client's thread for callbacks, in order."""

    def __init__(self, callbacks: WorkerThread) -> None:
        super().__init__()
        self._callbacks = callbacks
        #: Gives the call up; false if its outcome is there.
        self.give_up: Callable[[], bool] | None = None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call the function with this future once there is an outcome, in a thread of the client's."""
        super().add_done_callback(lambda future: self._callbacks.run(partial(fn, future)))

    def cancel(self) -> bool:
        """Give the call up, unless its outcome is there; an answer that still comes is dropped."""
        if not super().cancel():
            return False
        if self.give_up is not None and self.give_up():
            self.set_running_or_notify_cancel()
        return True


class SubmittedCall(PendingCall):
    """A call that has a future: waits for the reply in the event loop.

    It ends once: for the thread that takes the only element out of `_open`, which the interpreter does at once.

    Args:
        keeps: an object that lives until the call has ended.
    """

    __slots__ = (
        "_calls",
        "_keeps",
        "_on_end",
        "_open",
        "_perform",
        "_task",
        "_wait_for",
        "bridge",
        "deadline",
        "future",
        "method",
        "on_progress",
        "outgoing",
    )

    def __init__(
        self,
        bridge: LoopBridge,
        outgoing: Outgoing,
        future: CallFuture,
        deadline: float,
        on_progress: OnProgress | None,
        wait_for: float | None,
        *,
        keeps: object,
    ) -> None:
        self.bridge = bridge
        self.outgoing = outgoing
        self.method = outgoing.method
        self.future = future
        self.deadline = deadline
        self.on_progress = on_progress
        self._wait_for = wait_for
        self._keeps: object = keeps
        self._open = [None]
        self._calls: OutgoingCalls | None = None
        self._task: asyncio.Task[Any] | None = None
        self._perform: Perform | None = None
        self._on_end: Callable[[], object] | None = None
        future.give_up = self._give_up

    def begin(self, begin: Begin, perform: Perform) -> None:
        """Send the call: at once if that is possible, else in a task."""
        if not self._open:
            return
        try:
            self._calls = begin(self.outgoing, self)
        except Exception as error:
            self.fail(error)
            return
        self._perform = perform
        if self._calls is None:
            self._start()

    def _start(self) -> None:
        """Make the call in a task, which repeats it as often as the options allow."""
        assert self._perform is not None
        perform, self._perform = self._perform, None
        loop = self.bridge.loop
        seconds = None if self.deadline == INFINITE else self.deadline - loop.time()
        self._calls, self._task = (
            None,
            loop.create_task(perform(self.outgoing, seconds, self.on_progress, self._wait_for)),
        )
        self._task.add_done_callback(self._take_outcome)

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        try:
            value = self.outgoing.outcome(reply, line)
        except Exception as error:
            self.fail(error)
            return
        if self._is_first() and self.future.set_running_or_notify_cancel():
            self.future.set_result(value)
        self._clean_up()

    def fail(self, error: BaseException) -> None:
        may_repeat = self._perform is not None and self._open and self.outgoing.is_repeatable
        if may_repeat and (was_not_begun(error) or (self._wait_for is not None and is_awaited(error))):
            self._start()
            return
        if self._is_first() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(at_caller(error) if isinstance(error, CALL_ERRORS) else error)
        self._clean_up()

    def when_over(self, function: Callable[[], object]) -> None:
        self._on_end = function

    def _take_outcome(self, task: asyncio.Task[Any]) -> None:
        error = self.bridge.lost(self.method) if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)
        elif self._is_first() and self.future.set_running_or_notify_cancel():
            self.future.set_result(task.result())
            self._clean_up()

    def _give_up(self) -> bool:
        """Cancel the call, since its future was cancelled, in any thread; false if it has ended."""
        if not self._is_first():
            return False
        try:
            self.bridge.loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop has ended, and everything with it
            pass
        return True

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._calls is not None:
            self._calls.give_up(self.outgoing)
        self._clean_up()

    def _is_first(self) -> bool:
        """Whether the call is ended here, and not by another thread."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return True

    def _clean_up(self) -> None:
        self._keeps = None
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


class SubmitQueue:
    """Calls on their way into the event loop, which is woken once for all that come together.

    Args:
        bridge: into the event loop.
        begin: sends a call at once; gives the calls of the connection it was sent on. None if it has to wait for
            something first, or may have to be repeated: then `perform` makes it.
        perform: makes a call, and gives its result.
    """

    def __init__(self, bridge: LoopBridge, begin: Begin, perform: Perform) -> None:
        self._bridge = bridge
        self._send_at_once, self._perform = begin, perform
        self._calls: deque[SubmittedCall] = deque()
        self._is_woken = False
        #: Which calls begin together is chance: the deadline of a handler that makes one of them is not for all.
        self._context = free_context()

    def put(self, call: SubmittedCall) -> None:
        """Have the call sent soon, in the event loop."""
        bridge = self._bridge
        with bridge.lock:
            bridge.check_open()
            self._calls.append(call)
            if not self._is_woken:
                self._is_woken = True
                bridge.loop.call_soon_threadsafe(self._begin, context=self._context)

    def fail_all(self) -> None:
        """Fail the calls that were not sent before the event loop ended."""
        while self._calls:
            call = self._calls.popleft()
            call.fail(self._bridge.lost(call.method))

    def _begin(self) -> None:
        self._is_woken = False  # what comes from now on wakes the loop again
        for _ in range(len(self._calls)):
            self._calls.popleft().begin(self._send_at_once, self._perform)


#: See `SubmitQueue`.
Begin = Callable[[Outgoing, SubmittedCall], OutgoingCalls | None]
Perform = Callable[[Outgoing, float | None, OnProgress | None, float | None], Coroutine[Any, Any, Any]]


# -- streams ----------------------------------------------------------------------------------------------------------


class ClientStream(BlockingStream):
    """The items of a streaming method: `for item in client.stream.name(…)`. For one thread at a time.

    The call is sent with the first item that is wanted, or by `with`. Leaving the loop early, `close` and the end of
    the `with` block stop the generator at the server.

    Args:
        keeps: an object that lives as long as this one.
    """

    def __init__(self, bridge: LoopBridge, stream: Stream | Subscription, name: str, keeps: object) -> None:
        super().__init__(bridge, lambda: stream)
        self._client_bridge = bridge
        self._name = name
        self._keeps = keeps

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except (LoopClosedError, CancelledError):
            raise self._ended() from None
        except (KeyboardInterrupt, SystemExit):
            self.close()  # its traceback keeps the stream alive, and so the generator at work
            raise

    def __enter__(self) -> ClientStream:
        self._client_bridge.call(self._open, self._name)
        return self

    def close(self) -> None:
        """Stop the generator at the server, unless it has ended. Does not wait for that."""
        if not self._client_bridge.is_over:
            super().close()

    def __repr__(self) -> str:
        return f"<blocking {self._stream or self._make()!r}>"

    def _ended(self) -> Exception:
        """The exception for a reader, once the event loop has ended."""
        return self._client_bridge.lost(self._name)

    async def _open(self) -> None:
        self._stream = self._make()
        await self._stream.__aenter__()


class ClientSubscription(ClientStream):
    """The values that are published to a topic: `for value in client.subscribe("ticks")`. As `Subscription`, and waits.

    The loop ends with `client.close()`, which another thread may call.
    """

    _make: Callable[[], Subscription]

    @property
    def topic(self) -> str:
        """Its name, or the pattern."""
        return self._make().topic

    def with_topics(self) -> ClientSubscription:
        """Give pairs from now on, of the topic that an event was published to and its value: for patterns. `self`."""
        self._make().with_topics()
        return self

    @property
    def dropped(self) -> int:
        """Events that were dropped here, since the reader was too slow."""
        return self._make().dropped

    @property
    def reconnects(self) -> int:
        """How often the subscription was made again: events of the time between are missing."""
        return self._make().reconnects

    def __enter__(self) -> ClientSubscription:
        super().__enter__()
        return self

    def _ended(self) -> Exception:
        return StopIteration()
