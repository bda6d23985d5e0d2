"""How threads use an event loop: the AsyncClient of a sync client, in a thread of its own.

A `Portal` runs coroutines in the loop for threads that wait for them; a `LoopThread` is an AsyncClient behind a portal.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from ..errors import AT_CALLER, ConnectionLost
from ..methods.threads import DaemonThreads
from ..peer.blocking import Bridge
from ..peer.calls import Call
from ..peer.deadline import free_context
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls, holds_streams, is_stream
from ..peer.pending import OnProgress, PendingCall
from ..peer.remote import BlockingPeer, Peer
from ..text import get_logger
from .aio import AsyncClient
from .attempts import LOSSES, Times
from .conversation import Callbacks
from .options import Settings
from .pool import CLOSED

T = TypeVar("T")

log = get_logger("rpcstream.client")

#: Seconds that a program which ends leaves to a client that was not closed.
EXIT_TIME = 3.0
#: Seconds that handlers which are cancelled have to clean up.
CANCEL_TIME = 1.0

_END: Any = object()

#: Run on each new connection, before anything else is sent on it; a coroutine function, or one that may block.
Hello = Callable[[Any], object]


# -- the way into the event loop --------------------------------------------------------------------------------------


class LoopClosedError(RuntimeError):
    """The event loop has ended, or runs in another process."""


class Portal(Bridge):
    """Runs coroutines in an event loop for threads. Once it is closed, they are refused, and not left waiting.

    Args:
        address: of the server, for errors.

    Attributes:
        is_of_parent: the event loop runs in the process that this one was forked from.
        is_over: nothing can be run any more.
        is_ending: the event loop only cleans up.
        callbacks: runs the functions that wait for futures.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__(loop)
        self.address = address
        self.is_of_parent = self.is_over = self.is_ending = False
        self.callbacks = DaemonThreads(1, "rpcstream-callbacks")
        #: While it is held, the event loop does not end.
        self._lock = threading.RLock()
        #: Calls on their way into the event loop, which is woken once for all that come together.
        self._begun: deque[CallFuture] = deque()
        self._is_woken = False
        #: Which calls begin together is chance: the deadline of a handler that makes one of them is not for all.
        self._context = free_context()
        _portals.add(self)

    def close(self) -> None:
        """Take nothing more; when this returns, everything that was taken is known to the event loop."""
        with self._lock:
            self.is_over = True

    def stop(self) -> None:
        """Let the event loop end, unless it already does; called in the loop."""
        if not self.is_ending:
            self.loop.stop()

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            self._check_open()
            return super().submit(make)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], method: str) -> T:
        """As `run`, for a call: if the loop ends meanwhile, the connection of the call is lost."""
        try:
            with AT_CALLER:
                return self.run(make)
        except CancelledError:
            raise self.lost(method) from None

    def begin(self, call: CallFuture) -> None:
        """Have a call sent soon, in the event loop. Raises LoopClosedError if the client is closed."""
        with self._lock:
            self._check_open()
            self._begun.append(call)
            if not self._is_woken:
                self._is_woken = True
                self.loop.call_soon_threadsafe(self._begin_calls, context=self._context)

    def _begin_calls(self) -> None:
        self._is_woken = False  # what comes from now on wakes the loop again
        for _ in range(len(self._begun)):
            self._begun.popleft().begin()

    def lost(self, method: str) -> ConnectionLost:
        """The error of a call that the end of the loop leaves without a reply."""
        return ConnectionLost(CLOSED, method=method, address=self.address)

    def _check_open(self) -> None:
        if self.is_of_parent:
            raise LoopClosedError("this client belongs to the parent process: create a client after the fork")
        if self.is_over:
            raise LoopClosedError("the client is closed")


