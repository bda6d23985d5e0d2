"""An AsyncClient whose event loop runs in a thread of its own, for the calls of a sync client that need one.

Owns that thread, its end, and the futures of calls that go there. What is said on the connections is the AsyncClient's
matter. The thread lives until `close`, or until the sync client is dropped.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from ..peer.deadline import INFINITE, free_context
from ..peer.marshal import Outgoing
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import OnProgress, PendingCall
from ..text import get_logger
from ..wire.buffers import Encoded
from .aio import AsyncClient
from .callbacks import Callbacks
from .loop_bridge import ClientStream, ClientSubscription, LoopBridge, LoopClosed
from .options import Settings
from .sync_pool import generation
from .worker_thread import Hello, WorkerThread, threaded_greeting, with_threaded_iterators

log = get_logger("rpcstream.client")

#: Seconds that a program which ends leaves to a client that was not closed.
EXIT_TIME = 3.0
#: Seconds that handlers which are cancelled have to clean up.
CANCEL_TIME = 1.0


class LoopThread:
    """An AsyncClient in a thread, for any number of threads that wait for it.

    Args:
        callbacks: the methods that the server may call; more may be added at any time.
        greetings: run on each new connection, in order.
    """

    def __init__(self, settings: Settings, callbacks: Callbacks, greetings: list[Hello]) -> None:
        loop = asyncio.new_event_loop()
        self._client = _LoopClient(settings, callbacks)
        self._bridge = LoopBridge(loop, self._client.address)
        self._submitted = _SubmitQueue(self._client, self._bridge)
        self._done_callbacks = WorkerThread("rpcstream-callbacks")
        for hello in greetings:
            self.greet(hello)
        self._thread = threading.Thread(
            target=_run, args=(self._client, self._bridge, self._submitted), name="rpcstream-loop", daemon=True
        )
        self._thread.start()
        # The loop knows what users gave it, not this object: when this is dropped, the loop ends.
        self._finalizer = weakref.finalize(self, _end, loop, self._client, self._bridge.made_in)
        self._finalizer.atexit = False
        _all.add(self)

    @property
    def is_over(self) -> bool:
        """It has ended, or runs in the process that this one was forked from."""
        return self._bridge.is_over

    @property
    def is_of_parent(self) -> bool:
        """It runs in the process that this one was forked from."""
        return self._bridge.is_of_parent

    @property
    def state(self) -> str:
        """As `AsyncClient.state`."""
        return self._client.state

    @property
    def dropped(self) -> int:
        """Replies that no call waited for."""
        return self._client.replies_dropped

    @property
    def registered_name(self) -> str | None:
        """As `AsyncClient.registered_name`."""
        return self._client.registered_name

    def begin(self) -> None:
        """Connect, if the connection is to be kept."""
        self._bridge.run(self._client.__aenter__)

    def greet(self, hello: Hello) -> None:
        """Run this on each connection that is made from now on."""
        self._client.on_connect(threaded_greeting(hello, self._bridge))

    # -- calls ----------------------------------------------------------------------------------------------------

    def perform(self, outgoing: Outgoing, seconds: float | None, on_progress: OnProgress | None) -> Any:
        """Make a call and wait for its outcome; being interrupted cancels it.

        Raises what calls of an AsyncClient raise; RuntimeError in the loop thread, which would wait for itself.
        """
        self._bridge.check_may_wait()
        future = self.submit(outgoing, seconds, on_progress)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, outgoing: Outgoing, seconds: float | None, on_progress: OnProgress | None) -> CallFuture:
        """Make a call whose outcome, of whatever kind, the future gets.

        Raises:
            LoopClosed: the client is closed.
        """
        outgoing.params = with_threaded_iterators(outgoing.params)
        deadline = INFINITE if seconds is None else self._bridge.loop.time() + seconds
        future = CallFuture(self._done_callbacks)
        self._submitted.put(_SubmittedCall(self._bridge, outgoing, future, deadline, on_progress, self))
        return future

    def send(self, message: Encoded, method: str, seconds: float | None) -> None:
        """Send something that has no answer."""
        self._bridge.call(lambda: self._client._send(message, method, seconds), method)

    def stream(
        self, method: str, params: Any, timeout: float | None, returns: Any, on_progress: OnProgress | None
    ) -> ClientStream:
        """The items of a streaming method."""
        stream = self._client._streamed(method, with_threaded_iterators(params), timeout, returns, on_progress)
        return ClientStream(self._bridge, stream, method, self)

    def subscribe(self, topic: str, options: dict[str, Any]) -> ClientSubscription:
        """The values that are published to a topic."""
        return ClientSubscription(self._bridge, self._client.subscribe(topic, **options), topic, self)

    def offer(self, *, shared: bool) -> list[str]:
        """As `AsyncClient.offer`, and waits."""
        return self._bridge.call(lambda: self._client.offer(shared=shared), "rpc.register")

    def withdraw(self, names: tuple[str, ...]) -> list[str]:
        """As `AsyncClient.withdraw`, and waits."""
        return self._bridge.call(lambda: self._client.withdraw(*names), "rpc.unregister")

    def wait_closed(self) -> None:
        """As `AsyncClient.wait_closed`, and waits; being interrupted leaves the client as it is."""
        try:
            self._bridge.run(self._client.wait_closed)
        except (LoopClosed, CancelledError):
            pass  # it is closed

    def close(self, seconds: float | None = None) -> None:
        """End the connections and the thread; what waits fails with ConnectionLost.

        Args:
            seconds: wait so long for that at most. (The event loop's own thread does not wait.)
        """
        ending = None if self._bridge.is_of_parent else self._finalizer.detach()
        if ending is None:
            return
        self._bridge.close()
        _end(*ending[2])
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        self._done_callbacks.stop()


class _LoopClient(AsyncClient):
    """An AsyncClient with the settings and the callbacks of a sync client."""

    def __init__(self, settings: Settings, callbacks: Callbacks) -> None:
        self._set_up(settings, callbacks)

    def begin(self, outgoing: Outgoing, waiter: _SubmittedCall) -> OutgoingCalls | None:
        """Send a call at once; gives the calls of the connection that it was sent on.

        None if it must wait for something first, or may have to be made again.

        Raises what `OutgoingCalls.begin` raises.
        """
        if self._settings.retries or self._is_http:
            return None
        connection = self._pool.ready(waiter.bridge.loop)
        if connection is None:
            return None
        connection.calls.begin(outgoing, waiter)
        return connection.calls


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


class _SubmittedCall(PendingCall):
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
        "_task",
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
        keeps: object,
    ) -> None:
        self.bridge = bridge
        self.outgoing = outgoing
        self.method = outgoing.method
        self.future = future
        self.deadline = deadline
        self.on_progress = on_progress
        self._keeps: object = keeps
        self._open = [None]
        self._calls: OutgoingCalls | None = None
        self._task: asyncio.Task[Any] | None = None
        self._on_end: Callable[[], object] | None = None
        future.give_up = self._give_up

    def begin(self, client: _LoopClient) -> None:
        """Send the call, at once if that is possible, else in a task."""
        if not self._open:
            return
        try:
            self._calls = client.begin(self.outgoing, self)
        except Exception as error:
            self.fail(error)
            return
        if self._calls is None:
            loop = self.bridge.loop
            seconds = None if self.deadline == INFINITE else self.deadline - loop.time()
            self._task = loop.create_task(client._perform(self.outgoing, seconds, self.on_progress))
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
        if self._is_first() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
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
        """The future was cancelled, by any thread."""
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
        """Take the right to end the call."""
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


class _SubmitQueue:
    """Calls on their way into the event loop, which is woken once for all that come together."""

    def __init__(self, client: _LoopClient, bridge: LoopBridge) -> None:
        self._client = client
        self._bridge = bridge
        self._calls: deque[_SubmittedCall] = deque()
        self._is_woken = False
        #: Which calls begin together is chance: the deadline of a handler that makes one of them is not for all.
        self._context = free_context()

    def put(self, call: _SubmittedCall) -> None:
        """Begin the call soon, in the event loop."""
        bridge = self._bridge
        with bridge.lock:
            bridge.check_open()
            self._calls.append(call)
            if not self._is_woken:
                self._is_woken = True
                bridge.loop.call_soon_threadsafe(self._begin, context=self._context)

    def fail_all(self) -> None:
        """The event loop has ended: what was not begun never will be."""
        while self._calls:
            call = self._calls.popleft()
            call.fail(self._bridge.lost(call.method))

    def _begin(self) -> None:
        self._is_woken = False  # what comes from now on wakes the loop again
        for _ in range(len(self._calls)):
            self._calls.popleft().begin(self._client)


# -- the thread -----------------------------------------------------------------------------------------------------


def _run(client: _LoopClient, bridge: LoopBridge, submitted: _SubmitQueue) -> None:
    """Run the event loop until it is stopped. Does not refer to the LoopThread."""
    loop = bridge.loop
    try:
        loop.run_forever()
    except BaseException:  # a function of the user's raised SystemExit, and nothing less ends a loop
        log.exception("the event loop of a client broke off")
    finally:
        bridge.close()
        submitted.fail_all()
        loop.run_until_complete(_finish(client))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _finish(client: AsyncClient) -> None:
    """Close the client, then cancel what still runs; threads that wait for it learn it so."""
    await client.close()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=CANCEL_TIME)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it


def _end(loop: asyncio.AbstractEventLoop, client: AsyncClient, made_in: int) -> None:
    """Let the thread end; does not wait. May be called by the garbage collector, in any thread."""
    if made_in != generation():
        _of_parent.append((loop, client))
        return
    try:
        loop.call_soon_threadsafe(loop.stop)
    except RuntimeError:  # it has ended by itself
        pass


#: Loops of the process that this one was forked from. Closing or collecting them here would disturb them there: what a
#: loop waits for (epoll) is shared.
_of_parent: list[Any] = []

_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _close_all() -> None:
    """The program ends: what was sent is given a moment to leave."""
    for loop_thread in list(_all):
        loop_thread.close(EXIT_TIME)


atexit.register(_close_all)