class CallFuture(Future[Any], PendingCall):
    """The future of a call. Its callbacks run in the client's thread for callbacks, in order.

    Without a connection, and when it is made again, the call runs in a task; else it only waits for its reply.

    Args:
        thread: makes the call; it lives at least until the call has ended.
        times: of the call.
    """

    def __init__(self, thread: LoopThread, outgoing: Call, on_progress: OnProgress | None, times: Times) -> None:
        super().__init__()
        self.method = outgoing.method
        self.deadline = times[0]
        self.on_progress = on_progress
        self._client = thread.client
        self._portal = thread.portal
        self._thread: LoopThread | None = thread
        self._outgoing = outgoing
        self._times = times
        self._calls: OutgoingCalls | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False

    # -- for users ----------------------------------------------------------------------------------------------------

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call the function with this future once there is an outcome, in a thread of the client's."""
        super().add_done_callback(lambda future: self._portal.callbacks.submit(_logging, fn, future))

    def cancel(self) -> bool:
        """Give the call up, unless its outcome is there; an answer that still comes is dropped."""
        if not super().cancel():
            return False
        try:
            self._portal.loop.call_soon_threadsafe(self._give_up)
        except RuntimeError:  # the loop has ended, and everything with it
            pass
        return True

    # -- in the event loop --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the call."""
        client = self._client
        if self.cancelled() or self._portal.is_over:
            self._end(error=self._portal.lost(self.method))
            return
        connection = client._pool.ready(self._portal.loop)
        if connection is None:
            self._run()
            return
        self._calls = connection.calls
        try:
            self._calls.begin(self._outgoing, self)
        except Exception as error:
            self.fail(error)

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        try:
            value = self._outgoing.outcome(reply, line)
        except Exception as error:
            self.fail(error)
        else:
            self._end(value)

    def fail(self, error: Exception) -> None:
        if isinstance(error, LOSSES) and not self._is_over:
            self._run(error)
        else:
            self._end(error=error)

    def when_over(self, function: Callable[[], object]) -> None:
        loop = self._portal.loop
        super().add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(function))

    def _run(self, error: Exception | None = None) -> None:
        attempt = partial(self._client._attempt, self._outgoing, self.on_progress, self._times[0])
        self._task = self._portal.loop.create_task(self._client._call(self._outgoing, attempt, self._times, error))
        self._task.add_done_callback(self._take_outcome)

    def _take_outcome(self, task: asyncio.Task[Any]) -> None:
        error = self._portal.lost(self.method) if task.cancelled() else task.exception()
        self._end(error=error) if error is not None else self._end(task.result())

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._calls is not None:
            self._calls.give_up(self._outgoing)
        self._end()

    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        if self._is_over:
            return
        self._is_over, self._thread = True, None
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(AT_CALLER.strip(error))


def _logging(function: Callable[..., object], *args: Any) -> None:
    """Call a function of the user's in a thread, and log what it raises."""
    try:
        function(*args)
    except BaseException:
        log.exception("an error in a thread of the client")


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


def _after_fork() -> None:
    for portal in list(_portals):
        portal.is_of_parent = portal.is_over = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- iterators as arguments -------------------------------------------------------------------------------------------


class ThreadedIterator:
    """A plain iterator as an async one: each step runs in a thread, and may block."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._thread = DaemonThreads(1, "rpcstream-upload")

    def __aiter__(self) -> ThreadedIterator:
        return self

    async def __anext__(self) -> Any:
        item = await asyncio.wrap_future(self._thread.submit(next, self._items, _END))
        if item is _END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Close the iterator after its present step, which cannot be interrupted; does not wait for that."""
        if hasattr(self._items, "close"):
            self._thread.submit(_logging, self._items.close)
        self._thread.submit(self._thread.close)


def with_threaded_iterators(params: Any) -> Any:
    """Give the params of a call, plain iterators among them as async ones."""
    if not isinstance(params, dict | list) or not holds_streams(params):
        return params
    if isinstance(params, dict):
        return {name: _threaded(value) for name, value in params.items()}
    return [_threaded(value) for value in params]


def _threaded(value: Any) -> Any:
    return ThreadedIterator(value) if is_stream(value) and not hasattr(type(value), "__aiter__") else value


# -- a client in a thread ---------------------------------------------------------------------------------------------


class LoopThread:
    """An AsyncClient in a thread. It lives until `close`, or until the sync client is dropped.

    Args:
        callbacks: the methods that the server may call; more may be added at any time.
        greetings: run on each new connection, in order.
        marshaller: of the sync client, which makes the calls: it learns of connections that take binary frames.

    Attributes:
        client: the AsyncClient.
        portal: the way to it.
    """

    def __init__(
        self, settings: Settings, callbacks: Callbacks, greetings: list[Hello], marshaller: Marshaller
    ) -> None:
        self.client = client = AsyncClient.__new__(AsyncClient)
        client._set_up(settings, callbacks, marshaller)
        self.portal = Portal(asyncio.new_event_loop(), client.address)
        for hello in greetings:
            self.greet(hello)
        self._thread = threading.Thread(target=_run, args=(client, self.portal), name="rpcstream-loop", daemon=True)
        self._thread.start()
        # The loop knows what users gave it, not this object: when this is dropped, the loop ends.
        self._finalizer = weakref.finalize(self, _end, self.portal, client)
        self._finalizer.atexit = False
        _loop_threads.add(self)

    def begin(self, outgoing: Call, on_progress: OnProgress | None, times: Times) -> CallFuture:
        """Make a call; the future gets its outcome. Raises LoopClosedError if the client is closed."""
        outgoing.params = with_threaded_iterators(outgoing.params)
        future = CallFuture(self, outgoing, on_progress, times)
        self.portal.begin(future)
        return future

    def attempt(self, outgoing: Call, on_progress: OnProgress | None, deadline: float, until: float | None) -> Any:
        """Make a call once, and wait for its outcome."""
        outgoing.params = with_threaded_iterators(outgoing.params)
        return self.portal.call(lambda: self.client._attempt(outgoing, on_progress, deadline, until), outgoing.method)

    def greet(self, hello: Hello) -> None:
        """Run this on each connection that is made from now on; a plain function gets a peer whose calls block."""
        portal = self.portal

        async def greet(peer: Peer) -> None:
            if inspect.iscoroutinefunction(hello):
                await hello(peer)
                return
            thread = DaemonThreads(1, "rpcstream-greeting")
            try:
                await asyncio.wrap_future(thread.submit(hello, BlockingPeer(peer._session, portal)))
            finally:
                thread.close()

        self.client.on_connect(greet)

    def close(self, seconds: float | None = None) -> None:
        """End the connections and the thread; what waits fails with ConnectionLost.

        Args:
            seconds: wait so long for that at most. (The event loop's own thread does not wait.)
        """
        ending = None if self.portal.is_of_parent else self._finalizer.detach()
        if ending is None:
            return
        self.portal.close()
        _end(*ending[2])
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)


def _run(client: AsyncClient, portal: Portal) -> None:
    """Run the event loop until it is stopped. Does not refer to the LoopThread."""
    loop = portal.loop
    try:
        loop.run_forever()
    except BaseException:  # a function of the user's raised SystemExit, and nothing less ends a loop
        log.exception("the event loop of a client failed")
    finally:
        portal.close()
        portal.is_ending = True
        loop.run_until_complete(_finish(client))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        try:
            portal.callbacks.submit(portal.callbacks.close)  # after the callbacks that are due
        except RuntimeError:  # the interpreter is shutting down, and starts no more threads
            portal.callbacks.close()


async def _finish(client: AsyncClient) -> None:
    """Close the client, then cancel what still runs, so that threads that wait for it are woken."""
    await client.close()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=CANCEL_TIME)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it


def _end(portal: Portal, client: AsyncClient) -> None:
    """Let the thread end; does not wait. May be called by the garbage collector, in any thread."""
    if portal.is_of_parent:
        _of_parent.append((portal.loop, client))
        return
    try:
        portal.loop.call_soon_threadsafe(portal.stop)
    except RuntimeError:  # it has ended by itself
        pass


#: Loops of the process that this one was forked from. Closing or collecting them here would disturb them there: what a
#: loop waits for (epoll) is shared.
_of_parent: list[Any] = []

_loop_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _close_all() -> None:
    """Close all loop threads when the program ends; what was sent is given a moment to leave."""
    for loop_thread in list(_loop_threads):
        loop_thread.close(EXIT_TIME)


atexit.register(_close_all)
